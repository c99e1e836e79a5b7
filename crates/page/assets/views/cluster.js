// The nodes of the cluster and their links.

import { facts, fill, h, notice, section, table } from "../dom.js";
import { bytes, errorOf, infoFields, items, number, object, show, text } from "../format.js";
import { render } from "./hot.js";

/** Ranges such as "0-5460, 7000". */
function ranges(reply) {
  const numbers = items(reply).map(number);
  const parts = [];
  for (let at = 0; at + 1 < numbers.length; at += 2) {
    parts.push(numbers[at] === numbers[at + 1] ? String(numbers[at]) : `${numbers[at]}-${numbers[at + 1]}`);
  }
  return parts.join(", ") || "none";
}

const slotsOf = (reply) => {
  const numbers = items(reply).map(number);
  let total = 0;
  for (let at = 0; at + 1 < numbers.length; at += 2) total += numbers[at + 1] - numbers[at] + 1;
  return total;
};

function shardCard(shard, number1, own) {
  const nodes = items(shard.nodes).map(object).sort((one) => (text(one.role) === "master" ? -1 : 1));
  return h("li", { class: "card" },
    h("h3", {}, `Shard ${number1 + 1}`),
    h("p", {}, `${slotsOf(shard.slots)} slots: ${ranges(shard.slots)}`),
    table(`Nodes of shard ${number1 + 1}`, [
      { title: "Node", head: true, cell: (node) => h("bdi", {}, `${show(node.hostname ?? "") || show(node.ip)}:${show(node.port ?? node["tls-port"] ?? "")}`) },
      { title: "Role", cell: (node) => (text(node.role) === "master" ? "primary" : text(node.role)) },
      { title: "Health", cell: (node) => h("span", { class: text(node.health) === "online" ? "good" : "bad" }, text(node.health)) },
      { title: "Offset", number: true, cell: (node) => text(node["replication-offset"]) },
      { title: "ID", class: "code", cell: (node) => `${text(node.id).slice(0, 8)}…${text(node.id) === own ? " (this node)" : ""}` },
    ], nodes));
}

async function mount(root, context) {
  const target = h("div");
  const load = async () => {
    const [info, id, shards, links, migrations, nodes] = await context.run([
      ["CLUSTER", "INFO"], ["CLUSTER", "MYID"], ["CLUSTER", "SHARDS"], ["CLUSTER", "LINKS"], ["CLUSTER", "GETSLOTMIGRATIONS"], ["CLUSTER", "NODES"],
    ]);
    if (!context.isShown()) return;
    const error = errorOf(info) ?? errorOf(shards);
    if (error) {
      const isOff = /cluster support disabled/i.test(error);
      fill(target, notice(isOff ? "This server is not in cluster mode." : error, isOff ? "info" : "error"));
      return;
    }
    const fields = infoFields(info);
    const state = fields.cluster_state;
    fill(target,
      facts([
        ["State", h("span", { class: state === "ok" ? "good" : "bad" }, state)], ["Nodes", fields.cluster_known_nodes], ["Shards", fields.cluster_size],
        ["Assigned slots", fields.cluster_slots_assigned], ["Current epoch", fields.cluster_current_epoch], ["Epoch of this node", fields.cluster_my_epoch],
      ]),
      section("Shards", h("ul", { class: "cards" }, items(shards).map(object).map((shard, at) => shardCard(shard, at, text(id))))),
      section("Nodes", errorOf(nodes) ? notice(errorOf(nodes), "error") : table("Nodes as this node sees them", [
        { title: "ID", head: true, class: "code", cell: (node) => `${node[0].slice(0, 8)}…` },
        { title: "Address", cell: (node) => h("bdi", {}, show(node[1])) },
        { title: "Flags", cell: (node) => node[2].replaceAll("master", "primary").replaceAll("slave", "replica").replaceAll(",", ", ") },
        { title: "Link", cell: (node) => h("span", { class: node[7] === "connected" ? "good" : "bad" }, node[7]) },
        { title: "Epoch", number: true, cell: (node) => node[6] },
        { title: "Last pong", cell: (node) => (Number(node[5]) > 0 ? new Date(Number(node[5])).toLocaleTimeString() : "–") },
      ], text(nodes).split("\n").filter(Boolean).map((line) => line.split(" ")))),
      section("Links", errorOf(links) ? notice(errorOf(links), "error") : table("Links of the cluster bus", [
        { title: "Node", head: true, class: "code", cell: (link) => `${text(link.node).slice(0, 8)}…` },
        { title: "Direction", cell: (link) => text(link.direction) },
        { title: "Since", cell: (link) => new Date(number(link["create-time"])).toLocaleString() },
        { title: "Buffer", number: true, cell: (link) => bytes(number(link["send-buffer-allocated"])) },
      ], items(links).map(object))),
      section("Slot migrations", items(migrations).length === 0 && !errorOf(migrations)
        ? notice("There have been no atomic slot migrations.") : render("Slot migrations", migrations)));
  };
  fill(root, h("p", {}, h("button", { type: "button", onclick: () => context.attempt(load) }, "Refresh")), target);
  await load();
  return {};
}

export default { id: "cluster", title: "Cluster", mount };
