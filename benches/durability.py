#!/usr/bin/env python3
"""Cost of the append-only file, replicas and snapshots, compared with Valkey in the same run.

Usage: durability.py [PART...]        (default: all parts)

    always     SETs per second with `appendfsync always`, 50 clients that each wait for their reply
    everysec   CPU time per SET, 16 pipelined, with `appendfsync everysec` and without a file
    replica    the same with one replica that reads the stream, and without
               Both are measured without twice: the ratio of these two is the noise.
    sync       duration and CPU time of a full synchronisation of 2 million keys to a reader that discards the data
    snapshot   latencies of 50 clients writing to 2 million keys during BGSAVE and without, and peak memory

The servers run in turn, with one worker each; figures are medians of KVICK_BENCH_ROUNDS rounds (default: 3), ratios
are medians of the ratios of the rounds. CPU time includes child processes.
Files are in the temporary directory, so TMPDIR selects the disk. The load generator is valkey-benchmark
(KVICK_TEST_BENCHMARK, or on the PATH).

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
"""

import multiprocessing
import os
import pathlib
import random
import select
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time

from measure import TICKS, Client, Server, encode, kvick, pin, valkey

ROUNDS = int(os.environ.get("KVICK_BENCH_ROUNDS", 3))
KEYS = 2_000_000
ALONE = ["--io-threads", "1", "--enable-debug-command", "yes"]
FILE = ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"]
PATIENCE_S = 120
# Requests per second of the writers during a snapshot, and their duration in seconds.
RATE = 2_000
WRITING_S = 6


def generate(server, requests, *words):
    """Runs the load generator; returns its duration in seconds."""
    program = shutil.which(os.environ.get("KVICK_TEST_BENCHMARK", "valkey-benchmark"))
    if not program:
        sys.exit("valkey-benchmark not found: set KVICK_TEST_BENCHMARK, or add it to the PATH")
    command = [program, "-p", str(server.port), "-c", "50", "-t", "set", "-n", str(requests), "-q", *words]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


def spent_with_children(server, work):
    """CPU seconds of a server and its reaped children during `work()`."""
    def total():
        fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15])) / TICKS

    before = total()
    work()
    # The kernel adds a child's time once the server has reaped it.
    time.sleep(0.5)
    return total() - before


def reply(client, *words):
    """Sends a command; returns the first line of the reply, or the bulk string."""
    client.send(encode(words))
    got = b""
    while not got.endswith(b"\r\n") or (got.startswith(b"$") and len(got) < int(got[1 : got.index(b"\r")]) + 5):
        got += client.socket.recv(1 << 16)
    return got


def info(client, field):
    for line in reply(client, b"INFO", b"ALL").split(b"\r\n"):
        if line.startswith(field + b":"):
            return line.split(b":", 1)[1].decode()
    sys.exit(f"INFO has no {field.decode()}")


def wait_until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"condition not reached within {PATIENCE_S} s")
        time.sleep(0.05)


def always(program):
    with Server(program, *ALONE, *FILE, "--appendfsync", "always", cores=[0]) as server:
        # Warms up: by the end the server has created its files.
        generate(server, 100_000, "-r", "100000")
        requests = 300_000
        return [requests / generate(server, requests, "-r", "100000")]


def per_set(server):
    """CPU microseconds per SET."""
    requests = 1_000_000
    generate(server, 200_000, "-P", "16", "-r", "100000")
    return sum(server.spent(lambda: generate(server, requests, "-P", "16", "-r", "100000"))) * 1e6 / requests


def without(program):
    """CPU microseconds per SET without a file or replica, of two servers."""
    found = []
    for _ in range(2):
        with Server(program, *ALONE, cores=[0]) as server:
            found.append(per_set(server))
    return found


def everysec(program):
    found = without(program)
    with Server(program, *ALONE, *FILE, "--appendfsync", "everysec", cores=[0]) as server:
        return [*found, per_set(server)]


def replica(program):
    found = without(program)
    with Server(program, *ALONE, "--repl-diskless-sync-delay", "0", cores=[0]) as server:
        ready = multiprocessing.Event()
        follower = multiprocessing.Process(target=follow, args=(server, ready), daemon=True)
        follower.start()
        if not ready.wait(PATIENCE_S):
            sys.exit("the replica received no data")
        client = Client(server)
        wait_until(lambda: "state=online" in info(client, b"slave0"))
        found.append(per_set(server))
        follower.kill()
        return found


def follow(server, ready):
    """Acts as a replica that discards the data, so that its own work does not disturb the measurement."""
    client = read_everything(server)
    client.socket.settimeout(None)
    ready.set()
    received, acknowledged_at = 0, 0
    buffer = bytearray(1 << 20)
    while True:
        if time.monotonic() > acknowledged_at + 1:
            client.send(encode([b"REPLCONF", b"ACK", b"%d" % received]))
            acknowledged_at = time.monotonic()
        received += client.socket.recv_into(buffer)


