#!/usr/bin/env python3
"""A load that doubles every 30 seconds from 1x to 16x, on a cluster that grows with it and on one that does not.

Usage: ramp.py measure DIRECTORY [--share PERCENT] [--rate N] [--shards N] [--only elastic|fixed]
       ramp.py plot DIRECTORY SVG

`kvick-operator local` runs shards with one worker each. A cgroup limits each shard to a share of a core, so that many
shards fit on a small machine; capacity grows only if the operator starts shards and moves slots. `kvick-load` sends GET
and SET (80 to 20, values of 128 bytes, 20,000 keys) in an open loop with Poisson arrivals, without pipelining, to
clients that know the cluster: 30 seconds at each rate, then a quarter of the first rate until it has shrunk. Another
`kvick-load` writes numbered keys all the time and reads them back in the end.

`measure` needs root, for cgroups (version 1 or 2). It writes into DIRECTORY: the load's figures for each second, the
number of shards that own slots over time, the operator's log, and the result of the check. `plot` draws them and prints
a table: for each rate, how many seconds had a p99 above 50 ms, and which of the 30 was the last of these.

Programs: target/release of this repository; KVICK_SERVER, KVICK_LOAD and KVICK_OPERATOR name others.
"""

import argparse
import csv
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from xml.sax.saxutils import escape

from measure import ROOT, encode, kvick

STEP_S, DOUBLINGS = 30, 4
# Seconds behind the ramp, and their rate as a part of the first one.
QUIET_S = {"elastic": 170, "fixed": 30}
QUIET_PART = 4
# The kernel takes quotas from 1,000 us on.
PERIOD_US = 20_000
P99_GOOD_MS = 50.0
TEXT, GRID, OFFERED, SERVED, SHARDS, MEDIAN = "#76808c", "#9aa3ad", "#a8794a", "#3b82f6", "#16a34a", "#8b5cf6"


def program(variable, name):
    path = pathlib.Path(os.environ.get(variable, ROOT / "target/release" / name))
    return str(path) if path.exists() else sys.exit(f"{path} does not exist: build it, or set {variable}")


class Groups:
    """A cgroup for each process that the wrapper starts, limited to a share of a core."""

    def __init__(self, share):
        version_1 = pathlib.Path("/sys/fs/cgroup/cpu")
        root = version_1 if (version_1 / "cpu.cfs_quota_us").exists() or (version_1 / "tasks").exists() else \
            pathlib.Path("/sys/fs/cgroup")
        self.directory = root / f"kvick-ramp-{os.getpid()}"
        self.directory.mkdir()
        if root == version_1:
            self.limit = f'echo {PERIOD_US} > "$group/cpu.cfs_period_us"; ' \
                         f'echo {int(PERIOD_US * share)} > "$group/cpu.cfs_quota_us"'
        else:
            (root / "cgroup.subtree_control").write_text("+cpu")
            (self.directory / "cgroup.subtree_control").write_text("+cpu")
            self.limit = f'echo "{int(PERIOD_US * share)} {PERIOD_US}" > "$group/cpu.max"'

    def wrapper(self, path):
        """A program that limits itself and becomes the server."""
        path.write_text(f'#!/bin/sh\nset -e\ngroup={self.directory}/$$\nmkdir "$group"\n{self.limit}\n'
                        f'echo $$ > "$group/cgroup.procs"\nexec {kvick()} "$@"\n')
        path.chmod(0o755)

    def remove(self):
        for group in [*self.directory.iterdir(), self.directory]:
            if group.is_dir():
                for _ in range(50):
                    try:
                        group.rmdir()
                        break
                    except OSError:
                        time.sleep(0.1)


