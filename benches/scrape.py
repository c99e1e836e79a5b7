#!/usr/bin/env python3
"""Cost of scraping metrics for the clients of a server that many are connected to.

Usage: scrape.py [CONNECTIONS] [ROUNDS]               (default: 100,000 idle connections, 400 rounds)

The server has one worker on core 0 and metrics of 100 single clients (`metrics-clients-max`); the load, 50 connections
with 16 commands at once, is on core 1 and never stops. The thread `http`, which collects the metrics, is bound by
`bio-cpulist`, first to the core of the worker, then to the other one. A round has a period of 0.25 s of each kind, in
random order:

- the load alone, twice, so that the difference of the two is the noise;
- while /metrics is read once, at the beginning;
- the same with 100 clients, of which half read the reply slowly, a quarter sends half a request, and a quarter no HTTP.

Periods are short because the noise of a machine has low frequencies: neighbours differ least. Metrics are so read four
times a second; the cost of reading them once a second, the usual interval at most, is a quarter of it.

Figures: time on a processor of the worker per command, by the nanosecond counters of the kernel; its ratio to the first
period of the same round, as the geometric mean of all rounds with its standard error, and as the median; the longest
time of 50 pipelines, one per connection, in the median period; the time that scrapes took, and the time on a processor
of the thread `http` per scrape.

Needs a limit of open files above CONNECTIONS (ulimit -Hn). KVICK_SERVER names the server (default:
target/release/kvick-server).
"""

import json
import math
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
KEYS = 100_000
# A source address has 28,000 ports.
PER_ADDRESS = 20_000
BAD = 100
WORKER, HTTP = "worker-0", "http"
WORKER_CORE, LOAD_CORE = 0, 1
PERIOD = 0.25
SCRAPES_PER_SECOND = 1 / PERIOD
QUIET, AGAIN, SCRAPED, ABUSED = "alone", "alone again", "scraped", "scraped, and 100 bad clients"
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


def thread_cpu(server, name):
    """Seconds on a processor of a thread, to the nanosecond."""
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int((task / "schedstat").read_text().split()[0]) / 1e9
    sys.exit(f"the server has no thread {name}")


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


class Process:
    """A process that calls something when asked, beside this one: a thread would take turns with the load."""

    def __init__(self, act):
        self.ours, theirs = socket.socketpair()
        if os.fork() == 0:
            self.ours.close()
            while asked := theirs.recv(1):
                theirs.sendall(json.dumps(act(asked)).encode())
            os._exit(0)
        theirs.close()

    def ask(self, what=b"x"):
        self.ours.sendall(what)

    def answer(self):
        return json.loads(self.ours.recv(1 << 16))


class BadClients:
    """Clients of the metrics port that do what they should not."""

    def __init__(self, port):
        self.port, self.connections = port, []

    def act(self, asked):
        """Connects (+), reads a byte of each and replaces those that the server has closed (=), or disconnects (-)."""
        for connection in self.connections[:]:
            if asked == b"-" or self.has_ended(connection):
                connection.close()
                self.connections.remove(connection)
        whole = b"GET /metrics HTTP/1.1\r\nHost: server\r\n\r\n"
        while asked != b"-" and len(self.connections) < BAD:
            connection = http(self.port)
            connection.setblocking(False)
            connection.send([whole, whole[:25], whole, random.randbytes(4000)][len(self.connections) % 4])
            self.connections.append(connection)

    def has_ended(self, connection):
        try:
            return not connection.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True


