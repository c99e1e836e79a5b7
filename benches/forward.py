#!/usr/bin/env python3
"""CPU time of forwarded requests, of the node that forwards and the owner of the slots together, next to direct ones.

Usage: forward.py [ROUNDS]        (default: 5)

Two nodes with one worker each: the first owns all slots, the second none (`cluster-forward yes`). Clients send SET and
GET with values of 64 bytes to one or the other in turn. Figures are medians of the rounds, in microseconds per request.

KVICK_SERVER names the server (default: target/release/kvick-server).
"""

import random
import socket
import statistics
import sys
import time

from measure import Client, Server, encode, kvick

KEYS = 50_000
VALUE = b"x" * 64
REPLIES = {"SET": b"+OK\r\n", "GET": b"$64\r\n" + VALUE + b"\r\n"}
# Clients, requests per pipeline, requests per round.
LOADS = [(50, 1, 50_000), (50, 16, 400_000), (1, 1, 20_000), (1, 16, 160_000)]


def node(*options):
    with socket.create_server(("127.0.0.1", 0)) as free:
        bus_port = str(free.getsockname()[1])
    return Server(kvick(), "--cluster-enabled", "yes", "--cluster-port", bus_port, "--io-threads", "1", *options,
                  cores=[0, 1]), bus_port


def ask(server, *words):
    """Sends a request and returns the beginning of its reply."""
    client = Client(server)
    client.send(encode([str(word).encode() for word in words]))
    return client.socket.recv(1 << 16)


def wait_until(what, condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not in time: {what}")
        time.sleep(0.05)


def prepare(command, length, count):
    """Requests in pipelines, with the number of bytes of the replies to each."""
    dice = random.Random(1)
    words = lambda: [command.encode(), b"key:%d" % dice.randrange(KEYS)] + ([VALUE] if command == "SET" else [])
    return [b"".join(encode(words()) for _ in range(length)) for _ in range(count // length)], \
        len(REPLIES[command]) * length


def receive(client, size):
    got = 0
    while got < size:
        part = client.socket.recv(size - got)
        if not part or (got == 0 and part.startswith(b"-")):
            sys.exit(f"unexpected reply: {part[:100]}")
        got += len(part)


def send_all(clients, requests, size):
    for at in range(0, len(requests), len(clients)):
        busy = list(zip(clients, requests[at : at + len(clients)]))
        for client, request in busy:
            client.send(request)
        for client, _ in busy:
            receive(client, size)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    (owner, owner_bus), (edge, _) = node(), node("--cluster-forward", "yes")
    with owner, edge:
        ask(owner, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        ask(edge, "CLUSTER", "MEET", "127.0.0.1", owner.port, owner_bus)
        wait_until("the nodes know each other",
                   lambda: all(b"cluster_known_nodes:2" in ask(server, "CLUSTER", "INFO") for server in (owner, edge)))
        wait_until("the second node forwards", lambda: ask(edge, "SET", "a", "1").startswith(b"+OK"))
        fill, size = prepare("SET", 100, KEYS * 10)
        send_all([Client(owner)], fill, size)
        print("| command | clients | pipelined | direct, us | forwarded, us | ratio |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for count, length, total in LOADS:
            clients = {server: [Client(server) for _ in range(count)] for server in (owner, edge)}
            for command in REPLIES:
                requests, size = prepare(command, length, total)
                spent = {owner: [], edge: []}
                for _ in range(rounds):
                    for server in (owner, edge):
                        before = owner.precise_cpu() + edge.precise_cpu()
                        send_all(clients[server], requests, size)
                        spent[server].append((owner.precise_cpu() + edge.precise_cpu() - before) / total * 1e6)
                direct, forwarded = (statistics.median(spent[server]) for server in (owner, edge))
                print(f"| {command} | {count} | {length} | {direct:.2f} | {forwarded:.2f} | {forwarded / direct:.2f} |",
                      flush=True)


if __name__ == "__main__":
    main()
