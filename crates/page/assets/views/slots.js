// The slots of the cluster as a map: their nodes, and the use of those that this node serves.

import { facts, field, fill, h, notice, section, select, table } from "../dom.js";
import { bytes, count, errorOf, infoFields, items, micros, number, object, text } from "../format.js";

const SLOTS = 16384;
/** Slots in a row of the map. */
const COLUMNS = 128;
/** Slots of one command, so that its reply is not too large. */
const SLOTS_PER_COMMAND = 2048;
const COMMANDS_PER_REQUEST = 2;
const TOP = 20;

const METRICS = [
  ["node", "Node"], ["key-count", "Keys", count], ["cpu-usec", "CPU time", micros],
  ["network-bytes-in", "Bytes in", bytes], ["network-bytes-out", "Bytes out", bytes],
];

/** The nodes by slot, from CLUSTER SHARDS. */
function owners(reply) {
  const found = new Array(SLOTS).fill(null);
  const names = [];
  for (const shard of items(reply).map(object)) {
    const primary = items(shard.nodes).map(object).find((node) => text(node.role) === "master");
    const name = primary ? `${text(primary.ip)}:${text(primary.port ?? primary["tls-port"])}` : "unknown";
    const ranges = items(shard.slots).map(number);
    if (ranges.length > 0) names.push(name);
    for (let at = 0; at + 1 < ranges.length; at += 2) found.fill(names.length - 1, ranges[at], ranges[at + 1] + 1);
  }
  return { found, names };
}

async function loadUse(context) {
  const use = new Map();
  const commands = [];
  for (let first = 0; first < SLOTS; first += SLOTS_PER_COMMAND) {
    commands.push(["CLUSTER", "SLOT-STATS", "SLOTSRANGE", first, first + SLOTS_PER_COMMAND - 1]);
  }
  for (let at = 0; at < commands.length; at += COMMANDS_PER_REQUEST) {
    for (const reply of await context.run(commands.slice(at, at + COMMANDS_PER_REQUEST))) {
      if (errorOf(reply)) return { use, error: errorOf(reply) };
      for (const [slot, values] of items(reply)) {
        use.set(number(slot), Object.fromEntries(Object.entries(object(values)).map(([name, value]) => [name, number(value)])));
      }
    }
  }
  return { use, error: null };
}

function colourOf(element, name) {
  element.style.color = `var(${name})`;
  const value = getComputedStyle(element).color;
  element.style.color = "";
  return value;
}

