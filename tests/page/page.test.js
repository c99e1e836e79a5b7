// The page in Chromium: every view, rights, attacks, keyboard, accessibility, small screens.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { assertAccessible, assertClean, assertNarrow, launch, logIn, open, picture, ready, show, VIEWS } from "./pages.js";
import { ATTACKS, fillWithData, Server, startCluster, startLoad, until } from "./servers.js";

/** The tag of data in a cluster: its slot, 0, belongs to the first node. */
const TAG = "{3560}";

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

/** Runs a test with a server, which is stopped in any case. */
async function withServer(options, body) {
  const server = await Server.start(options);
  try {
    await body(server);
  } finally {
    await server.stop();
  }
}

/** Opens every view in both themes and at two widths. */
async function visitAll(server, pictures) {
  const page = await open(browser, server.url);
  await assertAccessible(page, "the login");
  await picture(page, pictures("login"));
  await logIn(page);
  await until("figures arrive", () => page.getByText("Commands per second").first().isVisible());
  // A chart needs a few points to be worth looking at.
  await until("a chart has points", () => page.evaluate(() => document.querySelectorAll("figure .uplot").length === 6
    && !document.querySelector("figure .legend strong").textContent.includes("–")));
  for (const [id, title] of VIEWS) {
    for (const theme of ["light", "dark"]) {
      await page.getByLabel("Theme").selectOption(theme);
      await show(page, id);
      assert.equal(await page.getByRole("heading", { level: 1 }).textContent(), title);
      assert.equal(await page.title(), `${title} – Kvick`);
      if (id === "overview") await page.locator(".tiles dl").waitFor();
      const where = `${id}, ${theme}`;
      await assertClean(page, where);
      await assertAccessible(page, where);
      // Lines are worth a picture when there are some points.
      if (id === "overview" && process.env.KVICK_PAGE_PICTURES) await page.waitForTimeout(15_000);
      if (theme === "light") await picture(page, pictures(id));
      await assertNarrow(page, where);
    }
  }
  await page.context().close();
}

/** Pictures are taken with one server only. */
const none = () => undefined;

for (const workers of [1, 4]) {
  test(`every view with ${workers} worker(s) under load`, () => withServer({ "io-threads": workers }, async (server) => {
    await fillWithData(server);
    startLoad(server);
    await visitAll(server, workers === 4 ? (id) => (["slots", "cluster"].includes(id) ? undefined : id) : none);
  }));
}

test("every view in a cluster under load", async () => {
  const nodes = await startCluster();
  try {
    await fillWithData(nodes[0], TAG);
    startLoad(nodes[0], TAG);
    await visitAll(nodes[0], (id) => (["slots", "cluster"].includes(id) ? id : undefined));
    const page = await open(browser, nodes[0].url);
    await logIn(page);
    await show(page, "cluster");
    assert.equal(await page.locator(".card").count(), 3);
    assert.equal(await page.getByRole("row", { name: /replica online/ }).count(), 1);
    await show(page, "slots");
    await page.getByLabel("Colour by").selectOption("key-count");
    // All keys of the data have one tag, so one slot has nearly all keys.
    assert.match(await page.getByRole("region", { name: /slots of this node with most/ }).innerText(), /\d{4}/);
    await page.locator("canvas").focus();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowRight");
    assert.match(await page.locator("#slot-status").innerText(), /^Slot 129, 127\.0\.0\.1:\d+\. Keys: 0/);
    await assertClean(page, "slots");
    // A replica shows its keys, too.
    const replica = await open(browser, nodes[3].url);
    await logIn(replica);
    await show(replica, "keyspace");
    await replica.getByLabel("Pattern").fill("*text");
    await replica.getByRole("button", { name: "Search" }).click();
    await replica.getByRole("link", { name: `${TAG}text` }).click();
    await replica.getByText("\"name\":\"Kvick\"").waitFor();
    await show(replica, "replication");
    await replica.getByText("Offset of this replica").waitFor();
    await assertClean(replica, "the replica");
  } finally {
    await Promise.all(nodes.map((node) => node.stop()));
  }
});

