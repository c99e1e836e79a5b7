#!/usr/bin/env python3
"""CPU time per command of two builds of the server, in one run.

Usage: builds.py FIRST SECOND [ROUNDS] [PATTERN]        (default: 9 rounds, all rows)

Three servers, the first build twice, have one worker and no persistence, and get the same commands in turn. The figures
are medians of the rounds. "second / first" compares the builds, in all CPU time and in user time alone, which changes
of the program affect; "first / first" is the noise: what the same comparison says of two processes of the same build.
The server has core 0 and the load core 1. PATTERN is a regular expression of the rows to run.

Rows with "16", "64" send that many commands at once, those with "alone" one at a time.
"""

import random
import re
import statistics
import sys

from measure import Client, Server, drive, encode, pin, pipelines

CONNECTIONS = 50
CONNECTIONS_MANY = 500
KEYS = 100_000
COMMANDS = 80_000
COMMANDS_LARGE = 8_000
COMMANDS_ALONE = 10_000


def number(dice, limit=KEYS):
    return b"%d" % dice.randrange(limit)


def key(dice, kind, limit):
    return b"%s:%s" % (kind, number(dice, limit))


def set_of(size):
    return lambda dice: [b"SET", key(dice, b"key%d" % size, KEYS), b"x" * size]


def get_of(size):
    return lambda dice: [b"GET", key(dice, b"key%d" % size, KEYS)]


def push(verb, name):
    return lambda dice: [verb, key(dice, name, 1000), b"element"]


def pop(verb, name, limit=1000):
    return lambda dice: [verb, key(dice, name, limit)]


def long_range(last):
    return lambda dice: [b"LRANGE", key(dice, b"long", 100), b"0", b"%d" % last]


SCRIPT = b"return redis.call('INCR', KEYS[1])"