def ask(port, *words):
    """Sends a command to a server; returns the bulk string of its reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(encode([word.encode() for word in words]))
        got = b""
        while not got.startswith(b"$") or len(got) < int(got[1:got.index(b"\r")]) + got.index(b"\n") + 3:
            more = connection.recv(1 << 16)
            if not more:
                raise OSError("closed")
            got += more
    return got[got.index(b"\n") + 1:-2].decode()


def owners(port):
    """The number of shards that own slots."""
    lines = [line.split() for line in ask(port, "CLUSTER", "NODES").splitlines()]
    return sum("master" in words[2] and any(not word.startswith("[") for word in words[8:]) for words in lines)


def watch(ports, began, samples, ended):
    """Appends (seconds, shards that own slots) twice a second."""
    while not ended.wait(0.5):
        for port in ports:
            try:
                samples.append((time.monotonic() - began, owners(port)))
                break
            except (OSError, ValueError, IndexError):
                continue


def load(directory, name, port, text, *words):
    config = directory / f"{name}.toml"
    config.write_text(text)
    log = open(directory / f"{name}.txt", "w")
    command = [program("KVICK_LOAD", "kvick-load"), words[0], str(config), "--endpoint", f"127.0.0.1:{port}",
               *words[1:]]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def ramp(options, kind, directory):
    directory.mkdir(parents=True, exist_ok=True)
    groups = Groups(options.share / 100)
    limited = directory / "limited-server"
    groups.wrapper(limited)
    shards = options.shards if kind == "elastic" else 1
    first = 21_000
    (directory / "cluster.toml").write_text(
        f'directory = "nodes"\nprogram = "{limited}"\nfirst-port = {first}\n'
        f"[limits]\nshards-min = 1\nshards-max = {shards}\nworkers-max = 1\n[planner]\nquiet-s = 20\n"
        '[server]\nappendonly = "no"\nsave = ""\nio-threads = 1\n')
    operator = [program("KVICK_OPERATOR", "kvick-operator"), "local", str(directory / "cluster.toml")]
    log = open(directory / "operator.txt", "w")
    running = subprocess.Popen([*operator, "--plain"], stdout=log, stderr=subprocess.STDOUT)
    ended = threading.Event()
    try:
        wait_for_cluster(first)
        load_ramp(options, directory, first, QUIET_S[kind], ended)
    finally:
        ended.set()
        running.terminate()
        running.wait()
        subprocess.run([*operator, "--stop"], stdout=subprocess.DEVNULL)
        groups.remove()


def wait_for_cluster(port):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if "cluster_state:ok" in ask(port, "CLUSTER", "INFO"):
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.2)
    sys.exit("the cluster did not start")


def load_ramp(options, directory, port, quiet, ended):
    keyspace = """
