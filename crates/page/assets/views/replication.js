// Replication and persistence, live.

import { confirm, facts, fill, h, notice, section, table } from "../dom.js";
import { bytes, count, duration, errorOf, show, subfields, text, time } from "../format.js";

const yes = (value) => (value === "1" ? "yes" : "no");
const seconds = (value) => (Number(value) < 0 || value === undefined ? "–" : duration(Number(value)));
const state = (value) => h("span", { class: ["ok", "up", "online"].includes(value) ? "good" : "bad" }, value ?? "–");

function replicationFacts(info) {
  const own = [
    ["Role", info.role === "slave" ? "replica" : "primary"], ["Replication ID", h("span", { class: "code" }, info.master_replid)],
    ["Offset", info.master_repl_offset], ["Failover", info.master_failover_state],
    ["Backlog", info.repl_backlog_active === "1" ? `${bytes(Number(info.repl_backlog_histlen))} of ${bytes(Number(info.repl_backlog_size))}` : "not active"],
    ["Full syncs", info.sync_full], ["Partial syncs", `${info.sync_partial_ok} accepted, ${info.sync_partial_err} refused`],
  ];
  if (info.role !== "slave") return own;
  return [...own,
    ["Primary", h("bdi", {}, `${show(info.master_host)}:${info.master_port}`)], ["Link", state(info.master_link_status)],
    ["Silent for", seconds(info.master_last_io_seconds_ago)], ["Full sync in progress", yes(info.master_sync_in_progress)],
    ["Offset of this replica", info.slave_repl_offset], ["Read-only", yes(info.slave_read_only)], ["Priority", info.slave_priority],
  ];
}

function replicas(info) {
  return Object.entries(info).filter(([name]) => /^slave\d+$/.test(name)).map(([, value]) => {
    const replica = subfields(value);
    return { ...replica, behind: Number(info.master_repl_offset) - Number(replica.offset) };
  });
}

async function mount(root, context) {
  const replication = h("div");
  const persistence = h("div");
  const act = (command, title, question) => h("button", { type: "button", onclick: () => context.attempt(async () => {
    if (!await confirm(title, question, title)) return;
    const reply = await context.one(command);
    if (errorOf(reply)) context.alert(errorOf(reply));
    else context.announce(text(reply));
  }) }, title);
  const show1 = (sample) => {
    if (sample.error) {
      fill(replication, notice(sample.error, "error"));
      fill(persistence, notice(sample.error, "error"));
      return;
    }
    const { info } = sample;
    fill(replication, facts(replicationFacts(info)), table("Replicas", [
      { title: "Address", head: true, cell: (replica) => h("bdi", {}, `${show(replica.ip)}:${replica.port}`) },
      { title: "State", cell: (replica) => state(replica.state) },
      { title: "Offset", number: true, cell: (replica) => replica.offset },
      { title: "Behind", number: true, cell: (replica) => bytes(replica.behind) },
      { title: "Lag", number: true, cell: (replica) => seconds(replica.lag) },
      { title: "Kind", cell: (replica) => replica.type ?? "" },
    ], replicas(info), "No replica is connected."));
    const isLoading = info.loading === "1";
    fill(persistence,
      isLoading ? notice(`Loading: ${info.loading_loaded_perc ?? "?"} %, about ${seconds(info.loading_eta_seconds)} left.`) : null,
      h("h3", {}, "Dumps (RDB)"),
      facts([
        ["Last dump", time(Number(info.rdb_last_save_time) * 1000)], ["Last result", state(info.rdb_last_bgsave_status)],
        ["Changes since", count(Number(info.rdb_changes_since_last_save))], ["In progress", yes(info.rdb_bgsave_in_progress)],
        ["Last took", seconds(info.rdb_last_bgsave_time_sec)], ["Captured by it", bytes(Number(info.rdb_last_cow_size))],
        ["Dumps since start", info.rdb_saves],
      ]),
      h("h3", {}, "Append-only file (AOF)"),
      facts([
        ["Enabled", yes(info.aof_enabled)], ["Last write", state(info.aof_last_write_status)], ["Last rewrite", state(info.aof_last_bgrewrite_status)],
        ["Rewrite in progress", yes(info.aof_rewrite_in_progress)], ["Last rewrite took", seconds(info.aof_last_rewrite_time_sec)],
        ["Size", info.aof_current_size === undefined ? "–" : `${bytes(Number(info.aof_current_size))}, ${bytes(Number(info.aof_base_size))} after the last rewrite`],
        ["Rewrites since start", info.aof_rewrites],
      ]));
  };
  fill(root, section("Replication", replication), section("Persistence", persistence, context.mayWrite ? h("div", { class: "actions" },
    act(["BGSAVE"], "Save a dump", "Write a dump of all databases in the background?"),
    act(["BGREWRITEAOF"], "Rewrite the append-only file", "Rewrite the append-only file in the background?")) : null));
  const last = context.samples.at(-1);
  if (last) show1(last);
  else fill(replication, notice("Waiting for figures …"));
  return { sample: show1 };
}

export default { id: "replication", title: "Replication and persistence", mount };
