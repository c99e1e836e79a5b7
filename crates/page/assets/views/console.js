// A console with completion from the command table.

import { field, fill, h } from "../dom.js";
import { errorOf, isMap, items, show } from "../format.js";

/** Lines of the console and of its history, and suggestions at a time. */
const ENTRIES_MAX = 200;
const HISTORY_MAX = 100;
const SUGGESTIONS_MAX = 12;
/** Lines of one reply. */
const LINES_MAX = 2000;

const ESCAPES = { n: 10, r: 13, t: 9, b: 8, a: 7 };

/** Splits a line into arguments: blanks separate, quotes and escapes as in configuration files. Null if a quote is open. */
export function split(line) {
  const encoder = new TextEncoder();
  const args = [];
  let at = 0;
  while (at < line.length) {
    if (/\s/.test(line[at])) {
      at += 1;
      continue;
    }
    const bytes = [];
    let quote = "";
    for (; at < line.length && (quote || !/\s/.test(line[at])); at += 1) {
      const character = String.fromCodePoint(line.codePointAt(at));
      at += character.length - 1;
      if (quote === '"' && character === "\\" && at + 1 < line.length) {
        at += 1;
        const hex = /^x([0-9a-f]{2})/i.exec(line.slice(at, at + 3));
        if (hex) {
          bytes.push(parseInt(hex[1], 16));
          at += 2;
        } else if (line[at] in ESCAPES) bytes.push(ESCAPES[line[at]]);
        else bytes.push(...encoder.encode(line[at]));
      } else if (quote === "'" && character === "\\" && line[at + 1] === "'") {
        bytes.push(39);
        at += 1;
      } else if (character === quote) {
        quote = "";
        if (at + 1 < line.length && !/\s/.test(line[at + 1])) return null;
      } else if (!quote && bytes.length === 0 && (character === '"' || character === "'")) quote = character;
      else bytes.push(...encoder.encode(character));
    }
    if (quote) return null;
    args.push(toArgument(Uint8Array.from(bytes)));
  }
  return args;
}

function toArgument(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return { hex: Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("") };
  }
}

/** A reply as lines, in the notation of the command line client. */
export function lines(reply, indent = "") {
  const list = items(reply);
  if (Array.isArray(reply) || reply?.set || reply?.push) {
    if (list.length === 0) return [reply?.set ? "(empty set)" : "(empty array)"];
    const mark = reply?.set ? "~" : ")";
    return numbered(list.map((item, at) => [`${at + 1}${mark} `, lines(item, indent)]));
  }
  if (isMap(reply)) {
    if (reply.map.length === 0) return ["(empty map)"];
    return reply.map.flatMap(([name, value], at) => {
      const inner = lines(value);
      const head = `${at + 1}# ${show(name)} => `;
      return inner.length === 1 ? [head + inner[0]] : [head.trimEnd(), ...inner.map((line) => `   ${line}`)];
    });
  }
  if (errorOf(reply)) return [`(${"error" in reply ? "error" : "refused"}) ${show(errorOf(reply))}`];
  if (reply === null) return ["(nil)"];
  if (typeof reply === "number") return [`(integer) ${reply}`];
  if (typeof reply === "boolean") return [`(${reply})`];
  if (typeof reply === "string") return [`"${show(reply)}"`];
  if ("integer" in reply) return [`(integer) ${reply.integer}`];
  if ("double" in reply) return [`(double) ${reply.double}`];
  if ("text" in reply) return reply.text.split(/\r?\n/).map(show);
  return [show(reply)];
}

function numbered(parts) {
  const width = Math.max(...parts.map(([head]) => head.length));
  return parts.flatMap(([head, inner]) => inner.map((line, at) => (at === 0 ? head.padStart(width) : " ".repeat(width)) + line));
}

