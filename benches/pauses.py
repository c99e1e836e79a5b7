#!/usr/bin/env python3
"""For how long a snapshot of one large collection keeps others waiting, beside Valkey in the same run.

Usage: pauses.py [KIND...]        hash, set, zset, list, stream; all, unless some are named

There is one worker, and one collection of 2 million elements, or as many as KVICK_BENCH_ELEMENTS says. Two clients send
requests in turn, each as soon as the other has its reply: the first reads and writes other keys, the second writes to the
collection. What is told is the longest that each waited in a second without a snapshot, and during BGSAVE, in milliseconds: the
median of three rounds. Valkey is the program that KVICK_TEST_VALKEY names, or `valkey-server` on the PATH; Kvick is
target/release/kvick-server, or what KVICK_SERVER names.
"""

import os
import statistics
import sys
import time

from durability import info, reply
from measure import Client, Server, encode, kvick, pin, valkey

ROUNDS = 3
ELEMENTS = int(os.environ.get("KVICK_BENCH_ELEMENTS", 2_000_000))
ALONE = ["--io-threads", "1", "--enable-debug-command", "yes"]
QUIET_S = 1
LARGE = b"large"

# How an element is added, and what a client does to the collection then; `n` is ever another number.
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
    """How long the reply to a request takes, in milliseconds."""
    began = time.perf_counter()
    connection.sendall(request)
    if connection.recv(1 << 16).startswith(b"-"):
        sys.exit(f"refused: {request}")
    return (time.perf_counter() - began) * 1e3


def longest(server, kind, goes_on):
    """The longest waits of the one and of the other client while `goes_on`, which is asked now and then."""
    others, writer = Client(server).socket, Client(server).socket
    waits, n = [0.0, 0.0], 0
    while n % 200 or goes_on():
        key = b"key:%d" % (n % 1000)
        request = encode([b"SET", key, b"%d" % n] if n % 2 else [b"GET", key])
        waits[0] = max(waits[0], wait(others, request))
        waits[1] = max(waits[1], wait(writer, encode(WRITES[kind](n))))
        n += 1
    return waits


def measure(program, kind):
    with Server(program, *ALONE, "--rdb-key-save-delay", "0", cores=[0, 1]) as server:
        client = Client(server)
        client.run([FILLS[kind](n) for n in range(ELEMENTS)])
        over = time.monotonic() + QUIET_S
        without = longest(server, kind, lambda: time.monotonic() < over)
        # What a fork takes belongs to it.
        saver, asked = Client(server).socket, []

        def is_saving():
            if not asked:
                saver.sendall(encode([b"BGSAVE"]))
                return asked.append(1) is None
            return info(client, b"rdb_bgsave_in_progress") != "0"

        beside = longest(server, kind, is_saving)
        if info(client, b"rdb_last_bgsave_status") != "ok":
            sys.exit("the save failed")
        return without + beside


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
                f"{kind}: {who}: other keys {others:.1f} ms, beside BGSAVE {others_beside:.1f}; "
                f"the collection {own:.1f} ms, beside BGSAVE {own_beside:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
