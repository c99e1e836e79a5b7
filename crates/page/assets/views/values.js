// One key: what is known of it, and its value in pieces.

import { confirm, facts, field, fill, h, notice, section, select, table } from "../dom.js";
import { argument, bytes, count, duration, errorOf, isUnknownCommand, items, number, object, pairs, show, text, time, timeLeft, toBytes } from "../format.js";

/** Elements, or bytes of a string, in one piece. */
const PAGE = 50;
const STRING_PAGE = 4096;
/** Elements that are shown of those that are too large for a reply. */
const PAGE_LEAST = 1;

const element = (value) => h("bdi", { class: "code" }, show(value));

/** Shows pages of something that has positions. `read(start, count)` returns rows, or throws. */
function pager(context, size, page, draw) {
  const target = h("div");
  const status = h("p", { class: "muted", role: "status" });
  const [previous, next] = ["Previous", "Next"].map((name) => h("button", { type: "button" }, name));
  let start = 0;
  const show1 = () => context.attempt(async () => {
    const shown = await draw(start, page, target);
    if (!context.isShown()) return;
    fill(status, size === 0 ? "Empty." : `${count(start)} to ${count(Math.min(size, start + (shown ?? page)) - 1)} of ${count(size)}.`);
    previous.disabled = start === 0;
    next.disabled = start + page >= size;
  });
  previous.addEventListener("click", () => {
    start = Math.max(0, start - page);
    show1();
  });
  next.addEventListener("click", () => {
    start += page;
    show1();
  });
  return { element: h("div", {}, target, h("div", { class: "actions" }, previous, next), status), show: show1 };
}

/** Shows pages of something that is read with a cursor. */
function scanner(context, read, draw) {
  const target = h("div");
  const more = h("button", { type: "button" }, "More");
  let cursor = "0";
  const rows = [];
  const show1 = () => context.attempt(async () => {
    const reply = await read(cursor);
    if (!context.isShown()) return;
    if (errorOf(reply)) {
      fill(target, notice(errorOf(reply), "error"));
      return;
    }
    cursor = text(reply[0]);
    rows.push(...await draw.rows(reply[1]));
    fill(target, table(draw.title(rows.length), draw.columns, rows, "Empty."));
    more.hidden = cursor === "0";
  });
  more.addEventListener("click", show1);
  return { element: h("div", {}, target, h("p", {}, more)), show: show1 };
}

/** Runs a command for a page; if the reply is too large, for a smaller page. */
async function smaller(run, page) {
  for (let size = page; ; size = Math.max(PAGE_LEAST, Math.floor(size / 10))) {
    const reply = await run(size);
    if (!(reply && typeof reply === "object" && "too_large" in reply) || size === PAGE_LEAST) return reply;
  }
}

function hexDump(value, offset) {
  const data = toBytes(value);
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = Array.from(data.slice(at, at + 16));
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${(offset + at).toString(16).padStart(8, "0")}  ${digits}  ${row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")}`);
  }
  return lines.join("\n");
}

async function viewString(root, context, { one, arg, size }) {
  const form = select([["text", "Text"], ["hex", "Hexadecimal"], ["json", "JSON, indented"]]);
  const pages = pager(context, size, STRING_PAGE, async (start, length, target) => {
    const reply = await one(["GETRANGE", arg, start, start + length - 1]);
    if (errorOf(reply)) {
      fill(target, notice(errorOf(reply), "error"));
      return 0;
    }
    let shown = text(reply);
    if (form.value === "hex") shown = hexDump(reply, start);
    if (form.value === "json") {
      try {
        shown = JSON.stringify(JSON.parse(shown), null, 2);
      } catch {
        shown = `This piece is not valid JSON.\n\n${shown}`;
      }
    }
    fill(target, h("pre", { tabIndex: 0, role: "region", "aria-label": "Value" }, shown));
    return toBytes(reply).length;
  });
  form.addEventListener("change", pages.show);
  fill(root, h("div", { class: "controls" }, field("Show as", form)), pages.element);
  await pages.show();
}

async function viewList(root, context, { one, arg, size }) {
  const pages = pager(context, size, PAGE, async (start, length, target) => {
    const reply = await smaller((page) => one(["LRANGE", arg, start, start + page - 1]), length);
    if (errorOf(reply)) {
      fill(target, notice(errorOf(reply), "error"));
      return 0;
    }
    fill(target, table("Elements", [
      { title: "Index", head: true, number: true, cell: (_, at) => String(start + at) },
      { title: "Value", cell: element },
    ], items(reply)));
    return items(reply).length;
  });
  fill(root, pages.element);
  await pages.show();
}

async function viewSet(root, context, { one, arg, size }) {
  const scan = scanner(context, (cursor) => smaller((page) => one(["SSCAN", arg, cursor, "COUNT", page]), PAGE), {
    rows: (reply) => items(reply),
    title: (shown) => `${shown} of ${count(size)} members`,
    columns: [{ title: "Member", head: true, cell: element }],
  });
  fill(root, scan.element);
  await scan.show();
}

