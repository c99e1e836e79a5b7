// Checks the cluster modes of ioredis, iovalkey and node-redis.
//
// Usage: cluster.js PORT TAGS MOVING, where PORT is one of the nodes, the file TAGS has a hash tag for each slot, and
// the first MOVING slots are those that migrate. It prints `DO action` to have something happen to the cluster, and
// reads a line when that is done.

"use strict";

const assert = require("node:assert/strict");
const fs = require("node:fs");
const readline = require("node:readline");

const [port, moving] = [Number(process.argv[2]), Number(process.argv[4])];
const tags = fs.readFileSync(process.argv[3], "utf8").split("\n");
const host = "127.0.0.1";
// How long an operation is retried, and other conditions are waited for.
const PATIENCE_MS = 60_000;
const WRITERS = 4;
const ADD = "return redis.call('INCRBY', KEYS[1], ARGV[1])";

const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const key = (slot) => `{${tags[slot]}}`;
// Every `step`th slot.
const slots = (step) => Array.from({ length: Math.ceil(tags.length / step) }, (_, index) => index * step);

// Has something happen to the cluster, and returns the result.
async function act(action) {
  console.log(`DO ${action}`);
  const [word, result] = (await answers.next()).value.split(/ (.*)/);
  assert.equal(`${word} ${action}`, `done ${action}`, result);
  return result;
}

// What the checks need of ioredis and of iovalkey, its fork.
function ioredis(Redis, options) {
  return async (readsReplicas) => {
    const scaleReads = readsReplicas ? "slave" : "master";
    const client = new Redis.Cluster([{ host, port }], { scaleReads, ...options });
    client.on("error", () => {});
    // Blocking commands need connections of their own.
    const waiting = [];
    const consumer = () => waiting[waiting.push(new Redis.Cluster([{ host, port }])) - 1];
    return {
      set: (name, value) => client.set(name, value),
      get: (name) => client.get(name),
      // Pipelines of this library are for the slots of one node: it collects single requests by node.
      setAll: (names) => Promise.all(names.map((name) => client.set(name, name))),
      pipeline: async (name) => (await client.pipeline().incr(name).incr(name).exec()).map(([, reply]) => reply),
      getAll: (names) => client.mget(names),
      transaction: async (name) => (await client.multi().incr(name).incr(name).exec()).map(([, reply]) => reply),
      add: (name, number) => client.eval(ADD, 1, name, number),
      addByDigest: async (name, number) => {
        client.defineCommand("addNumber", { numberOfKeys: 1, lua: ADD });
        return client.addNumber(name, number);
      },
      receive: async (channel, ready) => {
        const subscriber = options.shardedSubscribers ? client : new Redis(await owner(client, channel));
        const message = new Promise((resolve) => subscriber.on("smessage", (_, text) => resolve(text)));
        await subscriber.ssubscribe(channel);
        await ready();
        const got = await message;
        await subscriber.sunsubscribe(channel);
        if (subscriber !== client) subscriber.disconnect();
        return got;
      },
      spublish: (channel, message) => client.spublish(channel, message),
      createGroup: (stream) => client.xgroup("CREATE", stream, "group", "0", "MKSTREAM"),
      append: (stream, number) => client.xadd(stream, "*", "n", number),
      consumer: () => {
        const own = consumer();
        return async (stream, name) => {
          const reply = await own.xreadgroup("GROUP", "group", name, "COUNT", 7, "BLOCK", 200, "STREAMS", stream, ">");
          const entries = reply?.[0][1] ?? [];
          for (const [id] of entries) assert.equal(await client.xack(stream, "group", id), 1);
          return entries.map(([, [, number]]) => Number(number));
        };
      },
      close: () => [client, ...waiting].forEach((one) => one.disconnect()),
    };
  };
}

// The address of the node that owns the slot of a channel.
async function owner(client, channel) {
  const slot = await client.cluster("KEYSLOT", channel);
  const range = (await client.cluster("SLOTS")).find(([first, last]) => first <= slot && slot <= last);
  return { host: range[2][0], port: range[2][1] };
}

