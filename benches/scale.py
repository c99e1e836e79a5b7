#!/usr/bin/env python3
"""Requests per second, CPU time and latency with 1 to N workers, compared with Valkey and its I/O threads.

Usage: scale.py [--servers N] [--loads N] [--seconds S] [--rounds R] [--only NAME,...] [--plot FOLDER]

Server threads have the first cores, load processes the others; with fewer than two cores for each, they share all. The
number of workers doubles up to the number of server cores (--servers, default: half of the cores). Each load process
(--loads, default: one per load core) has 16 connections, and sends pipelines of 16 requests.

Loads: get, set, eval (INCR by a script) and types (strings, lists, hashes, sorted sets, streams), each with keys that
are uniform, Zipf-distributed (exponent 0.99) or one hot key. Output, as medians of the rounds: requests per second, CPU
time of the server per request, the share of its cores' time that was spent in interrupts, and the 99th percentile of
the time of a pipeline. --plot writes one SVG per load with the requests per second.

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server (default:
target/release/kvick-server).
"""

import argparse
import bisect
import itertools
import multiprocessing
import os
import pathlib
import random
import select
import statistics
import sys
import time
from xml.sax.saxutils import escape

from measure import Client, END, Server, kvick, pin, pipelines, valkey

CONNECTIONS = 16
DEPTH = 16
KEYS = 100_000
# Pipelines that a load process prepares, and then repeats.
PREPARED = 2000
EXPONENT = 0.99
VALUE = b"v" * 64
SCRIPT = b"return redis.call('INCR', KEYS[1])"
COLORS = {"Kvick": "#3b82f6", "Valkey": "#a8794a"}
TEXT, GRID = "#76808c", "#9aa3ad"


def key_numbers(distribution, dice):
    """An endless sequence of key numbers."""
    if distribution == "hot":
        return itertools.repeat(0)
    if distribution == "uniform":
        return iter(lambda: dice.randrange(KEYS), None)
    totals = list(itertools.accumulate(1 / rank**EXPONENT for rank in range(1, KEYS + 1)))
    return iter(lambda: bisect.bisect(totals, dice.random() * totals[-1]), None)


def request(load, number, dice):
    number = b"%012d" % number
    element = b"%d" % dice.randrange(100)
    if load == "types":
        return dice.choice(
            [
                [b"SET", b"string:" + number, VALUE],
                [b"GET", b"string:" + number],
                [b"RPUSH", b"list:" + number, element],
                [b"LPOP", b"list:" + number],
                [b"HSET", b"hash:" + number, element, VALUE],
                [b"HGET", b"hash:" + number, element],
                [b"ZADD", b"zset:" + number, element, element],
                [b"ZRANK", b"zset:" + number, element],
                [b"XADD", b"stream:" + number, b"MAXLEN", b"100", b"*", b"name", element],
            ]
        )
    return {
        "get": [b"GET", b"key:" + number],
        "set": [b"SET", b"key:" + number, VALUE],
        "eval": [b"EVAL", SCRIPT, b"1", b"counter:" + number],
    }[load]


def drive(server, load, distribution, seed, cores, ready, begin, results):
    """One load process: keeps one pipeline in flight per connection, until the time is over."""
    pin(*cores)
    dice = random.Random(seed)
    numbers = key_numbers(distribution, dice)
    prepared = pipelines([request(load, next(numbers), dice) for _ in range(PREPARED * DEPTH)], DEPTH)
    sockets = [Client(server).socket for _ in range(CONNECTIONS)]
    ready.release()
    seconds = begin.get()
    poll, by_number, sent_at, tails = select.epoll(), {}, {}, {}
    for connection in sockets:
        poll.register(connection, select.EPOLLIN)
        by_number[connection.fileno()], tails[connection.fileno()] = connection, b""
    turn, count, times = itertools.cycle(prepared), 0, []
    end, over = END + b"\r\n", time.perf_counter() + seconds
    for number, connection in by_number.items():
        sent_at[number] = time.perf_counter()
        connection.sendall(next(turn))
    while sent_at:
        for number, _ in poll.poll():
            got = by_number[number].recv(1 << 20)
            if not got:
                sys.exit("the server closed a connection")
            tails[number] = (tails[number] + got)[-len(end) :]
            if tails[number] != end:
                continue
            now = time.perf_counter()
            times.append(now - sent_at.pop(number))
            count += DEPTH
            tails[number] = b""
            if now < over:
                sent_at[number] = now
                by_number[number].sendall(next(turn))
    results.put((count, times))


def interrupts(cores):
    """Time of these cores since the system started, in ticks: in interrupts, and all of it."""
    inside = total = 0
    for line in pathlib.Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            fields = [int(field) for field in fields[:8]]
            inside += fields[5] + fields[6]
            total += sum(fields)
    return inside, total


