#!/usr/bin/env python3
"""Time without writes during failovers of a cluster, compared with Valkey in the same run.

Usage: failover.py [PART...]        (manual, crash; default: both)

    manual  longest wait of a client that writes one request after the other to the shard, during CLUSTER FAILOVER
    crash   time from SIGKILL of the primary to the first accepted write to its shard

One cluster of each program: three primaries with a replica each, one worker per node, cluster-node-timeout 2000. The
programs take turns, for KVICK_BENCH_FAILOVERS failovers each (default: 20); both nodes of the first shard take the role
in turn. In the part manual another process writes 20,000 pipelined requests per second to the same shard. The output
is the median, the maximum and all figures in milliseconds.

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
"""

import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from durability import reply
from measure import Client, encode, kvick, valkey

FAILOVERS = int(os.environ.get("KVICK_BENCH_FAILOVERS", 20))
NODE_TIMEOUT_MS = 2_000
SHARDS = 3
PATIENCE_S = 60
# Below the range of outgoing connections, which could take the port of a killed node. The bus port is 10,000 higher.
PORTS = range(12_000, 22_000)
# Requests per second and per pipeline of the load.
RATE = 20_000
PIPELINE = 20
# Written before and after each manual failover, in seconds.
AROUND_S = 0.3
# Its slot is 5061, the first shard's.
KEY = b"bar"


def wait_until(what, holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"waited {PATIENCE_S} s in vain until {what}")
        time.sleep(0.02)


class Node:
    """A node of a cluster, which can be killed and started again."""

    def __init__(self, program):
        self.program, self.process = program, None
        self.directory = tempfile.TemporaryDirectory()
        while True:
            self.port = random.choice(PORTS)
            try:
                for port in (self.port, self.port + 10_000):
                    socket.create_server(("127.0.0.1", port)).close()
                break
            except OSError:
                continue
        self.start()

    def start(self):
        words = [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--io-threads", "1",
                 "--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS),
                 "--repl-diskless-sync-delay", "0", "--dir", self.directory.name]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until("a node answers", lambda: self.ask("PING").startswith("+PONG"))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def ask(self, command):
        """The reply as text; empty if the node does not answer."""
        try:
            return reply(Client(self), *command.encode().split()).decode()
        except OSError:
            return ""

    def has(self, command, text):
        return text in self.ask(command)

    def id(self):
        return self.ask("CLUSTER MYID").split("\r\n")[1]


