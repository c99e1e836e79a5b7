// Checks documented features of ioredis, iovalkey and node-redis against a server.
//
// Usage: checks.js PORT TLS-PORT FOLDER, where FOLDER contains ca.crt, own.crt and own.key.

"use strict";

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");

const [port, tlsPort, directory] = [Number(process.argv[2]), Number(process.argv[3]), process.argv[4]];
const host = "127.0.0.1";
const tls = Object.fromEntries(
  [["ca", "ca.crt"], ["cert", "own.crt"], ["key", "own.key"]].map(([name, file]) => [name, fs.readFileSync(path.join(directory, file))]),
);
const PATIENCE_MS = 30_000;

// Polls until a condition holds, for about ten seconds.
async function until(holds) {
  for (let round = 0; round < 1000; round++) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  throw new Error("condition not reached");
}

// Checks of ioredis and of iovalkey, its fork.
function ioredisChecks(Redis, { knowsResp3 }) {
  const open = [];
  const connect = (options = {}) => {
    const client = new Redis({ host, port, maxRetriesPerRequest: 1, ...options });
    client.on("error", () => {});
    open.push(client);
    return client;
  };
  const connectTls = (options = {}) => connect({ host: "localhost", port: tlsPort, tls, ...options });
  const checks = {
    async "connect-resp2"() {
      const client = connect({ connectionName: "two", db: 3, protocol: 2 });
      assert.equal(await client.ping(), "PONG");
      assert.match(await client.client("INFO"), /name=two .* db=3 .* resp=2/);
    },
    async "connect-resp3"() {
      const client = connect({ protocol: 3 });
      assert.match(await client.client("INFO"), / resp=3/);
      await client.hset("h3", { a: 1, b: "two" });
      assert.deepEqual(await client.hgetall("h3"), { a: "1", b: "two" });
    },
    async "connect-tls"() {
      const client = connectTls();
      const large = "x".repeat(5_000_000);
      assert.equal(await client.set("large", large), "OK");
      assert.equal(await client.get("large"), large);
      const stranger = connect({ host: "localhost", port: tlsPort, tls: { ca: tls.ca }, retryStrategy: null });
      await assert.rejects(stranger.ping());
    },
    async "acl-user"() {
      const admin = connect();
      await admin.acl("SETUSER", "worker", "on", ">secret", "~app:*", "+@all", "-@dangerous");
      const client = connect({ username: "worker", password: "secret" });
      assert.equal(await client.acl("WHOAMI"), "worker");
      assert.equal(await client.set("app:1", "x"), "OK");
      await assert.rejects(client.get("other"), /NOPERM/);
      await assert.rejects(client.config("GET", "port"), /NOPERM/);
      const wrong = connect({ username: "worker", password: "wrong", retryStrategy: null });
      await assert.rejects(wrong.ping());
      assert.equal(await connectTls({ username: "worker", password: "secret" }).acl("WHOAMI"), "worker");
      await admin.acl("DELUSER", "worker");
    },
    async values() {
      const client = connect();
      assert.equal(await client.set("s", "v", "EX", 100, "NX"), "OK");
      assert.equal(await client.set("s", "v", "NX"), null);
      await client.hset("h", { a: 1, b: "two" });
      assert.deepEqual(await client.hgetall("h"), { a: "1", b: "two" });
      assert.equal(await client.zadd("z", 1, "a", 2.5, "b"), 2);
      assert.deepEqual(await client.zrange("z", 0, -1, "WITHSCORES"), ["a", "1", "b", "2.5"]);
      const bytes = Buffer.from(Array.from({ length: 256 }, (_, n) => n));
      await client.set("bytes", bytes);
      assert.deepEqual(await client.getBuffer("bytes"), bytes);
    },
    async pipeline() {
      const pipeline = connect().pipeline();
      for (let n = 0; n < 1000; n++) pipeline.set(`p:${n}`, n).get(`p:${n}`);
      const replies = await pipeline.exec();
      replies.forEach(([error, reply], n) => assert.deepEqual([error, reply], [null, n % 2 ? String(n >> 1) : "OK"]));
      const auto = connect({ enableAutoPipelining: true });
      const sums = await Promise.all(Array.from({ length: 300 }, () => auto.incr("auto")));
      assert.deepEqual(sums, Array.from({ length: 300 }, (_, n) => n + 1));
    },
    async scan() {
      const client = connect();
      const pipeline = client.pipeline();
      for (let n = 0; n < 2500; n++) pipeline.set(`scan:${n}`, n);
      await pipeline.exec();
      const seen = new Set();
      for await (const keys of client.scanStream({ match: "scan:*", count: 100 })) keys.forEach((key) => seen.add(key));
      assert.equal(seen.size, 2500);
    },
    async transaction() {
      const [client, other] = [connect(), connect()];
      assert.deepEqual(await client.multi().set("foo", "bar").get("foo").exec(), [[null, "OK"], [null, "bar"]]);
      await client.watch("foo");
      await other.set("foo", "changed");
      assert.equal(await client.multi().set("foo", "mine").exec(), null);
      await assert.rejects(client.multi().set("foo").exec(), /EXECABORT|ERR/);
    },
    async script() {
      const client = connect();
      client.defineCommand("echoTwo", { numberOfKeys: 2, lua: "return {KEYS[1],KEYS[2],ARGV[1],ARGV[2]}" });
      assert.deepEqual(await client.echoTwo("{k}1", "{k}2", "a1", "a2"), ["{k}1", "{k}2", "a1", "a2"]);
      await client.script("FLUSH");
      assert.deepEqual(await client.echoTwo("{k}1", "{k}2", "a1", "a2"), ["{k}1", "{k}2", "a1", "a2"]);
      assert.equal(await client.eval("return redis.call('SET', KEYS[1], ARGV[1])", 1, "scripted", "yes"), "OK");
      assert.equal(await client.get("scripted"), "yes");
      await client.function("LOAD", "REPLACE", "#!lua name=lib\nredis.register_function('twice', function(keys, args) return 2 * args[1] end)");
      assert.equal(await client.fcall("twice", 0, 21), 42);
      await client.function("DELETE", "lib");
    },
    async "publish-subscribe"() {
      const [subscriber, publisher] = [connectTls(), connect()];
      const got = [];
      subscriber.on("message", (channel, message) => got.push([channel, message]));
      subscriber.on("pmessage", (pattern, channel, message) => got.push([pattern, channel, message]));
      assert.equal(await subscriber.subscribe("news", "music"), 2);
      assert.equal(await subscriber.psubscribe("n?ws"), 3);
      assert.equal(await publisher.publish("news", "hello"), 2);
      await until(() => got.length === 2);
      assert.deepEqual(got.sort((one, other) => one.length - other.length), [["news", "hello"], ["n?ws", "news", "hello"]]);
      assert.equal(await subscriber.unsubscribe("news", "music"), 1);
      assert.equal(await subscriber.punsubscribe("n?ws"), 0);
      assert.equal(await subscriber.ping(), "PONG");
    },
    async "streams-and-groups"() {
      const client = connect();
      await client.xgroup("CREATE", "stream", "group", "0", "MKSTREAM");
      const [seen, entries] = [[], 400];
      const consume = async (own, name) => {
        while (seen.length < entries) {
          const reply = await own.xreadgroup("GROUP", "group", name, "COUNT", 7, "BLOCK", 200, "STREAMS", "stream", ">");
          for (const [id, [, n]] of reply?.[0][1] ?? []) {
            assert.equal(await client.xack("stream", "group", id), 1);
            seen.push(Number(n));
          }
        }
      };
      const consumers = Array.from({ length: 16 }, (_, n) => consume(n % 2 ? connect() : connectTls(), `consumer-${n}`));
      for (let n = 0; n < entries; n++) await client.xadd("stream", "*", "n", n);
      await Promise.all(consumers);
      assert.deepEqual(seen.sort((one, other) => one - other), Array.from({ length: entries }, (_, n) => n));
      assert.equal((await client.xpending("stream", "group"))[0], 0);
    },
    async blocking() {
      const [waiting, client] = [connect(), connect()];
      const popped = waiting.blpop("{queue}nothing", "queue", 10);
      await client.rpush("queue", "task");
      assert.deepEqual(await popped, ["queue", "task"]);
    },
  };
  if (!knowsResp3) delete checks["connect-resp3"];
  return [checks, () => open.splice(0).forEach((client) => client.disconnect())];
}