// What the checks need of node-redis.
function nodeRedis({ createCluster }) {
  return async (readsReplicas) => {
    const open = [];
    const connect = async () => {
      const rootNodes = [{ url: `redis://${host}:${port}` }];
      const client = createCluster({ rootNodes, useReplicas: readsReplicas, minimizeConnections: true });
      client.on("error", () => {});
      open.push(client);
      return client.connect();
    };
    const client = await connect();
    return {
      set: (name, value) => client.set(name, value),
      get: (name) => client.get(name),
      setAll: (names) => Promise.all(names.map((name) => client.set(name, name))),
      pipeline: (name) => client.multi().incr(name).incr(name).execAsPipeline(),
      getAll: (names) => client.mGet(names),
      transaction: (name) => client.multi().incr(name).incr(name).exec(),
      add: (name, number) => client.eval(ADD, { keys: [name], arguments: [String(number)] }),
      addByDigest: async (name, number) => {
        const node = await client.nodeClient(client.slots[tags.findIndex((tag) => name === `{${tag}}`)].master);
        const digest = await node.scriptLoad(ADD);
        return client.evalSha(digest, { keys: [name], arguments: [String(number)] });
      },
      receive: async (channel, ready) => {
        let received;
        const message = new Promise((resolve) => (received = resolve));
        await client.sSubscribe(channel, (text) => received(text));
        await ready();
        const got = await message;
        await client.sUnsubscribe(channel);
        return got;
      },
      spublish: (channel, message) => client.sPublish(channel, message),
      createGroup: (stream) => client.xGroupCreate(stream, "group", "0", { MKSTREAM: true }),
      append: (stream, number) => client.xAdd(stream, "*", { n: String(number) }),
      consumer: () => {
        const connected = connect();
        return async (stream, name) => {
          const fresh = { key: stream, id: ">" };
          const reply = await (await connected).xReadGroup("group", name, fresh, { COUNT: 7, BLOCK: 200 });
          const entries = reply ? reply[0].messages : [];
          for (const { id } of entries) assert.equal(await client.xAck(stream, "group", id), 1);
          return entries.map(({ message }) => Number(message.n));
        };
      },
      close: () => open.forEach((one) => one.destroy()),
    };
  };
}

const checks = {
  async "every-slot"(client) {
    const all = slots(1);
    for (let first = 0; first < all.length; first += 1024) await client.setAll(all.slice(first, first + 1024).map(key));
    for (const slot of all) assert.equal(await client.get(key(slot)), key(slot));
  },
  async "hash-tags"(client) {
    for (const slot of slots(2000)) {
      const keys = [1, 2, 3].map((number) => key(slot) + number);
      await client.setAll(keys);
      assert.deepEqual(await client.getAll(keys), keys);
    }
  },
  async transaction(client) {
    for (const slot of slots(2000)) {
      assert.deepEqual(await client.transaction(key(slot)), [1, 2]);
      assert.deepEqual(await client.pipeline(key(slot)), [3, 4]);
    }
  },
  async script(client) {
    for (const slot of slots(2000)) {
      assert.equal(await client.add(key(slot), 5), 5);
      assert.equal(await client.addByDigest(key(slot), 6), 11);
    }
  },
  async "sharded-pubsub"(client) {
    for (const slot of slots(3000)) {
      const channel = tags[slot];
      let receivers;
      const message = await client.receive(channel, async () => (receivers = await client.spublish(channel, "hello")));
      assert.deepEqual([message, receivers], ["hello", 1]);
    }
  },
  async "replica-reads"(client, connect) {
    const reader = await connect(true);
    try {
      for (const slot of slots(40)) await client.set(key(slot), "x");
      await act("replicated");
      const before = Number(await act("replica_gets"));
      for (const slot of slots(40)) assert.equal(await reader.get(key(slot)), "x");
      const after = Number(await act("replica_gets"));
      assert.ok(after > before + 100, `${after - before} reads from replicas`);
    } finally {
      reader.close();
    }
  },
  streams: (client, _, library) => consumeStreams(client, library),
  "streams-failover": (client, _, library) => consumeStreams(client, library, "failover"),
};
for (const action of ["failover", "kill", "migrate_keys", "migrate_slots"]) {
  checks[action.replace("_", "-")] = (client, _, library) => writeDuring(client, library, action);
}

