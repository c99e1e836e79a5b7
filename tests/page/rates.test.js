// The figures that the page computes, and how it reads lines and replies.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, infoFields, items, pairs, show, text } from "../../crates/page/assets/format.js";
import { callsByBound, hitRate, percentiles, rate, read, workers } from "../../crates/page/assets/rates.js";
import { lines, split } from "../../crates/page/assets/views/console.js";

const sample = (time, info, histogram) => read({
  time_ms: time * 1000,
  replies: [{ format: "txt", text: Object.entries(info).map(([name, value]) => `${name}:${value}`).join("\r\n") }, {
    map: Object.entries(histogram).map(([name, buckets]) => [name, { map: [["calls", buckets.at(-1)?.[1] ?? 0], ["histogram_usec", { map: buckets }]] }]),
  }],
});

test("rates are per second and survive a reset", () => {
  const [one, two] = [sample(10, { n: 100, keyspace_hits: 0, keyspace_misses: 0 }, {}), sample(12, { n: 300, keyspace_hits: 30, keyspace_misses: 10 }, {})];
  assert.equal(rate(one, two, "n"), 100);
  assert.equal(rate(two, sample(14, { n: 50 }, {}), "n"), 25);
  assert.equal(hitRate(one, two), 0.75);
  assert.ok(Number.isNaN(hitRate(one, one)));
});

test("percentiles are of the calls between two samples", () => {
  const one = sample(1, {}, { get: [[2, 1000], [4, 1001]] });
  const two = sample(2, {}, { get: [[2, 1000], [4, 1051], [1024, 1101]], set: [[4, 100]] });
  const calls = callsByBound(one.commands, two.commands);
  assert.deepEqual(calls, [[4, 150], [1024, 50]]);
  const [median, high] = percentiles(calls, [0.5, 0.99]);
  assert.ok(median > 2 && median < 4 && high > 512 && high <= 1024, `${median} ${high}`);
  assert.deepEqual(callsByBound(two.commands, one.commands), [[2, 1000], [4, 1]], "after a reset, all calls are new");
  assert.ok(Number.isNaN(percentiles([], [0.5])[0]));
});

test("workers are compared by number", () => {
  const one = sample(1, { kvick_worker_0: "busy_usec=0,turns=10,commands=5" }, {});
  const two = sample(3, { kvick_worker_0: "busy_usec=1000000,turns=30,commands=105", kvick_worker_1: "busy_usec=5,turns=2,commands=2" }, {});
  assert.deepEqual(workers(one, two)[0], { number: 0, busy: 0.5, turns: 10, commands: 50 });
  assert.equal(workers(one, two).length, 2);
});

test("lines are split as in configuration files", () => {
  assert.deepEqual(split("SET a 'b c' \"d\\n\\x41\""), ["SET", "a", "b c", "d\nA"]);
  assert.deepEqual(split("GET \"\\xff\" ü€"), ["GET", { hex: "ff" }, "ü€"]);
  assert.deepEqual(split("  a\"b  "), ["a\"b"]);
  assert.deepEqual(split("GET \"\""), ["GET", ""]);
  for (const wrong of ["GET \"a", "GET 'a", "GET \"a\"b"]) assert.equal(split(wrong), null, wrong);
});

test("replies are shown without loss or danger", () => {
  assert.deepEqual(lines([1, "a\n", null, { error: "ERR x" }, []]), ["1) (integer) 1", "2) \"a\\n\"", "3) (nil)", "4) (error) ERR x", "5) (empty array)"]);
  assert.deepEqual(lines({ map: [["a", 1], ["b", [1, 2]]] }), ["1# a => (integer) 1", "2# b =>", "   1) (integer) 1", "   2) (integer) 2"]);
  assert.equal(show({ hex: "00ff41" }), "\\x00\\xffA");
  assert.equal(show("a\u202eb\u0000"), "a\\u202eb\\x00");
  assert.equal(text({ integer: "9223372036854775807" }), "9223372036854775807");
  assert.deepEqual(pairs(["a", 1, "b", 2]), [["a", 1], ["b", 2]]);
  assert.deepEqual(pairs([["m", { double: "1" }]]), [["m", { double: "1" }]]);
  assert.deepEqual(items({ set: [1] }), [1]);
  assert.deepEqual(infoFields({ text: "# Server\r\na:1:2\r\n" }), { a: "1:2" });
  assert.equal(bytes(1536), "1.5 KiB");
});
