// Replies of the server as text, and numbers with units.

/** The error in a reply, or undefined. */
export function errorOf(reply) {
  if (reply === null || typeof reply !== "object" || Array.isArray(reply)) return undefined;
  if ("error" in reply) return reply.error;
  if ("refused" in reply) return reply.refused;
  if ("too_large" in reply) return `The reply is larger than ${bytes(reply.too_large)}. Ask for a part of it.`;
  return undefined;
}

/** Whether the server does not know the command. */
export function isUnknownCommand(reply) {
  return /^ERR unknown (command|subcommand)/i.test(errorOf(reply) ?? "");
}

/** Characters that are invisible or change the direction of text. */
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

function escapeInvisible(text) {
  return text.replace(INVISIBLE, (character) => {
    const code = character.codePointAt(0);
    return ESCAPES[character] ?? (code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`);
  });
}

function unhex(digits) {
  return Uint8Array.from({ length: digits.length / 2 }, (_, at) => parseInt(digits.slice(2 * at, 2 * at + 2), 16));
}

/** Bytes that are not UTF-8, with escapes. */
function escapeBytes(digits) {
  return Array.from(unhex(digits), (byte) =>
    byte >= 0x20 && byte < 0x7f && byte !== 0x5c ? String.fromCharCode(byte) : `\\x${byte.toString(16).padStart(2, "0")}`).join("");
}

/** The text of a scalar reply, unchanged if it is text. */
export function text(reply) {
  if (reply === null || reply === undefined) return "";
  if (typeof reply !== "object") return String(reply);
  if (Array.isArray(reply)) return reply.map(text).join(" ");
  for (const name of ["status", "double", "integer", "big", "error", "text", "refused"]) {
    if (name in reply) return reply[name];
  }
  return "hex" in reply ? escapeBytes(reply.hex) : JSON.stringify(reply);
}

/** The text of a scalar reply on one line, with invisible characters escaped. */
export function show(reply) {
  return reply === null ? "(nil)" : escapeInvisible(text(reply));
}

/** A number in a reply. */
export function number(reply) {
  return Number(text(reply));
}

/** A reply as an argument of a command, without loss. */
export function argument(reply) {
  return typeof reply === "object" && reply !== null && "hex" in reply ? { hex: reply.hex } : text(reply);
}

/** The bytes of a string in a reply. */
export function toBytes(reply) {
  return typeof reply === "object" && reply !== null && "hex" in reply ? unhex(reply.hex) : new TextEncoder().encode(text(reply));
}

/** The items of an array or a set. */
export function items(reply) {
  if (Array.isArray(reply)) return reply;
  return reply?.set ?? reply?.push ?? [];
}

/** Whether a reply is a map. An array has a method of that name. */
export function isMap(reply) {
  return reply !== null && typeof reply === "object" && Array.isArray(reply.map);
}

/** The pairs of a map, or of a flat list. */
export function pairs(reply) {
  if (isMap(reply)) return reply.map;
  const flat = items(reply);
  if (flat.length > 0 && flat.every((item) => Array.isArray(item) && item.length === 2)) return flat;
  return Array.from({ length: Math.floor(flat.length / 2) }, (_, at) => [flat[2 * at], flat[2 * at + 1]]);
}

/** A map with names as text. */
export function object(reply) {
  return Object.fromEntries(pairs(reply).map(([name, value]) => [text(name), value]));
}

/** The fields of INFO and of CLUSTER INFO. */
export function infoFields(reply) {
  const fields = {};
  for (const line of text(reply).split(/\r?\n/)) {
    const at = line.indexOf(":");
    if (at > 0 && !line.startsWith("#")) fields[line.slice(0, at)] = line.slice(at + 1);
  }
  return fields;
}

/** The value of a field such as "calls=1,usec=2". */
export function subfields(value) {
  return Object.fromEntries((value ?? "").split(",").map((part) => {
    const at = part.indexOf("=");
    return [part.slice(0, at), part.slice(at + 1)];
  }));
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  let at = 0;
  let value = count;
  while (Math.abs(value) >= 1024 && at < UNITS.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[at]}`;
}

/** A number with a decimal unit. */
export function count(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(2)} G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return size >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

export function percent(share) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "–";
}

/** A time in microseconds. */
export function micros(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} s`;
  if (value >= 1e3) return `${(value / 1e3).toFixed(value >= 1e5 ? 0 : 1)} ms`;
  return `${value >= 10 || value === 0 ? Math.round(value) : value.toFixed(1)} µs`;
}

/** A duration in seconds. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days > 0) return `${days} d ${hours} h`;
  return hours > 0 ? `${hours} h ${minutes} min` : `${minutes} min ${Math.floor(seconds % 60)} s`;
}

/** The time that is left of a key or field. */
export function timeLeft(milliseconds) {
  if (milliseconds === -1) return "no expiry";
  if (milliseconds < 0) return "–";
  return milliseconds < 1000 ? `${milliseconds} ms` : duration(milliseconds / 1000);
}

export function time(unixMs) {
  return Number.isFinite(unixMs) && unixMs > 0 ? new Date(unixMs).toLocaleString() : "–";
}
