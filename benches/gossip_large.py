#!/usr/bin/env python3
"""CPU time and bytes of the cluster bus of one node in a large cluster, compared with Valkey.

Usage: gossip_large.py [--node-timeout SECONDS] [--rounds ROUNDS] [NODES [SECONDS]]
(default: 1,000 nodes, 30 seconds, node timeout 15 seconds, 3 rounds)

A thousand nodes have two million sockets between them, which is more than one machine takes; but one of them has only
two thousand. This program starts one server, and plays all other nodes to it over sockets, in the protocol's own
format. What they say comes from a model of the whole cluster, which runs first: each node knows when each other one
last answered, tells a tenth of that in each message, and sends PINGs by the protocol's rules, to the one of five nodes
that it heard of least recently once a second, and to all that it has not heard of for half of the node timeout. The
server gets the PINGs that a node of the model gets, and its own PINGs are answered with what the model's nodes know at
that time. How many the server sends is its own decision; the model's number is printed for comparison.

`gossip.py` measures clusters in which all nodes are real.

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
"""

import argparse
import heapq
import math
import pathlib
import random
import resource
import selectors
import socket
import struct
import tempfile
import threading
import time

from gossip import NODE_TIMEOUT_S, ask, free_ports, is_complete, sent
from measure import Server, kvick, pin, valkey
from topology import SLOTS, nodes_conf

HEADER, ENTRY, SHARD_ID = 2256, 104, 3
PING, PONG, MEET = 0, 1, 2
PRIMARY, REPLICA, MYSELF, EXTENSIONS = 1, 2, 16, 1 << 10
MESSAGE_HAS_EXTENSIONS = 4
# The model's choices of nodes that a message tells about.
CHOICES = 5000
# Nodes of the model whose knowledge is kept at each message to the server, for the answers to its PINGs: if it sends
# many at once, different nodes answer.
ANSWERS = 16
# How often nodes look for PINGs that are due, and by how much the timer is late at most.
TICKS_PER_S, TICK_S, DELAY_S = 10, 0.1, 0.001
# Links that are opened per second.
CONNECTS_PER_S = 200
# The time for all links to open.
CONNECTED_S = 30


