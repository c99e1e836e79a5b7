// The page: login, navigation, the live connection, and the views.

import * as api from "./api.js";
import { fill, field, h } from "./dom.js";
import { read } from "./rates.js";
import overview from "./views/overview.js";
import clients from "./views/clients.js";
import logs from "./views/logs.js";
import keyspace from "./views/keyspace.js";
import hot from "./views/hot.js";
import slots from "./views/slots.js";
import cluster from "./views/cluster.js";
import replication from "./views/replication.js";
import messages from "./views/messages.js";
import users from "./views/users.js";
import configuration from "./views/configuration.js";
import consoleView from "./views/console.js";

/** Each view has an ID, a title, and a function `mount` that fills an element and may return handlers. */
const VIEWS = [
  overview, clients, logs, keyspace, hot, slots, cluster, replication, messages, users, configuration, consoleView,
];

/** Samples that are kept: five minutes. */
const SAMPLES_MAX = 300;

const byId = (id) => document.getElementById(id);
const [main, nav, menu] = [byId("main"), byId("views"), byId("menu")];

/** What views may use. */
const context = {
  ...api,
  user: null,
  mayWrite: false,
  samples: [],
  /** Messages that the server could not deliver because this page was too slow. */
  lost: 0,
  announce: (text) => fill(byId("announcements"), text),
  alert: (text) => showAlert(text),
  /** Runs a function, and shows an error that it throws. */
  async attempt(action) {
    try {
      return await action();
    } catch (error) {
      handleError(error);
      return undefined;
    }
  },
};

let view = null;
let handlers = {};
let closeEvents = null;
/** Counts changes of the view, so that a view that is no longer shown does not go on. */
let shown = 0;

function showAlert(text) {
  fill(byId("alerts"), h("div", { class: "alert" }, h("span", {}, text),
    h("button", { type: "button", onclick: () => fill(byId("alerts")) }, "Dismiss")));
}

function handleError(error) {
  if (!(error instanceof api.Refused)) throw error;
  if (error.status === 401) endSession(error.message);
  else showAlert(error.message);
}

/** Shows the login in place of the views. */
function endSession(reason) {
  context.user = null;
  closeEvents?.();
  closeEvents = null;
  context.samples = [];
  showLogin(reason);
}

function unmount() {
  shown += 1;
  handlers.unmount?.();
  handlers = {};
  view = null;
}

function showChrome() {
  const isIn = context.user !== null;
  nav.hidden = !isIn;
  menu.hidden = !isIn;
  byId("logout").hidden = !isIn;
  fill(byId("user"), isIn ? context.user : "");
  const mode = byId("mode");
  mode.hidden = !isIn;
  mode.className = context.mayWrite ? "mode write" : "mode";
  fill(mode, context.mayWrite ? "Changes allowed" : "Read-only");
}

function showLogin(reason) {
  unmount();
  showChrome();
  document.title = "Log in – Kvick";
  fill(byId("server"));
  const user = h("input", { name: "username", autocomplete: "username", value: "default", required: true, spellcheck: false });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password" });
  const error = h("p", { class: "error", id: "login-error", role: "alert" }, reason ?? "");
  const button = h("button", { class: "primary" }, "Log in");
  const form = h("form", { class: "login", "aria-labelledby": "login-title" },
    h("h1", { id: "login-title", tabIndex: -1 }, "Log in"),
    h("p", {}, "Use the name and password of an ACL user. Its rights hold for everything on this page."),
    field("User", user), field("Password", password), error, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    fill(error);
    try {
      begin(await api.login(user.value, password.value));
    } catch (refused) {
      if (!(refused instanceof api.Refused)) throw refused;
      fill(error, refused.message);
      password.value = "";
      password.focus();
    } finally {
      button.disabled = false;
    }
  });
  fill(main, form);
  user.focus();
}

/** Starts with a session. */
function begin({ user, may_write: mayWrite }) {
  context.user = user;
  context.mayWrite = mayWrite;
  showChrome();
  connect();
  navigate();
}

/** Receives events while the page is visible. */
function connect() {
  closeEvents?.();
  closeEvents = null;
  if (document.hidden || context.user === null) return;
  closeEvents = api.events({
    onSample(sample) {
      context.lost = sample.lost;
      if (context.mayWrite !== sample.may_write) {
        context.mayWrite = sample.may_write;
        showChrome();
        navigate();
      }
      const figures = { ...read(sample), error: sample.replies[0]?.error };
      context.samples.push(figures);
      if (context.samples.length > SAMPLES_MAX) context.samples.shift();
      const { info } = figures;
      const role = info.role === "slave" ? "replica" : "primary";
      fill(byId("server"), info.tcp_port ? `${info.kvick_version ?? ""} · port ${info.tcp_port} · ${role}` : "");
      handlers.sample?.(figures);
    },
    onMessages: (list) => handlers.messages?.(list),
    onEnd: (reason) => endSession(reason ?? "The session has ended."),
  });
}

/** Shows the view that the address names. */
async function navigate() {
  if (context.user === null) return;
  const [id, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const next = VIEWS.find((candidate) => candidate.id === id) ?? VIEWS[0];
  unmount();
  const number = shown;
  view = next;
  document.title = `${view.title} – Kvick`;
  for (const link of nav.querySelectorAll("a")) {
    if (link.hash === `#/${view.id}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  setMenu(false);
  const content = h("div", { class: "view" });
  const heading = h("h1", { tabIndex: -1 }, view.title);
  fill(main, heading, content);
  heading.focus({ preventScroll: true });
  window.scrollTo(0, 0);
  const isShown = () => number === shown;
  const mounted = await context.attempt(() => view.mount(content, { ...context, get samples() { return context.samples; },
    get mayWrite() { return context.mayWrite; }, get lost() { return context.lost; }, isShown }, rest));
  if (!isShown()) {
    mounted?.unmount?.();
    return;
  }
  handlers = mounted ?? {};
  content.setAttribute("data-ready", "");
}

function setMenu(isOpen) {
  nav.classList.toggle("open", isOpen);
  menu.setAttribute("aria-expanded", String(isOpen));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").value = theme;
  document.dispatchEvent(new Event("themechange"));
}

function storedTheme() {
  try {
    return localStorage.getItem("kvick-theme") ?? "auto";
  } catch {
    return "auto";
  }
}

fill(nav.querySelector("ul"), VIEWS.map(({ id, title }) => h("li", {}, h("a", { href: `#/${id}` }, title))));
menu.addEventListener("click", () => setMenu(menu.getAttribute("aria-expanded") !== "true"));
nav.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    setMenu(false);
    menu.focus();
  }
});
byId("theme").addEventListener("change", (event) => {
  setTheme(event.target.value);
  try {
    localStorage.setItem("kvick-theme", event.target.value);
  } catch {
    // Without storage, the choice holds until the page is closed.
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
byId("logout").addEventListener("click", () => context.attempt(async () => {
  await api.logout();
  endSession("You have logged out.");
}));
window.addEventListener("hashchange", navigate);
document.addEventListener("visibilitychange", connect);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
setTheme(storedTheme());
context.attempt(async () => {
  const session = await api.session();
  if (session.user === null) showLogin();
  else begin(session);
});
