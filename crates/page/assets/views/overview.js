// Throughput, latency, memory, hit rate, workers and commands, live.

import { Chart } from "../charts.js";
import { facts, fill, h, notice, section, table } from "../dom.js";
import { bytes, count, duration, errorOf, micros, number, percent, show, subfields, text } from "../format.js";
import { callsByBound, commandRates, hitRate, percentiles, rate, workers } from "../rates.js";

const SHARES = [0.5, 0.99, 0.999];
/** Keys that a sample of the memory by type looks at. */
const KEYS_SAMPLED = 300;
const COMMANDS_SHOWN = 12;

/** The parts of the memory in use, from fields of INFO. */
function memoryParts(info) {
  const value = (name) => Number(info[name] ?? 0);
  const clients = value("mem_clients_normal") + value("mem_clients_slaves");
  const replication = value("mem_total_replication_buffers") || value("mem_replication_backlog");
  const scripts = value("used_memory_vm_total") + value("used_memory_scripts");
  const cluster = value("mem_cluster_links") + value("mem_cluster_slot_import") + value("mem_cluster_slot_export");
  const startup = value("used_memory_startup");
  const data = value("used_memory_dataset");
  const other = Math.max(0, value("used_memory") - data - clients - replication - scripts - cluster - startup);
  return [
    ["Keys and values", data], ["Clients", clients], ["Replication", replication], ["Scripts", scripts],
    ["Cluster", cluster], ["Server at start", startup], ["Other", other],
    ["Allocator and fragmentation", Math.max(0, value("used_memory_rss") - value("used_memory"))],
  ];
}

function bar(share, label) {
  return h("span", { class: "bar", role: "img", "aria-label": label },
    h("span", { style: { width: `${Math.min(100, Math.max(0, 100 * share)).toFixed(1)}%` } }));
}

/** Estimates the memory by type of value from some keys of database 0. */
async function sampleTypes(context, target) {
  fill(target, notice("Sampling keys …"));
  const keys = [];
  let cursor = "0";
  do {
    const reply = await context.one(["SCAN", cursor, "COUNT", KEYS_SAMPLED], 0);
    const error = errorOf(reply);
    if (error) return fill(target, notice(error, "error"));
    cursor = text(reply[0]);
    keys.push(...reply[1]);
  } while (cursor !== "0" && keys.length < KEYS_SAMPLED);
  const sampled = keys.slice(0, KEYS_SAMPLED).map((key) => (typeof key === "object" ? key : String(key)));
  const replies = await context.run(sampled.flatMap((key) => [["TYPE", key], ["MEMORY", "USAGE", key]]), 0);
  const denied = replies.map(errorOf).find(Boolean);
  if (denied) return fill(target, notice(denied, "error"));
  const types = new Map();
  sampled.forEach((_, at) => {
    const type = show(replies[2 * at]);
    const entry = types.get(type) ?? { type, keys: 0, bytes: 0 };
    entry.keys += 1;
    entry.bytes += number(replies[2 * at + 1]) || 0;
    types.set(type, entry);
  });
  const rows = [...types.values()].sort((one, other) => other.bytes - one.bytes);
  const total = rows.reduce((sum, row) => sum + row.bytes, 0);
  context.announce(`Sampled ${sampled.length} keys.`);
  return fill(target, table(`Memory by type of value, estimated from ${sampled.length} keys of database 0`, [
    { title: "Type", head: true, cell: (row) => row.type },
    { title: "Keys", number: true, cell: (row) => count(row.keys) },
    { title: "Mean size", number: true, cell: (row) => bytes(row.bytes / row.keys) },
    { title: "Share", number: true, cell: (row) => percent(row.bytes / total) },
    { title: "Bar", cell: (row) => bar(row.bytes / total, percent(row.bytes / total)) },
  ], rows, "The database has no keys."));
}

