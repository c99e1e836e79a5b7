#!/usr/bin/env python3
"""CPU time per command of two builds of the server, in one run.

Usage: builds.py FIRST SECOND [ROUNDS]        (default: 7)

Both servers have one worker and no persistence, and get the same commands in turn, pipelined by 16 and one at a time.
The figures are medians of the rounds; the last column is the second build relative to the first. The server has core 0
and the load core 1.
"""

import random
import statistics
import sys

from measure import Client, Server, drive, pin, pipelines

CONNECTIONS = 16
KEYS = 50_000
COMMANDS = 100_000
ALONE = 20_000


def number(dice, limit=KEYS):
    return b"%d" % dice.randrange(limit)


ROWS = {
    "SET": lambda dice: [b"SET", b"key:" + number(dice), b"x" * 64],
    "GET": lambda dice: [b"GET", b"key:" + number(dice)],
    "INCR": lambda dice: [b"INCR", b"counter:" + number(dice)],
    "SET with expiry": lambda dice: [b"SET", b"key:" + number(dice), b"x" * 64, b"EX", b"1000"],
    "MGET of 10": lambda dice: [b"MGET"] + [b"key:" + number(dice) for _ in range(10)],
    "HSET": lambda dice: [b"HSET", b"hash:" + number(dice, 1000), b"field:" + number(dice, 100), b"value"],
    "HGET": lambda dice: [b"HGET", b"hash:" + number(dice, 1000), b"field:" + number(dice, 100)],
    "LPUSH": lambda dice: [b"LPUSH", b"list:" + number(dice, 1000), b"element"],
    "LRANGE of 100": lambda dice: [b"LRANGE", b"list:" + number(dice, 1000), b"0", b"99"],
    "SADD": lambda dice: [b"SADD", b"set:" + number(dice, 1000), b"member:" + number(dice, 1000)],
    "ZADD": lambda dice: [b"ZADD", b"zset:" + number(dice, 100), number(dice), b"member:" + number(dice, 1000)],
    "ZRANGE of 10": lambda dice: [b"ZRANGE", b"zset:" + number(dice, 100), b"0", b"9"],
    "XADD": lambda dice: [b"XADD", b"stream:" + number(dice, 100), b"*", b"field", b"value"],
    "EVAL": lambda dice: [b"EVAL", b"return redis.call('INCR', KEYS[1])", b"1", b"counter:" + number(dice)],
}


def main():
    first, second = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    pin(1)
    dice = random.Random(1)
    loads = {}
    for name, row in ROWS.items():
        loads[name] = (COMMANDS, pipelines([row(dice) for _ in range(COMMANDS)], 16))
    for name in ("SET", "GET"):
        loads[name + ", unpipelined"] = (ALONE, pipelines([ROWS[name](dice) for _ in range(ALONE)], 1))
    with Server(first, "--io-threads", "1", cores=[0]) as one, Server(second, "--io-threads", "1", cores=[0]) as two:
        servers = [(server, [Client(server) for _ in range(CONNECTIONS)]) for server in (one, two)]
        figures = {name: ([], []) for name in loads}
        for step in range(rounds + 1):
            print(f"round {step} of {rounds}", file=sys.stderr)
            for name, (count, prepared) in loads.items():
                for index in (0, 1) if step % 2 == 0 else (1, 0):
                    server, clients = servers[index]
                    before = server.precise_cpu()
                    drive(clients, prepared)
                    spent = server.precise_cpu() - before
                    # The first round only fills the servers.
                    if step > 0:
                        figures[name][index].append(spent / count * 1e6)
    print("| command | first, us | second, us | second / first |\n| --- | --- | --- | --- |")
    ratios = []
    for name, (firsts, seconds) in figures.items():
        one, two = statistics.median(firsts), statistics.median(seconds)
        ratios.append(two / one)
        print(f"| {name} | {one:.3f} | {two:.3f} | {two / one:.3f} |")
    print(f"| geometric mean | | | {statistics.geometric_mean(ratios):.3f} |")


main()
