#!/usr/bin/env python3
"""Longest wait of clients while a snapshot of one large collection runs, compared with Valkey in the same run.

Usage: pauses.py [KIND...]        (hash, set, zset, list, stream; default: all)

One worker, one collection of KVICK_BENCH_ELEMENTS elements (default: 2000000). Two clients send requests alternately,
each after the reply to the other: the first reads and writes other keys, the second writes to the collection. A fork
stops the request that comes next after BGSAVE, so there are two snapshots: the next request is the first client's in
one, and the second's in the other. The output is the longest wait of each client in milliseconds, in two seconds
without a snapshot and during both, as medians of five rounds.

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
"""

import itertools
import os
import statistics
import sys
import time

from durability import info, reply
from measure import Client, Server, encode, kvick, pin, valkey

ROUNDS = 5
ELEMENTS = int(os.environ.get("KVICK_BENCH_ELEMENTS", 2_000_000))
ALONE = ["--io-threads", "1", "--enable-debug-command", "yes"]
QUIET_S = 1
LARGE = b"large"

# Commands that fill the collection, and commands that change it later; `n` increases with every call.
FILLS = {
    "hash": lambda n: [b"HSET", LARGE, b"field:%d" % n, b"value:%d" % n],
    "set": lambda n: [b"SADD", LARGE, b"member:%d" % n],
    "zset": lambda n: [b"ZADD", LARGE, b"%d" % n, b"member:%d" % n],
    "list": lambda n: [b"RPUSH", LARGE, b"an element of a list:%d" % n],
    "stream": lambda n: [b"XADD", LARGE, b"%d-1" % (n + 1), b"name", b"value:%d" % n],
}
WRITES = {
    "hash": lambda n: [b"HSET", LARGE, b"field:%d" % (n * 7919 % ELEMENTS), b"%d" % n],
    "set": lambda n: [b"SREM", LARGE, b"member:%d" % (n * 7919 % ELEMENTS)],
    "zset": lambda n: [b"ZADD", LARGE, b"%d" % n, b"member:%d" % (n * 7919 % ELEMENTS)],
    "list": lambda n: [[b"LPOP", LARGE], [b"RPUSH", LARGE, b"pushed"]][n % 2],
    "stream": lambda n: [b"XDEL", LARGE, b"%d-1" % (n * 7919 % ELEMENTS + 1)],
}


def wait(connection, request):
    """Latency of a request in milliseconds."""
    began = time.perf_counter()
    connection.sendall(request)
    if connection.recv(1 << 16).startswith(b"-"):
        sys.exit(f"error reply to {request}")
    return (time.perf_counter() - began) * 1e3


class Pair:
    """The client of other keys, and the client that writes to the collection."""

    def __init__(self, server, kind):
        self.server, self.write, self.numbers = server, WRITES[kind], itertools.count()
        self.clients = [Client(server).socket for _ in range(2)]

    def longest(self, first, goes_on):
        """Longest wait of each in milliseconds until `goes_on()` returns false. The client with the index `first`
        sends the next request after each call of it."""
        waits = [0.0, 0.0]
        while goes_on():
            for n in itertools.islice(self.numbers, 200):
                key = b"key:%d" % (n % 1000)
                requests = [[b"SET", key, b"%d" % n] if n % 2 else [b"GET", key], self.write(n)]
                for which in (first, 1 - first):
                    waits[which] = max(waits[which], wait(self.clients[which], encode(requests[which])))
        return waits

    def longest_quiet(self, first):
        """Longest waits in some time without a snapshot."""
        over = time.monotonic() + QUIET_S
        return self.longest(first, lambda: time.monotonic() < over)

    def longest_beside(self, first):
        """Longest waits during BGSAVE. It is sent inside the measurement, so that the fork counts."""
        client, saver, asked = Client(self.server), Client(self.server).socket, []

        def is_saving():
            if not asked:
                saver.sendall(encode([b"BGSAVE"]))
                return asked.append(1) is None
            return info(client, b"rdb_bgsave_in_progress") != "0"

        waits = self.longest(first, is_saving)
        if info(client, b"rdb_last_bgsave_status") != "ok":
            sys.exit("BGSAVE failed")
        return waits


def measure(program, kind):
    """Longest waits of both clients without a snapshot, and during it."""
    with Server(program, *ALONE, "--rdb-key-save-delay", "0", cores=[0, 1]) as server:
        Client(server).run([FILLS[kind](n) for n in range(ELEMENTS)])
        pair = Pair(server, kind)
        return [max(waits) for run in (pair.longest_quiet, pair.longest_beside)
                for waits in zip(*(run(first) for first in (0, 1)))]


def main():
    pin(0, 1)
    for kind in sys.argv[1:] or FILLS:
        figures = {"Kvick": [], "Valkey": []}
        for _ in range(ROUNDS):
            for who, program in (("Kvick", kvick()), ("Valkey", valkey())):
                figures[who].append(measure(program, kind))
        for who, found in figures.items():
            others, own, others_beside, own_beside = (statistics.median(column) for column in zip(*found))
            print(
                f"{kind}: {who}: other keys {others:.1f} ms, during BGSAVE {others_beside:.1f}; "
                f"the collection {own:.1f} ms, during BGSAVE {own_beside:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