async function viewSortedSet(root, context, { one, arg, size }) {
  const order = select([["", "Lowest score first"], ["REV", "Highest score first"]]);
  const pages = pager(context, size, PAGE, async (start, length, target) => {
    const reply = await smaller((page) =>
      one(["ZRANGE", arg, start, start + page - 1, ...(order.value ? [order.value] : []), "WITHSCORES"]), length);
    if (errorOf(reply)) {
      fill(target, notice(errorOf(reply), "error"));
      return 0;
    }
    const rows = pairs(reply);
    fill(target, table("Members by score", [
      { title: "Rank", number: true, cell: (_, at) => String(start + at) },
      { title: "Member", head: true, cell: ([member]) => element(member) },
      { title: "Score", number: true, cell: ([, score]) => text(score) },
    ], rows));
    return rows.length;
  });
  order.addEventListener("change", pages.show);
  fill(root, h("div", { class: "controls" }, field("Order", order)), pages.element);
  await pages.show();
}

async function viewHash(root, context, { one, arg, size }) {
  const scan = scanner(context, (cursor) => smaller((page) => one(["HSCAN", arg, cursor, "COUNT", page]), PAGE), {
    async rows(reply) {
      const fields = pairs(reply);
      if (fields.length === 0) return [];
      const left = await one(["HPTTL", arg, "FIELDS", fields.length, ...fields.map(([name]) => argument(name))]);
      const times = errorOf(left) ? [] : items(left);
      return fields.map(([name, value], at) => ({ name, value, left: times[at] }));
    },
    title: (shown) => `${shown} of ${count(size)} fields`,
    columns: [
      { title: "Field", head: true, cell: (row) => element(row.name) },
      { title: "Value", cell: (row) => element(row.value) },
      { title: "Expires in", number: true, cell: (row) => (row.left === undefined ? "–" : timeLeft(number(row.left))) },
    ],
  });
  fill(root, scan.element);
  await scan.show();
}

/** The time in the ID of a stream's entry. */
const idTime = (id) => time(Number(text(id).split("-")[0]));

const FIELDS_OF_ENTRY = (entry) => pairs(entry).map(([name, value]) => h("div", {}, h("bdi", { class: "code" }, `${show(name)}: `), element(value)));

async function viewGroup(target, context, { one, arg }, name) {
  const [consumers, summary, pending] = await Promise.all([
    one(["XINFO", "CONSUMERS", arg, name]), one(["XPENDING", arg, name]), one(["XPENDING", arg, name, "-", "+", PAGE]),
  ]);
  const failed = [consumers, summary, pending].map(errorOf).find(Boolean);
  if (failed) {
    fill(target, notice(failed, "error"));
    return;
  }
  fill(target, h("h3", {}, "Group ", h("bdi", {}, show(name))),
    table("Consumers", [
      { title: "Consumer", head: true, cell: (row) => element(row.name) },
      { title: "Pending", number: true, cell: (row) => text(row.pending) },
      { title: "Idle", number: true, cell: (row) => duration(number(row.idle) / 1000) },
      { title: "Inactive", number: true, cell: (row) => (number(row.inactive) < 0 ? "–" : duration(number(row.inactive) / 1000)) },
    ], items(consumers).map(object), "The group has no consumers."),
    table(`The first ${Math.min(PAGE, number(summary[0]))} of ${text(summary[0])} pending entries`, [
      { title: "ID", head: true, cell: (row) => text(row[0]) },
      { title: "Consumer", cell: (row) => element(row[1]) },
      { title: "Delivered ago", number: true, cell: (row) => duration(number(row[2]) / 1000) },
      { title: "Deliveries", number: true, cell: (row) => text(row[3]) },
    ], items(pending), "No entry is pending."));
  context.announce(`Group ${show(name)}: ${text(summary[0])} pending entries.`);
}

