// Messages of channels, and events of keys, as they arrive.

import { field, fill, h, notice, section, table } from "../dom.js";
import { argument, errorOf, items, pairs, show, text } from "../format.js";

/** Messages that are kept. */
const ROWS_MAX = 200;
/** The time between two updates of the table. */
const DRAW_MS = 250;
const CHANNELS_SHOWN = 100;

/** Words separated by blanks. */
const words = (input) => input.value.split(/\s+/).filter(Boolean);

async function mount(root, context) {
  const channels = h("input", { spellcheck: false, autocapitalize: "off" });
  const patterns = h("input", { spellcheck: false, autocapitalize: "off" });
  const shardChannels = h("input", { spellcheck: false, autocapitalize: "off" });
  const events = h("input", { type: "checkbox" });
  const paused = h("input", { type: "checkbox" });
  const target = h("div");
  const state = h("p", { role: "status" }, "Not subscribed.");
  const status = h("p", { class: "muted", id: "message-count" });
  const hint = h("div");
  const active = h("div");
  let rows = [];
  let received = 0;
  let timer = 0;

  const draw = () => {
    timer = 0;
    if (paused.checked) return;
    fill(target, table("Messages, the latest first", [
      { title: "Time", head: true, cell: (row) => row.time.toLocaleTimeString() },
      { title: "Channel", cell: (row) => h("bdi", { class: "code" }, show(row.channel)) },
      { title: "Message", cell: (row) => h("bdi", { class: "code" }, errorOf(row.payload) ?? show(row.payload)) },
    ], rows, "No message has arrived."));
    fill(status, `${received} messages received, the latest ${rows.length} shown${context.lost > 0 ? `; ${context.lost} were lost because this page was too slow` : ""}.`);
  };

  const receive = (list) => {
    for (const message of list) {
      if (message.too_large !== undefined) {
        rows.unshift({ time: new Date(), channel: "", payload: message });
        received += 1;
        continue;
      }
      const parts = message.push ?? [];
      const kind = text(parts[0]);
      if (!/^[ps]?message$/.test(kind)) continue;
      received += 1;
      rows.unshift({ time: new Date(), channel: parts.at(-2), payload: parts.at(-1) });
    }
    rows = rows.slice(0, ROWS_MAX);
    if (timer === 0) timer = setTimeout(draw, DRAW_MS);
  };

  const subscribe = async () => {
    const wanted = {
      channels: words(channels),
      patterns: [...words(patterns), ...(events.checked ? ["__keyevent@*__:*"] : [])],
      shard_channels: words(shardChannels),
    };
    const { errors } = await context.subscribe(wanted);
    const number = wanted.channels.length + wanted.patterns.length + wanted.shard_channels.length;
    if (errors.length > 0) context.alert(errors.join(" "));
    fill(state, errors.length > 0 ? "Not all subscriptions were accepted." : number === 0 ? "Not subscribed." : `Subscribed to ${number} channels or patterns.`);
  };

  const loadActive = async () => {
    const [list, setting] = await context.run([["PUBSUB", "CHANNELS"], ["CONFIG", "GET", "notify-keyspace-events"]]);
    if (!context.isShown()) return;
    if (!errorOf(setting) && text(pairs(setting)[0]?.[1]) === "") {
      fill(hint, notice("The server publishes no events of keys: the directive notify-keyspace-events is empty."));
    }
    if (errorOf(list)) {
      fill(active, notice(errorOf(list), "error"));
      return;
    }
    const names = items(list).slice(0, CHANNELS_SHOWN);
    const counts = names.length === 0 ? [] : await context.one(["PUBSUB", "NUMSUB", ...names.map(argument)]);
    const subscribers = pairs(counts).map(([, count]) => text(count));
    fill(active, table(`Channels with subscribers${items(list).length > CHANNELS_SHOWN ? `, the first ${CHANNELS_SHOWN}` : ""}`, [
      { title: "Channel", head: true, cell: (_, at) => h("bdi", { class: "code" }, show(names[at])) },
      { title: "Subscribers", number: true, cell: (_, at) => subscribers[at] ?? "" },
    ], names, "No channel has subscribers."));
  };

  const form = h("form", {}, h("div", { class: "controls" },
    field("Channels", channels), field("Patterns", patterns), field("Shard channels", shardChannels),
    field("Events of keys", events, { class: "field inline" }), h("button", { class: "primary" }, "Subscribe")),
  h("p", { class: "muted" }, "Separate several names by blanks. Each change replaces the previous subscriptions of this session."));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    context.attempt(subscribe);
  });
  paused.addEventListener("change", draw);
  fill(root, section("Live", form, hint, h("div", { class: "controls" }, field("Pause", paused, { class: "field inline" }),
    h("button", { type: "button", onclick: () => {
      rows = [];
      draw();
    } }, "Clear")), state, status, target),
  section("Channels", h("p", {}, h("button", { type: "button", onclick: () => context.attempt(loadActive) }, "Refresh")), active));
  draw();
  await loadActive();
  return {
    messages: receive,
    unmount() {
      clearTimeout(timer);
      // The session may have ended already.
      if (received > 0 || words(channels).length + words(patterns).length + words(shardChannels).length > 0 || events.checked) {
        context.subscribe({}).catch(() => {});
      }
    },
  };
}

export default { id: "messages", title: "Messages and key events", mount };
