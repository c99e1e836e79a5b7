#!/usr/bin/env python3
"""Cost of scraping metrics for the clients of a server that many are connected to.

Usage: scrape.py [CONNECTIONS] [ROUNDS]        (default: 100,000 idle connections, 9 rounds)

The server has one worker on core 0 and the most metrics of single clients (`metrics-clients-max`); the load, 50
connections with 16 commands at once, is on core 1. In each round, in random order, the load runs

- alone, twice, so that the difference of the two is the noise;
- while /metrics is read once a second;
- the same with 100 clients, of which half read the reply slowly, a quarter sends half a request, and a quarter no HTTP.

Figures: time on a processor of the worker per command, medians of the rounds and their ratio to the first; the longest
time of 50 pipelines, one per connection, in the median round; the time that scrapes took.

Needs a limit of open files above CONNECTIONS (ulimit -Hn). KVICK_SERVER names the server (default:
target/release/kvick-server).
"""

import contextlib
import json
import os
import pathlib
import random
import resource
import socket
import statistics
import sys
import time

from measure import Client, Server, drive, kvick, pin, pipelines

LOADED = 50
DEPTH = 16
COMMANDS = 200_000
# How often the load runs per row and round: some seconds.
REPEATS = 60
KEYS = 100_000
# A source address has 28,000 ports.
PER_ADDRESS = 20_000
BAD = 100
WORKER = "worker-0"
QUIET, AGAIN, SCRAPED, ABUSED = "alone", "alone again", "scraped each second", "scraped, and 100 bad clients"
ROWS = [QUIET, AGAIN, SCRAPED, ABUSED]


def raise_limit(files):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, hard), max(files, hard)))
    except ValueError:
        sys.exit(f"{files:,} open files are needed, but the limit is {hard:,} (ulimit -Hn)")


def hold_connections(port, count):
    """Opens idle connections in a process of their own, which keeps them until its input ends."""
    ready, ready_end = os.pipe()
    stop_end, stop = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(stop)
        held = []
        for number in range(count):
            # Not that of an earlier run, whose ports may still be in use.
            source = f"127.{os.getpid() % 250 + 1}.1.{1 + number // PER_ADDRESS}"
            held.append(socket.create_connection(("127.0.0.1", port), source_address=(source, 0)))
        os.write(ready_end, b"x")
        os.read(stop_end, 1)
        os._exit(0)
    os.close(ready_end)
    os.close(stop_end)
    if not os.read(ready, 1):
        sys.exit("the connections could not be opened")
    return stop


def worker_cpu(server):
    """Seconds on a processor of the worker."""
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        if (task / "comm").read_text().strip() == WORKER:
            return int((task / "schedstat").read_text().split()[0]) / 1e9
    sys.exit(f"the server has no thread {WORKER}")


def http(port):
    return socket.create_connection(("127.0.0.1", port), 20)


def scrape(port):
    """Reads /metrics. Returns the seconds it took and the length, which is 0 if the connection was closed: the server
    keeps the 64 newest ones."""
    began, length = time.monotonic(), 0
    try:
        with http(port) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n")
            while got := connection.recv(1 << 20):
                if length == 0 and not got.startswith(b"HTTP/1.1 200"):
                    sys.exit(f"the server answered {got[:60]}")
                length += len(got)
    except ConnectionError:
        length = 0
    return time.monotonic() - began, length


class Background:
    """A process that calls something once per interval, until the end of the `with` block. Then its results are there.

    A thread would take turns with the load in the interpreter."""

    def __init__(self, seconds, act):
        self.seconds, self.act, self.results = seconds, act, []

    def __enter__(self):
        ours, theirs = socket.socketpair()
        self.child = os.fork()
        if self.child == 0:
            ours.close()
            theirs.settimeout(self.seconds)
            results = []
            while True:
                results.append(self.act())
                try:
                    theirs.recv(1)
                except TimeoutError:
                    continue
                theirs.settimeout(None)
                theirs.sendall(json.dumps(results).encode())
                os._exit(0)
        theirs.close()
        self.end = ours
        return self

    def __exit__(self, *_):
        self.end.sendall(b"x")
        text = b""
        while got := self.end.recv(1 << 16):
            text += got
        self.end.close()
        os.waitpid(self.child, 0)
        self.results = json.loads(text)


class BadClients:
    """Clients of the metrics port that do what they should not, a step each time."""

    def __init__(self, port):
        self.port, self.connections = port, []

    def act(self):
        while len(self.connections) < BAD:
            connection = http(self.port)
            whole = b"GET /metrics HTTP/1.1\r\nHost: server\r\n\r\n"
            request = [whole, whole[:25], whole, random.randbytes(4000)][len(self.connections) % 4]
            connection.settimeout(0.001)
            try:
                connection.sendall(request)
                self.connections.append(connection)
            except OSError:
                connection.close()
        for connection in list(self.connections):
            try:
                got = connection.recv(1)
            except TimeoutError:
                continue
            except OSError:
                got = b""
            if not got:
                connection.close()
                self.connections.remove(connection)


def main():
    connections = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    raise_limit(connections + 700)
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics_port = free.getsockname()[1]
    options = ["--io-threads", "1", "--maxclients", str(connections + 500), "--metrics-port", str(metrics_port),
               "--metrics-clients-max", "100", "--tcp-backlog", "4096"]
    pin(1)
    with Server(kvick(), *options, cores=[0]) as server:
        hold = hold_connections(server.port, connections)
        clients = [Client(server) for _ in range(LOADED)]
        dice = random.Random(1)
        requests = [[b"SET", b"key:%d" % dice.randrange(KEYS), b"x" * 100] if number % 5 == 0 else
                    [b"GET", b"key:%d" % dice.randrange(KEYS)] for number in range(COMMANDS)]
        prepared = pipelines(requests, DEPTH)
        drive(clients, prepared)
        spent, longest = {row: [] for row in ROWS}, {row: [] for row in ROWS}
        scrapes = []
        for turn in range(rounds):
            order = ROWS[:]
            dice.shuffle(order)
            for row in order:
                with contextlib.ExitStack() as stack:
                    scraping = Background(1, lambda: scrape(metrics_port))
                    if row in (SCRAPED, ABUSED):
                        stack.enter_context(scraping)
                    if row == ABUSED:
                        stack.enter_context(Background(0.2, BadClients(metrics_port).act))
                    before, worst = worker_cpu(server), 0
                    for at in list(range(0, len(prepared), LOADED)) * REPEATS:
                        began = time.monotonic()
                        drive(clients, prepared[at : at + LOADED])
                        worst = max(worst, time.monotonic() - began)
                    spent[row].append((worker_cpu(server) - before) / COMMANDS / REPEATS * 1e6)
                    longest[row].append(worst * 1e3)
                scrapes += scraping.results
            print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
        os.close(hold)
        first = statistics.median(spent[QUIET])
        times = [seconds * 1e3 for seconds, length in scrapes if length > 0]
        longest_reply = max(length for _, length in scrapes)
        print(f"{connections:,} connections; {len(times)} of {len(scrapes)} scrapes, of up to {longest_reply:,} bytes, "
              f"took {statistics.median(times):.1f} ms (median), at most {max(times):.1f} ms\n")
        print("| | worker, us per command | ratio | longest turn of the load, ms |\n| --- | ---: | ---: | ---: |")
        for row in ROWS:
            middle = statistics.median(spent[row])
            print(f"| {row} | {middle:.3f} | {middle / first:.3f} | {statistics.median(longest[row]):.1f} |")


main()