class Node:
    """A node that is played."""

    def __init__(self, number, count, ports):
        shards = count // 2
        shard, is_replica = number % shards, number >= shards
        name = lambda kind, of: b"%08x%032x" % (kind, of)
        client, bus = ports
        slots = bytearray(SLOTS // 8)
        for slot in range(shard * SLOTS // shards, (shard + 1) * SLOTS // shards):
            slots[slot // 8] |= 1 << slot % 8
        self.name, self.flags = name(1, number), REPLICA if is_replica else PRIMARY
        self.address = struct.pack(">46sHHHHH", b"127.0.0.1", client, bus, self.flags, 0, 0)
        primary = name(1, shard) if is_replica else bytes(40)
        self.start = struct.pack(">QQQ40s", shards, shard + 1, 0, self.name) + slots + primary + bytes(46)
        self.end = bytes(30) + struct.pack(">HHHB3B", 0, bus, self.flags | MYSELF | EXTENSIONS, 0,
                                           MESSAGE_HAS_EXTENSIONS, 0, 0)
        self.client, self.bus = client, bus
        self.extensions = struct.pack(">IHH40s", 48, SHARD_ID, 0, name(3, shard))

    def message(self, kind, entries):
        """A heartbeat with these entries of gossip."""
        size = HEADER + len(entries) * ENTRY + len(self.extensions)
        prefix = b"RCmb" + struct.pack(">IHHHH", size, 1, self.client, kind, len(entries))
        return b"".join([prefix, self.start, struct.pack(">H", 1), self.end, *entries, self.extensions])


class Model:
    """A cluster of nodes that all work. Messages take no time."""

    def __init__(self, count, node_timeout, seconds):
        self.count, self.overdue = count, node_timeout / 2
        told = max(3, min(count // 10, count - 2))
        self.choices = [frozenset(random.sample(range(count), told)) for _ in range(CHOICES)]
        # When each node last heard of each other one. It hears of itself always.
        begin = -2 * node_timeout
        self.heard = [[begin - random.uniform(0, self.overdue) for _ in range(count)] for _ in range(count)]
        for number, heard in enumerate(self.heard):
            heard[number] = math.inf
        # A node's load depends on when its timer comes. The server is the primary whose load is the most common.
        self.node, self.messages = None, [0] * count
        self.run(begin, 0)
        mean = sum(self.messages) / count
        self.node = min(range(count // 2), key=lambda number: abs(self.messages[number] - mean))
        # What that node received: when, whether it is a PING, from whom, what is told of which nodes, and what some
        # other nodes would tell.
        self.received, self.messages = [], [0] * count
        self.run(0, seconds)
        # Each message is counted by its receiver. Half of them are PINGs.
        self.pings_per_s = sum(self.messages) / 2 / seconds / count

    def run(self, begin, end):
        ticks = [(begin + random.uniform(0, TICK_S), random.randrange(TICKS_PER_S), number)
                 for number in range(self.count)]
        heapq.heapify(ticks)
        while ticks[0][0] < end:
            now, round_, number = ticks[0]
            heapq.heapreplace(ticks, (now + TICK_S + random.uniform(0, DELAY_S), round_ + 1, number))
            heard = self.heard[number]
            if round_ % TICKS_PER_S == 0:
                self.ping(number, min(random.sample(range(self.count), 5), key=heard.__getitem__), now)
            if min(heard) < now - self.overdue:
                for other in [other for other, time in enumerate(heard) if time < now - self.overdue]:
                    self.ping(number, other, now)

    def ping(self, sender, receiver, now):
        if sender == receiver:
            return
        self.tell(sender, receiver, now, True)
        self.tell(receiver, sender, now, False)
        self.heard[sender][receiver] = now

    def tell(self, sender, receiver, now, is_ping):
        told, known = self.told(sender), self.heard[receiver]
        self.messages[receiver] += 1
        if receiver == self.node:
            answers = [self.told(number) for number in random.sample(range(self.count), ANSWERS)]
            self.received.append((now, is_ping, sender, told, answers))
        for about, heard in told:
            # The protocol counts whole seconds.
            heard //= 1
            if heard > known[about]:
                known[about] = heard

    def told(self, sender):
        """Some nodes, and when the sender has heard of them."""
        choice = random.choice(self.choices)
        while sender in choice:
            choice = random.choice(self.choices)
        heard = self.heard[sender]
        return [(about, heard[about]) for about in choice]


class Crowd:
    """All nodes but one, played to that one by a thread."""

    def __init__(self, model, clients, buses):
        self.nodes = [Node(number, model.count, ports) for number, ports in enumerate(zip(clients, buses))]
        self.received, self.next = model.received, 0
        # The model's time 0, a whole second for its nodes and for the server.
        self.target, self.began = buses[model.node], math.ceil(time.time())
        self.selector = selectors.DefaultSelector()
        self.listeners, self.links, self.buffers = [], {}, {}
        self.others = [node for number, node in enumerate(self.nodes) if number != model.node]
        for node in self.others:
            listener = socket.create_server(("127.0.0.1", node.bus), backlog=16)
            listener.setblocking(False)
            self.listeners.append(listener)
            self.selector.register(listener, selectors.EVENT_READ, node)
        self.ended = threading.Event()
        self.failure = None
        self.pings = 0
        self.thread = threading.Thread(target=self.play)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        for end in [*self.listeners, *self.buffers]:
            end.close()
        if self.failure:
            raise self.failure

    def send(self, link, sender, kind):
        """Sends a heartbeat that tells what the model's node is told at this time."""
        _, _, _, told, answers = self.received[min(self.next, len(self.received) - 1)]
        if kind == PONG:
            told = random.choice(answers)
        entries = [self.nodes[about].name + struct.pack(">II", 0, int(self.began + heard)) + self.nodes[about].address
                   for about, heard in told if self.nodes[about] is not sender and heard < math.inf]
        link.sendall(sender.message(kind, entries))

    def connect(self, node):
        """Opens the link of a node to the server."""
        link = socket.create_connection(("127.0.0.1", self.target))
        self.links[node] = link
        self.adopt(link, node)
        self.send(link, node, PING)

    def adopt(self, link, node):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffers[link] = bytearray()
        self.selector.register(link, selectors.EVENT_READ, node)

    def play(self):
        try:
            waiting = list(self.others)
            next_connect = time.monotonic()
            while not self.ended.is_set():
                if waiting and time.monotonic() >= next_connect:
                    next_connect += 1 / CONNECTS_PER_S
                    self.connect(waiting.pop())
                self.send_due()
                for key, _ in self.selector.select(1 / CONNECTS_PER_S):
                    if key.fileobj in self.buffers:
                        self.receive(key.fileobj, key.data)
                    else:
                        self.adopt(key.fileobj.accept()[0], key.data)
        except Exception as failure:
            self.failure = failure

    def send_due(self):
        """Sends the model's PINGs whose time has come."""
        passed = time.time() - self.began
        while self.next < len(self.received) and self.received[self.next][0] <= passed:
            _, is_ping, sender, *_ = self.received[self.next]
            sender = self.nodes[sender]
            if is_ping and sender in self.links:
                self.send(self.links[sender], sender, PING)
            self.next += 1

    def receive(self, link, node):
        got = link.recv(1 << 18)
        if not got:
            # The server connects again. Played nodes keep their links as long as it does.
            self.selector.unregister(link)
            del self.buffers[link]
            if self.links.get(node) is link:
                raise ConnectionError("the server has closed the link of a node")
            link.close()
            return
        buffer = self.buffers[link]
        buffer += got
        while len(buffer) >= 16:
            size, _, _, kind, _ = struct.unpack_from(">IHHHH", buffer, 4)
            if len(buffer) < size:
                break
            del buffer[:size]
            if kind in (PING, MEET):
                self.pings += 1
                self.send(link, node, PONG)


def run(program, model, seconds, node_timeout):
    """CPU milliseconds, messages, bytes and PINGs per second of one node."""
    count = model.count
    ports = free_ports(2 * count)
    clients, buses = ports[:count], ports[count:]
    client = clients[model.node]
    with tempfile.TemporaryDirectory() as root:
        place = lambda of: f"{clients[of]}@{buses[of]}"
        (pathlib.Path(root) / "nodes.conf").write_text(nodes_conf(count, myself=model.node, address=place))
        options = ["--cluster-port", str(buses[model.node]), "--dir", root, "--io-threads", "1",
                   "--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout * 1000)]
        server = Server(program, *options, cores=[0], port=client)
        with server, Crowd(model, clients, buses) as crowd:
            deadline = time.monotonic() + CONNECTED_S
            while len(crowd.links) < count - 1 or not is_complete(client, count):
                if crowd.failure or time.monotonic() > deadline:
                    raise crowd.failure or TimeoutError("the node did not connect to all others")
                time.sleep(0.5)
            time.sleep(CONNECTED_S + 2 * node_timeout - (time.time() - crowd.began))
            began, cpu, before = time.monotonic(), server.precise_cpu(), sent([client])
            pings = crowd.pings
            time.sleep(seconds)
            cpu, passed, after = server.precise_cpu() - cpu, time.monotonic() - began, sent([client])
            if not is_complete(client, count):
                raise RuntimeError("the node lost others:\n" + ask(client, "CLUSTER", "INFO"))
            octets, messages = ((late - early) / passed for early, late in zip(before, after))
            return cpu / passed * 1000, messages, octets, (crowd.pings - pings) / passed


def main():
    parser = argparse.ArgumentParser(description="CPU time and bytes of the cluster bus of one node of many")
    parser.add_argument("nodes", type=int, nargs="?", default=1000)
    parser.add_argument("seconds", type=float, nargs="?", default=30)
    parser.add_argument("--node-timeout", type=int, default=NODE_TIMEOUT_S)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    pin(1)
    model = Model(options.nodes, options.node_timeout, CONNECTED_S + 2 * options.node_timeout + options.seconds + 5)
    print(f"one of {options.nodes} nodes, node timeout {options.node_timeout} s, per second; each node of the model "
          f"sends {model.pings_per_s:.1f} PINGs", flush=True)
    for _ in range(options.rounds):
        for name, program in (("Kvick", kvick()), ("Valkey", valkey())):
            spent, messages, octets, pings = run(program, model, options.seconds, options.node_timeout)
            print(f"{name:6}  {spent:.3f} ms of CPU, {messages:.1f} messages, {octets:.0f} bytes, "
                  f"{octets / messages:.0f} per message; {pings:.1f} PINGs", flush=True)


if __name__ == "__main__":
    main()
