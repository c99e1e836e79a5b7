#!/usr/bin/env python3
"""GET and SET of values from 4 KiB to 1 MiB, compared with Valkey: CPU time, latency, and memory of slow readers.

Usage: large_values.py [plain] [tls] [workers] [readers] [floor] [rates] [io-threads]
Default: plain, tls, workers and readers.

- plain: one worker, 50 connections of valkey-benchmark, with and without pipelining.
- tls: the same over TLS 1.3.
- workers: the same as plain with four workers of Kvick that share the core, and one thread of Valkey.
- io-threads: both with `io-threads 4` on one core. Valkey's I/O threads wait actively, so that each of its requests
  takes up to 90 times as long: there is a quarter of them.
- readers: 100 clients that request the same value of 1 MiB eight times and read nothing.
- floor: plain, and next to it a program that only receives the requests to memory and sends fixed replies from memory:
  what the kernel takes in any case. KVICK_FLOOR names it; `cargo build --release -p kvick-net --example floor` builds
  it.
- rates: plain and tls, but both servers get the same number of requests per second: half of what Valkey reaches. As
  fast as replies come, the faster server makes the generator the busier one, and p99 contains the waits there.
  kvick-load sends at random intervals. There are two 99th percentiles: of response times, which count from when a
  request is due and contain what the generator itself is late, and of service times, which count from when it was
  sent. KVICK_LOAD names the program (default: target/release/kvick-load).

Servers are measured in turn, ROUNDS (default: 3) rounds; figures are medians. CONGESTION names the congestion control
of TCP, as root (default: the system's); it matters even on one machine. KVICK_TEST_BENCHMARK names
valkey-benchmark (default: the PATH), KVICK_TEST_VALKEY and KVICK_SERVER the servers, as for the other benchmarks.
"""

import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import tls
from measure import ROOT, Client, Server, encode, kvick, pin, set_congestion_control, valkey

# (value size in bytes, number of keys, [(pipeline depth, number of requests)])
CASES = [
    (4_096, 1000, [(1, 60_000), (16, 300_000)]),
    (16_384, 1000, [(1, 50_000), (10, 150_000)]),
    (65_536, 1000, [(1, 30_000), (4, 50_000)]),
    (1_048_576, 100, [(1, 3_000), (4, 3_000)]),
]
ROUNDS = int(os.environ.get("ROUNDS", "3"))
# Seconds of each measurement at a constant rate.
RATE_SECONDS = 4
MIB = 1 << 20
READERS = 100
# Replies that each slow reader requests: more than sockets buffer.
REPLIES = 8


@contextlib.contextmanager
def serve(program, workers):
    """Starts a server without TLS; yields it with the connection options for valkey-benchmark."""
    with Server(program, "--io-threads", str(workers), cores=[0]) as server:
        yield server, ["-p", str(server.port)]


def measure(serving, command, depth, size, keys, requests):
    """User and system time in microseconds per request, and the 99th percentile of latency in milliseconds."""
    with serving as (server, reach):
        def load(test, count, depth):
            words = [tls.generator(), *reach, "-c", "50", "-P", str(depth), "-d", str(size), "-r", str(keys),
                     "-t", test, "-n", str(count), "--csv"]
            run = subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            # "test","rps","avg","min","p50","p95","p99","max"
            return float(run.stdout.strip().splitlines()[-1].split(",")[6].strip('"'))

        if not isinstance(server, Floor):
            load("set", 3 * keys, 1)
        if command == "get":
            # Kvick sends a value as a copy at first.
            load("get", 30 * keys, 1)
        latency = 0

        def work():
            nonlocal latency
            latency = load(command, requests, depth)

        user, system = (seconds * 1e6 / requests for seconds in server.precisely_spent(work))
        return user, system, latency


