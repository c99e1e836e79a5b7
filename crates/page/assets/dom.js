// Builds elements. Data becomes text nodes and attributes only, never markup.

/**
 * Creates an element. Properties that begin with "on" are event listeners, `class` and names with "-" are attributes,
 * `style` is an object of CSS properties, and all others are properties of the element.
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "class") element.className = value;
    else if (name.includes("-") || ["role", "for", "scope", "list"].includes(name)) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replaces the content of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

let lastId = 0;

/** An ID that no other element has. */
export function freshId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

/** A form control with its label. */
export function field(label, control, properties = {}) {
  control.id ||= freshId("field");
  return h("div", { class: "field", ...properties }, h("label", { for: control.id }, label), control);
}

/** A select element. Options are pairs of value and text. */
export function select(options, properties = {}) {
  return h("select", properties, options.map(([value, text]) => h("option", { value }, text)));
}

/** A section with a heading. */
export function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), ...children);
}

/**
 * A table in a region that scrolls by itself. Columns have a title, a function `cell` from a row to text or an element,
 * and optionally `number` and `head` (the cell names its row).
 */
export function table(caption, columns, rows, empty = "Nothing to show.") {
  const head = h("thead", {}, h("tr", {}, columns.map((column) =>
    h("th", { scope: "col", class: column.number ? "number" : "" }, column.title))));
  const body = rows.map((row, number) => h("tr", {}, columns.map((column) => {
    const content = column.cell(row, number);
    const properties = { class: [column.number && "number", column.class].filter(Boolean).join(" ") };
    return column.head ? h("th", { scope: "row", ...properties }, content) : h("td", properties, content);
  })));
  if (rows.length === 0) body.push(h("tr", {}, h("td", { colSpan: columns.length, class: "muted" }, empty)));
  return h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), head, h("tbody", {}, body)));
}

/** Names and values. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A notice about something that is missing or refused. */
export function notice(text, kind = "info") {
  return h("p", { class: `notice ${kind}` }, text);
}

/** Asks for confirmation. Resolves to whether it was given. */
export function confirm(title, text, action) {
  return new Promise((resolve) => {
    const id = freshId("dialog");
    const dialog = h("dialog", { "aria-labelledby": id },
      h("h2", { id }, title),
      h("p", {}, text),
      h("div", { class: "actions" },
        h("button", { type: "button", onclick: () => dialog.close("no") }, "Cancel"),
        h("button", { type: "button", class: "danger", onclick: () => dialog.close("yes") }, action)));
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
