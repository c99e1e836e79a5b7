#!/usr/bin/env python3
"""CPU time per command with two workers, compared with one worker, for mixed list, hash and sorted set commands.

Usage: workers.py [ROUNDS]        (default: 9)

Two processes send the same load in turn to a server with one worker and to one with two. Servers and load share two
cores. Figures are medians of the rounds. KVICK_SERVER names the server (default: target/release/kvick-server).
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
    """Random commands that add about as many elements as they remove."""
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
    """One load process: prepares its requests, waits for the start signal, and sends them."""
    prepared = pipelines(list(commands(random.Random(seed))), DEPTH)
    clients = [Client(server) for _ in range(CONNECTIONS)]
    ready.release()
    begin.wait()
    drive(clients, prepared)


def measure(server):
    """CPU time of the server in microseconds per command."""
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
        sys.exit("a load process failed")
    return sum(spent) * 1e6 / (LOADS * COMMANDS)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    pin(0, 1)
    program = kvick()
    with (
        Server(program, "--io-threads", "1", cores=[0, 1]) as one,
        Server(program, "--io-threads", "2", cores=[0, 1]) as two,
    ):
        spent = {1: [], 2: []}
        # The first round fills the servers and is not counted.
        for number in range(rounds + 1):
            for workers, server in ((1, one), (2, two)):
                us = measure(server)
                if number > 0:
                    spent[workers].append(us)
    one, two = statistics.median(spent[1]), statistics.median(spent[2])
    print(f"lists, hashes and sorted sets, {DEPTH} pipelined, two loads; CPU us per command")
    print(f"one worker {one:.2f}, two workers {two:.2f}: ratio {two / one:.2f}")


main()
