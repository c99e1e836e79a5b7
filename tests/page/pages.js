// A browser with one page, and what every test does with it.

import assert from "node:assert/strict";
import { readFileSync, mkdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import sharp from "sharp";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PICTURES = join(dirname(fileURLToPath(import.meta.url)), "../../docs/page");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];

export const VIEWS = [
  ["overview", "Overview"], ["clients", "Clients"], ["logs", "Command log and latency"], ["keyspace", "Keyspace"], ["hot", "Hot and big keys"],
  ["slots", "Slots"], ["cluster", "Cluster"], ["replication", "Replication and persistence"], ["messages", "Messages and key events"],
  ["users", "Users"], ["configuration", "Configuration"], ["console", "Console"],
];

export function launch() {
  // Root has no sandbox; the pages are those of the server under test.
  return chromium.launch({ executablePath: process.env.KVICK_TEST_CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"] });
}

/** A page whose errors are collected. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, colorScheme: "light", locale: "en-GB", timezoneId: "UTC", reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.errors = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) page.errors.push(`${message.text()} (${message.location().url})`);
  });
  page.on("pageerror", (error) => page.errors.push(String(error)));
  page.on("dialog", (dialog) => {
    page.errors.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(new URL(url).origin) && !request.url().startsWith("data:")) page.errors.push(`a foreign request: ${request.url()}`);
  });
  await page.goto(url);
  await page.getByRole("heading", { name: "Log in" }).waitFor();
  return page;
}

export async function logIn(page, user = "default", password = "") {
  await page.getByLabel("User").fill(user);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
}

/** Opens a view, and waits until it is complete. */
export async function show(page, id) {
  await page.evaluate((hash) => { location.hash = hash; }, `#/${id}`);
  await ready(page);
}

export async function ready(page) {
  await page.locator(".view[data-ready]").waitFor();
}

/** Checks that nothing went wrong on a page, and that no text was run as script or became markup. */
export async function assertClean(page, where) {
  assert.deepEqual(page.errors, [], where);
  assert.equal(await page.evaluate(() => window.attacked), undefined, `${where}: a script of an attacker ran`);
  const foreign = await page.evaluate(() => document.querySelectorAll("main img, main svg, main script, main iframe, main b, main i, [onerror], [onload]").length);
  assert.equal(foreign, 0, `${where}: data became markup`);
}

/** Checks the rules of axe. */
export async function assertAccessible(page, where) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate((tags) => window.axe.run(document, { runOnly: { type: "tag", values: tags } }), RULES);
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.html} ${node.failureSummary}`).slice(0, 3).join("; ")}`);
  assert.deepEqual(found, [], where);
}

/** Checks that a view fits into 360 pixels without scrolling sideways. Tables scroll by themselves. */
export async function assertNarrow(page, where) {
  const wide = page.viewportSize();
  await page.setViewportSize({ width: 360, height: 700 });
  const [width, elements] = await page.evaluate(() => [document.documentElement.scrollWidth,
    [...document.querySelectorAll("main *")].filter((element) => element.getBoundingClientRect().right > 361 && !element.closest(".scroll, .uplot"))
      .slice(0, 3).map((element) => element.outerHTML.slice(0, 120))]);
  await page.setViewportSize(wide);
  assert.ok(width <= 360, `${where}: ${width} pixels wide: ${elements.join(" ")}`);
}

/** Writes a picture into the documentation, if KVICK_PAGE_PICTURES is set. */
export async function picture(page, name) {
  if (!process.env.KVICK_PAGE_PICTURES || name === undefined) return;
  mkdirSync(PICTURES, { recursive: true });
  const image = await page.screenshot({ animations: "disabled" });
  writeFileSync(join(PICTURES, `${name}.png`), await sharp(image).png({ palette: true, colours: 64, effort: 10, compressionLevel: 9 }).toBuffer());
}