[[workload.keyspace]]
nkeys = 20_000
vlen = 128
preload = "set"
commands = [{ verb = "get", weight = 80 }, { verb = "set", weight = 20 }]
"""
    target = 'topology = "cluster"\nendpoints = ["127.0.0.1:1"]\n'
    client = "[client]\nthreads = 1\npoolsize = 20\npipeline = 4\nrequest_timeout = 10000\n"
    seconds = STEP_S * (DOUBLINGS + 1)
    rates = f"start = {options.rate}\nend = {options.rate << DOUBLINGS}\nramp = \"doubling\"\ninterval = {STEP_S}\n"
    rising = f'[general]\ninterval = 1\nduration = {seconds}\n[target]\n{target}{client}' \
             f'[workload.ratelimit]\n{rates}arrivals = "poisson"\n{keyspace}'
    falling = f'[general]\ninterval = 1\nduration = {quiet}\n[target]\n{target}{client}' \
              f'[workload.ratelimit]\nstart = {options.rate // QUIET_PART}\narrivals = "poisson"\n{keyspace}'
    checked = f'[general]\ninterval = 1\nduration = {seconds + quiet}\n[target]\n{target}{client}' \
              f'[workload.ratelimit]\nstart = 100\n[check]\nkeys = 2_000\nsettle = "30s"\n'
    filling = falling.replace(f"duration = {quiet}", "duration = 1")
    load(directory, "preload", port, filling, "run", "--preload").wait()
    # Loading may make it grow.
    time.sleep(5)
    deadline = time.monotonic() + 120
    while owners(port) > 1 and time.monotonic() < deadline:
        time.sleep(0.5)
    began, samples = time.monotonic(), []
    watching = threading.Thread(target=watch, args=(range(port, port + 40), began, samples, ended), daemon=True)
    watching.start()
    check = load(directory, "check", port, checked, "check")
    load(directory, "rising", port, rising, "run", "--output", str(directory / "rising")).wait()
    turned = time.monotonic() - began
    load(directory, "falling", port, falling, "run", "--output", str(directory / "falling")).wait()
    check.wait()
    ended.set()
    watching.join()
    (directory / "times.json").write_text(json.dumps({
        "falling_s": turned, "check": check.returncode, "share": options.share, "rate": options.rate,
        "cores": os.cpu_count()}))
    with open(directory / "shards.csv", "w") as out:
        csv.writer(out).writerows([("second", "shards"), *samples])


def measure(options):
    for kind in ([options.only] if options.only else ["elastic", "fixed"]):
        print(f"{kind}: {STEP_S * (DOUBLINGS + 1) + QUIET_S[kind]} seconds", flush=True)
        ramp(options, kind, options.directory / kind)


class Run:
    """What a ramp has shown."""

    def __init__(self, directory):
        self.times = json.loads((directory / "times.json").read_text())
        self.seconds = []
        for name, offset in (("rising", 0.0), ("falling", self.times["falling_s"])):
            with open(directory / f"{name}.csv") as lines:
                for row in csv.DictReader(lines):
                    row = {key: value if key == "label" else float(value) for key, value in row.items()}
                    self.seconds.append({**row, "at": offset + row["start_s"], "phase": name})
        with open(directory / "shards.csv") as lines:
            self.shards = [(float(row["second"]), int(row["shards"])) for row in csv.DictReader(lines)]

    def total(self, field):
        return sum(second[field] for second in self.seconds)

    def shards_at(self, at):
        return next((count for second, count in reversed(self.shards) if second <= at), 1)

    def table(self):
        """Cells for each rate."""
        rising = [second for second in self.seconds if second["phase"] == "rising"]
        for step in range(DOUBLINGS + 1):
            inside = [second for second in rising if step * STEP_S <= second["at"] < (step + 1) * STEP_S]
            bad = [second["at"] - step * STEP_S + 1 for second in inside if second["response_p99_ms"] > P99_GOOD_MS]
            middle = lambda field: f"{sorted(second[field] for second in inside)[len(inside) // 2]:.2f}"
            mean = lambda field: f"{sum(second[field] for second in inside) / len(inside):,.0f}"
            yield (mean("planned_rate"), mean("rate"), str(self.shards_at((step + 1) * STEP_S)), str(len(bad)),
                   f"{max(bad):.0f}" if bad else "-", middle("response_p50_ms"),
                   middle("response_p99_ms"))


def panel(run, title, top, width, height, end):
    """Rates and shards over time, and percentiles below, as SVG elements."""
    left, bottom, middle = 56, top + height - 26, top + height * 0.56
    x_of = lambda second: left + (width - left - 50) * second / end
    rate_max = max(second["planned_rate"] for second in run.seconds) * 1.1
    shards_max = max(max(count for _, count in run.shards) * 1.3, 4)
    y_rate = lambda rate: middle - (middle - top - 24) * min(rate / rate_max, 1)
    y_shards = lambda count: middle - (middle - top - 24) * count / shards_max
    levels = [0.01, 0.1, 1, 10, 100, 1000]
    y_ms = lambda ms: bottom - (bottom - middle - 20) * min(math.log10(max(ms, 0.01) * 100) / 5, 1)
    line = lambda points, color, dash="": f'<path d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}" ' \
                                          f'fill="none" stroke="{color}" stroke-width="1.5"{dash}/>'
    out = [f'<text x="8" y="{top + 14}" font-size="13" font-weight="600">{escape(title)}</text>']
    for part in range(3):
        y = y_rate(rate_max / 1.1 * part / 2)
        out.append(f'<path d="M{left} {y:.1f}H{width - 50}" stroke="{GRID}" stroke-width="0.4"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{rate_max / 1.1 * part / 2:,.0f}</text>')
    for count in range(0, int(shards_max) + 1, max(int(shards_max) // 4, 1)):
        out.append(f'<text x="{width - 44}" y="{y_shards(count) + 4:.1f}" fill="{SHARDS}">{count}</text>')
    for ms in levels:
        out.append(f'<path d="M{left} {y_ms(ms):.1f}H{width - 50}" stroke="{GRID}" stroke-width="0.4"/>')
        out.append(f'<text x="{left - 6}" y="{y_ms(ms) + 4:.1f}" text-anchor="end">{ms:g} ms</text>')
    for second in range(0, int(end) + 1, 30):
        out.append(f'<text x="{x_of(second):.1f}" y="{bottom + 16}" text-anchor="middle">{second} s</text>')
    steps = [(x_of(at), y_shards(count)) for at, count in run.shards]
    middles = [(x_of(second["at"] + 0.5), second) for second in run.seconds]
    offered = [(x, y_rate(second["planned_rate"])) for x, second in middles]
    out.append(line(offered, OFFERED, ' stroke-dasharray="5 3"'))
    out.append(line([(x, y_rate(second["rate"])) for x, second in middles], SERVED))
    out.append(line([point for before, after in zip(steps, steps[1:]) for point in (before, (after[0], before[1]))],
                    SHARDS))
    for field, color in (("response_p50_ms", MEDIAN), ("response_p99_ms", SERVED)):
        out.append(line([(x, y_ms(second[field])) for x, second in middles if second["answered"]], color))
    return out


def plot(options):
    kinds = [kind for kind in ("elastic", "fixed") if (options.directory / kind).exists()]
    runs = {kind: Run(options.directory / kind) for kind in kinds}
    width, height = 860, 330
    titles = {"elastic": "The cluster grows with the load", "fixed": "One shard"}
    end = max(second["at"] + 1 for run in runs.values() for second in run.seconds)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height * len(runs) + 40}" width="{width}" '
           f'height="{height * len(runs) + 40}" font-family="system-ui, sans-serif" font-size="11" fill="{TEXT}" '
           'role="img">', "<title>Requests per second, shards and latencies during a ramp</title>"]
    legend = [("offered requests/s", OFFERED, ' stroke-dasharray="5 3"'), ("served requests/s, p99", SERVED, ""),
              ("shards with slots", SHARDS, ""), ("p50", MEDIAN, "")]
    for at, (name, color, dash) in enumerate(legend):
        out.append(f'<path d="M{60 + 190 * at} 18h26" stroke="{color}" stroke-width="2"{dash}/>'
                   f'<text x="{92 + 190 * at}" y="22">{name}</text>')
    for at, (kind, run) in enumerate(runs.items()):
        out += panel(run, titles[kind], 34 + height * at, width, height, end)
        check = "passed" if run.times["check"] == 0 else "FAILED"
        print(f"\n{titles[kind]}. Check of acknowledged writes: {check}. "
              f"Scheduled {run.total('scheduled'):,.0f}, dropped {run.total('dropped'):,.0f}, failed "
              f"{run.total('failed'):,.0f}, errors {run.total('errors'):,.0f}. "
              f"Shards in the end: {run.shards[-1][1]}\n")
        print("| offered/s | served/s | shards at the end | seconds with p99 > 50 ms | last of them | p50, ms "
              "| p99, ms |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        for row in run.table():
            print("| " + " | ".join(row) + " |")
    options.svg.write_text("\n".join([*out, "</svg>", ""]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(required=True)
    measuring = actions.add_parser("measure")
    measuring.add_argument("directory", type=pathlib.Path)
    measuring.add_argument("--share", type=float, default=16.0, help="percent of a core per shard")
    measuring.add_argument("--rate", type=int, default=4_000, help="requests per second at 1x")
    measuring.add_argument("--shards", type=int, default=8, help="the most shards")
    measuring.add_argument("--only", choices=["elastic", "fixed"])
    measuring.set_defaults(action=measure)
    plotting = actions.add_parser("plot")
    plotting.add_argument("directory", type=pathlib.Path)
    plotting.add_argument("svg", type=pathlib.Path)
    plotting.set_defaults(action=plot)
    options = parser.parse_args()
    options.directory = options.directory.resolve()
    options.action(options)


if __name__ == "__main__":
    main()
