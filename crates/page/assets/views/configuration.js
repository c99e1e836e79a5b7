// The directives, with what kvick.conf says about each.

import { field, fill, h, notice } from "../dom.js";
import { errorOf, pairs, show, text } from "../format.js";

async function mount(root, context) {
  const filter = h("input", { type: "search", spellcheck: false });
  const changed = h("input", { type: "checkbox" });
  const status = h("p", { class: "muted", role: "status" });
  const target = h("div");
  const { directives } = await context.directives();
  let values = new Map();

  const set = (directive, input) => context.attempt(async () => {
    const reply = await context.one(["CONFIG", "SET", directive.name, input.value]);
    if (errorOf(reply)) {
      context.alert(errorOf(reply));
      return;
    }
    context.announce(`${directive.name} is set.`);
    await load();
  });

  const isChanged = (directive) => {
    const initial = directive.line.slice(directive.name.length + 1);
    const value = values.get(directive.name);
    return value !== undefined && value !== initial && `"${value}"` !== initial;
  };

  const item = (directive) => {
    const value = values.get(directive.name);
    const tags = [
      !directive.works && "no effect", directive.immutable && !directive.in_file_only && "fixed at start",
      directive.in_file_only && "in the file only", isChanged(directive) && "differs from the file as shipped",
    ].filter(Boolean);
    let shown = h("code", {}, value === undefined ? directive.line : value === "" ? '""' : show(value));
    if (directive.secret && value) shown = h("span", { class: "muted" }, "secret, set");
    const canChange = context.mayWrite && !directive.immutable && value !== undefined;
    const input = canChange ? h("input", { value: directive.secret ? "" : value, spellcheck: false, "aria-label": `New value of ${directive.name}` }) : null;
    return h("li", { class: "directive" },
      h("h3", {}, directive.name), h("p", {}, shown, tags.map((tag) => h("span", { class: "tag" }, tag))),
      h("p", { class: "muted" }, directive.text),
      canChange ? h("div", { class: "controls" }, input,
        h("button", { type: "button", "aria-label": `Set ${directive.name}`, onclick: () => set(directive, input) }, "Set")) : null);
  };

  const draw = () => {
    const wanted = filter.value.toLowerCase();
    const found = directives.filter((directive) =>
      (directive.name + directive.text + (values.get(directive.name) ?? "")).toLowerCase().includes(wanted) && (!changed.checked || isChanged(directive)));
    const sections = group(found);
    fill(target, [...sections].map(([title, list]) => h("section", { "aria-label": title },
      h("h2", {}, title.charAt(0) + title.slice(1).toLowerCase()), h("ul", { class: "directives" }, list.map(item)))));
    fill(status, `${found.length} of ${directives.length} directives.`);
  };

  const load = async () => {
    const reply = await context.one(["CONFIG", "GET", "*"]);
    if (!context.isShown()) return;
    if (errorOf(reply)) fill(root, notice(errorOf(reply), "error"), h("p", {}, "The explanations follow without values."), controls, status, target);
    else values = new Map(pairs(reply).map(([name, value]) => [text(name), text(value)]));
    draw();
  };
  const controls = h("div", { class: "controls" }, field("Search", filter), field("Only changed", changed, { class: "field inline" }));
  filter.addEventListener("input", draw);
  changed.addEventListener("change", draw);
  fill(root, controls, status, target);
  await load();
  return {};
}

function group(list) {
  const found = new Map();
  for (const directive of list) found.set(directive.section, [...(found.get(directive.section) ?? []), directive]);
  return found;
}

export default { id: "configuration", title: "Configuration", mount };
