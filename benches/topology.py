#!/usr/bin/env python3
"""CPU cost of CLUSTER SLOTS, CLUSTER SHARDS and CLUSTER NODES in a large cluster, compared with Valkey.

Usage: topology.py [NODES [ROUNDS]]        (default: 1000 nodes, 5 rounds)

Both servers load the same `nodes.conf`: half of the nodes are primaries, which share the slots evenly, and each has a
replica. No other node exists, so the links of the bus stay closed; the node timeout is so long that the servers hardly
try to open them, and what they spend without requests is subtracted. The servers are measured in turn, with one worker
each, pinned to one core. Figures are medians of the rounds.

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
"""

import contextlib
import pathlib
import socket
import statistics
import sys
import tempfile
import time

from measure import Client, Server, kvick, pin, set_congestion_control, valkey

SLOTS = 16384
TIMEOUT_MS = 3_600_000
IDLE_S = 2
# Calls per round. PING shows what any request of one client takes.
COMMANDS = {"PING": 10_000, "CLUSTER SLOTS": 10_000, "CLUSTER SHARDS": 1000, "CLUSTER NODES": 1000}


def nodes_conf(count, myself=0, address=lambda number: f"{20000 + number}@{40000 + number}"):
    """The content of `nodes.conf` of node `myself`. `address` gives the ports of a node."""
    shards = count // 2
    lines = []
    for number in range(count):
        shard, is_replica = number % shards, number >= shards
        name = lambda kind, of: f"{kind:08x}{of:032x}"
        flags = ("myself," if number == myself else "") + ("slave" if is_replica else "master")
        first, last = shard * SLOTS // shards, (shard + 1) * SLOTS // shards - 1
        slots = "" if is_replica else f" {first}-{last}"
        primary = name(1, shard) if is_replica else "-"
        place = f"127.0.0.1:{address(number)},,shard-id={name(3, shard)}"
        lines.append(f"{name(1, number)} {place} {flags} {primary} 0 0 {shard + 1} connected{slots}")
    return "\n".join(lines + [f"vars currentEpoch {shards} lastVoteEpoch 0", ""])


@contextlib.contextmanager
def serve(program, content):
    """Starts a server; yields a function that measures CPU microseconds per call: all, and of those in the kernel."""
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "nodes.conf").write_text(content)
        with socket.create_server(("127.0.0.1", 0)) as free:
            bus_port = str(free.getsockname()[1])
        options = ["--cluster-enabled", "yes", "--dir", directory, "--cluster-port", bus_port,
                   "--cluster-node-timeout", str(TIMEOUT_MS)]
        with Server(program, *options, cores=[0]) as server:
            client = Client(server)

            def spent(work):
                """Seconds on a processor, the part of them in the kernel, and seconds that passed."""
                began = time.monotonic()
                user, system = server.precisely_spent(work)
                return user + system, system, time.monotonic() - began

            *idle, seconds = spent(lambda: time.sleep(IDLE_S))
            idle = [part / seconds for part in idle]

            def measure(command, calls):
                request = [command.encode().split()]
                *parts, seconds = spent(lambda: [client.run(request) for _ in range(calls)])
                return [(part - idle_part * seconds) / calls * 1e6 for part, idle_part in zip(parts, idle)]

            yield measure


def main():
    nodes, rounds = (int(word) for word in (sys.argv[1:] + ["1000", "5"][len(sys.argv) - 1:])[:2])
    pin(1)
    set_congestion_control()
    content = nodes_conf(nodes)
    print(f"CPU per call with {nodes} nodes, in microseconds (in the kernel)")
    with serve(kvick(), content) as ours, serve(valkey(), content) as theirs:
        for command, calls in COMMANDS.items():
            samples = [ours(command, calls) + theirs(command, calls) for _ in range(rounds)]
            our_all, our_system, their_all, their_system = (statistics.median(column) for column in zip(*samples))
            print(f"{command:14}  Kvick {our_all:7.1f} ({our_system:5.1f})  Valkey {their_all:7.1f} "
                  f"({their_system:5.1f})  ratio {our_all / their_all:.2f}, without the kernel "
                  f"{(our_all - our_system) / (their_all - their_system):.2f}", flush=True)


if __name__ == "__main__":
    main()