def read_everything(server):
    """Requests a full synchronisation and discards the data; returns the connection."""
    client = Client(server)
    client.socket.settimeout(PATIENCE_S)
    for words in ([b"REPLCONF", b"capa", b"eof"], [b"REPLCONF", b"capa", b"psync2"]):
        reply(client, *words)
    client.send(encode([b"PSYNC", b"?", b"-1"]))
    head, mark = b"", b"$EOF:"
    while len(head) < head.find(mark) + len(mark) + 40 or mark not in head:
        head += client.socket.recv(1 << 20)
    start = head.index(mark) + len(mark)
    end, tail = head[start : start + 40], head[start + 40 :]
    while not tail.endswith(end):
        got = client.socket.recv(1 << 20)
        if not got:
            sys.exit("the server closed the connection during the full synchronisation")
        tail = (tail + got)[-40:]
    return client


def sync(program):
    settings = ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]
    with Server(program, *ALONE, *settings, cores=[0]) as server:
        reply(Client(server), b"DEBUG", b"POPULATE", b"%d" % KEYS, b"key", b"100")
        began = time.monotonic()
        cpu = spent_with_children(server, lambda: read_everything(server))
        return [time.monotonic() - began - 0.5, cpu]


class Writers:
    """Clients that write at a constant rate, regardless of the latency of replies."""

    def __init__(self, server):
        self.sockets = {client.socket.fileno(): client.socket for client in (Client(server) for _ in range(50))}

    def latencies(self, seconds):
        """Sorted latencies in milliseconds, from the scheduled time of each request to its reply."""
        poll, due, found = select.epoll(), {}, []
        for number, connection in self.sockets.items():
            connection.setblocking(False)
            poll.register(number, select.EPOLLIN)
        numbers = list(self.sockets)
        began, sent, total = time.perf_counter(), 0, int(RATE * seconds)
        while len(found) < total:
            now = time.perf_counter()
            while sent < total and began + sent / RATE <= now:
                number = numbers[sent % len(numbers)]
                key = b"key:%d" % random.randrange(KEYS)
                request = [[b"SET", key, b"v" * 100], [b"APPEND", key, b"x"], [b"INCR", b"counter:" + key]][sent % 3]
                self.sockets[number].send(encode(request))
                due.setdefault(number, []).append(began + sent / RATE)
                sent += 1
            for number, _ in poll.poll(0.0005):
                replies = self.sockets[number].recv(1 << 16).count(b"\r\n")
                now = time.perf_counter()
                found += [(now - at) * 1e3 for at in due[number][:replies]]
                del due[number][:replies]
        return sorted(found)


def family(server):
    """Memory of a server and its children in megabytes, with shared pages counted once."""
    pids = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True).stdout.split()
    total = 0
    for pid in [str(server.process.pid), *pids]:
        try:
            for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) / 1024
        except OSError:
            pass
    return total


def snapshot(program):
    with Server(program, *ALONE, "--rdb-key-save-delay", "0", cores=[0, 1]) as server:
        client = Client(server)
        reply(client, b"DEBUG", b"POPULATE", b"%d" % KEYS, b"key", b"100")
        writers = Writers(server)
        writers.latencies(1)
        without = writers.latencies(WRITING_S)
        reply(client, b"BGSAVE")
        beside = writers.latencies(WRITING_S)
        wait_until(lambda: info(client, b"rdb_bgsave_in_progress") == "0")
        # Measured separately, because reading the memory takes milliseconds and would delay the writers.
        before, over = family(server), threading.Event()
        peak = [before]

        def watch():
            while not over.is_set():
                peak.append(family(server))
                time.sleep(0.1)

        watcher = threading.Thread(target=watch)
        watcher.start()
        reply(client, b"BGSAVE")
        writers.latencies(WRITING_S)
        wait_until(lambda: info(client, b"rdb_bgsave_in_progress") == "0")
        over.set()
        watcher.join()
        worst = lambda found: found[int(len(found) * 0.999)]
        return [worst(without), worst(beside), before, max(peak)]


# Name: (function, labels of its figures, decimals).
PARTS = {
    "always": (always, ["SETs/s"], 0),
    "everysec": (everysec, ["CPU us without a file", "CPU us without a file again", "CPU us with a file"], 2),
    "replica": (
        replica, ["CPU us without a replica", "CPU us without a replica again", "CPU us with a replica"], 2
    ),
    "sync": (sync, ["seconds", "CPU seconds"], 2),
    "snapshot": (snapshot, ["p99.9 ms without", "p99.9 ms during BGSAVE", "MB before", "MB at most"], 2),
}


def main():
    pin(1)
    for name in sys.argv[1:] or PARTS:
        measure, labels, decimals = PARTS[name]
        if name == "snapshot":
            pin(0, 1)
        found = {"Kvick": [], "Valkey": []}
        for _ in range(ROUNDS):
            for who, program in (("Kvick", kvick()), ("Valkey", valkey())):
                found[who].append(measure(program))
        for at, label in enumerate(labels):
            ours, theirs = (statistics.median(figures[at] for figures in found[who]) for who in found)
            shown = f"Kvick {ours:.{decimals}f}, Valkey {theirs:.{decimals}f}"
            print(f"{name}: {label}: {shown}; Kvick / Valkey {ours / theirs:.2f}", flush=True)
        if name in ("everysec", "replica"):
            for at in (2, 1):
                ours, theirs = (statistics.median(figures[at] / figures[0] for figures in found[who]) for who in found)
                print(f"{name}: {labels[at]} / {labels[0]}: Kvick {ours:.2f}, Valkey {theirs:.2f}", flush=True)


if __name__ == "__main__":
    main()
