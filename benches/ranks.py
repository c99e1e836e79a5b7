#!/usr/bin/env python3
"""CPU time per rank command on a large sorted set, compared with Valkey.

Usage: ranks.py [MEMBERS [ROUNDS]]        (default: 3000000 members, 3 rounds)

Each server has one thread pinned to one core; the load runs on another core. Figures are medians of the rounds. Only
the ratios are comparable between machines.

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
"""

import random
import statistics
import sys

from measure import PIPELINE, Client, Server, drive, kvick, pin, pipelines, valkey

COMMANDS = 400_000
CONNECTIONS = 8
# Members per ZADD.
TOGETHER = 100
# Elements per ZRANGE.
RANGE = 10
WORKLOADS = {
    "ZRANK": lambda member, _: [b"ZRANK", b"ranks", member],
    "ZREVRANK WITHSCORE": lambda member, _: [b"ZREVRANK", b"ranks", member, b"WITHSCORE"],
    f"ZRANGE of {RANGE} by rank": lambda _, rank: [b"ZRANGE", b"ranks", b"%d" % rank, b"%d" % (rank + RANGE - 1)],
}


def name(number):
    return b"member:%d" % number


def fill(server, members, dice):
    """Adds the members in random order with random scores."""
    client, order = Client(server), list(range(members))
    dice.shuffle(order)
    batch = TOGETHER * PIPELINE
    for at in range(0, members, batch):
        adds = []
        for first in range(at, min(at + batch, members), TOGETHER):
            words = [b"ZADD", b"ranks"]
            for number in order[first : first + TOGETHER]:
                words += [b"%d" % dice.randrange(members), name(number)]
            adds.append(words)
        client.run(adds)


def main():
    members = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    programs = {"Kvick": kvick(), "Valkey": valkey()}
    pin(1)
    with (
        Server(programs["Kvick"], "--io-threads", "1", cores=[0]) as ours,
        Server(programs["Valkey"], "--io-threads", "1", cores=[0]) as theirs,
    ):
        servers = {"Kvick": ours, "Valkey": theirs}
        for server in servers.values():
            fill(server, members, random.Random(1))
        clients = {who: [Client(server) for _ in range(CONNECTIONS)] for who, server in servers.items()}
        print(f"{members:,} members, {PIPELINE} pipelined; CPU us per command (user + system)")
        for title, request in WORKLOADS.items():
            dice, spent = random.Random(2), {who: [] for who in servers}
            for _ in range(rounds):
                ranks = [dice.randrange(members - RANGE) for _ in range(COMMANDS)]
                prepared = pipelines([request(name(rank), rank) for rank in ranks])
                for who, server in servers.items():
                    both = server.spent(lambda: drive(clients[who], prepared))
                    spent[who].append(tuple(seconds * 1e6 / COMMANDS for seconds in both))
            report(title, spent)


def report(title, spent):
    all_us = {who: statistics.median(sum(both) for both in rounds) for who, rounds in spent.items()}
    user_us = {who: statistics.median(user for user, _ in rounds) for who, rounds in spent.items()}
    summary = "; ".join(f"{who} {all_us[who]:.2f} ({user_us[who]:.2f} user)" for who in spent)
    print(
        f"{title}: {summary}; Kvick is {all_us['Valkey'] / all_us['Kvick']:.1f} times as fast, "
        f"{user_us['Valkey'] / user_us['Kvick']:.1f} in user time",
        flush=True,
    )


main()
