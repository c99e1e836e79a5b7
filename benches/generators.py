#!/usr/bin/env python3
"""CPU time per request of the load generator itself: kvick-load compared with memtier_benchmark.

Usage: generators.py [--rate N] [--seconds S] [--rounds R] [--connections N] [--pipelines N,...]
                     [--granularity TIME,...]

Both send the same rate to the same server over as many connections, with one thread: 80 percent GET and 20 percent
SET of 64 bytes, 100,000 keys. They run in turn; figures are medians of the rounds. The server is Valkey: server and
generator have a core each, if there are two.

Output: replies per second, microseconds of the generator's CPU time per reply (user and system), and the percentiles
that the generators report. memtier_benchmark's --rate-limiting counts per connection, and sends the requests of 20 ms
together.

Programs: KVICK_LOAD (default: target/release/kvick-load), KVICK_TEST_MEMTIER (memtier_benchmark), and
KVICK_TEST_VALKEY (valkey-server).
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

from measure import ROOT, Server, pin, valkey

KEYS = 100_000
SIZE = 64
SERVER_CORE, LOAD_CORE = 0, min(1, os.cpu_count() - 1)


def kvick_load_program():
    return os.environ.get("KVICK_LOAD", str(ROOT / "target/release/kvick-load"))


def memtier_program():
    program = os.environ.get("KVICK_TEST_MEMTIER") or shutil.which("memtier_benchmark")
    return program or sys.exit("memtier_benchmark not found: set KVICK_TEST_MEMTIER, or add it to the PATH")


def fill(server):
    """Writes the keys that each generator reads, under its own names."""
    spent([kvick_load_program(), "run", "--endpoint", f"127.0.0.1:{server.port}", "--preload", "--keys", str(KEYS),
           "--value-size", str(SIZE), "--duration", "1", "--rate", "1000", "--quiet"])
    spent([memtier_program(), "-s", "127.0.0.1", "-p", str(server.port), "--threads=1", "--clients=10",
           "--ratio=1:0", "--pipeline=16", f"--data-size={SIZE}", "--key-minimum=1", f"--key-maximum={KEYS}",
           "--key-pattern=P:P", "--requests=allkeys", "--hide-histogram"])


def spent(words):
    """Runs a program, and returns its output and CPU time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          preexec_fn=lambda: pin(LOAD_CORE))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def kvick_load(server, options, pipeline, granularity):
    program = kvick_load_program()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        if granularity:
            config.write(f'[client]\nsend_granularity = "{granularity}"\n')
        config.write("[[workload.keyspace]]\n")
        config.flush()
        output, cpu = spent([
            program, "run", config.name, "--endpoint", f"127.0.0.1:{server.port}", "--rate", str(options.rate),
            "--connections", str(options.connections), "--pipeline", str(pipeline), "--keys", str(KEYS),
            "--value-size", str(SIZE), "--duration", str(options.seconds), "--json", "--quiet",
        ])
    [run] = json.loads(output)["runs"]
    response, service, own = (run[name]["summary"] for name in ("response", "service", "own_delay"))
    count = run["counters"]["answered"]
    texts = [f"{name} {times['p50_ms']:.3f}/{times['p99_ms']:.3f}" for name, times in
             [("response", response), ("service", service), ("own delay", own)]]
    return count / run["seconds"], cpu * 1e6 / count, ", ".join(texts)


def memtier(server, options, pipeline):
    program = memtier_program()
    with tempfile.NamedTemporaryFile() as result:
        _, cpu = spent([
            program, "-s", "127.0.0.1", "-p", str(server.port), "--threads=1", f"--clients={options.connections}",
            f"--pipeline={pipeline}", f"--rate-limiting={options.rate // options.connections}",
            f"--test-time={options.seconds}", "--ratio=2:8", f"--data-size={SIZE}", "--key-minimum=1",
            f"--key-maximum={KEYS}", "--hide-histogram", f"--json-out-file={result.name}",
        ])
        totals = json.load(open(result.name, encoding="utf-8"))["ALL STATS"]["Totals"]
    latency = totals["Percentile Latencies"]
    return totals["Count"] / options.seconds, cpu * 1e6 / totals["Count"], (
        f"latency {latency['p50.00']:.3f}/{latency['p99.00']:.3f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--pipelines", default="1,16")
    parser.add_argument("--granularity", default="", help="more settings of send_granularity than the default")
    options = parser.parse_args()
    settings = ["", *(word for word in options.granularity.split(",") if word)]
    with Server(valkey(), cores=[SERVER_CORE]) as server:
        fill(server)
        for pipeline in map(int, options.pipelines.split(",")):
            found = {}
            for _ in range(options.rounds):
                for setting in settings:
                    name = f"kvick-load {setting}".rstrip()
                    found.setdefault(name, []).append(kvick_load(server, options, pipeline, setting))
                found.setdefault("memtier_benchmark", []).append(memtier(server, options, pipeline))
            print(f"{options.rate}/s, {options.connections} connections, pipeline {pipeline}; p50/p99 in milliseconds")
            for name, rows in found.items():
                rates, costs, texts = zip(*rows)
                each = " ".join(f"{cost:.2f}" for cost in costs)
                print(f"  {name:20} {statistics.median(rates):9.0f}/s {statistics.median(costs):5.2f} us ({each})  "
                      f"{texts[-1]}", flush=True)


if __name__ == "__main__":
    main()
