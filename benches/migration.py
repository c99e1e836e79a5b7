#!/usr/bin/env python3
"""Atomic migration of slots with 1 GiB of 1 KiB values, compared with Valkey in the same run.

Usage: migration.py [PART...]        (idle, writes; default: both)

    idle    nothing else runs, except the two clients below
    writes  another process writes pipelined to the slots that move, and follows them

Two nodes of each program, one worker each. The slots move to the second node, and back in the next round. Before the
first round they move there and back, so that a virtual machine has the memory that the nodes use. A round begins when
all nodes have returned the memory of the last one to the system. The programs take turns, for KVICK_BENCH_ROUNDS rounds
each (default: 6, so that the first node sends as often as it receives). The output is per round: the rate of the
migration in MiB/s of values; percentiles of the latency, during it and a second afterwards, of a client that reads one
key per millisecond from the first node's other slots; the longest wait of a client that writes one key after the other
to the slots that move, and follows them. A read that is due while an earlier one waits is counted from the time when it
was due, since other clients would have sent theirs. At the end follow medians of the rates and longest writes, and
percentiles of all reads.

KVICK_BENCH_MIB sets the size of the data (default: 1024), KVICK_BENCH_RATE the writes per second (default: 20000).
KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
"""

import binascii
import gc
import multiprocessing
import os
import socket
import statistics
import sys
import time

from durability import reply
from failover import Node, wait_until
from measure import Client, encode, kvick, pipelines, set_congestion_control, valkey

ROUNDS = int(os.environ.get("KVICK_BENCH_ROUNDS", 6))
MIB = int(os.environ.get("KVICK_BENCH_MIB", 1024))
RATE = int(os.environ.get("KVICK_BENCH_RATE", 20_000))
# The slots that move; the others stay with the first node, except the last, which the second node owns.
MOVING = range(8192)
VALUE = bytes(65 + at % 26 for at in range(1024))
PIPELINE = 20
# Keys that the load writes.
REWRITTEN = 50_000
# How long reads are measured after a migration, in seconds.
AFTERWARDS_S = 1
# A migration that takes longer has failed.
PATIENCE_S = 180


def slot(key):
    return binascii.crc_hqx(key, 0) % 16384


def keys(count, is_moving=True):
    """Names of keys in slots that move, or in the first node's others."""
    found, number = [], 0
    while len(found) < count:
        key = b"key:%010d" % number
        number += 1
        if (slot(key) in MOVING) == is_moving and slot(key) != 16383:
            found.append(key)
    return found


class Pair:
    """Two nodes with the data on the first."""

    def __init__(self, program, names):
        self.nodes = [Node(program), Node(program)]
        for node, slots, epoch in zip(self.nodes, ("0 16382", "16383 16383"), (1, 2)):
            node.ask(f"CLUSTER SET-CONFIG-EPOCH {epoch}")
            node.ask(f"CLUSTER ADDSLOTSRANGE {slots}")
        self.nodes[0].ask(f"CLUSTER MEET 127.0.0.1 {self.nodes[1].port}")
        wait_until("the nodes know each other",
                   lambda: all(node.has("CLUSTER INFO", "cluster_state:ok") for node in self.nodes))
        self.ids = [node.id() for node in self.nodes]
        client = Client(self.nodes[0])
        for pipeline in pipelines([b"SET", name, VALUE] for name in names):
            client.send(pipeline)
            client.receive()
        self.at = 0

    def migrate(self):
        """Moves the slots to the other node. Returns how long that took, or why it failed."""
        source, target = self.nodes[self.at], self.nodes[1 - self.at]
        client = Client(source)
        client.socket.settimeout(PATIENCE_S)
        command = f"CLUSTER MIGRATESLOTS SLOTSRANGE {MOVING[0]} {MOVING[-1]} NODE {self.ids[1 - self.at]}".encode()
        wait_until("the migration may start", lambda: reply(client, *command.split()).startswith(b"+OK"))
        began, replies = time.monotonic(), client.socket.makefile("rb")
        while time.monotonic() < began + PATIENCE_S:
            client.send(encode([b"CLUSTER", b"GETSLOTMIGRATIONS"]))
            # The newest comes first.
            job = parse(replies)[0]
            field = lambda name: job[job.index(name) + 1]
            state = field(b"state")
            if state == b"success":
                self.at = 1 - self.at
                return time.monotonic() - began, None
            if state in (b"failed", b"cancelled"):
                return None, field(b"message").decode()
            time.sleep(0.005)
        reply(client, b"CLUSTER", b"CANCELSLOTMIGRATIONS")
        return None, f"not complete after {PATIENCE_S} s"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.kill()


def settle(nodes):
    """Waits until the memory of the nodes does not shrink any more."""
    for _ in range(60):
        before = [resident_mib(node) for node in nodes]
        time.sleep(2)
        if all(was - resident_mib(node) < 1 for was, node in zip(before, nodes)):
            return


