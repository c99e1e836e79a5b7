// ACL users and the log of denied commands.

import { facts, fill, h, notice, section, table } from "../dom.js";
import { duration, errorOf, items, number, object, show, text } from "../format.js";

const LOG_ENTRIES = 50;

/** A line of ACL LIST: the name, and the rules without digests of passwords. */
function parse(line) {
  const [, name, ...rules] = show(line).split(" ");
  return { name, isOn: rules.includes("on"), passwords: rules.filter((rule) => rule.startsWith("#")).length, noPassword: rules.includes("nopass"),
    rules: rules.filter((rule) => !rule.startsWith("#") && !["on", "off", "nopass", "sanitize-payload"].includes(rule)).join(" ") };
}

async function mount(root, context) {
  const users = h("div");
  const details = h("div");
  const log = h("div");

  const showUser = async (name) => {
    const reply = await context.one(["ACL", "GETUSER", name]);
    if (!context.isShown()) return;
    if (errorOf(reply)) {
      fill(details, notice(errorOf(reply), "error"));
      return;
    }
    const user = object(reply);
    fill(details, h("h3", {}, "User ", h("bdi", {}, name)), facts([
      ["Flags", items(user.flags).map(text).join(" ")], ["Passwords", String(items(user.passwords).length)],
      ["Commands", show(user.commands)], ["Keys", h("bdi", {}, show(user.keys))], ["Channels", h("bdi", {}, show(user.channels))],
    ]), table("Selectors", [
      { title: "Commands", head: true, cell: (row) => show(row.commands) },
      { title: "Keys", cell: (row) => h("bdi", {}, show(row.keys)) },
      { title: "Channels", cell: (row) => h("bdi", {}, show(row.channels)) },
    ], items(user.selectors).map(object), "The user has no selectors."));
    context.announce(`User ${name}.`);
  };

  const load = async () => {
    const [list, denied] = await context.run([["ACL", "LIST"], ["ACL", "LOG", LOG_ENTRIES]]);
    if (!context.isShown()) return;
    if (errorOf(list)) fill(users, notice(errorOf(list), "error"));
    else {
      fill(users, table("Users", [
        { title: "Name", head: true, cell: (user) => h("bdi", {}, user.name) },
        { title: "State", cell: (user) => h("span", { class: user.isOn ? "good" : "bad" }, user.isOn ? "on" : "off") },
        { title: "Password", cell: (user) => (user.noPassword ? "not needed" : user.passwords === 0 ? "none" : `${user.passwords} set`) },
        { title: "Rules", class: "code", cell: (user) => h("bdi", {}, user.rules) },
        { title: "Details", cell: (user) => h("button", { type: "button", "aria-label": `Show user ${user.name}`,
          onclick: () => context.attempt(() => showUser(user.name)) }, "Show") },
      ], items(list).map(parse)));
    }
    if (errorOf(denied)) fill(log, notice(errorOf(denied), "error"));
    else {
      fill(log, table("Denied commands and failed logins, the latest first", [
        { title: "Age", head: true, number: true, cell: (entry) => duration(number(entry["age-seconds"])) },
        { title: "Count", number: true, cell: (entry) => text(entry.count) },
        { title: "Reason", cell: (entry) => text(entry.reason) },
        { title: "Context", cell: (entry) => text(entry.context) },
        { title: "Object", cell: (entry) => h("bdi", { class: "code" }, show(entry.object)) },
        { title: "User", cell: (entry) => h("bdi", {}, show(entry.username)) },
        { title: "Client", cell: (entry) => h("bdi", { class: "code" }, (show(entry["client-info"]).match(/(?<= |^)(addr|name)=\S*/g) ?? []).join(" ")) },
      ], items(denied).map(object), "Nothing was denied."));
    }
  };
  fill(root, h("p", {}, h("button", { type: "button", onclick: () => context.attempt(load) }, "Refresh")),
    section("Users", users, details), section("Log", log));
  await load();
  return {};
}

export default { id: "users", title: "Users", mount };