# Name: request, number of requests, requests sent at once (0: alone), connections. What a row pops, an earlier one has
# pushed in the same round.
ROWS = {
    "PING, 16": (lambda dice: [b"PING"], COMMANDS, 16, CONNECTIONS),
    "SET of 3 B, alone": (set_of(3), COMMANDS_ALONE, 0, CONNECTIONS),
    "GET of 3 B, alone": (get_of(3), COMMANDS_ALONE, 0, CONNECTIONS),
    "SET of 3 B, 16": (set_of(3), COMMANDS, 16, CONNECTIONS),
    "GET of 3 B, 16": (get_of(3), COMMANDS, 16, CONNECTIONS),
    "SET of 100 B, 64": (set_of(100), COMMANDS, 64, CONNECTIONS),
    "GET of 100 B, 64": (get_of(100), COMMANDS, 64, CONNECTIONS),
    "SET of 1 KiB, alone, 500 connections": (set_of(1024), COMMANDS_ALONE, 0, CONNECTIONS_MANY),
    "GET of 1 KiB, alone, 500 connections": (get_of(1024), COMMANDS_ALONE, 0, CONNECTIONS_MANY),
    "SET with expiry, 16": (lambda dice: [*set_of(3)(dice), b"EX", b"1000"], COMMANDS, 16, CONNECTIONS),
    "INCR, 16": (lambda dice: [b"INCR", key(dice, b"counter", KEYS)], COMMANDS, 16, CONNECTIONS),
    "MSET of 10, 16": (
        lambda dice: [b"MSET"] + [part for _ in range(10) for part in (key(dice, b"key3", KEYS), b"xxx")],
        COMMANDS_LARGE, 16, CONNECTIONS),
    "MGET of 10, 16": (
        lambda dice: [b"MGET"] + [key(dice, b"key3", KEYS) for _ in range(10)], COMMANDS_LARGE, 16, CONNECTIONS),
    "LPUSH, 16": (push(b"LPUSH", b"left"), COMMANDS, 16, CONNECTIONS),
    "LPOP, 16": (pop(b"LPOP", b"left"), COMMANDS, 16, CONNECTIONS),
    "RPUSH, 16": (push(b"RPUSH", b"right"), COMMANDS, 16, CONNECTIONS),
    "RPOP, 16": (pop(b"RPOP", b"right"), COMMANDS, 16, CONNECTIONS),
    "LRANGE of 100, 16": (long_range(99), COMMANDS_LARGE, 16, CONNECTIONS),
    "LRANGE of 300, 16": (long_range(299), COMMANDS_LARGE, 16, CONNECTIONS),
    "HSET, 16": (
        lambda dice: [b"HSET", key(dice, b"hash", 1000), key(dice, b"field", 100), b"xxx"], COMMANDS, 16, CONNECTIONS),
    "HGET, 16": (
        lambda dice: [b"HGET", key(dice, b"hash", 1000), key(dice, b"field", 100)], COMMANDS, 16, CONNECTIONS),
    "SADD, 16": (
        lambda dice: [b"SADD", key(dice, b"set", 1000), key(dice, b"member", 1000)], COMMANDS, 16, CONNECTIONS),
    "SPOP, 16": (pop(b"SPOP", b"set"), COMMANDS // 2, 16, CONNECTIONS),
    "ZADD, 16": (
        lambda dice: [b"ZADD", key(dice, b"zset", 100), number(dice), key(dice, b"member", 1000)],
        COMMANDS, 16, CONNECTIONS),
    "ZRANGE of 10, 16": (
        lambda dice: [b"ZRANGE", key(dice, b"zset", 100), b"0", b"9"], COMMANDS, 16, CONNECTIONS),
    "ZPOPMIN, 16": (pop(b"ZPOPMIN", b"zset", 100), COMMANDS // 2, 16, CONNECTIONS),
    "XADD, 16": (
        lambda dice: [b"XADD", key(dice, b"stream", 100), b"*", b"field", b"value"], COMMANDS, 16, CONNECTIONS),
    "EVAL, 16": (
        lambda dice: [b"EVAL", SCRIPT, b"1", key(dice, b"counter", KEYS)], COMMANDS // 2, 16, CONNECTIONS),
}


def fill(client):
    """Creates what the rows only read."""
    client.run([[b"RPUSH", b"long:%d" % at, *[b"xxx"] * 300] for at in range(100)])


def drive_alone(clients, prepared):
    """Sends one request per client at a time. Replies are short, so each arrives as a whole."""
    for at in range(0, len(prepared), len(clients)):
        busy = list(zip(clients, prepared[at : at + len(clients)]))
        for client, request in busy:
            client.send(request)
        for client, _ in busy:
            if not client.socket.recv(65536).endswith(b"\r\n"):
                sys.exit("a reply arrived in parts")


def main():
    first, second = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 9
    wanted = re.compile(sys.argv[4] if len(sys.argv) > 4 else "")
    pin(1)
    dice = random.Random(1)
    loads = {}
    for name, (request, count, length, connections) in ROWS.items():
        requests = [request(dice) for _ in range(count)]
        prepared = pipelines(requests, length) if length else [encode(words) for words in requests]
        if wanted.search(name):
            loads[name] = (count, prepared, drive if length else drive_alone, connections)
    options = ("--io-threads", "1")
    with Server(first, *options, cores=[0]) as one, Server(second, *options, cores=[0]) as two, \
            Server(first, *options, cores=[0]) as again:
        servers = [(server, [Client(server) for _ in range(CONNECTIONS_MANY)]) for server in (one, two, again)]
        for _, clients in servers:
            fill(clients[0])
        figures = {name: ([], [], []) for name in loads}
        users = {name: [0.0, 0.0, 0.0] for name in loads}
        for step in range(rounds + 1):
            print(f"round {step} of {rounds}", file=sys.stderr)
            for name, (count, prepared, send, connections) in loads.items():
                for index in [(0, 1, 2), (1, 2, 0), (2, 0, 1)][step % 3]:
                    server, clients = servers[index]
                    before, user_before = server.precise_cpu(), server.cpu()[0]
                    send(clients[:connections], prepared)
                    spent, user_spent = server.precise_cpu() - before, server.cpu()[0] - user_before
                    # The first round only fills the servers.
                    if step > 0:
                        figures[name][index].append(spent / count * 1e6)
                        # In ticks of 10 ms, which only their sum evens out.
                        users[name][index] += user_spent
    print("| command | first, us | second, us | second / first | user only | first / first | user only |")
    print("|:---|---:|---:|---:|---:|---:|---:|")
    columns = ([], [], [], [])
    for name, samples in figures.items():
        one, two, again = (statistics.median(values) for values in samples)
        user_one, user_two, user_again = (max(user, 0.01) for user in users[name])
        # The mean of the two processes of the first build is the better estimate of it.
        ratios = (two * 2 / (one + again), user_two * 2 / (user_one + user_again), again / one, user_again / user_one)
        for column, ratio in zip(columns, ratios):
            column.append(ratio)
        cells = " | ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"| {name} | {(one + again) / 2:.3f} | {two:.3f} | {cells} |")
    means = " | ".join(f"{statistics.geometric_mean(column):.3f}" for column in columns)
    print(f"| geometric mean | | | {means} |")


main()
