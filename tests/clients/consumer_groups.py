#!/usr/bin/env python3
"""Reads a stream with two consumer groups through the client libraries `valkey` and `redis`.

Exits with an error if an entry is lost, delivered twice or left pending. The consumers of one group block in
XREADGROUP, each on its own thread and connection. The consumers of the other group poll on one shared connection,
with all requests in one pipeline.

Usage: consumer_groups.py PORT [ENTRIES]        (default: 1000000 entries)
"""

import sys
import threading

import redis
import valkey

CONSUMERS = 32
COUNT = 10
BLOCK_MS = 100
# Entries per XADD pipeline.
BURST = 20
STREAM = "soak"


class Group:
    """Deliveries and acknowledgements of one consumer group."""

    def __init__(self, name, entries):
        self.name = name
        self.lock = threading.Lock()
        self.deliveries = [0] * entries
        self.acknowledged = 0
        self.failure = None

    def is_done(self):
        return self.failure is not None or self.acknowledged >= len(self.deliveries)

    def note(self, reply):
        """Counts the delivered entries and returns their IDs."""
        streams = reply.items() if isinstance(reply, dict) else reply or []
        entries = [entry for _, wrapped in streams for entry in flat(wrapped)]
        with self.lock:
            for _, fields in entries:
                self.deliveries[int(fields[b"n"])] += 1
        return [entry_id for entry_id, _ in entries]

    def acknowledge(self, count):
        with self.lock:
            self.acknowledged += count

    def check(self, client):
        wrong = [(number, count) for number, count in enumerate(self.deliveries) if count != 1]
        if wrong:
            raise SystemExit(f"{self.name}: entries not delivered exactly once, as (entry, deliveries): {wrong[:10]}")
        pending = client.xpending(STREAM, self.name)["pending"]
        if (self.acknowledged, pending) != (len(self.deliveries), 0):
            raise SystemExit(f"{self.name}: {self.acknowledged} acknowledged, {pending} pending")


def flat(entries):
    """The entries of a stream; with RESP3 the libraries wrap them in another list."""
    return entries[0] if entries and isinstance(entries[0], list) else entries


def wait(client, group, consumer):
    while not group.is_done():
        ids = group.note(client.xreadgroup(group.name, consumer, {STREAM: ">"}, count=COUNT, block=BLOCK_MS))
        if ids:
            group.acknowledge(client.xack(STREAM, group.name, *ids))


def poll(client, group):
    while not group.is_done():
        pipeline = client.pipeline(transaction=False)
        for consumer in range(CONSUMERS):
            pipeline.xreadgroup(group.name, f"polling:{consumer}", {STREAM: ">"}, count=COUNT)
        ids = [entry_id for reply in pipeline.execute() for entry_id in group.note(reply)]
        if ids:
            group.acknowledge(client.xack(STREAM, group.name, *ids))


def guarded(group, work, *args):
    """Runs a consumer on a thread; a failure stops its group."""

    def run():
        try:
            work(*args)
        except Exception as failure:
            group.failure = failure

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def soak(make, entries):
    client = make()
    client.delete(STREAM)
    groups = [Group(name, entries) for name in ("waiting", "polling")]
    for group in groups:
        client.xgroup_create(STREAM, group.name, id="0", mkstream=True)
    waiting, polling = groups
    threads = [guarded(waiting, wait, make(), waiting, f"waiting:{number}") for number in range(CONSUMERS)]
    threads.append(guarded(polling, poll, make(), polling))
    for first in range(0, entries, BURST):
        pipeline = client.pipeline(transaction=False)
        for number in range(first, min(first + BURST, entries)):
            pipeline.xadd(STREAM, {"n": number, "text": "some words"})
        pipeline.execute()
    for thread in threads:
        thread.join()
    for group in groups:
        if group.failure is not None:
            raise group.failure
        group.check(client)


def main():
    port = int(sys.argv[1])
    entries = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    for library, name in ((valkey, "Valkey"), (redis, "Redis")):
        for protocol in (2, 3):

            def make():
                options = dict(protocol=protocol, socket_timeout=20, single_connection_client=True)
                return getattr(library, name)(host="127.0.0.1", port=port, **options)

            soak(make, entries)
            print(f"{library.__name__} {library.__version__} with RESP{protocol}: each entry delivered once")


main()