def measure(program, workers, place, load, distribution, options):
    """Requests per second, microseconds of CPU per request, interrupts in percent, and p99 in milliseconds."""
    cores, load_cores = place
    with Server(program, "--io-threads", str(workers), cores=cores[:workers]) as server:
        if load == "get":
            Client(server).run([[b"SET", b"key:%012d" % number, VALUE] for number in range(KEYS)])
        ready, begin, results = multiprocessing.Semaphore(0), multiprocessing.Queue(), multiprocessing.Queue()
        loads = [
            multiprocessing.Process(
                target=drive, args=(server, load, distribution, seed, load_cores, ready, begin, results)
            )
            for seed in range(options.loads)
        ]
        for process in loads:
            process.start()
        for _ in loads:
            ready.acquire()
        found = []

        def work():
            for _ in loads:
                begin.put(options.seconds)
            found.extend(results.get(timeout=options.seconds + 60) for _ in loads)

        before, began = interrupts(cores[:workers]), time.monotonic()
        spent = sum(server.spent(work))
        seconds, after = time.monotonic() - began, interrupts(cores[:workers])
        for process in loads:
            process.join()
    count = sum(number for number, _ in found)
    times = sorted(itertools.chain.from_iterable(some for _, some in found))
    share = 100 * (after[0] - before[0]) / max(1, after[1] - before[1])
    return count / seconds, spent * 1e6 / count, share, times[len(times) * 99 // 100] * 1e3


def plot(path, title, figures):
    """Writes a line per server: requests per second over the number of workers."""
    width, height, left, bottom = 480, 300, 70, 40
    most = max(rate for rows in figures.values() for _, rate in rows) * 1.1
    workers = sorted({number for rows in figures.values() for number, _ in rows})

    def x(number):
        return left + (width - left - 20) * (workers.index(number) + 0.5) / len(workers)

    def y(rate):
        return (height - bottom) * (1 - rate / most) + 20 * rate / most

    parts = [f'<text x="{left}" y="14" fill="{TEXT}">{escape(title)}: requests per second by workers</text>']
    for part in range(5):
        rate = most * part / 4
        parts.append(f'<path d="M{left} {y(rate):.1f}H{width}" stroke="{GRID}" stroke-opacity="0.4"/>')
        at = f'x="{left - 6}" y="{y(rate) + 4:.1f}"'
        parts.append(f'<text {at} fill="{TEXT}" text-anchor="end">{rate / 1e3:.0f}k</text>')
    for number in workers:
        at = f'x="{x(number):.1f}" y="{height - bottom + 20}"'
        parts.append(f'<text {at} fill="{TEXT}" text-anchor="middle">{number}</text>')
    for place, (who, rows) in enumerate(figures.items()):
        points = " ".join(f"{x(number):.1f},{y(rate):.1f}" for number, rate in rows)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[who]}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(n):.1f}" cy="{y(rate):.1f}" r="3" fill="{COLORS[who]}"/>' for n, rate in rows]
        parts.append(f'<text x="{left + 100 * place}" y="{height - 4}" fill="{COLORS[who]}">{escape(who)}</text>')
    style = 'font-family="sans-serif" font-size="12"'
    view = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    path.write_text(f'<svg {view} {style}>\n' + "\n".join(parts) + "\n</svg>\n")


def arguments():
    count = os.cpu_count()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=max(2, count // 2) if count > 1 else 1)
    parser.add_argument("--loads", type=int, default=max(2, count - count // 2))
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="names like get or set-zipf, separated by commas")
    parser.add_argument("--plot", type=pathlib.Path)
    return parser.parse_args()


def main():
    options, count = arguments(), os.cpu_count()
    cores = list(range(min(options.servers, count)))
    load_cores = list(range(len(cores), count))
    if len(load_cores) < 2:
        cores = load_cores = list(range(count))
    numbers = [1 << power for power in range(10) if 1 << power < len(cores)] + [len(cores)]
    names = [f"{load}-{keys}" for load in ("get", "set", "eval", "types") for keys in ("uniform", "zipf", "hot")]
    wanted = [word for word in options.only.split(",") if word]
    print(f"server cores {cores}, load cores {load_cores}, {options.loads} load processes")
    print(f"{'load':14} {'workers':>7} {'server':7} {'requests/s':>11} {'CPU us':>7} {'irq %':>6} {'p99 ms':>7}")
    for name in names:
        if wanted and not any(name == word or name.startswith(word + "-") for word in wanted):
            continue
        load, distribution = name.split("-")
        figures = {"Kvick": [], "Valkey": []}
        for workers in numbers:
            rows = {"Kvick": [], "Valkey": []}
            for _ in range(options.rounds):
                for who, program in (("Kvick", kvick()), ("Valkey", valkey())):
                    rows[who].append(measure(program, workers, (cores, load_cores), load, distribution, options))
            for who, found in rows.items():
                rate, cpu, share, p99 = (statistics.median(column) for column in zip(*found))
                figures[who].append((workers, rate))
                print(
                    f"{name:14} {workers:7} {who:7} {rate:11.0f} {cpu:7.3f} {share:6.1f} {p99:7.2f}", flush=True
                )
        if options.plot:
            options.plot.mkdir(parents=True, exist_ok=True)
            plot(options.plot / f"scale-{name}.svg", name, figures)


if __name__ == "__main__":
    main()