async function viewStream(root, context, key) {
  const { one, arg, size } = key;
  const entries = h("div");
  const groupsTarget = h("div");
  const groupTarget = h("div");
  const more = h("button", { type: "button" }, "Older entries");
  let last = "+";
  const rows = [];
  const load = () => context.attempt(async () => {
    const reply = await smaller((page) => one(["XREVRANGE", arg, last === "+" ? "+" : `(${last}`, "-", "COUNT", page]), PAGE);
    if (!context.isShown()) return;
    if (errorOf(reply)) {
      fill(entries, notice(errorOf(reply), "error"));
      return;
    }
    rows.push(...items(reply));
    last = rows.length > 0 ? text(rows.at(-1)[0]) : "+";
    more.hidden = items(reply).length === 0 || rows.length >= size;
    fill(entries, table(`${rows.length} of ${count(size)} entries, the latest first`, [
      { title: "ID", head: true, cell: (entry) => text(entry[0]) },
      { title: "Time", cell: (entry) => idTime(entry[0]) },
      { title: "Fields", cell: (entry) => FIELDS_OF_ENTRY(entry[1]) },
    ], rows));
  });
  more.addEventListener("click", load);
  const [info, groups] = await Promise.all([one(["XINFO", "STREAM", arg]), one(["XINFO", "GROUPS", arg])]);
  const about = errorOf(info) ? null : object(info);
  if (errorOf(groups)) fill(groupsTarget, notice(errorOf(groups), "error"));
  else {
    fill(groupsTarget, table("Consumer groups", [
      { title: "Group", head: true, cell: (row) => element(row.name) },
      { title: "Consumers", number: true, cell: (row) => text(row.consumers) },
      { title: "Pending", number: true, cell: (row) => text(row.pending) },
      { title: "Last delivered", cell: (row) => text(row["last-delivered-id"]) },
      { title: "Entries read", number: true, cell: (row) => (row["entries-read"] === null ? "–" : text(row["entries-read"])) },
      { title: "Lag", number: true, cell: (row) => (row.lag === null ? "–" : text(row.lag)) },
      { title: "Details", cell: (row) => h("button", { type: "button", "aria-label": `Show group ${show(row.name)}`,
        onclick: () => context.attempt(() => viewGroup(groupTarget, context, key, argument(row.name))) }, "Show") },
    ], items(groups).map(object), "The stream has no consumer groups."));
  }
  fill(root,
    about === null ? null : facts([
      ["First entry", about["first-entry"] === null ? "–" : text(about["first-entry"]?.[0])],
      ["Last ID", text(about["last-generated-id"])],
      ["Greatest deleted ID", text(about["max-deleted-entry-id"])],
      ["Entries ever added", text(about["entries-added"])],
    ]),
    groupsTarget, groupTarget, entries, h("p", {}, more));
  await load();
}

const VIEWERS = {
  string: ["STRLEN", viewString], list: ["LLEN", viewList], set: ["SCARD", viewSet], zset: ["ZCARD", viewSortedSet],
  hash: ["HLEN", viewHash], stream: ["XLEN", viewStream],
};
const UNIT = { string: bytes };

function actions(context, key, refresh, close) {
  const act = async (command, message) => {
    const reply = await key.one(command);
    if (errorOf(reply)) context.alert(errorOf(reply));
    else context.announce(message);
    return !errorOf(reply);
  };
  const seconds = h("input", { type: "number", min: 1, value: 3600 });
  return section("Change", h("div", { class: "controls" }, field("Expire in seconds", seconds),
    h("button", { type: "button", onclick: () => context.attempt(async () => {
      if (await act(["EXPIRE", key.arg, seconds.value], "The expiry is set.")) refresh();
    }) }, "Set expiry"),
    h("button", { type: "button", onclick: () => context.attempt(async () => {
      if (await act(["PERSIST", key.arg], "The key does not expire.")) refresh();
    }) }, "Remove expiry"),
    h("button", { type: "button", class: "danger", onclick: () => context.attempt(async () => {
      if (!await confirm("Delete key", `Delete the key ${show(key.name)} with its value?`, "Delete")) return;
      if (await act(["UNLINK", key.arg], "The key is deleted.")) close();
    }) }, "Delete")));
}

/** Shows a key. */
export async function viewKey(root, context, database, name, close) {
  const arg = argument(name);
  const key = { name, arg, database, size: 0, one: (command) => context.one(command, database) };
  const refresh = () => viewKey(root, context, database, name, close);
  const [type, left, encoding, memory, idle, frequency] = await context.run([
    ["TYPE", arg], ["PTTL", arg], ["OBJECT", "ENCODING", arg], ["MEMORY", "USAGE", arg], ["OBJECT", "IDLETIME", arg], ["OBJECT", "FREQ", arg],
  ], database);
  if (!context.isShown()) return {};
  const content = h("div");
  const heading = h("h2", {}, "Key ", h("bdi", { class: "code" }, show(name)));
  const back = h("p", {}, h("button", { type: "button", onclick: close }, "Back to the keys"));
  const optional = (reply, format) => (errorOf(reply) || reply === null ? "–" : format(reply));
  if (errorOf(type)) {
    fill(root, back, heading, notice(errorOf(type), "error"));
    return {};
  }
  const kind = text(type);
  const [sizeCommand, view] = VIEWERS[kind] ?? [];
  if (!view) {
    fill(root, back, heading, notice(kind === "none" ? "The key does not exist." : `There is no viewer for ${kind}.`));
    return {};
  }
  const size = await key.one([sizeCommand, arg]);
  if (!context.isShown()) return {};
  if (isUnknownCommand(size) || errorOf(size)) {
    fill(root, back, heading, notice(errorOf(size), "error"));
    return {};
  }
  key.size = number(size);
  fill(root, back, heading, facts([
    ["Database", String(database)], ["Type", kind], ["Size", (UNIT[kind] ?? count)(key.size)],
    ["Encoding", optional(encoding, text)], ["Memory", optional(memory, (reply) => bytes(number(reply)))],
    ["Expires in", optional(left, (reply) => timeLeft(number(reply)))],
    ["Idle", optional(idle, (reply) => duration(number(reply)))], ["Frequency", optional(frequency, text)],
  ]), section("Value", content), context.mayWrite ? actions(context, key, refresh, close) : null);
  await view(content, context, key);
  return {};
}
