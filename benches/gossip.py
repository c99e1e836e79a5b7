#!/usr/bin/env python3
"""CPU time and bytes of the cluster bus per node, compared with Valkey.

Usage: gossip.py [--node-timeout SECONDS] [--settle SECONDS] [--program kvick|valkey] [NODES [SECONDS]]
(default: 100 nodes, 30 seconds, node timeout 15 seconds, both programs)

Starts a cluster of idle nodes of one program on this machine, from written `nodes.conf` files: half are primaries, and
each has a replica. When every node has links to every other one, waits (for the node timeout, or as --settle says),
and measures for some seconds what all processes spend and what CLUSTER INFO of at most 100 of them counts as sent on
the bus. Then the same with the other program.

All nodes have just been connected, so that many PINGs are due at the same time: with a long node timeout, measure for
half of it or a multiple. Large clusters take memory in the kernel: two sockets per pair of nodes and direction, 4 KB
each.

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
"""

import argparse
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

from measure import TICKS, encode, kvick, valkey
from topology import nodes_conf

# For a cluster to form: a part for any, and so many links per second.
PATIENCE_S, LINKS_PER_S = 180, 2000
# Memory that is left to other programs.
MEMORY_LEFT_KB = 2 << 20
# Nodes that are asked.
ASKED = 100
# The default of both programs.
NODE_TIMEOUT_S = 15


def free_ports(count):
    """Ports that are free now, below those that the kernel chooses for connections."""
    ports = []
    for port in range(12000, 32000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                ports.append(port)
            except OSError:
                continue
        if len(ports) == count:
            return ports
    sys.exit("not enough free ports")


def ask(port, *words):
    """The bulk reply of a node."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(encode([word.encode() for word in words]))
        got = b""
        while b"\r\n" not in got:
            got += connection.recv(1 << 16)
        head, got = got.split(b"\r\n", 1)
        if not head.startswith(b"$"):
            return head.decode()
        while len(got) < int(head[1:]):
            got += connection.recv(1 << 20)
        return got[: int(head[1:])].decode()


def cpu(processes):
    """User and system time of the processes in seconds."""
    total = 0
    for process in processes:
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def sent(ports):
    """Bytes and messages that the nodes have sent, on average."""
    infos = [ask(port, "CLUSTER", "INFO") for port in ports]
    count = lambda name: sum(int(re.search(name + r":(\d+)", info)[1]) for info in infos) / len(ports)
    return count("cluster_stats_bytes_sent"), count("cluster_stats_messages_sent")


def may_go_on(deadline):
    """Whether there is time and memory. Nodes that cannot keep up with each other's messages keep more and more."""
    available = re.search(r"MemAvailable: +(\d+)", pathlib.Path("/proc/meminfo").read_text())
    return time.monotonic() < deadline and int(available[1]) > MEMORY_LEFT_KB


def is_complete(port, count):
    """Whether a node has links to all others, and takes none for failed."""
    try:
        nodes = ask(port, "CLUSTER", "NODES")
    except OSError:
        return False
    return nodes.count(" connected") == count and "fail" not in nodes


def private_kb(processes):
    """Memory that each process has for itself, on average."""
    rollups = [pathlib.Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in processes]
    fields = [int(kb) for rollup in rollups for kb in re.findall(r"Private_\w+: +(\d+)", rollup)]
    return sum(fields) / len(processes)


class Counts:
    """What a node has spent and sent until now, on average, and when that was read: it takes a while."""

    def __init__(self, processes, ports):
        self.cpu, self.cpu_at = cpu(processes) / len(processes), time.monotonic()
        self.sent, self.sent_at = sent(ports), time.monotonic()

    def rates_since(self, before):
        """CPU seconds, bytes and messages per second."""
        counted = (late - early for early, late in zip(before.sent, self.sent))
        return (self.cpu - before.cpu) / (self.cpu_at - before.cpu_at), *(
            count / (self.sent_at - before.sent_at) for count in counted)


def run(program, count, seconds, node_timeout, settle):
    """CPU milliseconds, bytes and messages per node and second, and private memory per node in KB."""
    ports = free_ports(2 * count)
    clients, buses = ports[:count], ports[count:]
    with tempfile.TemporaryDirectory() as root:
        processes = []
        try:
            for number in range(count):
                directory = pathlib.Path(root) / str(number)
                directory.mkdir()
                content = nodes_conf(count, myself=number, address=lambda of: f"{clients[of]}@{buses[of]}")
                (directory / "nodes.conf").write_text(content)
                words = [program, "--port", str(clients[number]), "--cluster-port", str(buses[number]),
                         "--bind", "127.0.0.1", "--save", "", "--dir", str(directory), "--cluster-enabled", "yes",
                         "--cluster-node-timeout", str(node_timeout * 1000), "--io-threads", "1"]
                processes.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            deadline = time.monotonic() + PATIENCE_S + count * count / LINKS_PER_S
            patience = lambda: may_go_on(deadline) or sys.exit(f"the cluster of {program} did not form")
            for process in processes:
                while patience() and len(os.listdir(f"/proc/{process.pid}/fd")) < 2 * count:
                    time.sleep(0.2)
            asked = clients[:: -(-count // ASKED)]
            for port in asked:
                while patience() and not is_complete(port, count):
                    time.sleep(0.2)
            time.sleep(node_timeout if settle is None else settle)
            before = Counts(processes, asked)
            time.sleep(seconds)
            spent, octets, messages = Counts(processes, asked).rates_since(before)
            return spent * 1000, octets, messages, private_kb(processes)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def main():
    parser = argparse.ArgumentParser(description="CPU time and bytes of the cluster bus per node")
    parser.add_argument("nodes", type=int, nargs="?", default=100)
    parser.add_argument("seconds", type=float, nargs="?", default=30)
    parser.add_argument("--node-timeout", type=int, default=NODE_TIMEOUT_S)
    parser.add_argument("--settle", type=float)
    parser.add_argument("--program", choices=["kvick", "valkey"])
    options = parser.parse_args()
    print(f"{options.nodes} nodes, node timeout {options.node_timeout} s, per node and second")
    for name, find in (("Kvick", kvick), ("Valkey", valkey)):
        if options.program not in (None, name.lower()):
            continue
        spent, octets, messages, memory = run(
            find(), options.nodes, options.seconds, options.node_timeout, options.settle)
        size = octets / messages
        print(f"{name:6}  {spent:.3f} ms of CPU, {messages:.1f} messages, {octets:.0f} bytes, {size:.0f} per message; "
              f"{memory:.0f} KB of private memory", flush=True)


if __name__ == "__main__":
    main()
