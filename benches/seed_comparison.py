#!/usr/bin/env python3
"""Throughput, latency and server CPU time by number of connections: Kvick, Valkey 8.1, Valkey 9.1 and Redis 8.

Usage: seed_comparison.py measure CSV [--connections N,...] [--keys N] [--seconds S] [--only "NAME;..."]
       seed_comparison.py plot CSV SVG

The load is crates/load/configs/seed-comparison.toml: values of 1 KiB, 80 percent GET and 20 percent SET, in a closed
loop without pipelining. `measure` appends a line to CSV for each server and number of connections, with all servers in
turn; call it several times for several rounds. `plot` draws the medians, and prints them as the table of
docs/performance.md.

Servers and load share all cores, and no thread is pinned. The load has as many threads as there are cores. Kvick has
one worker per core, its default. The others run with one thread, and once more with `io-threads` set to the number of
cores.

Programs: KVICK_SERVER (default: target/release/kvick-server), KVICK_LOAD (target/release/kvick-load),
KVICK_TEST_VALKEY_8 (Valkey 8.1), KVICK_TEST_VALKEY (Valkey 9.1) and KVICK_TEST_REDIS (Redis 8).
"""

import argparse
import csv
import json
import math
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from xml.sax.saxutils import escape

from measure import ROOT, Server, encode, kvick

CONFIG = ROOT / "crates/load/configs/seed-comparison.toml"
CORES = os.cpu_count()
FIELDS = ["server", "connections", "keys", "rate", "p50_ms", "p99_ms", "p999_ms", "server_us", "load_us"]
# The plots: column, title, and whether the axis is logarithmic.
PANELS = [
    ("rate", "Requests per second", False),
    ("server_us", "Server CPU per request, microseconds", False),
    ("p50_ms", "p50, milliseconds", True),
    ("p99_ms", "p99, milliseconds", True),
    ("p999_ms", "p99.9, milliseconds", True),
]
# Mid-tones that are readable on a light and on a dark background, as in plot.py.
TEXT, GRID = "#76808c", "#9aa3ad"
COLORS = {"Kvick": "#3b82f6", "Valkey 8.1": "#0d9488", "Valkey 9.1": "#a8794a", "Redis 8": "#dc4c64"}


def servers():
    """Name, program and arguments of each server."""
    found = [("Kvick", kvick(), [])]
    for name, variable in [
        ("Valkey 8.1", "KVICK_TEST_VALKEY_8"), ("Valkey 9.1", "KVICK_TEST_VALKEY"), ("Redis 8", "KVICK_TEST_REDIS")
    ]:
        program = os.environ.get(variable) or sys.exit(f"{variable} names no server")
        found.append((name, program, ["--io-threads", "1"]))
        found.append((f"{name}, io-threads {CORES}", program, ["--io-threads", str(CORES)]))
    return found