class Cluster:
    """Primaries with a replica each. `with` ends its processes."""

    def __init__(self, program):
        self.nodes = [Node(program) for _ in range(2 * SHARDS)]
        primaries, replicas = self.nodes[:SHARDS], self.nodes[SHARDS:]
        for number, node in enumerate(self.nodes):
            node.ask(f"CLUSTER SET-CONFIG-EPOCH {number + 1}")
        for number, node in enumerate(primaries):
            first, end = (at * 16384 // SHARDS for at in (number, number + 1))
            node.ask(f"CLUSTER ADDSLOTSRANGE {first} {end - 1}")
        for node in self.nodes[1:]:
            self.nodes[0].ask(f"CLUSTER MEET 127.0.0.1 {node.port}")
        known = f"cluster_known_nodes:{2 * SHARDS}\r"
        wait_until("all nodes know all", lambda: all(node.has("CLUSTER INFO", known) for node in self.nodes))
        for primary, replica in zip(primaries, replicas):
            command = f"CLUSTER REPLICATE {primary.id()}"
            wait_until("the replica may follow", lambda: replica.ask(command).startswith("+OK"))
        self.primary, self.replica = primaries[0], replicas[0]
        self.settle()

    def settle(self):
        """Waits until the cluster is healthy, and the replica of the first shard in sync."""
        healthy = lambda node: node.has("CLUSTER INFO", "cluster_state:ok") and not node.has("CLUSTER NODES", "fail")
        wait_until("all nodes are healthy", lambda: all(healthy(node) for node in self.nodes))
        wait_until("the replica is in sync", lambda: self.replica.has("INFO replication", "master_link_status:up"))
        agree = lambda node: node is self.primary or node.has(f"SET {KEY.decode()} x", f":{self.primary.port}\r")
        wait_until("all nodes know the primary", lambda: all(agree(node) for node in self.nodes))

    def swap(self):
        self.primary, self.replica = self.replica, self.primary
        self.settle()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.kill()


class Writer:
    """Writes to one key, wherever it is."""

    def __init__(self, cluster):
        self.ports = [node.port for node in cluster.nodes]
        self.port, self.socket = cluster.primary.port, None

    def write(self, request=encode([b"SET", KEY, b"value"]), replies=1):
        """Sends the request until it is executed."""
        while True:
            got = b""
            try:
                if self.socket is None:
                    self.socket = socket.create_connection(("127.0.0.1", self.port))
                    self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.socket.sendall(request)
                while got.count(b"\r\n") < replies:
                    part = self.socket.recv(1 << 16)
                    if not part:
                        raise ConnectionError("the server closed the connection")
                    got += part
            except OSError:
                self.turn_to(random.choice(self.ports))
                continue
            refusal = next((line for line in got.split(b"\r\n") if line.startswith(b"-")), None)
            if refusal is None:
                return
            if refusal.startswith(b"-MOVED"):
                self.turn_to(int(refusal.rsplit(b":", 1)[1]))
            elif refusal.startswith(b"-CLUSTERDOWN"):
                time.sleep(0.001)
            else:
                sys.exit(f"unexpected error: {refusal}")

    def turn_to(self, port):
        if self.socket is not None:
            self.socket.close()
        if port == self.port:
            time.sleep(0.001)
        self.port, self.socket = port, None


def load(cluster, stop):
    """Writes with a constant rate to many keys of one slot."""
    writer, began, sent = Writer(cluster), time.monotonic(), 0
    requests = [b"".join(encode([b"SET", b"{%s}:%d" % (KEY, turn * PIPELINE + at), b"x" * 100])
                         for at in range(PIPELINE)) for turn in range(50)]
    while not stop.is_set():
        writer.write(requests[sent // PIPELINE % len(requests)], PIPELINE)
        sent += PIPELINE
        ahead_s = sent / RATE - (time.monotonic() - began)
        if ahead_s > 0:
            time.sleep(ahead_s)


def manual(cluster):
    stop = multiprocessing.Event()
    other = multiprocessing.Process(target=load, args=(cluster, stop), daemon=True)
    other.start()
    writer, longest_s, asked, over = Writer(cluster), 0.0, False, None
    began = time.monotonic()
    while over is None or time.monotonic() < over:
        before = time.monotonic()
        if not asked and before > began + AROUND_S:
            # Between two writes, so that asking is not part of a wait.
            answer, asked = cluster.replica.ask("CLUSTER FAILOVER"), True
            if not answer.startswith("+OK"):
                sys.exit(f"CLUSTER FAILOVER: {answer}")
            before = time.monotonic()
        writer.write()
        now = time.monotonic()
        longest_s = max(longest_s, now - before)
        if over is None and writer.port == cluster.replica.port:
            over = now + AROUND_S
        if now > began + PATIENCE_S:
            sys.exit("no failover")
    stop.set()
    other.join()
    cluster.swap()
    return longest_s * 1e3


def crash(cluster):
    writer = Writer(cluster)
    writer.write()
    began = time.monotonic()
    cluster.primary.kill()
    writer.write()
    elapsed_s = time.monotonic() - began
    cluster.primary.start()
    cluster.swap()
    return elapsed_s * 1e3


def main():
    parts = {"manual": manual, "crash": crash}
    with Cluster(kvick()) as ours, Cluster(valkey()) as theirs:
        for part in sys.argv[1:] or parts:
            found = {"Kvick": [], "Valkey": []}
            for _ in range(FAILOVERS):
                for who, cluster in (("Kvick", ours), ("Valkey", theirs)):
                    found[who].append(parts[part](cluster))
            for who, figures in found.items():
                listed = " ".join(f"{figure:.1f}" for figure in figures)
                print(f"{part}: {who}: median {statistics.median(figures):.1f} ms, max {max(figures):.1f} ms; {listed}",
                      flush=True)


if __name__ == "__main__":
    main()
