// The connected clients.

import { confirm, field, fill, h, notice, table } from "../dom.js";
import { bytes, count, duration, errorOf, show, text } from "../format.js";

const REFRESH_MS = 5000;
const ROWS_MAX = 500;

/** Reads a line of CLIENT LIST. */
function parse(line) {
  return Object.fromEntries(line.split(" ").map((part) => {
    const at = part.indexOf("=");
    return [part.slice(0, at), part.slice(at + 1)];
  }));
}

async function mount(root, context) {
  const filter = h("input", { type: "search", spellcheck: false });
  const live = h("input", { type: "checkbox", checked: true });
  const target = h("div");
  let clients = [];
  let timer;

  const kill = (client) => context.attempt(async () => {
    if (!await confirm("Close connection", `Close the connection of client ${client.id} (${client.addr})?`, "Close connection")) return;
    const reply = await context.one(["CLIENT", "KILL", "ID", client.id]);
    context.announce(errorOf(reply) ?? `Closed ${text(reply)} connection.`);
    if (errorOf(reply)) context.alert(errorOf(reply));
    await load();
  });

  const draw = () => {
    const wanted = filter.value.toLowerCase();
    const found = clients.filter((client) => Object.values(client).join(" ").toLowerCase().includes(wanted));
    const columns = [
      { title: "ID", head: true, cell: (client) => client.id },
      { title: "Name", cell: (client) => h("bdi", {}, show(client.name)) },
      { title: "Address", cell: (client) => client.addr },
      { title: "User", cell: (client) => h("bdi", {}, show(client.user)) },
      { title: "Library", cell: (client) => h("bdi", {}, show([client["lib-name"], client["lib-ver"]].filter(Boolean).join(" "))) },
      { title: "Database", number: true, cell: (client) => client.db },
      { title: "Last command", cell: (client) => show((client.cmd ?? "").replace("|", " ")) },
      { title: "Commands", number: true, cell: (client) => count(Number(client["tot-cmds"])) },
      { title: "Idle", number: true, cell: (client) => duration(Number(client.idle)) },
      { title: "Age", number: true, cell: (client) => duration(Number(client.age)) },
      { title: "Memory", number: true, cell: (client) => bytes(Number(client["tot-mem"])) },
      { title: "Flags", cell: (client) => client.flags },
    ];
    if (context.mayWrite) {
      columns.push({ title: "Action", cell: (client) =>
        h("button", { type: "button", "aria-label": `Close connection of client ${client.id}`, onclick: () => kill(client) }, "Close") });
    }
    const rows = found.slice(0, ROWS_MAX);
    const title = `${found.length} of ${clients.length} clients${found.length > ROWS_MAX ? `, the first ${ROWS_MAX}` : ""}`;
    fill(target, table(title, columns, rows, "No client matches."));
  };

  const load = async () => {
    const reply = await context.one(["CLIENT", "LIST"]);
    if (!context.isShown()) return;
    if (errorOf(reply)) {
      fill(target, notice(errorOf(reply), "error"));
      live.checked = false;
      return;
    }
    clients = text(reply).split("\n").filter(Boolean).map(parse);
    // Elements that have the focus stay.
    if (!target.contains(document.activeElement) || document.activeElement.tagName !== "BUTTON") draw();
  };

  filter.addEventListener("input", draw);
  fill(root, h("div", { class: "controls" }, field("Filter", filter), field("Refresh every 5 seconds", live, { class: "field inline" }),
    h("button", { type: "button", onclick: () => context.attempt(load) }, "Refresh")), target);
  await load();
  timer = setInterval(() => live.checked && !document.hidden && context.attempt(load), REFRESH_MS);
  return { unmount: () => clearInterval(timer) };
}

export default { id: "clients", title: "Clients", mount };
