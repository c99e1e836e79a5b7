#!/usr/bin/env python3
"""CPU cost of an XADD while consumers of a group block in XREADGROUP, compared with Valkey.

Usage: waiters.py [ENTRIES]        (default: 20000 entries per row)

Adds entries one at a time. The consumer that has waited longest receives the entry and blocks again.

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
"""

import collections
import sys
import time

from measure import Client, Server, encode, kvick, pin, valkey

WAITING = [0, 1, 32, 500]
READ = 1 << 16


def armed(server, number):
    """Starts a blocked consumer; returns its connection and its request."""
    client = Client(server)
    words = [b"XREADGROUP", b"GROUP", b"g", b"consumer:%d" % number, b"BLOCK", b"0", b"NOACK", b"STREAMS", b"s", b">"]
    request = encode(words)
    client.send(request)
    return client, request


def wait_for_blocked(client, count):
    """Waits until that many clients are blocked."""
    ask = encode([b"INFO", b"clients"])
    client.send(ask)
    while b"blocked_clients:%d\r" % count not in client.socket.recv(READ):
        time.sleep(0.001)
        client.send(ask)


def measure(program, waiting, entries):
    """User and system time in microseconds per entry."""
    with Server(program, "--io-threads", "1", cores=[0]) as server:
        producer = Client(server)
        producer.run([[b"XGROUP", b"CREATE", b"s", b"g", b"0", b"MKSTREAM"]])
        consumers = collections.deque()
        for number in range(waiting):
            consumers.append(armed(server, number))
            # Consumers block one after the other, so that their order is known.
            wait_for_blocked(producer, number + 1)
        add = encode([b"XADD", b"s", b"MAXLEN", b"~", b"1000", b"*", b"field", b"value"])

        def work():
            for _ in range(entries):
                producer.send(add)
                producer.socket.recv(READ)
                if consumers:
                    client, request = consumers.popleft()
                    client.socket.recv(READ)
                    client.send(request)
                    consumers.append((client, request))

        return tuple(seconds * 1e6 / entries for seconds in server.spent(work))


def main():
    entries = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    programs = {"Kvick": kvick(), "Valkey": valkey()}
    pin(1)
    print("CPU us per entry added and delivered (user + system)")
    for waiting in WAITING:
        spent = {who: measure(program, waiting, entries) for who, program in programs.items()}
        summary = "; ".join(f"{who} {user:.1f} + {system:.1f}" for who, (user, system) in spent.items())
        print(f"{waiting} blocked consumers: {summary}", flush=True)


main()
