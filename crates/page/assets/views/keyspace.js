// The keys of a database, found by SCAN, and a viewer of one key.

import { field, fill, h, notice, select, table } from "../dom.js";
import { argument, bytes, errorOf, items, number, show, subfields, text, timeLeft } from "../format.js";
import { viewKey } from "./values.js";

const TYPES = ["", "string", "list", "set", "zset", "hash", "stream"];
/** Keys that one click shows at most, and calls of SCAN that look for them. */
const KEYS_PER_PAGE = 50;
const CALLS_PER_PAGE = 20;

/** A key in the address: text as it is, and other bytes in hexadecimal. */
const encode = (key) => (typeof key === "object" ? `x${key.hex}` : `t${encodeURIComponent(key)}`);
const decode = (part) => (part.startsWith("x") ? { hex: part.slice(1) } : decodeURIComponent(part.slice(1)));

async function mount(root, context, [database, key]) {
  if (key !== undefined) {
    return viewKey(root, context, Number(database) || 0, decode(key), () => { location.hash = `#/keyspace/${database}`; });
  }
  const db = h("input", { type: "number", min: 0, value: Number(database) || 0, inputMode: "numeric" });
  const pattern = h("input", { value: "*", spellcheck: false, autocapitalize: "off" });
  const type = select(TYPES.map((name) => [name, name || "any"]));
  const target = h("div");
  const status = h("p", { class: "muted", role: "status" });
  const more = h("button", { type: "button", hidden: true }, "More keys");
  let cursor = "0";
  let rows = [];
  let readsReplica = false;

  const draw = () => {
    fill(target, table(`Keys of database ${db.value}`, [
      { title: "Key", head: true, cell: (row) => h("a", { href: `#/keyspace/${Number(db.value) || 0}/${encode(row.key)}` }, h("bdi", {}, show(row.key))) },
      { title: "Type", cell: (row) => row.type },
      { title: "Expires in", number: true, cell: (row) => row.left },
      { title: "Memory", number: true, cell: (row) => row.memory },
    ], rows, "No key matches."));
  };

  const load = async (isFirst) => {
    if (isFirst) [cursor, rows] = ["0", []];
    const base = Number(db.value) || 0;
    const found = [];
    for (let calls = 0; calls < CALLS_PER_PAGE && found.length < KEYS_PER_PAGE; calls += 1) {
      const filters = type.value ? ["TYPE", type.value] : [];
      const reply = await context.one(["SCAN", cursor, "MATCH", pattern.value || "*", "COUNT", 2 * KEYS_PER_PAGE, ...filters], base);
      if (!context.isShown()) return;
      if (errorOf(reply)) {
        fill(target, notice(errorOf(reply), "error"));
        more.hidden = true;
        return;
      }
      cursor = text(reply[0]);
      found.push(...items(reply[1]));
      if (cursor === "0") break;
    }
    if (context.samples.at(-1)?.info.role === "slave" && !readsReplica) {
      // A replica in a cluster redirects reads otherwise.
      await context.one(["READONLY"]);
      readsReplica = true;
    }
    const replies = await context.run(found.flatMap((name) => {
      const arg = argument(name);
      return [["TYPE", arg], ["PTTL", arg], ["MEMORY", "USAGE", arg]];
    }), base);
    if (!context.isShown()) return;
    found.forEach((name, at) => {
      const [kind, left, memory] = replies.slice(3 * at, 3 * at + 3);
      rows.push({
        key: name,
        type: errorOf(kind) ?? show(kind),
        left: errorOf(left) ? "–" : timeLeft(number(left)),
        memory: errorOf(memory) || memory === null ? "–" : bytes(number(memory)),
      });
    });
    draw();
    more.hidden = cursor === "0";
    fill(status, `${rows.length} keys shown${cursor === "0" ? ", that is all" : ", there may be more"}.`);
  };

  const form = h("form", { class: "controls", role: "search" }, field("Database", db), field("Pattern", pattern), field("Type", type),
    h("button", { class: "primary" }, "Search"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    context.attempt(() => load(true));
  });
  more.addEventListener("click", () => context.attempt(() => load(false)));
  const sizes = Object.entries(context.samples.at(-1)?.info ?? {}).filter(([name]) => /^db\d+$/.test(name))
    .map(([name, value]) => `${name.slice(2)} (${subfields(value).keys} keys)`);
  fill(root, form, sizes.length === 0 ? null : h("p", { class: "muted" }, `Databases with keys: ${sizes.join(", ")}.`), target, h("p", {}, more), status);
  await load(true);
  return {};
}

export default { id: "keyspace", title: "Keyspace", mount };