class Floor(Server):
    """The program that does the least."""

    def __init__(self, command, size, keys):
        key = b"key:" + b"0" * 12
        bulk = len(b"$%d\r\n\r\n" % size) + size
        words = [b"SET", key, b"v" * size] if command == "set" else [b"GET", key]
        lengths = [len(encode(words)), len(b"+OK\r\n") if command == "set" else bulk, keys * size]
        program = os.environ.get("KVICK_FLOOR", str(ROOT / "target/release/examples/floor"))
        super().__init__(program, *map(str, lengths), cores=[0])

    def __enter__(self):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except OSError:
                time.sleep(0.02)
        self.__exit__()
        sys.exit("the program did not start")


@contextlib.contextmanager
def serve_floor(command, size, keys):
    with Floor(command, size, keys) as server:
        yield server, ["-p", str(server.port)]


def compare(title, programs, fewer=1):
    """Measures all cases and prints a table. `programs` maps names to functions that start a program for a case; the
    last one is what the others are compared with. The requests are divided by `fewer`."""
    *names, base = programs
    heads = [f"{name} / {base}, all CPU, p99" for name in names]
    print(f"\n{title}\n\n| command | bytes | pipelined | {' | '.join([*programs, *heads])} |")
    print("| --- | ---: | ---: |" + " --- |" * len([*programs, *heads]))
    for size, keys, loads in CASES:
        for depth, requests in loads:
            for command in ("set", "get"):
                rounds = [[measure(serving((command, size, keys)), command, depth, size, keys, requests // fewer)
                           for serving in programs.values()] for _ in range(ROUNDS)]
                texts, figures = [], []
                for at in range(len(programs)):
                    user, system, latency = (statistics.median(one[at][kind] for one in rounds) for kind in range(3))
                    texts.append(f"{user + system:.1f} ({user:.1f}+{system:.1f}, {latency:.2f})")
                    figures.append((user + system, latency))
                *figures, (base_total, base_latency) = figures
                ratios = [f"{total / base_total:.2f}, {latency / base_latency:.2f}" for total, latency in figures]
                print(f"| {' | '.join(map(str, [command.upper(), size, depth, *texts, *ratios]))} |", flush=True)


def generate(reach, command, size, keys, depth, seconds, *more):
    """Runs kvick-load and returns its result."""
    program = os.environ.get("KVICK_LOAD", str(ROOT / "target/release/kvick-load"))
    words = [program, "run", *reach, "--connections", "50", "--pipeline", str(depth), "--duration", str(seconds),
             "--warmup", "1s", "--command", command, "--keys", str(keys), "--value-size", str(size), *more]
    run = subprocess.run([*words, "--json", "--quiet"], check=True, stdout=subprocess.PIPE)
    return json.loads(run.stdout)["runs"][0]


def measure_rate(serving, command, size, keys, depth, rate):
    """CPU time in microseconds per request, and percentiles of response and service time in milliseconds."""
    with serving as (server, reach):
        at_rate = ["--rate", str(rate), "--arrivals", "poisson"]
        generate(reach, command, size, keys, depth, 1, *at_rate, "--preload")
        before = server.precise_cpu()
        run = generate(reach, command, size, keys, depth, RATE_SECONDS, *at_rate)
        # The second before the measurement counts too.
        requests = run["counters"]["answered"] * (RATE_SECONDS + 1) / RATE_SECONDS
        response, service = (run[times]["summary"] for times in ("response", "service"))
        latencies = [response["p50_ms"], response["p99_ms"], service["p99_ms"]]
        return [(server.precise_cpu() - before) * 1e6 / requests, *latencies]


def compare_rates(title, serving):
    """Measures all cases at half of Valkey's highest rate and prints a table. `serving(program)` starts a server and
    yields it with the connection options for kvick-load."""
    print(f"\n{title}\n")
    print("| command | bytes | pipelined | per second | Kvick | Valkey | all CPU, p50, p99, p99 of service |")
    print("| --- | ---: | ---: | ---: | --- | --- | --- |")
    for size, keys, loads in CASES:
        for depth, _ in loads:
            for command in ("set", "get"):
                with serving(valkey()) as (_, reach):
                    run = generate(reach, command, size, keys, depth, 2, "--preload")
                    rate = int(run["counters"]["answered"] / run["seconds"] / 2)
                rounds = [[measure_rate(serving(program), command, size, keys, depth, rate)
                           for program in (kvick(), valkey())] for _ in range(ROUNDS)]
                ours, theirs = ([statistics.median(figures) for figures in zip(*(one[at] for one in rounds))]
                                for at in (0, 1))
                texts = [f"{cpu:.1f} us, {p50:.2f}, {p99:.2f}, {service:.2f} ms"
                         for cpu, p50, p99, service in (ours, theirs)]
                ratios = ", ".join(f"{one / other:.2f}" for one, other in zip(ours, theirs))
                print(f"| {' | '.join(map(str, [command.upper(), size, depth, rate, *texts, ratios]))} |", flush=True)


@contextlib.contextmanager
def serve_load(program):
    with serve(program, 1) as (server, _):
        yield server, ["--endpoint", f"127.0.0.1:{server.port}"]


@contextlib.contextmanager
def serve_tls_load(program, certificates):
    with tls.serve(program, certificates, "--tls-auth-clients", "no") as (server, (_, port, *_)):
        yield server, ["--endpoint", f"localhost:{port}", "--tls-ca", str(certificates / "ca.crt")]


def resident(server):
    """Resident memory of the server in bytes."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) * 1024


def pending_output(client):
    """Sum of `omem` over all clients."""
    client.send(encode([b"CLIENT", b"LIST"]) + encode([b"PING", b"the-last-of-them"]))
    received = b""
    while not received.endswith(b"the-last-of-them\r\n"):
        received += client.socket.recv(MIB)
    return sum(int(word[5:]) for word in received.split() if word.startswith(b"omem="))


def measure_readers(program):
    """Resident memory that slow readers add, and the output that the server reports for them."""
    with Server(program, "--io-threads", "1", "--client-output-buffer-limit", "normal", "0", "0", "0",
                cores=[0]) as server:
        control = Client(server)
        control.run([[b"SET", b"value", b"v" * MIB]])
        before, readers = resident(server), []
        for _ in range(READERS):
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", server.port))
            reader.sendall(encode([b"GET", b"value"]) * REPLIES)
            readers.append(reader)
        output, last = pending_output(control), -1
        while output != last:
            time.sleep(0.5)
            output, last = pending_output(control), output
        return (resident(server) - before) / MIB, output / MIB


def compare_readers():
    print(f"\nResident memory added by {READERS} readers that have requested a value of 1 MiB {REPLIES} times\n")
    print("| server | resident MiB | pending output reported, MiB |\n| --- | ---: | ---: |")
    for name, program in (("Kvick", kvick()), ("Valkey", valkey())):
        added, output = measure_readers(program)
        print(f"| {name} | {added:.1f} | {output:.1f} |", flush=True)


def main():
    wanted = sys.argv[1:] or ["plain", "tls", "workers", "readers"]
    pin(1)
    set_congestion_control()
    plain = {"Kvick": lambda _: serve(kvick(), 1), "Valkey": lambda _: serve(valkey(), 1)}
    if "floor" in wanted:
        compare("One worker, and the least that a server can do",
                {"Kvick": plain["Kvick"], "Floor": lambda case: serve_floor(*case), "Valkey": plain["Valkey"]})
    elif "plain" in wanted:
        compare("One worker", plain)
    if "workers" in wanted:
        compare("Four workers on one core", plain | {"Kvick": lambda _: serve(kvick(), 4)})
    if "io-threads" in wanted:
        compare("io-threads 4 on one core",
                {"Kvick": lambda _: serve(kvick(), 4), "Valkey": lambda _: serve(valkey(), 4)}, fewer=4)
    with tempfile.TemporaryDirectory() as name:
        certificates = pathlib.Path(name)
        tls.make_certificates(certificates)
        if "tls" in wanted:
            compare("TLS, one worker", {"Kvick": lambda _: tls.serve(kvick(), certificates),
                                        "Valkey": lambda _: tls.serve(valkey(), certificates)})
        if "rates" in wanted:
            compare_rates("At the same rate, one worker", serve_load)
            compare_rates("At the same rate, TLS, one worker", lambda program: serve_tls_load(program, certificates))
    if "readers" in wanted:
        compare_readers()


if __name__ == "__main__":
    main()
