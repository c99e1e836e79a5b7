#!/usr/bin/env python3
"""CPU time and bytes of the cluster bus per node, compared with Valkey.

Usage: gossip.py [NODES [SECONDS]]        (default: 100 nodes, 30 seconds)

Starts a cluster of idle nodes of one program on this machine, from written `nodes.conf` files: half are primaries, and
each has a replica. When every node has a link to every other one, measures for some seconds what all processes spend
and what CLUSTER INFO counts as sent on the bus. Then the same with the other program.

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
"""

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

PATIENCE_S = 180
# The default of both programs.
NODE_TIMEOUT_MS = 15000


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
    """Bytes and messages that all nodes have sent."""
    infos = [ask(port, "CLUSTER", "INFO") for port in ports]
    count = lambda name: sum(int(re.search(name + r":(\d+)", info)[1]) for info in infos)
    return count("cluster_stats_bytes_sent"), count("cluster_stats_messages_sent")


def run(program, count, seconds):
    """CPU milliseconds, bytes and messages per node and second."""
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
                         "--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--io-threads", "1"]
                processes.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            deadline = time.monotonic() + PATIENCE_S
            for port in clients:
                while True:
                    try:
                        nodes = ask(port, "CLUSTER", "NODES")
                        if nodes.count(" connected") == count and "fail" not in nodes:
                            break
                    except OSError:
                        pass
                    if time.monotonic() > deadline:
                        sys.exit(f"the cluster of {program} did not form")
                    time.sleep(0.2)
            time.sleep(NODE_TIMEOUT_MS / 1000)
            before = cpu(processes), *sent(clients)
            time.sleep(seconds)
            after = cpu(processes), *sent(clients)
            spent, octets, messages = ((late - early) / count / seconds for early, late in zip(before, after))
            return spent * 1000, octets, messages
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def main():
    count, seconds = (int(word) for word in (sys.argv[1:] + ["100", "30"][len(sys.argv) - 1:])[:2])
    print(f"{count} nodes, per node and second")
    for name, program in (("Kvick", kvick()), ("Valkey", valkey())):
        spent, octets, messages = run(program, count, seconds)
        size = octets / messages
        print(f"{name:6}  {spent:.3f} ms of CPU, {messages:.1f} messages, {octets:.0f} bytes, {size:.0f} per message")


if __name__ == "__main__":
    main()