async function mount(root, context) {
  const { commands } = await context.commandsTable();
  const output = h("div", { class: "console", role: "log", tabIndex: 0, "aria-label": "Replies" });
  const list = h("ul", { id: "suggestions", role: "listbox", "aria-label": "Suggestions", hidden: true });
  const input = h("input", { role: "combobox", autocomplete: "off", spellcheck: false, autocapitalize: "off",
    "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": "suggestions", "aria-describedby": "command-help" });
  const help = h("p", { id: "command-help", class: "muted" }, "Type a command. Tab accepts a suggestion, the up and down keys select one or recall earlier lines.");
  const database = h("input", { type: "number", min: 0, value: 0, inputMode: "numeric" });
  const history = [];
  let recalled = 0;
  let suggestions = [];
  let active = -1;

  const write = (prompt, body, isError) => {
    output.append(h("div", { class: "entry" }, h("p", { class: "prompt" }, h("bdi", {}, prompt)), h("pre", { class: isError ? "error" : "" }, body)));
    while (output.children.length > ENTRIES_MAX) output.firstChild.remove();
    output.scrollTop = output.scrollHeight;
  };

  const choose = (at) => {
    active = at;
    [...list.children].forEach((option, number) => option.setAttribute("aria-selected", String(number === at)));
    if (at < 0) input.removeAttribute("aria-activedescendant");
    else {
      input.setAttribute("aria-activedescendant", list.children[at].id);
      list.children[at].scrollIntoView({ block: "nearest" });
    }
  };
  const suggest = () => {
    const typed = input.value.trimStart().toLowerCase();
    const isOnlyName = typed !== "" && typed.split(/\s+/).length <= 2;
    suggestions = isOnlyName ? commands.filter((command) => command.name.startsWith(typed) && command.name !== typed.trimEnd()).slice(0, SUGGESTIONS_MAX) : [];
    fill(list, suggestions.map((command, at) => h("li", { id: `suggestion-${at}`, role: "option", "aria-selected": "false",
      onpointerdown: (event) => {
        event.preventDefault();
        accept(at);
      } }, h("span", { class: "code" }, command.name.toUpperCase()), ` ${command.summary}`)));
    list.hidden = suggestions.length === 0;
    input.setAttribute("aria-expanded", String(!list.hidden));
    choose(-1);
    const known = commands.filter((command) => !command.is_container && (typed === command.name || typed.startsWith(`${command.name} `)))
      .sort((one, other) => other.name.length - one.name.length)[0];
    if (known) {
      const note = known.reads || context.mayWrite ? "" : " – refused: the page is read-only";
      fill(help, h("span", { class: "code" }, `${known.name.toUpperCase()} ${known.arguments}`), `  ${known.summary}${note}`);
    }
  };
  const accept = (at) => {
    const command = suggestions[at];
    input.value = `${command.name.toUpperCase()} `;
    suggest();
    input.focus();
  };

  const execute = async () => {
    const line = input.value.trim();
    if (line === "") return;
    history.push(line);
    if (history.length > HISTORY_MAX) history.shift();
    recalled = history.length;
    input.value = "";
    suggest();
    const args = split(line);
    const prompt = `${database.value}> ${line}`;
    if (args === null) {
      write(prompt, "Invalid argument(s): a quote is not closed, or text follows it.", true);
      return;
    }
    const name = String(args[0]).toLowerCase();
    if (name === "clear" && args.length === 1) {
      fill(output);
      return;
    }
    if (name === "select" && args.length === 2 && /^\d+$/.test(args[1])) {
      const reply = await context.one(["PING"], Number(args[1]));
      if (/DB index|NOPERM/.test(errorOf(reply) ?? "")) write(prompt, lines(reply).join("\n"), true);
      else {
        database.value = args[1];
        write(prompt, "OK");
      }
      return;
    }
    input.disabled = true;
    try {
      const reply = await context.one(args, Number(database.value) || 0);
      const shown = lines(reply);
      const rest = shown.length > LINES_MAX ? [`… and ${shown.length - LINES_MAX} more lines`] : [];
      write(prompt, [...shown.slice(0, LINES_MAX), ...rest].join("\n"), Boolean(errorOf(reply)));
    } finally {
      input.disabled = false;
      if (context.isShown()) input.focus();
    }
  };

  const recall = (step) => {
    recalled = Math.min(history.length, Math.max(0, recalled + step));
    input.value = history[recalled] ?? "";
    suggest();
  };
  input.addEventListener("input", suggest);
  input.addEventListener("blur", () => {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
  });
  input.addEventListener("keydown", (event) => {
    const isOpen = !list.hidden;
    const handled = {
      ArrowDown: () => (isOpen ? choose((active + 1) % suggestions.length) : recall(1)),
      ArrowUp: () => (isOpen && active >= 0 ? choose(active - 1) : recall(-1)),
      // Without a suggestion, the key moves the focus as everywhere.
      Tab: isOpen && !event.shiftKey ? () => accept(Math.max(0, active)) : null,
      Escape: isOpen ? () => {
        list.hidden = true;
        input.setAttribute("aria-expanded", "false");
      } : null,
      Enter: isOpen && active >= 0 ? () => accept(active) : null,
    }[event.key];
    if (!handled) return;
    event.preventDefault();
    handled();
  });
  const form = h("form", {}, h("div", { class: "controls" }, field("Database", database),
    h("div", { class: "field wide combobox" }, h("label", { for: "command" }, "Command"), input, list),
    h("button", { class: "primary" }, "Run")), help);
  input.id = "command";
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    context.attempt(execute);
  });
  fill(root, form, output);
  input.focus();
  return {};
}

export default { id: "console", title: "Console", mount };
