#!/usr/bin/env python3
"""Runs Valkey's own Tcl tests against one endpoint of a cluster: a node without slots that forwards to three primaries.

    valkey_suite.py --suite DIRECTORY                    all units of which a cluster can run tests
    valkey_suite.py --suite DIRECTORY unit/type/hash     these units
    valkey_suite.py ... --kind single                    a single node with all slots instead, which forwards nothing
    valkey_suite.py ... --server PROGRAM                 another server (default: target/release/kvick-server)

DIRECTORY is Valkey's source tree with `valkey-cli` and `valkey-benchmark` built, or named by VALKEY_BIN_DIR. The tests
run in the suite's modes for a server that is already there and is in cluster mode (--host, --cluster-mode,
--singledb), which leaves out those with keys in several slots and those that restart the server. The settings that a
test changes with CONFIG SET are those of the node that forwards.

A line per unit: the tests that passed, and those that failed. With --kind single and Valkey's server, the same figures
say what there is to reach.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNITS = [f"unit/type/{name}" for name in ("hash", "incr", "list", "list-2", "list-3", "set", "string", "zset", "stream",
                                          "stream-cgroups")]
UNITS += [f"unit/{name}" for name in ("expire", "keyspace", "scan", "hashexpire", "geo", "multi", "bitops", "bitfield",
                                      "hyperloglog", "sort", "dump", "scripting", "functions", "tracking", "pubsub",
                                      "protocol")]
# Tests that would end their unit: they wait for keyspace events, which are those of the node that the client is
# connected to, or leave a script behind that runs for ever, because another node is not busy.
LEFT_OUT = ["/keyspace notification", "/keyspace event", "just EXEC and script timeout",
            "exec with write commands and state change", "/generates (single|no) notification",
            "/^H[GS]ETEX .* 0/past time works correctly", "/should not issue notifications",
            "/^(Key|Field) TTL expires before", "/^Active expiry (deletes|removes|reclaims|handles)"]
COLORS = re.compile(r"\x1b\[[0-9;]*m")
LINE = re.compile(r"^\[(ok|err|exception|skip|ignore|timeout)\]: (.*)$")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Node:
    """A server in cluster mode in a directory of its own."""

    def __init__(self, program, *options):
        self.port, self.bus_port, self.directory = free_port(), free_port(), tempfile.TemporaryDirectory()
        words = [program, "--port", self.port, "--cluster-port", self.bus_port, "--bind", "127.0.0.1", "--save", "",
                 "--cluster-enabled", "yes", "--enable-debug-command", "yes", "--enable-protected-configs", "yes",
                 "--dir", self.directory.name, "--logfile", "log", *options]
        self.process = subprocess.Popen([str(word) for word in words], cwd=self.directory.name,
                                        stdout=subprocess.DEVNULL)
        wait_until("the node answers", lambda: self.call("PING") == "+PONG")

    def call(self, *words):
        """The first reply's bytes that arrive, as text; empty if there is no connection."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=20) as stream:
                stream.sendall(" ".join(str(word) for word in words).encode() + b"\r\n")
                return stream.recv(1 << 16).decode(errors="replace").strip()
        except OSError:
            return ""

    def stop(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.directory.cleanup()


def wait_until(what, condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not in time: {what}")
        time.sleep(0.05)


def start(program, kind):
    """The nodes; the tests run against the last one."""
    if kind == "single":
        node = Node(program)
        node.call("CLUSTER ADDSLOTSRANGE 0 16383")
        nodes = [node]
    else:
        nodes = [Node(program), Node(program), Node(program), Node(program, "--cluster-forward", "yes")]
        for number, node in enumerate(nodes[:3]):
            node.call("CLUSTER SET-CONFIG-EPOCH", number + 1)
            node.call("CLUSTER ADDSLOTSRANGE", number * 16384 // 3, (number + 1) * 16384 // 3 - 1)
        for node in nodes[1:]:
            nodes[0].call("CLUSTER MEET 127.0.0.1", node.port, node.bus_port)
    known = f"cluster_known_nodes:{len(nodes)}\r"
    is_up = lambda info: known in info and "cluster_state:ok" in info
    wait_until("the cluster is up", lambda: all(is_up(node.call("CLUSTER INFO")) for node in nodes))
    return nodes


def run(unit, port, suite, log, limit):
    """The names of the tests by their results."""
    # The suite listens at a port of its own near this one.
    base = 20_000 + os.getpid() % 100 * 100
    command = ["./runtest", "--host", "127.0.0.1", "--port", str(port), "--single", unit, "--cluster-mode",
               "--singledb", "--baseport", str(base), "--portcount", "90",
               "--durable", "--no-latency", "--clients", "1", "--timeout", str(limit),
               "--ignore-encoding", "--ignore-digest"]
    for pattern in LEFT_OUT:
        command += ["--skiptest", pattern]
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(command, cwd=suite, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   start_new_session=True)
        try:
            process.wait(limit + 60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out.write("\n[timeout]: the unit did not end\n")
    results = {}
    for line in COLORS.sub("", log.read_text(errors="replace")).splitlines():
        if match := LINE.match(line):
            results.setdefault(match[1], []).append(match[2])
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("units", nargs="*", default=UNITS)
    parser.add_argument("--suite", required=True, type=pathlib.Path)
    parser.add_argument("--kind", choices=["endpoint", "single"], default="endpoint")
    parser.add_argument("--server", default=ROOT / "target/release/kvick-server", type=pathlib.Path)
    parser.add_argument("--logs", type=pathlib.Path, help="directory for the output of each unit")
    parser.add_argument("--limit", type=int, default=300, help="seconds that a unit may take")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
    arguments = parser.parse_args()
    logs = arguments.logs or pathlib.Path(tempfile.mkdtemp(prefix="endpoint-suite-"))
    logs.mkdir(parents=True, exist_ok=True)
    total, figures = 0, {}
    with tempfile.TemporaryDirectory() as copy:
        suite = pathlib.Path(copy) / "suite"
        # The suite writes below its own directory.
        shutil.copytree(arguments.suite, suite, symlinks=True, ignore=shutil.ignore_patterns("deps", "*.o"))
        for unit in arguments.units:
            nodes = start(arguments.server.resolve(), arguments.kind)
            try:
                results = run(unit, nodes[-1].port, suite, logs / (unit.replace("/", "__") + ".log"), arguments.limit)
                died = [node.port for node in nodes if node.process.poll() is not None]
            finally:
                for node in nodes:
                    node.stop()
            passed = len(results.get("ok", []))
            failed = [name for kind in ("err", "exception", "timeout") for name in results.get(kind, [])]
            total += passed
            figures[unit] = {"passed": passed, "failed": failed, "names": results.get("ok", [])}
            end = ", a node died" if died else ""
            print(f"{unit:26} {passed:4} passed, {len(failed):3} failed{end}", flush=True)
            for name in failed:
                print(f"    {name[:200]}", flush=True)
    print(f"total: {total} passed; output in {logs}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