async function mount(root, context) {
  const metric = select(METRICS.map(([id, title]) => [id, title]));
  const canvas = h("canvas", { width: COLUMNS * 8, height: (SLOTS / COLUMNS) * 8, tabIndex: 0, role: "application",
    "aria-label": "Map of slots. Use the arrow keys to move from slot to slot.", "aria-describedby": "slot-status" });
  const status = h("p", { id: "slot-status", role: "status" }, "Point at a slot, or use the arrow keys.");
  const legend = h("ul", { class: "legend" });
  const summary = h("div");
  const top = h("div");
  let [selected, nodes, use] = [0, { found: [], names: [] }, new Map()];

  const value = (slot) => use.get(slot)?.[metric.value];
  const draw = () => {
    const pen = canvas.getContext("2d");
    const series = [1, 2, 3, 4, 5, 6].map((number1) => colourOf(canvas, `--series-${number1}`));
    const [empty, heat, ring] = ["--line", "--heat", "--text"].map((name) => colourOf(canvas, name));
    const isNode = metric.value === "node";
    const most = Math.max(1, ...[...use.keys()].map((slot) => value(slot) ?? 0));
    for (let slot = 0; slot < SLOTS; slot += 1) {
      const [x, y] = [(slot % COLUMNS) * 8, Math.floor(slot / COLUMNS) * 8];
      pen.globalAlpha = 1;
      pen.fillStyle = empty;
      pen.fillRect(x, y, 7, 7);
      if (isNode ? nodes.found[slot] !== null : value(slot) > 0) {
        // Few slots have most of the use: a root makes the others visible.
        if (!isNode) pen.globalAlpha = 0.15 + 0.85 * Math.sqrt(value(slot) / most);
        pen.fillStyle = isNode ? series[nodes.found[slot] % series.length] : heat;
        pen.fillRect(x, y, 7, 7);
      }
    }
    pen.globalAlpha = 1;
    pen.strokeStyle = ring;
    pen.lineWidth = 3;
    pen.strokeRect((selected % COLUMNS) * 8 - 1, Math.floor(selected / COLUMNS) * 8 - 1, 9, 9);
    fill(legend, isNode ? nodes.names.map((name, at) => h("li", {},
      h("span", { class: "swatch", style: { background: `var(--series-${(at % series.length) + 1})` } }), name))
      : [h("li", {}, `The darkest slot has ${format(most)}; grey slots have none or belong to other nodes.`)]);
    const rows = isNode ? [] : [...use.keys()].filter((slot) => value(slot) > 0).sort((one, other) => value(other) - value(one)).slice(0, TOP);
    fill(top, isNode ? null : table(`The ${TOP} slots of this node with most: ${title()}`, [
      { title: "Slot", head: true, cell: (slot) => String(slot) },
      { title: title(), number: true, cell: (slot) => format(value(slot)) },
    ], rows, "No slot has been used. The directive cluster-slot-stats-enabled counts time and bytes."));
  };
  const title = () => METRICS.find(([id]) => id === metric.value)[1];
  const format = (amount) => (METRICS.find(([id]) => id === metric.value)[2] ?? String)(amount);
  const describe = (slot) => {
    const node = nodes.names[nodes.found[slot]] ?? "no node";
    const parts = METRICS.slice(1).filter(([id]) => use.get(slot)?.[id] !== undefined).map(([id, name, write]) => `${name}: ${write(use.get(slot)[id])}`);
    fill(status, `Slot ${slot}, ${node}${parts.length > 0 ? `. ${parts.join(", ")}` : ""}.`);
  };
  const choose = (slot) => {
    selected = Math.min(SLOTS - 1, Math.max(0, slot));
    draw();
    describe(selected);
  };
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -COLUMNS, ArrowDown: COLUMNS, Home: -SLOTS, End: SLOTS, PageUp: -16 * COLUMNS, PageDown: 16 * COLUMNS };
    if (!(event.key in steps)) return;
    event.preventDefault();
    choose(selected + steps[event.key]);
  });
  canvas.addEventListener("pointerdown", (event) => choose(at(event)));
  canvas.addEventListener("pointermove", (event) => describe(at(event)));
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    return Math.min(SLOTS - 1, Math.max(0, Math.floor(y * (SLOTS / COLUMNS)) * COLUMNS + Math.floor(x * COLUMNS)));
  };

  const load = async () => {
    const [info, shards] = await context.run([["CLUSTER", "INFO"], ["CLUSTER", "SHARDS"]]);
    const error = errorOf(info) ?? errorOf(shards);
    if (error) {
      const isOff = /cluster support disabled/i.test(error);
      fill(root, notice(isOff ? "This server is not in cluster mode, so it has no slots." : error, isOff ? "info" : "error"));
      return false;
    }
    nodes = owners(shards);
    const loaded = await loadUse(context);
    if (!context.isShown()) return false;
    use = loaded.use;
    const fields = infoFields(info);
    fill(summary, facts([
      ["State", fields.cluster_state], ["Assigned slots", fields.cluster_slots_assigned], ["Slots of this node", count(use.size)],
      ["Shards", fields.cluster_size], ["Failing slots", fields.cluster_slots_fail],
    ]), loaded.error ? notice(loaded.error, "error") : null);
    draw();
    return true;
  };
  const repaint = () => draw();
  fill(root, summary,
    section("Map", h("div", { class: "controls" }, field("Colour by", metric),
      h("button", { type: "button", onclick: () => context.attempt(load) }, "Refresh")), legend, h("div", { class: "slots" }, canvas), status, top));
  metric.addEventListener("change", repaint);
  if (!await load()) return {};
  document.addEventListener("themechange", repaint);
  return { unmount: () => document.removeEventListener("themechange", repaint) };
}

export default { id: "slots", title: "Slots", mount };