function mount(root, context) {
  const tiles = h("div", { class: "tiles" });
  const charts = {
    throughput: new Chart("Commands per second", [["commands", "--series-1"]], count),
    latency: new Chart("Latency of commands", [["p50", "--series-1"], ["p99", "--series-2"], ["p99.9", "--series-3"]], micros),
    memory: new Chart("Memory", [["in use", "--series-1"], ["resident", "--series-2"]], bytes),
    hits: new Chart("Hit rate", [["found", "--series-1"]], percent, { max: 1 }),
    network: new Chart("Network per second", [["in", "--series-1"], ["out", "--series-2"]], bytes),
    busy: new Chart("Busy time of workers", [["mean", "--series-1"], ["busiest", "--series-2"]], percent, { max: 1 }),
  };
  const memory = h("div");
  const types = h("div");
  const workerTable = h("div");
  const commandTable = h("div");
  const databases = h("div");
  fill(root, tiles,
    h("div", { class: "charts" }, Object.values(charts).map((chart) => chart.element)),
    section("Memory", memory,
      h("p", {}, h("button", { type: "button", onclick: () => context.attempt(() => sampleTypes(context, types)) },
        "Estimate memory by type of value")), types),
    section("Workers", workerTable), section("Commands", commandTable), section("Databases", databases));

  const point = (before, after) => {
    const [p50, p99, p999] = percentiles(callsByBound(before.commands, after.commands), SHARES);
    const busy = workers(before, after).map((worker) => Math.min(1, worker.busy));
    // Idle workers beyond the configured number are listed, too.
    const active = busy.filter((share) => share > 0);
    return { time: after.time, p50, p99, p999, hits: hitRate(before, after),
      commands: rate(before, after, "total_commands_processed"),
      input: rate(before, after, "total_net_input_bytes"), output: rate(before, after, "total_net_output_bytes"),
      busiest: Math.max(0, ...busy), mean: active.reduce((sum, share) => sum + share, 0) / Math.max(1, active.length),
      used: Number(after.info.used_memory), resident: Number(after.info.used_memory_rss) };
  };
  const draw = (points) => {
    const add = (chart, ...names) => chart.add(points.map((it) => [it.time, ...names.map((name) => it[name])]));
    add(charts.throughput, "commands");
    add(charts.latency, "p50", "p99", "p999");
    add(charts.memory, "used", "resident");
    add(charts.hits, "hits");
    add(charts.network, "input", "output");
    add(charts.busy, "mean", "busiest");
  };

  let last = null;
  const show1 = (sample) => {
    if (sample.error) {
      fill(tiles, notice(sample.error, "error"));
      return;
    }
    const before = last;
    last = sample;
    if (!before) return;
    const now = point(before, sample);
    draw([now]);
    const { info } = sample;
    const lookups = Number(info.keyspace_hits) + Number(info.keyspace_misses);
    const keys = Object.entries(info).filter(([name]) => /^db\d+$/.test(name)).map(([name, value]) => ({ name, ...subfields(value) }));
    const limit = Number(info.maxmemory);
    fill(tiles, facts([
      ["Commands per second", count(now.commands)],
      ["Latency p50 / p99 / p99.9", [now.p50, now.p99, now.p999].map(micros).join(" / ")],
      ["Memory in use", bytes(now.used) + (limit > 0 ? ` of ${bytes(limit)}` : "")],
      ["Hit rate now / since start", `${percent(now.hits)} / ${percent(Number(info.keyspace_hits) / lookups)}`],
      ["Clients", `${info.connected_clients} (${info.blocked_clients} blocked)`],
      ["Keys", count(keys.reduce((sum, db) => sum + Number(db.keys), 0))],
      ["Expired / evicted per second", `${count(rate(before, sample, "expired_keys"))} / ${count(rate(before, sample, "evicted_keys"))}`],
      ["Running for", duration(Number(info.uptime_in_seconds))],
    ]));
    const parts = memoryParts(info);
    const resident = parts.reduce((sum, [, size]) => sum + size, 0);
    fill(memory, table("Memory by purpose", [
      { title: "Purpose", head: true, cell: ([name]) => name },
      { title: "Size", number: true, cell: ([, size]) => bytes(size) },
      { title: "Share", number: true, cell: ([, size]) => percent(size / resident) },
      { title: "Bar", cell: ([, size]) => bar(size / resident, percent(size / resident)) },
    ], parts));
    fill(workerTable, table("Workers", [
      { title: "Worker", head: true, cell: (row) => String(row.number) },
      { title: "Busy", number: true, cell: (row) => percent(Math.min(1, row.busy)) },
      { title: "Bar", cell: (row) => bar(row.busy, percent(Math.min(1, row.busy))) },
      { title: "Commands/s", number: true, cell: (row) => count(row.commands) },
      { title: "Turns/s", number: true, cell: (row) => count(row.turns) },
    ], workers(before, sample), "The server does not show its workers."));
    fill(commandTable, table("The most frequent commands", [
      { title: "Command", head: true, cell: (row) => row.command },
      { title: "Calls/s", number: true, cell: (row) => count(row.rate) },
      { title: "Mean", number: true, cell: (row) => micros(row.mean) },
      { title: "p99 since start", number: true, cell: (row) => micros(row.p99) },
      { title: "Calls", number: true, cell: (row) => count(row.total) },
      { title: "Errors", number: true, cell: (row) => count(row.failed) },
    ], commandRates(before, sample).slice(0, COMMANDS_SHOWN)));
    fill(databases, table("Databases with keys", [
      { title: "Database", head: true, cell: (row) => row.name.slice(2) },
      { title: "Keys", number: true, cell: (row) => count(Number(row.keys)) },
      { title: "With expiry", number: true, cell: (row) => count(Number(row.expires)) },
      { title: "Mean time left", number: true, cell: (row) => (Number(row.avg_ttl) > 0 ? duration(Number(row.avg_ttl) / 1000) : "–") },
    ], keys, "All databases are empty."));
  };

  const known = context.samples;
  draw(known.slice(1).map((sample, at) => point(known[at], sample)));
  if (known.length > 1) [last] = known.slice(-2);
  if (known.length > 0) show1(known.at(-1));
  else fill(tiles, notice("Waiting for figures …"));
  return { sample: show1, unmount: () => Object.values(charts).forEach((chart) => chart.destroy()) };
}

export default { id: "overview", title: "Overview", mount };
