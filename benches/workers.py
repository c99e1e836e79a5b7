#!/usr/bin/env python3
"""What a second worker costs: processor time per command of mixed list, hash and sorted set commands.

Usage: workers.py [ROUNDS]        3, unless told otherwise

Two processes send the same load to a server with one worker and to one with two, in turn; everything shares two cores. A
figure is the median of the rounds. Kvick is target/release/kvick-server, or what KVICK_SERVER names.
"""

import multiprocessing
import random
import statistics
import sys

from measure import Client, Server, drive, kvick, pin, pipelines

LOADS = 2
CONNECTIONS = 10
COMMANDS = 200_000
DEPTH = 16
KEYS = 20_000


def commands(dice):
    """Random commands: of each pair, one adds about as much as the other takes away."""
    for _ in range(COMMANDS):
        number, element = b"%d" % dice.randrange(KEYS), b"element:%d" % dice.randrange(50)
        score = b"%d" % dice.randrange(1000)
        yield dice.choice(
            [
                [b"RPUSH", b"list:" + number, element],
                [b"LPOP", b"list:" + number],
                [b"LRANGE", b"list:" + number, b"0", b"9"],
                [b"HSET", b"hash:" + number, element, score],
                [b"HGET", b"hash:" + number, element],
                [b"HDEL", b"hash:" + number, element],
                [b"ZADD", b"zset:" + number, score, element],
                [b"ZRANK", b"zset:" + number, element],
                [b"ZPOPMIN", b"zset:" + number],
            ]
        )


def load(server, seed, ready, begin):
    """One process of load: prepares it, waits for the others, and sends it."""
    prepared = pipelines(list(commands(random.Random(seed))), DEPTH)
    clients = [Client(server) for _ in range(CONNECTIONS)]
    ready.release()
    begin.wait()
    drive(clients, prepared)


def measure(server):
    """Microseconds of the server's time per command."""
    ready, begin = multiprocessing.Semaphore(0), multiprocessing.Event()
    loads = [multiprocessing.Process(target=load, args=(server, seed, ready, begin)) for seed in range(LOADS)]
    for process in loads:
        process.start()
    for _ in loads:
        ready.acquire()

    def work():
        begin.set()
        for process in loads:
            process.join()

    spent = server.spent(work)
    if any(process.exitcode for process in loads):
        sys.exit("a load has failed")
    return sum(spent) * 1e6 / (LOADS * COMMANDS)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    pin(0, 1)
    program = kvick()
    with (
        Server(program, "--io-threads", "1", cores=[0, 1]) as one,
        Server(program, "--io-threads", "2", cores=[0, 1]) as two,
    ):
        spent = {1: [], 2: []}
        # The first time fills the servers.
        for number in range(rounds + 1):
            for workers, server in ((1, one), (2, two)):
                us = measure(server)
                if number > 0:
                    spent[workers].append(us)
    one, two = statistics.median(spent[1]), statistics.median(spent[2])
    print(f"lists, hashes and sorted sets, {DEPTH} pipelined, two loads; CPU us per command")
    print(f"one worker {one:.2f}, two workers {two:.2f}: {two / one:.2f} times as much")


main()
