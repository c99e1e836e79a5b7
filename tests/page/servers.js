// Starts servers on free ports, with data that tries to break the page.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Redis } from "iovalkey";

const PROGRAM = process.env.KVICK_TEST_SERVER;
/** How long to wait for anything. */
const WAIT_MS = 60_000;

/** Waits until a function returns something true, and returns that. */
export async function until(what, condition) {
  const end = Date.now() + WAIT_MS;
  let failure;
  while (Date.now() < end) {
    try {
      const result = await condition();
      if (result) return result;
    } catch (error) {
      failure = error;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`not in time: ${what}${failure ? `: ${failure}` : ""}`);
}

/** A port that is free, as is the one 10000 above it, which is that of a cluster bus. */
async function freePort() {
  for (;;) {
    const port = 12_000 + Math.floor(Math.random() * 18_000);
    const free = await Promise.all([port, port + 10_000].map((candidate) => new Promise((resolve) => {
      const server = net.createServer();
      server.once("error", () => resolve(false));
      server.listen(candidate, "127.0.0.1", () => server.close(() => resolve(true)));
    })));
    if (free.every(Boolean)) return port;
  }
}

/** A server with the page. */
export class Server {
  static async start(options = {}) {
    const server = new Server();
    server.folder = mkdtempSync(join(tmpdir(), "kvick-page-"));
    server.port = await freePort();
    server.httpPort = await freePort();
    const all = {
      port: server.port, "metrics-port": server.httpPort, bind: "127.0.0.1", ui: "yes", dir: server.folder, save: "", logfile: "log",
      "notify-keyspace-events": "KEA", "latency-monitor-threshold": "1", "enable-debug-command": "yes", ...options,
    };
    server.child = spawn(PROGRAM, Object.entries(all).flatMap(([name, value]) => [`--${name}`, String(value)]), { stdio: "ignore" });
    server.client = new Redis({ port: server.port, host: "127.0.0.1", retryStrategy: () => 100, maxRetriesPerRequest: null });
    server.client.on("error", () => {});
    await until("the server answers", async () => {
      if (server.child.exitCode !== null) throw new Error(readFileSync(join(server.folder, "log"), "utf8"));
      return await server.client.ping() === "PONG";
    });
    return server;
  }

  get url() {
    return `http://127.0.0.1:${this.httpPort}/ui/`;
  }

  async stop() {
    await this.load?.stop();
    this.client.disconnect();
    this.child.kill("SIGKILL");
    await new Promise((resolve) => (this.child.exitCode === null && this.child.signalCode === null ? this.child.once("exit", resolve) : resolve()));
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Three primaries and a replica. */
export async function startCluster() {
  const options = { "cluster-enabled": "yes", "cluster-node-timeout": "5000", "cluster-slot-stats-enabled": "yes", "repl-diskless-sync-delay": "0" };
  const nodes = await Promise.all([0, 1, 2, 3].map(() => Server.start(options)));
  const bounds = [0, 5461, 10923, 16384];
  for (const at of [0, 1, 2]) {
    await nodes[at].client.call("CLUSTER", "ADDSLOTSRANGE", bounds[at], bounds[at + 1] - 1);
    await nodes[at].client.call("CLUSTER", "SET-CONFIG-EPOCH", at + 1);
  }
  for (const node of nodes.slice(1)) await nodes[0].client.call("CLUSTER", "MEET", "127.0.0.1", node.port);
  const primary = await nodes[0].client.call("CLUSTER", "MYID");
  await until("the replica knows its primary", async () => await nodes[3].client.call("CLUSTER", "REPLICATE", primary) === "OK");
  await until("the cluster is up", async () => {
    const states = await Promise.all(nodes.map((node) => node.client.call("CLUSTER", "INFO")));
    return states.every((state) => state.includes("cluster_state:ok") && state.includes("cluster_known_nodes:4"));
  });
  await until("the replica is in sync", async () => (await nodes[3].client.info("replication")).includes("master_link_status:up"));
  return nodes;
}

/** Commands without pause, so that there is something to see, until the server is stopped. */
export function startLoad(server, slot = "") {
  const client = server.client.duplicate();
  client.on("error", () => {});
  let isOn = true;
  const load = async () => {
    for (let round = 0; isOn; round += 1) {
      const pipeline = client.pipeline();
      for (let at = 0; at < 50; at += 1) {
        const key = `load:${slot}${(round * 50 + at) % 1000}`;
        pipeline.set(key, "x".repeat(1 + (at % 100)), "EX", 1000);
        pipeline.get(key);
        pipeline.get(`missing:${slot}`);
      }
      await pipeline.exec().catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  };
  const ended = load();
  server.load = {
    stop: () => {
      isOn = false;
      // Also ends a pipeline under way. The client would wait forever for the replies of a server that has stopped.
      client.disconnect();
      return ended;
    },
  };
}

/** Markup and script that must never be more than text. */
export const ATTACKS = [
  "<img src=x onerror=\"window.attacked=1\">", "<script>window.attacked=1</script>", "\"><svg/onload=window.attacked=1>", "javascript:window.attacked=1",
  "'-window.attacked=1-'", "{{constructor.constructor('window.attacked=1')()}}", "</script><script>window.attacked=1</script>", "\u202emlth.exe",
];

/** Data of all types, with attacks in every place that the page shows. */
export async function fillWithData(server, tag = "") {
  const { client } = server;
  const attack = ATTACKS[0];
  const at = (name) => `${tag}${name}`;
  for (const [number, text] of ATTACKS.entries()) await client.set(`${at("attack")}:${number}:${text}`, text);
  await client.set(Buffer.concat([Buffer.from(at("binary:")), Buffer.from([0, 255, 254, 10])]), Buffer.from([0, 159, 146, 150]));
  await client.set(at("text"), JSON.stringify({ name: "Kvick", list: [1, 2, 3], attack }));
  await client.set(at("long"), "0123456789abcdef".repeat(4096));
  await client.rpush(at("list"), ...Array.from({ length: 120 }, (_, item) => `item ${item}`), attack);
  await client.sadd(at("set"), "one", "two", attack);
  await client.zadd(at("sorted"), 1, "low", 2.5, attack, "+inf", "high");
  await client.hset(at("hash"), "field", "value", attack, attack, "short-lived", "gone soon");
  await client.call("HEXPIRE", at("hash"), 5000, "FIELDS", 1, "short-lived");
  await client.expire(at("set"), 7000);
  for (let entry = 0; entry < 30; entry += 1) await client.xadd(at("stream"), "*", "number", entry, "attack", attack);
  await client.xgroup("CREATE", at("stream"), attack, "0");
  await client.xgroup("CREATE", at("stream"), "readers", "0");
  await client.xreadgroup("GROUP", "readers", attack, "COUNT", 5, "STREAMS", at("stream"), ">");
  await client.xreadgroup("GROUP", attack, "worker", "COUNT", 3, "STREAMS", at("stream"), ">");
  // Names of clients and users cannot contain blanks.
  await client.call("CLIENT", "SETNAME", attack.replaceAll(" ", "/"));
  await client.call("CLIENT", "SETINFO", "LIB-NAME", "<b>lib</b>");
  await client.call("ACL", "SETUSER", "<img/src=x/onerror=window.attacked=1>", "on", ">secret", "~<i>*", "&<b>*", "+get");
  await client.call("ACL", "SETUSER", "limited", "on", ">secret", "~text", "+get", "+type", "+scan", "+ping", "+strlen", "+getrange", "+pttl");
  await client.call("CONFIG", "SET", "commandlog-execution-slower-than", 0);
  await client.set(`${at("logged")}:${attack}`, attack);
  await client.call("CONFIG", "SET", "commandlog-execution-slower-than", 10_000);
  await client.call("DEBUG", "SLEEP", "0.02");
  await client.call("AUTH", attack, attack).catch(() => {});
}