def executed(server):
    """The number of commands that the server has executed."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(encode([b"INFO", b"stats"]))
        reply = b""
        while b"total_commands_processed" not in reply or not reply.endswith(b"\r\n"):
            reply += connection.recv(1 << 16)
    return int(re.search(rb"total_commands_processed:(\d+)", reply)[1])


def load(server, connections, options, preload):
    """Runs the load, and returns its result."""
    program = os.environ.get("KVICK_LOAD", str(ROOT / "target/release/kvick-load"))
    text = CONFIG.read_text()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(text if preload else text.replace('preload = "set"\n', ""))
        config.flush()
        words = [
            program, "run", config.name, "--endpoint", f"127.0.0.1:{server.port}", "--connections", str(connections),
            "--threads", str(CORES), "--keys", str(options.keys), "--duration", str(options.seconds), "--warmup", "1s",
            "--json", "--quiet",
        ]
        output = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout
    [run] = json.loads(output)["runs"]
    if run["counters"]["errors"] or run["counters"]["failed"]:
        sys.exit(f"errors: {run['counters']} {run['error_texts']}")
    return run


def measure(options):
    is_new = not options.csv.exists()
    with options.csv.open("a", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        if is_new:
            lines.writerow(FIELDS)
        for name, program, arguments in servers():
            if options.only and name not in options.only.split(";"):
                continue
            with Server(program, *arguments, cores=range(CORES)) as server:
                # Fills the keyspace; its figures do not count.
                load(server, 50, argparse.Namespace(keys=options.keys, seconds=1), preload=True)
                for connections in options.connections:
                    cpu, count = sum(server.cpu()), executed(server)
                    run = load(server, connections, options, preload=False)
                    cpu, count = sum(server.cpu()) - cpu, executed(server) - count
                    rate = run["counters"]["answered"] / run["seconds"]
                    latency = run["response"]["summary"]
                    server_us, load_us = cpu * 1e6 / count, run["cpu_s"] * 1e6 / run["counters"]["sent"]
                    figures = [latency["p50_ms"], latency["p99_ms"], latency["p999_ms"]]
                    row = [f"{rate:.0f}", *(f"{ms:.3f}" for ms in figures), f"{server_us:.2f}", f"{load_us:.2f}"]
                    lines.writerow([name, connections, options.keys, *row])
                    file.flush()
                    print(f"{name:26} {connections:5} " + " ".join(f"{cell:>9}" for cell in row), flush=True)


def medians(path):
    """The medians by server and number of connections, in the order of the file."""
    rows = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            rows.setdefault(line["server"], {}).setdefault(int(line["connections"]), []).append(line)
    return {
        server: {
            connections: {field: statistics.median(float(line[field]) for line in lines) for field in FIELDS[3:]}
            for connections, lines in sorted(points.items())
        }
        for server, points in rows.items()
    }


def ticks(low, high, is_log):
    """Round values from low to high."""
    if is_log:
        found = [
            factor * 10**power
            for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for factor in (1, 2, 5)
        ]
        return [value for value in found if low <= value <= high]
    step = 10 ** math.floor(math.log10(high / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * step >= high / 5)
    return [step * at for at in range(math.floor(high / step) + 1)]


def label(value):
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def panel(figures, field, title, is_log, width, height):
    """One chart: a line per server over the numbers of connections, which have equal distances."""
    left, right, top, bottom = 46, 12, 34, 40
    connections = sorted({count for points in figures.values() for count in points})
    values = [point[field] for points in figures.values() for point in points.values()]
    low, high = (min(values) / 1.15, max(values) * 1.15) if is_log else (0, max(values) * 1.08)

    def x(count):
        return left + (width - left - right) * (connections.index(count) + 0.5) / len(connections)

    def y(value):
        part = math.log(value / low) / math.log(high / low) if is_log else value / high
        return height - bottom - (height - top - bottom) * part

    out = [f'<text x="{left}" y="18" font-weight="600">{escape(title)}</text>']
    for value in ticks(low, high, is_log):
        out.append(f'<path d="M{left} {y(value):.1f}H{width - right}" stroke="{GRID}" stroke-opacity="0.35"/>')
        out.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{label(value)}</text>')
    for count in connections:
        out.append(f'<text x="{x(count):.1f}" y="{height - bottom + 16}" text-anchor="middle">{count}</text>')
    middle = (left + width - right) / 2
    out.append(f'<text x="{middle}" y="{height - 8}" text-anchor="middle">connections</text>')
    for name, points in reversed(figures.items()):
        color, dash = style(name)
        line = " ".join(f"{x(count):.1f},{y(point[field]):.1f}" for count, point in points.items())
        stroke = f'stroke="{color}" stroke-width="2"{dash}'
        out.append(f'<polyline points="{line}" fill="none" {stroke}/>')
        for count, point in points.items():
            out.append(f'<circle cx="{x(count):.1f}" cy="{y(point[field]):.1f}" r="2.5" fill="{color}"/>')
    return out


def style(name):
    """Color of a server, and dashes if it has I/O threads."""
    return COLORS[name.split(",")[0]], ' stroke-dasharray="5 3"' if "," in name else ""


def plot(options):
    figures = medians(options.csv)
    width, height, per_row = 430, 270, 2
    rows = math.ceil((len(PANELS) + 1) / per_row)
    title = f"Values of 1 KiB, 80% GET and 20% SET; servers and load share {CORES} cores"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * per_row} {height * rows + 30}" '
        f'width="{width * per_row}" height="{height * rows + 30}" font-family="system-ui, sans-serif" font-size="12" '
        f'fill="{TEXT}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<text x="8" y="20" font-size="14" font-weight="600">{escape(title)}</text>',
    ]
    for at, (field, name, is_log) in enumerate(PANELS):
        out.append(f'<g transform="translate({width * (at % per_row)},{30 + height * (at // per_row)})">')
        out += [*panel(figures, field, name, is_log, width, height), "</g>"]
    at = len(PANELS)
    out.append(f'<g transform="translate({width * (at % per_row) + 46},{30 + height * (at // per_row) + 30})">')
    for line, name in enumerate(figures):
        color, dash = style(name)
        y = 10 + 24 * line
        out.append(f'<path d="M0 {y}H34" stroke="{color}" stroke-width="2"{dash}/>')
        out.append(f'<circle cx="17" cy="{y}" r="2.5" fill="{color}"/><text x="44" y="{y + 4}">{escape(name)}</text>')
    options.svg.write_text("\n".join([*out, "</g>", "</svg>", ""]))
    connections = sorted({count for points in figures.values() for count in points})
    for field, name, _ in PANELS:
        print(f"| {name} | " + " | ".join(f"{count}" for count in connections) + " |")
        print("| --- " * (len(connections) + 1) + "|")
        for server, points in figures.items():
            print(f"| {server} | " + " | ".join(number(field, points[count][field]) for count in connections) + " |")
        print()


def number(field, value):
    return f"{value:,.0f}" if field == "rate" else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(required=True)
    measuring = actions.add_parser("measure")
    measuring.add_argument("csv", type=pathlib.Path)
    counts = lambda text: [int(count) for count in text.split(",")]
    measuring.add_argument("--connections", type=counts, default=[1, 10, 50, 100, 250, 500, 1000, 1500])
    measuring.add_argument("--keys", type=int, default=3_000_000)
    measuring.add_argument("--seconds", type=int, default=5)
    measuring.add_argument("--only", default="", help="names of servers, separated by semicolons")
    measuring.set_defaults(action=measure)
    plotting = actions.add_parser("plot")
    plotting.add_argument("csv", type=pathlib.Path)
    plotting.add_argument("svg", type=pathlib.Path)
    plotting.set_defaults(action=plot)
    options = parser.parse_args()
    options.action(options)


if __name__ == "__main__":
    main()