// Checks consumers of groups in three shards. If something happens meanwhile, then when half of the entries are
// written.
async function consumeStreams(client, library, action) {
  const [entries, seen, errors, until] = [600, [], new Map(), Date.now() + PATIENCE_MS];
  const streams = [100, 8000, 16000].map((slot) => `${key(slot)}s`);
  for (const stream of streams) await client.createGroup(stream);
  const consumers = Array.from({ length: 12 }, async (_, number) => {
    const next = client.consumer();
    while (seen.length < entries && Date.now() < until) {
      seen.push(...(await retried(errors, () => next(streams[number % 3], `c${number}`))));
    }
  });
  for (let number = 0; number < entries; number++) {
    if (action && number === entries / 2) await act(action);
    await retried(errors, () => client.append(streams[number % 3], number));
  }
  await Promise.all(consumers);
  assert.deepEqual(seen.sort((one, other) => one - other), Array.from({ length: entries }, (_, number) => number));
  report(library, entries, errors);
}

// Prints how much was written, and the errors.
function report(library, written, errors) {
  let total = 0;
  for (const [words, count] of errors) {
    console.error(`${library}: ${count} times ${words}`);
    total += count;
  }
  console.log(`WROTE ${library} ${written} ${total}`);
}

// The key of a numbered write. Half of them are in the slots that migrate.
function numbered(writer, number) {
  const slot = number % 2 ? (number >> 1) % moving : (number * 7919) % tags.length;
  return `${key(slot)}:${writer}:${number}`;
}

// Repeats an operation that fails, and counts the errors.
async function retried(errors, operation) {
  for (const until = Date.now() + PATIENCE_MS; ; await sleep(50)) {
    try {
      return await operation();
    } catch (error) {
      const words = String(error.message).replace(/\s+/g, " ");
      errors.set(words, (errors.get(words) ?? 0) + 1);
      if (Date.now() > until) throw error;
    }
  }
}

// Writes numbered keys while something happens, reads each back at once, and all of them at the end.
async function writeDuring(client, library, action) {
  const [written, errors] = [Array(WRITERS).fill(0), new Map()];
  let [isEnding, failure] = [false, undefined];
  const work = async (_, writer) => {
    while (!isEnding) {
      const [name, value] = [numbered(writer, written[writer]), String(written[writer])];
      assert.equal(await retried(errors, () => client.set(name, value)), "OK");
      assert.equal(await retried(errors, () => client.get(name)), value);
      written[writer]++;
      await sleep(2);
    }
  };
  const writers = written.map((...args) => work(...args).catch((error) => (failure = error)));
  const progress = async () => {
    const [goal, until] = [written.map((count) => count + 100), Date.now() + 2 * PATIENCE_MS];
    while (!failure && written.some((count, writer) => count < goal[writer])) {
      assert.ok(Date.now() < until, `writes: ${written}, not ${goal}`);
      await sleep(10);
    }
  };
  try {
    await progress();
    await act(action);
    await progress();
  } finally {
    isEnding = true;
    await Promise.all(writers);
  }
  if (failure) throw failure;
  for (const [writer, count] of written.entries()) {
    for (let number = 0; number < count; number++) {
      assert.equal(await client.get(numbered(writer, number)), String(number));
    }
  }
  report(library, written.reduce((sum, count) => sum + count), errors);
}

// Rejects if a check takes too long.
async function limited(work) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`timeout after ${4 * PATIENCE_MS} ms`)), 4 * PATIENCE_MS);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

async function main() {
  const libraries = {
    ioredis: ioredis(require("ioredis"), { shardedSubscribers: true }),
    iovalkey: ioredis(require("iovalkey"), {}),
    "node-redis": nodeRedis(require("redis")),
  };
  for (const [library, connect] of Object.entries(libraries)) {
    for (const [name, check] of Object.entries(checks)) {
      let client;
      try {
        await act("flush");
        client = await connect(false);
        await limited(check(client, connect, library));
        console.log(`CHECK ${library} ${name} ok`);
      } catch (error) {
        console.error(error);
        console.log(`CHECK ${library} ${name} FAIL: ${String(error.message ?? error).replace(/\s+/g, " ")}`);
      } finally {
        client?.close();
      }
    }
  }
  process.exit(0);
}

process.on("unhandledRejection", (reason) => console.error("unhandled:", reason));
main();