class Load:
    """Connections that send commands."""

    def __init__(self, server, dice):
        self.server = server
        self.clients = [Client(server) for _ in range(LOADED)]
        requests = [[b"SET", b"key:%d" % dice.randrange(KEYS), b"x" * 100] if number % 5 == 0 else
                    [b"GET", b"key:%d" % dice.randrange(KEYS)] for number in range(COMMANDS)]
        prepared = pipelines(requests, DEPTH)
        self.turns = [prepared[at : at + LOADED] for at in range(0, len(prepared), LOADED)]
        self.at = 0

    def run(self, seconds):
        """Runs for a time. Returns the time of the worker per command in us, and the longest turn in ms."""
        before, sent, longest = thread_cpu(self.server, WORKER), 0, 0
        began = now = time.monotonic()
        while now < began + seconds:
            turn = self.turns[self.at % len(self.turns)]
            drive(self.clients, turn)
            earlier, now = now, time.monotonic()
            self.at, sent, longest = self.at + 1, sent + len(turn) * DEPTH, max(longest, now - earlier)
        return (thread_cpu(self.server, WORKER) - before) / sent * 1e6, longest * 1e3


def measure(connections, rounds, http_core):
    """Measures with the thread `http` on a core, and prints the figures."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics_port = free.getsockname()[1]
    options = ["--io-threads", "1", "--maxclients", str(connections + 500), "--metrics-port", str(metrics_port),
               "--metrics-clients-max", "100", "--tcp-backlog", "4096",
               "--server-cpulist", str(WORKER_CORE), "--bio-cpulist", str(http_core)]
    with Server(kvick(), *options, cores=[WORKER_CORE, LOAD_CORE]) as server:
        scraper = Process(lambda _: scrape(metrics_port))
        bad = Process(BadClients(metrics_port).act)
        hold = hold_connections(server.port, connections)
        dice = random.Random(1)
        load = Load(server, dice)
        load.run(10 * PERIOD)
        spent, longest = {row: [] for row in ROWS}, {row: [] for row in ROWS}
        scrapes, http_seconds = [], 0
        for _ in range(rounds):
            for row in dice.sample(ROWS, len(ROWS)):
                before = thread_cpu(server, HTTP)
                if row == ABUSED:
                    bad.ask(b"+")
                    load.run(PERIOD)
                    bad.answer()
                    bad.ask(b"=")
                if row in (SCRAPED, ABUSED):
                    scraper.ask()
                period, worst = load.run(PERIOD)
                spent[row].append(period)
                longest[row].append(worst)
                if row in (SCRAPED, ABUSED):
                    took = scraper.answer()
                if row == SCRAPED:
                    http_seconds += thread_cpu(server, HTTP) - before
                    scrapes.append(took)
                if row == ABUSED:
                    bad.answer()
                    bad.ask(b"-")
                    load.run(PERIOD)
                    bad.answer()
        os.close(hold)
    times = [seconds * 1e3 for seconds, _ in scrapes]
    place = "the worker's core" if http_core == WORKER_CORE else "another core than the worker"
    print(f"\nThread `http` on {place}, {connections:,} connections, {rounds} rounds: {len(times)} scrapes of up to "
          f"{max(length for _, length in scrapes):,} bytes took {statistics.median(times):.1f} ms (median), at most "
          f"{max(times):.1f} ms; {http_seconds / len(times) * 1e3:.1f} ms of CPU time each\n")
    print("| | worker, us per command | ratio, mean | median | longest turn of the load, ms |\n"
          "| --- | ---: | ---: | ---: | ---: |")
    for row in ROWS:
        middle, turn = statistics.median(spent[row]), statistics.median(longest[row])
        logs = [math.log(time / first) for time, first in zip(spent[row], spent[QUIET])]
        mean, error = math.exp(statistics.mean(logs)), statistics.stdev(logs) / len(logs) ** 0.5
        ratio = "1" if row == QUIET else f"{mean:.4f} ± {error:.4f}"
        print(f"| {row} | {middle:.3f} | {ratio} | {math.exp(statistics.median(logs)):.4f} | {turn:.1f} |")
        if row == SCRAPED:
            once = (mean - 1) / SCRAPES_PER_SECOND, error / SCRAPES_PER_SECOND
    print(f"\nScraped once a second: {1 + once[0]:.4f} ± {once[1]:.4f}", flush=True)


def main():
    connections = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 400
    raise_limit(connections + 700)
    pin(LOAD_CORE)
    for http_core in WORKER_CORE, LOAD_CORE:
        measure(connections, rounds, http_core)


if __name__ == "__main__":
    main()
