#!/usr/bin/env python3
"""Scripts: CPU time and rate with one worker and with four, compared with Valkey.

Usage: scripts.py [ROUNDS]        (default: 5)

Short scripts increment the key that they declare, 16 pipelined. Long ones do that 40 times. Servers and the load, a
single process, share two cores, so the rate of four workers is at most that of two cores without the share of the
load. Figures are medians of the rounds; all servers take turns in each. KVICK_SERVER names the server (default:
target/release/kvick-server), and KVICK_BEFORE, if set, another one to compare with.
"""

import contextlib
import os
import random
import statistics
import sys
import time

from measure import Client, Server, drive, kvick, pin, pipelines, valkey

CONNECTIONS = 16
DEPTH = 16
KEYS = 10_000
SHORT = b"return redis.call('incr', KEYS[1])"
LONG = b"for i = 1, 40 do redis.call('incr', KEYS[1]) end return 1"
# Name, text, number of calls per round.
WORKLOADS = [("short", SHORT, 400_000), ("long", LONG, 60_000)]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    pin(0, 1)
    programs = [("Valkey", valkey(), "1"), ("Kvick", kvick(), "1"), ("Kvick", kvick(), "4")]
    before = os.environ.get("KVICK_BEFORE")
    if before:
        programs += [("before", before, "1"), ("before", before, "4")]
    dice = random.Random(1)
    with contextlib.ExitStack() as stack:
        servers = []
        for name, program, threads in programs:
            server = stack.enter_context(Server(program, "--io-threads", threads, cores=[0, 1]))
            servers.append((f"{name}, {threads} worker{'s' if threads != '1' else ''}", server))
        clients = {name: [Client(server) for _ in range(CONNECTIONS)] for name, server in servers}
        for workload, text, calls in WORKLOADS:
            requests = [[b"EVAL", text, b"1", b"key:%d" % dice.randrange(KEYS)] for _ in range(calls)]
            prepared = pipelines(requests, DEPTH)
            cpu, rate = ({name: [] for name, _ in servers} for _ in range(2))
            # The first round is not counted.
            for number in range(rounds + 1):
                for name, server in servers:
                    began = time.monotonic()
                    spent = server.spent(lambda: drive(clients[name], prepared))
                    if number > 0:
                        cpu[name].append(sum(spent) * 1e6 / calls)
                        rate[name].append(calls / (time.monotonic() - began))
            for name, _ in servers:
                us, per_second = statistics.median(cpu[name]), statistics.median(rate[name])
                print(f"{workload:6} {name:18} {us:6.2f} us of CPU per call, {per_second:8.0f} calls per second")


main()