test("a viewer for every type", () => withServer({ "io-threads": 2 }, async (server) => {
  await fillWithData(server);
  const page = await open(browser, server.url);
  await logIn(page);
  const openKey = async (name) => {
    await show(page, "keyspace");
    await page.getByLabel("Pattern").fill(name);
    await page.getByRole("button", { name: "Search" }).click();
    await page.getByRole("link", { name, exact: true }).click();
    await page.getByRole("heading", { level: 2, name: `Key ${name}` }).waitFor();
    await ready(page);
  };
  const check = async (name, ...texts) => {
    await openKey(name);
    for (const text of texts) await page.getByRole("main").getByText(text).first().waitFor();
    await assertClean(page, name);
    await assertAccessible(page, name);
    await assertNarrow(page, name);
  };
  await check("text", "\"name\":\"Kvick\"");
  await page.getByLabel("Show as").selectOption("json");
  await page.getByText("\"list\": [").waitFor();
  await page.getByLabel("Show as").selectOption("hex");
  await page.getByText("00000000  7b 22 6e 61").waitFor();
  await check("long", "0123456789abcdef0123", "0 to 4095 of 65.5 k.");
  await page.getByRole("button", { name: "Next" }).click();
  await page.getByText("4096 to 8191 of 65.5 k.").waitFor();
  await check("list", "item 49", "0 to 49 of 121.");
  await page.getByRole("button", { name: "Next" }).click();
  await page.getByText("item 99").waitFor();
  await check("set", ATTACKS[0], "1 h 56 min");
  await check("sorted", "2.5", "inf", ATTACKS[0]);
  await picture(page, "sorted-set");
  await check("hash", "short-lived", "1 h 23 min", "no expiry", ATTACKS[0]);
  await picture(page, "hash");
  await check("stream", "Consumer groups", "30 of 30 entries, the latest first");
  await page.getByRole("button", { name: "Show group readers" }).click();
  await page.getByText("The first 5 of 5 pending entries").waitFor();
  await page.getByRole("button", { name: `Show group ${ATTACKS[0]}` }).click();
  await page.getByText("The first 3 of 3 pending entries").waitFor();
  await assertClean(page, "stream");
  await assertAccessible(page, "stream");
  await picture(page, "stream");
  // Keys and values with other bytes than text.
  await show(page, "keyspace");
  await page.getByLabel("Pattern").fill("binary:*");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByRole("link", { name: "binary:\\x00\\xff\\xfe\\x0a", exact: true }).click();
  await page.getByText("\\x00\\x9f\\x92\\x96").waitFor();
  for (const [number, attack] of ATTACKS.entries()) {
    await page.goto(`${server.url}#/keyspace/0/t${encodeURIComponent(`attack:${number}:${attack}`)}`);
    await ready(page);
    await page.locator("pre").waitFor();
    await assertClean(page, attack);
  }
}));

test("attacks in messages, in the console and at the login", () => withServer({}, async (server) => {
  await fillWithData(server);
  const page = await open(browser, server.url);
  await logIn(page);
  await show(page, "messages");
  await page.getByLabel("Channels", { exact: true }).fill("news");
  await page.getByLabel("Patterns").fill("<b>*");
  await page.getByLabel("Events of keys").check();
  await page.getByRole("button", { name: "Subscribe" }).click();
  await page.getByText("Subscribed to 3 channels or patterns.").waitFor();
  for (const attack of ATTACKS) await server.client.publish("news", attack);
  await server.client.publish(`<b>${ATTACKS[1]}`, ATTACKS[2]);
  await server.client.set(ATTACKS[0], "x");
  for (const attack of ATTACKS.slice(0, 7)) await page.getByRole("cell", { name: attack, exact: true }).first().waitFor();
  await page.getByRole("cell", { name: "__keyevent@0__:set" }).waitFor();
  await picture(page, "messages-live");
  await assertClean(page, "messages");
  await assertAccessible(page, "messages");
  await show(page, "console");
  for (const attack of ATTACKS) {
    await page.getByLabel("Command", { exact: true }).fill(`ECHO '${attack.replaceAll("'", "\\'")}'`);
    await page.keyboard.press("Enter");
  }
  await until("all replies arrive", async () => await page.locator(".entry").count() === ATTACKS.length);
  await assertClean(page, "console");
  await page.getByRole("button", { name: "Log out" }).click();
  for (const attack of ATTACKS.slice(0, 3)) {
    await page.getByLabel("User").fill(attack);
    await page.getByLabel("Password").fill(attack);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByText("Wrong user name or password").waitFor();
  }
  // The browser itself reports the status of a refused login.
  assert.equal(page.errors.length, 3);
  assert.ok(page.errors.every((error) => error.includes("401") && error.includes("api/login")), page.errors.join());
  page.errors = [];
  await assertClean(page, "the login");
}));

test("many messages do not stall the page", () => withServer({ "io-threads": 2 }, async (server) => {
  const page = await open(browser, server.url);
  await logIn(page);
  await show(page, "messages");
  await page.getByLabel("Patterns").fill("flood:*");
  await page.getByRole("button", { name: "Subscribe" }).click();
  await page.getByText("Subscribed to 1 channels or patterns.").waitFor();
  const total = 50_000;
  for (let sent = 0; sent < total; sent += 1000) {
    const pipeline = server.client.pipeline();
    for (let at = 0; at < 1000; at += 1) pipeline.publish("flood:x", `message ${sent + at} ${"y".repeat(100)}`);
    await pipeline.exec();
  }
  await until("received and lost messages are all", async () => {
    const text = await page.locator("#message-count").innerText();
    const [, received] = /^(\d+) messages received/.exec(text) ?? [];
    const [, lost] = /; (\d+) were lost/.exec(text) ?? [0, 0];
    if (Number(received) + Number(lost) < total) await server.client.publish("flood:x", "one more");
    return Number(received) + Number(lost) >= total;
  });
  assert.equal(await page.getByRole("region", { name: "Messages, the latest first" }).getByRole("row").count(), 201);
  await assertClean(page, "messages");
}));

