// Keys that are used most, and keys that are largest, as far as the server counts them.

import { fill, h, notice, section, table } from "../dom.js";
import { errorOf, isMap, isUnknownCommand, items, pairs, show, text } from "../format.js";

/** Whether a reply is a map, or a flat list of names and values. */
function isRecord(reply) {
  return isMap(reply) || (Array.isArray(reply) && reply.length > 1 && reply.length % 2 === 0
    && reply.every((item, at) => at % 2 === 1 || typeof item === "string") && reply.some((item) => typeof item !== "string"));
}

/** Shows any reply: lists of records as tables, records as names and values. */
export function render(title, reply) {
  if (errorOf(reply)) return notice(errorOf(reply), "error");
  if (isRecord(reply)) {
    const simple = pairs(reply).filter(([, value]) => value === null || typeof value !== "object" || !(Array.isArray(value) || isMap(value) || value.set));
    const nested = pairs(reply).filter((pair) => !simple.includes(pair));
    return h("div", {},
      simple.length === 0 ? null : table(title, [
        { title: "Name", head: true, cell: ([name]) => show(name) }, { title: "Value", cell: ([, value]) => h("bdi", {}, show(value)) },
      ], simple),
      nested.map(([name, value]) => render(`${title}: ${show(name)}`, value)));
  }
  const list = items(reply);
  if (list.length > 0 && list.every(isRecord)) {
    const names = [...new Set(list.flatMap((record) => pairs(record).map(([name]) => text(name))))];
    return table(title, names.map((name, at) => ({
      title: name,
      head: at === 0,
      cell: (record) => h("bdi", {}, show(pairs(record).find(([other]) => text(other) === name)?.[1] ?? "")),
    })), list);
  }
  if (list.length > 0 && list.every((item) => Array.isArray(item))) {
    const width = Math.max(...list.map((item) => item.length));
    return table(title, Array.from({ length: width }, (_, at) => ({
      title: at === 0 ? "Name" : `Value ${at}`, head: at === 0, cell: (row) => h("bdi", {}, show(row[at] ?? "")),
    })), list);
  }
  if (Array.isArray(reply) || reply?.set) {
    return table(title, [{ title: "Value", head: true, cell: (item) => h("bdi", {}, show(item)) }], list);
  }
  return h("p", {}, h("bdi", {}, show(reply)));
}

async function mount(root, context) {
  const { commands } = await context.commandsTable();
  const has = (name) => commands.some((command) => command.name === name);
  const part = (title, name, command) => {
    const target = h("div");
    const load = async () => {
      const reply = await context.one(command());
      if (!context.isShown()) return;
      fill(target, isUnknownCommand(reply) ? missing(name) : render(title, reply));
    };
    const missing = (it) => notice(`This server has no command ${it.toUpperCase()}.`);
    const isKnown = has(name);
    if (!isKnown) fill(target, missing(name));
    return { target, load: isKnown ? load : async () => {}, isKnown };
  };
  const hot = part("Hot keys", "hotkeys get", () => ["HOTKEYS", "GET"]);
  const big = part("Big keys", "memory bigkeys", () => ["MEMORY", "BIGKEYS"]);
  const refresh = (it) => (it.isKnown
    ? h("p", {}, h("button", { type: "button", onclick: () => context.attempt(it.load) }, "Refresh")) : null);
  fill(root, section("Hot keys", refresh(hot), hot.target), section("Big keys", refresh(big), big.target));
  await Promise.all([hot.load(), big.load()]);
  return {};
}

export default { id: "hot", title: "Hot and big keys", mount };
