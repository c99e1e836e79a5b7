// The command log and latency events.

import { Chart } from "../charts.js";
import { field, fill, h, notice, section, select, table } from "../dom.js";
import { bytes, errorOf, items, micros, number, pairs, show, text, time } from "../format.js";

const ENTRIES = 128;
const KINDS = [["slow", "Slow commands"], ["large-request", "Large requests"], ["large-reply", "Large replies"]];

async function mount(root, context) {
  const kind = select(KINDS);
  const log = h("div");
  const latency = h("div");
  const history = h("div");
  let chart = null;

  const loadLog = async () => {
    const reply = await context.one(["COMMANDLOG", "GET", ENTRIES, kind.value]);
    if (!context.isShown()) return;
    if (errorOf(reply)) {
      fill(log, notice(errorOf(reply), "error"));
      return;
    }
    const isTime = kind.value === "slow";
    fill(log, table(`${KINDS.find(([id]) => id === kind.value)[1]}, the latest first`, [
      { title: "ID", head: true, number: true, cell: (entry) => text(entry[0]) },
      { title: "Time", cell: (entry) => time(number(entry[1]) * 1000) },
      { title: isTime ? "Duration" : "Size", number: true, cell: (entry) => (isTime ? micros : bytes)(number(entry[2])) },
      { title: "Command", class: "code", cell: (entry) => h("bdi", {}, items(entry[3]).map(show).join(" ")) },
      { title: "Client", cell: (entry) => text(entry[4]) },
      { title: "Client name", cell: (entry) => h("bdi", {}, show(entry[5] ?? "")) },
    ], items(reply), "The log has no entries. The directives commandlog-… set what it records."));
  };

  const loadHistory = async (event) => {
    const reply = await context.one(["LATENCY", "HISTORY", event]);
    chart?.destroy();
    chart = null;
    if (errorOf(reply)) {
      fill(history, notice(errorOf(reply), "error"));
      return;
    }
    const points = items(reply).map((pair) => pair.map(number));
    fill(history, table(`History of ${event}`, [
      { title: "Time", head: true, cell: ([at]) => time(at * 1000) },
      { title: "Duration", number: true, cell: ([, milliseconds]) => `${milliseconds} ms` },
    ], [...points].reverse()));
    chart = new Chart(`Latency of ${event}`, [["duration", "--series-1"]], (value) => `${Math.round(value)} ms`);
    history.prepend(chart.element);
    chart.add(points);
    context.announce(`History of ${event}: ${points.length} samples.`);
  };

  const loadLatency = async () => {
    const [reply, threshold] = await context.run([["LATENCY", "LATEST"], ["CONFIG", "GET", "latency-monitor-threshold"]]);
    if (!context.isShown()) return;
    if (errorOf(reply)) {
      fill(latency, notice(errorOf(reply), "error"));
      return;
    }
    const isOff = !errorOf(threshold) && text(pairs(threshold)[0]?.[1]) === "0";
    fill(latency, table("Latency events", [
      { title: "Event", head: true, cell: (event) => show(event[0]) },
      { title: "Latest", cell: (event) => time(number(event[1]) * 1000) },
      { title: "Duration", number: true, cell: (event) => `${text(event[2])} ms` },
      { title: "Longest", number: true, cell: (event) => `${text(event[3])} ms` },
      { title: "History", cell: (event) => h("button", { type: "button", "aria-label": `Show history of ${show(event[0])}`,
        onclick: () => context.attempt(() => loadHistory(text(event[0]))) }, "Show") },
    ], items(reply), isOff ? "Events are not recorded: latency-monitor-threshold is 0." : "No event has been recorded."));
  };

  kind.addEventListener("change", () => context.attempt(loadLog));
  fill(root,
    section("Command log", h("div", { class: "controls" }, field("Log", kind),
      h("button", { type: "button", onclick: () => context.attempt(loadLog) }, "Refresh")), log),
    section("Latency events", latency, history));
  await Promise.all([loadLog(), loadLatency()]);
  return { unmount: () => chart?.destroy() };
}

export default { id: "logs", title: "Command log and latency", mount };