test("rights of the user hold for every view", () => withServer({}, async (server) => {
  await fillWithData(server);
  const page = await open(browser, server.url);
  await page.getByLabel("User").fill("limited");
  await page.getByLabel("Password").fill("wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByText("Wrong user name or password").waitFor();
  assert.equal(page.errors.length, 1);
  page.errors = [];
  await logIn(page, "limited", "secret");
  for (const [id] of VIEWS) {
    await show(page, id);
    if (["clients", "logs", "users", "configuration", "replication", "overview"].includes(id)) await page.getByText(/NOPERM/).first().waitFor();
    await assertClean(page, id);
    await assertAccessible(page, id);
    await assertNarrow(page, id);
  }
  await picture(page, "denied");
  await show(page, "keyspace/0/ttext");
  await page.getByText("\"name\":\"Kvick\"").waitFor();
  await show(page, "keyspace/0/thash");
  await page.getByText(/NOPERM/).first().waitFor();
  await show(page, "messages");
  await page.getByLabel("Channels", { exact: true }).fill("news");
  await page.getByRole("button", { name: "Subscribe" }).click();
  await page.getByRole("alert").getByText(/NOPERM/).waitFor();
  await assertClean(page, "a limited user");
  // Figures that the user may not see are asked for once per page, not each second.
  const denied = (await server.client.call("ACL", "LOG", 100)).map((entry) => Object.fromEntries(Array.from({ length: entry.length / 2 }, (_, at) => [entry[2 * at], entry[2 * at + 1]])));
  const info = denied.find((entry) => entry.object === "info" && entry.username === "limited");
  assert.ok(info && Number(info.count) <= 2, JSON.stringify(info));
  await server.client.call("ACL", "DELUSER", "limited");
  await page.getByRole("heading", { name: "Log in" }).waitFor();
}));

test("the user of the documentation sees every view, and changes nothing", () => withServer({ "ui-write": "yes" }, async (server) => {
  const text = readFileSync(new URL("../../docs/page.md", import.meta.url), "utf8");
  const [line] = /^    ACL SETUSER viewer(.|\n {4,})*$/m.exec(text);
  await server.client.call(...line.trim().split(/\s+/));
  await fillWithData(server);
  const page = await open(browser, server.url);
  await logIn(page, "viewer", "password");
  for (const [id] of VIEWS) {
    await show(page, id);
    if (id === "overview") {
      await page.getByText("Commands per second").first().waitFor();
      await page.getByRole("button", { name: "Estimate memory" }).click();
      await page.getByRole("region", { name: /Memory by type of value/ }).waitFor();
    }
    assert.equal(await page.getByText("NOPERM").count(), 0, id);
  }
  for (const key of ["text", "list", "set", "sorted", "hash", "stream"]) {
    await show(page, `keyspace/0/t${key}`);
    assert.equal(await page.getByText("NOPERM").count(), 0, key);
  }
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByRole("alert").getByText(/NOPERM/).waitFor();
  await show(page, "messages");
  await page.getByLabel("Events of keys").check();
  await page.getByRole("button", { name: "Subscribe" }).click();
  await page.getByText("Subscribed to 1 channels or patterns.").waitFor();
  await assertClean(page, "the user of the documentation");
}));

test("without ui-write nothing changes, with it the page changes things", () => withServer({ "ui-write": "no" }, async (server) => {
  await fillWithData(server);
  const page = await open(browser, server.url);
  await logIn(page);
  await show(page, "console");
  const run = async (line) => {
    const number = await page.locator(".entry").count();
    await page.getByLabel("Command", { exact: true }).fill(line);
    await page.keyboard.press("Escape");
    await page.keyboard.press("Enter");
    await until("the reply arrives", async () => await page.locator(".entry").count() > number);
    return page.locator(".entry pre").last().innerText();
  };
  assert.match(await run("SET text changed"), /refused.*read-only/);
  assert.match(await run("CONFIG SET maxmemory 1"), /refused.*read-only/);
  assert.match(await run("FLUSHALL"), /refused.*read-only/);
  assert.match(await run("SUBSCRIBE a"), /refused/);
  assert.match(await run("GET \"te\\x78t\""), /Kvick/);
  assert.equal(await run("GET binary:nosuch"), "(nil)");
  assert.match(await run("HGETALL hash"), /1# field => "value"/);
  assert.match(await run("NOSUCHCOMMAND"), /error.*unknown command/);
  assert.match(await run("GET \"open"), /Invalid argument/);
  assert.equal(await run("SELECT 3"), "OK");
  assert.equal(await run("DBSIZE"), "(integer) 0");
  assert.match(await run("SELECT 99"), /out of range/);
  assert.equal(await server.client.exists("text"), 1);
  await picture(page, "console-replies");
  await server.client.call("CONFIG", "SET", "ui-write", "yes");
  await page.getByText("Changes allowed").waitFor();
  assert.equal(await run("SET written 1"), "OK");
  await show(page, "keyspace/0/ttext");
  await page.getByRole("button", { name: "Set expiry" }).click();
  await until("the key expires", async () => await server.client.ttl("text") > 0);
  await page.getByRole("button", { name: "Delete" }).click();
  await assertAccessible(page, "a dialog");
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await until("the key is gone", async () => await server.client.exists("text") === 0);
  await show(page, "configuration");
  await page.getByLabel("Search").fill("acllog-max-len");
  await page.getByLabel("New value of acllog-max-len").fill("77");
  await page.getByRole("button", { name: "Set acllog-max-len" }).click();
  await until("the setting changes", async () => (await server.client.config("GET", "acllog-max-len"))[1] === "77");
  await show(page, "clients");
  await assertAccessible(page, "clients");
  const other = server.client.duplicate({ retryStrategy: () => null });
  const closed = new Promise((resolve) => { other.once("end", resolve); });
  other.on("error", () => {});
  const id = await other.client("ID");
  await page.getByRole("button", { name: "Refresh", exact: true }).click();
  await page.getByRole("button", { name: `Close connection of client ${id}`, exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Close connection" }).click();
  await closed;
  await assertClean(page, "a page that may write");
}));

test("the keyboard is enough", () => withServer({}, async (server) => {
  await fillWithData(server);
  const page = await open(browser, server.url);
  const focused = () => page.evaluate(() => {
    const element = document.activeElement;
    return element.getAttribute("aria-label") ?? element.labels?.[0]?.textContent ?? element.textContent;
  });
  /** Presses Tab until an element has the focus. */
  const tabTo = async (name) => {
    const passed = [];
    for (let presses = 0; presses < 60; presses += 1) {
      const now = await focused();
      if (now === name) return;
      passed.push(now);
      await page.keyboard.press("Tab");
    }
    assert.fail(`${name} cannot be reached: ${passed.join(", ")}`);
  };
  assert.equal(await focused(), "User", "the login begins in its first field");
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Password");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
  await until("the heading has the focus", async () => await focused() === "Overview");
  const firstLink = page.locator("a, button, input, select").first();
  assert.equal(await firstLink.textContent(), "Skip to content");
  await firstLink.focus();
  assert.ok((await firstLink.boundingBox()).x >= 0, "the link is visible while it has the focus");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  for (const [, title] of VIEWS) {
    await page.locator(".skip").focus();
    await tabTo(title);
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineWidth);
    assert.notEqual(outline, "0px", "the focus is visible");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { level: 1, name: title }).waitFor();
    await ready(page);
  }
  // The console has the focus in its command line.
  assert.equal(await focused(), "Command");
  await page.keyboard.type("strl");
  await page.keyboard.press("Tab");
  assert.equal(await page.getByLabel("Command", { exact: true }).inputValue(), "STRLEN ");
  await page.keyboard.type("long");
  await page.keyboard.press("Enter");
  await page.getByText("(integer) 65536").waitFor();
  await until("the line has the focus again", async () => await focused() === "Command");
  await page.keyboard.press("ArrowUp");
  assert.equal(await page.getByLabel("Command", { exact: true }).inputValue(), "STRLEN long");
  await page.getByLabel("Command", { exact: true }).fill("");
  await page.keyboard.type("config");
  const first = page.locator("#suggestions").getByRole("option").first();
  await page.keyboard.press("ArrowDown");
  assert.equal(await first.getAttribute("aria-selected"), "true");
  await assertAccessible(page, "suggestions");
  await page.keyboard.press("Escape");
  assert.equal(await page.getByRole("listbox").count(), 0);
  // At 360 pixels, the views are in a menu.
  await page.setViewportSize({ width: 360, height: 700 });
  assert.ok(!await page.getByRole("navigation").isVisible());
  await page.getByRole("button", { name: "Menu" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("navigation").waitFor();
  await tabTo("Users");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "Users" }).waitFor();
  assert.ok(!await page.getByRole("navigation").isVisible());
  await picture(page, "narrow");
  await page.getByRole("button", { name: "Log out" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Log in" }).waitFor();
  await assertClean(page, "the keyboard");
}));