// Checks of node-redis.
function nodeRedisChecks({ createClient }) {
  const open = [];
  const connect = async (options = {}) => {
    const client = createClient({ socket: { host, port, reconnectStrategy: false, ...options.socket }, ...without(options, "socket") });
    client.on("error", () => {});
    open.push(client);
    return client.connect();
  };
  const without = (options, name) => Object.fromEntries(Object.entries(options).filter(([key]) => key !== name));
  const connectTls = (options = {}) => connect({ socket: { host: "localhost", port: tlsPort, tls: true, ...tls }, ...options });
  const checks = {
    async "connect-resp2"() {
      const client = await connect({ RESP: 2, name: "two", database: 3 });
      assert.equal(await client.ping(), "PONG");
      const info = await client.clientInfo();
      assert.deepEqual([info.name, info.db, Number(info.resp)], ["two", 3, 2]);
    },
    async "connect-resp3"() {
      const client = await connect({ RESP: 3 });
      assert.equal(Number((await client.clientInfo()).resp), 3);
      await client.hSet("h3", { a: "1", b: "2" });
      assert.deepEqual({ ...(await client.hGetAll("h3")) }, { a: "1", b: "2" });
    },
    async "connect-tls"() {
      for (const RESP of [2, 3]) {
        const client = await connectTls({ RESP });
        const large = "x".repeat(5_000_000);
        assert.equal(await client.set("large", large), "OK");
        assert.equal(await client.get("large"), large);
      }
      await assert.rejects(async () => {
        const stranger = await connect({ socket: { host: "localhost", port: tlsPort, tls: true, ca: tls.ca } });
        await stranger.ping();
      });
    },
    async "acl-user"() {
      const admin = await connect();
      await admin.aclSetUser("worker", ["on", ">secret", "~app:*", "+@all", "-@dangerous"]);
      const client = await connect({ username: "worker", password: "secret" });
      assert.equal(await client.aclWhoAmI(), "worker");
      assert.equal(await client.set("app:1", "x"), "OK");
      await assert.rejects(client.get("other"), /NOPERM/);
      await assert.rejects(connect({ username: "worker", password: "wrong" }), /WRONGPASS/);
      await admin.aclDelUser("worker");
    },
    async values() {
      const client = await connect();
      assert.equal(await client.set("s", "v", { EX: 100, NX: true }), "OK");
      assert.equal(await client.zAdd("z", [{ score: 1, value: "a" }, { score: 2.5, value: "b" }]), 2);
      assert.deepEqual((await client.zRangeWithScores("z", 0, -1)).map(({ score, value }) => [score, value]), [[1, "a"], [2.5, "b"]]);
      assert.equal(await client.lPush("l", ["a", "b"]), 2);
      assert.deepEqual(await client.lRange("l", 0, -1), ["b", "a"]);
    },
    async pipeline() {
      const client = await connect();
      const replies = await Promise.all(
        Array.from({ length: 1000 }, (_, n) => [client.set(`p:${n}`, String(n)), client.get(`p:${n}`)]).flat(),
      );
      replies.forEach((reply, n) => assert.equal(reply, n % 2 ? String(n >> 1) : "OK"));
    },
    async scan() {
      const client = await connect();
      await Promise.all(Array.from({ length: 2500 }, (_, n) => client.set(`scan:${n}`, String(n))));
      const seen = new Set();
      for await (const keys of client.scanIterator({ MATCH: "scan:*", COUNT: 100 })) keys.forEach((key) => seen.add(key));
      assert.equal(seen.size, 2500);
    },
    async transaction() {
      const [client, other] = [await connect(), await connect()];
      assert.deepEqual(await client.multi().set("foo", "bar").get("foo").exec(), ["OK", "bar"]);
      await client.watch("foo");
      await other.set("foo", "changed");
      await assert.rejects(client.multi().set("foo", "mine").exec(), { name: /WatchError|Error/ });
    },
    async script() {
      const client = await connect();
      const reply = await client.eval("return {KEYS[1], ARGV[1], 3}", { keys: ["k"], arguments: ["a"] });
      assert.deepEqual(reply, ["k", "a", 3]);
      const sha = await client.scriptLoad("return redis.call('INCRBY', KEYS[1], ARGV[1])");
      assert.equal(await client.evalSha(sha, { keys: ["sum"], arguments: ["5"] }), 5);
      await client.functionLoad("#!lua name=lib\nredis.register_function('twice', function(keys, args) return 2 * args[1] end)", { REPLACE: true });
      assert.equal(await client.fCall("twice", { keys: [], arguments: ["21"] }), 42);
      await client.functionDelete("lib");
    },
    async "publish-subscribe"() {
      for (const RESP of [2, 3]) {
        const [subscriber, publisher] = [await connectTls({ RESP }), await connect()];
        const got = [];
        await subscriber.subscribe("news", (message, channel) => got.push([channel, message]));
        await subscriber.pSubscribe("n?ws", (message, channel) => got.push([channel, message]));
        await subscriber.sSubscribe("shard", (message, channel) => got.push([channel, message]));
        assert.equal(await publisher.publish("news", "hello"), 2);
        assert.equal(await publisher.sPublish("shard", "sharded"), 1);
        await until(() => got.length === 3);
        assert.deepEqual(got.map(String).sort(), ["news,hello", "news,hello", "shard,sharded"]);
        await subscriber.unsubscribe();
        await subscriber.pUnsubscribe();
        await subscriber.sUnsubscribe();
        assert.equal(String(await subscriber.ping()), "PONG");
      }
    },
    async "streams-and-groups"() {
      const client = await connect();
      await client.xGroupCreate("stream", "group", "0", { MKSTREAM: true });
      const [seen, entries] = [[], 400];
      const consume = async (own, name) => {
        while (seen.length < entries) {
          const reply = await own.xReadGroup("group", name, { key: "stream", id: ">" }, { COUNT: 7, BLOCK: 200 });
          const messages = reply ? (Array.isArray(reply) ? reply[0].messages : Object.values(reply)[0]) : [];
          for (const { id, message } of messages) {
            assert.equal(await client.xAck("stream", "group", id), 1);
            seen.push(Number(message.n));
          }
        }
      };
      const consumers = [];
      for (let n = 0; n < 16; n++) consumers.push(consume(await (n % 2 ? connect() : connectTls()), `consumer-${n}`));
      for (let n = 0; n < entries; n++) await client.xAdd("stream", "*", { n: String(n) });
      await Promise.all(consumers);
      assert.deepEqual(seen.sort((one, other) => one - other), Array.from({ length: entries }, (_, n) => n));
      assert.equal((await client.xPending("stream", "group")).pending, 0);
    },
    async blocking() {
      const [waiting, client] = [await connect(), await connect()];
      const popped = waiting.blPop(["{queue}nothing", "queue"], 10);
      await client.rPush("queue", "task");
      assert.deepEqual({ ...(await popped) }, { key: "queue", element: "task" });
    },
  };
  return [checks, () => open.splice(0).forEach((client) => client.destroy?.())];
}

// Runs the checks of one library; the server is emptied before each.
async function run(library, [checks, close]) {
  const Redis = require("ioredis");
  const admin = new Redis({ host, port });
  for (const [name, check] of Object.entries(checks)) {
    await admin.flushall();
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`timeout after ${PATIENCE_MS} ms`)), PATIENCE_MS);
    });
    try {
      await Promise.race([check(), late]);
      console.log(`CHECK ${library} ${name} ok`);
    } catch (error) {
      console.error(error);
      console.log(`CHECK ${library} ${name} FAIL: ${String(error.message ?? error).replace(/\s+/g, " ")}`);
    } finally {
      clearTimeout(timer);
      close();
    }
  }
  admin.disconnect();
}

async function main() {
  await run("ioredis", ioredisChecks(require("ioredis"), { knowsResp3: true }));
  await run("iovalkey", ioredisChecks(require("iovalkey"), { knowsResp3: false }));
  await run("node-redis", nodeRedisChecks(require("redis")));
  process.exit(0);
}

process.on("unhandledRejection", (reason) => console.error("unhandled:", reason));
main();