def resident_mib(node):
    with open(f"/proc/{node.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def parse(file):
    """Reads one reply: bytes, numbers as bytes, None, and lists of these."""
    line = file.readline()
    kind, rest = line[:1], line[1:].rstrip(b"\r\n")
    if kind == b"*":
        return [parse(file) for _ in range(int(rest))]
    if kind != b"$":
        return rest
    return file.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None


class Follower:
    """A client of both nodes that follows redirections of its pipelines, which concern the same slots."""

    def __init__(self, pair):
        self.ports, self.at, self.files = [node.port for node in pair.nodes], pair.at, [None, None]

    def send(self, request, replies=1):
        while True:
            if self.files[self.at] is None:
                connection = socket.create_connection(("127.0.0.1", self.ports[self.at]))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.files[self.at] = connection.makefile("rwb")
            file = self.files[self.at]
            file.write(request)
            file.flush()
            lines = [file.readline() for _ in range(replies)]
            refusal = next((line for line in lines if line.startswith(b"-")), None)
            if refusal is None:
                return
            if refusal.startswith(b"-CLUSTERDOWN"):
                # A node was busy for longer than the node timeout.
                time.sleep(0.001)
            elif refusal.startswith(b"-MOVED"):
                self.at = 1 - self.at
            else:
                sys.exit(f"unexpected error: {refusal}")


def load(pair, names, stop, written):
    """Writes values with a constant rate, or as fast as the server lets it."""
    follower, began, sent = Follower(pair), time.monotonic(), 0
    requests = [b"".join(encode([b"SET", name, VALUE]) for name in names[at : at + PIPELINE])
                for at in range(0, min(len(names), REWRITTEN) - PIPELINE, PIPELINE)]
    while not stop.is_set():
        follower.send(requests[sent // PIPELINE % len(requests)], PIPELINE)
        sent += PIPELINE
        written.value = sent
        ahead_s = sent / RATE - (time.monotonic() - began)
        if ahead_s > 0:
            time.sleep(ahead_s)


def read_others(pair, names, stop, waits):
    """Reads keys of slots that stay, one per millisecond, and returns when each ended and its latency in ms."""
    follower, found, due = Follower(pair), [], time.monotonic()
    follower.at = 0
    requests = [encode([b"EXISTS", name]) for name in names]
    while not stop.is_set():
        due += 0.001
        before, began = time.monotonic(), due
        if due > before:
            time.sleep(due - before)
            # How late this process wakes up is not the server's.
            began = time.monotonic()
        follower.send(requests[len(found) % len(requests)])
        after = time.monotonic()
        found.append((after, (after - began) * 1e3))
    waits.put(found)


def write_moving(pair, names, stop, waits):
    """Writes to slots that move, one request after the other, and returns when each ended and its latency in ms."""
    follower, found = Follower(pair), []
    requests = [encode([b"SET", name, VALUE]) for name in names]
    while not stop.is_set():
        before = time.monotonic()
        follower.send(requests[len(found) % len(requests)])
        after = time.monotonic()
        found.append((after, (after - before) * 1e3))
        time.sleep(0.0005)
    waits.put(found)


def measure(pair, part, names, others):
    stop, written = multiprocessing.Event(), multiprocessing.Value("q", 0, lock=False)
    reads, writes = multiprocessing.Queue(), multiprocessing.Queue()
    processes = [multiprocessing.Process(target=read_others, args=(pair, others, stop, reads), daemon=True),
                 multiprocessing.Process(target=write_moving, args=(pair, names[:500], stop, writes), daemon=True)]
    if part == "writes":
        processes.append(multiprocessing.Process(target=load, args=(pair, names, stop, written), daemon=True))
    for process in processes:
        process.start()
    if part == "writes":
        wait_until("the writer has begun", lambda: written.value)
    time.sleep(1)
    before, began = written.value, time.monotonic()
    elapsed_s, why = pair.migrate()
    written = written.value - before
    # The source deletes the keys.
    time.sleep(AFTERWARDS_S)
    ended = time.monotonic()
    stop.set()
    during = lambda found: [latency for at, latency in found if began < at < ended]
    latencies, longest_ms = during(reads.get()), max(during(writes.get()))
    for process in processes:
        process.join()
    rate = MIB / elapsed_s if elapsed_s else 0
    result = f"{rate:.0f} MiB/s ({elapsed_s:.1f} s)" if elapsed_s else f"FAILED: {why}"
    also = f"; {written / elapsed_s:.0f} writes/s" if elapsed_s and written else ""
    return (rate, longest_ms, latencies), f"{result}; {percentiles(latencies)}; longest write {longest_ms:.1f} ms{also}"


def percentiles(latencies):
    ordered = sorted(latencies)
    p50, p99, highest = (ordered[min(int(len(ordered) * at), len(ordered) - 1)] for at in (0.5, 0.99, 1))
    return f"others p50 {p50:.2f}, p99 {p99:.2f}, max {highest:.2f} ms"


def main():
    # With millions of names, a collection takes the clients some 30 ms.
    gc.disable()
    set_congestion_control()
    names, others = keys(MIB * 1024), keys(1000, is_moving=False)
    with Pair(kvick(), names) as ours, Pair(valkey(), names) as theirs:
        for pair in (ours, theirs) * 2:
            elapsed_s, why = pair.migrate()
            if not elapsed_s:
                sys.exit(f"the migration failed: {why}")
        for part in sys.argv[1:] or ("idle", "writes"):
            found = {"Kvick": [], "Valkey": []}
            for _ in range(ROUNDS):
                for who, pair in (("Kvick", ours), ("Valkey", theirs)):
                    settle(ours.nodes + theirs.nodes)
                    figures, text = measure(pair, part, names, others)
                    found[who].append(figures)
                    print(f"{part}: {who}: {text}", flush=True)
            for who, rounds in found.items():
                rates, longest_ms, latencies = zip(*rounds)
                reads = percentiles(sum(latencies, []))
                print(f"{part}: {who}: medians: {statistics.median(rates):.0f} MiB/s, longest write "
                      f"{statistics.median(longest_ms):.1f} ms; all reads: {reads}", flush=True)


if __name__ == "__main__":
    main()
