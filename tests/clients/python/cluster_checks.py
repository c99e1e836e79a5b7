#!/usr/bin/env python3
"""Checks the cluster mode of redis-py and valkey-py.

Usage: cluster_checks.py PORT TAGS MOVING, where PORT is one of the nodes, the file TAGS has a hash tag for each slot,
and the first MOVING slots are those that migrate. It prints `DO action` to have something happen to the cluster, and
reads a line when that is done.
"""

import sys
import threading
import time
import traceback

import redis
import redis.cluster
import valkey
import valkey.cluster

PORT, MOVING = int(sys.argv[1]), int(sys.argv[3])
with open(sys.argv[2]) as file:
    TAGS = file.read().split()
# How long an operation is retried, and other conditions are waited for, in seconds.
PATIENCE = 60
WRITERS = 4


class Library:
    """One of the two libraries, with the names that differ between them."""

    def __init__(self, name, module, client, error):
        self.name, self.module, self.client, self.error = name, module, client, error

    def connect(self, **options):
        return self.client(host="127.0.0.1", port=PORT, decode_responses=True, socket_timeout=20, **options)


LIBRARIES = [
    Library("redis-py", redis, redis.cluster.RedisCluster, redis.RedisError),
    Library("valkey-py", valkey, valkey.cluster.ValkeyCluster, valkey.ValkeyError),
]
CHECKS = []


def check(function):
    CHECKS.append((function.__name__.replace("_", "-"), function))
    return function


def same(got, expected):
    if got != expected:
        raise AssertionError(f"expected {str(expected)[:100]}, got {str(got)[:100]}")


def do(action):
    """Has something happen to the cluster; returns the result."""
    print(f"DO {action}", flush=True)
    word, _, result = sys.stdin.readline().strip().partition(" ")
    if word != "done":
        raise AssertionError(f"{action}: {result}")
    return result


@check
def every_slot(lib):
    for protocol in (2, 3):
        client = lib.connect(protocol=protocol)
        for first in range(0, len(TAGS), 1024):
            pipeline = client.pipeline()
            for slot in range(first, first + 1024):
                pipeline.set(f"{{{TAGS[slot]}}}", slot)
                pipeline.get(f"{{{TAGS[slot]}}}")
            same(pipeline.execute()[1::2], [str(slot) for slot in range(first, first + 1024)])
        for slot in range(0, len(TAGS), 16):
            same(client.get(f"{{{TAGS[slot]}}}"), str(slot))
        same(sum(1 for _ in client.scan_iter(count=1000)), len(TAGS))
        client.flushall(target_nodes="primaries")


@check
def hash_tags(lib):
    client = lib.connect()
    for tag in TAGS[::2000]:
        keys = [f"{{{tag}}}{number}" for number in range(10)]
        same(client.mset({key: key for key in keys}), True)
        same(client.mget(keys), keys)
        same(client.delete(*keys), 10)
    same(client.mset_nonatomic({"one": 1, "two": 2, "three": 3}), [True] * 3)
    same(client.mget_nonatomic("one", "two", "none", "three"), ["1", "2", None, "3"])


@check
def transaction(lib):
    client = lib.connect()
    if lib.name == "valkey-py":
        # Its cluster mode has no transactions.
        client = client.get_valkey_connection(client.get_node_from_key("{t}"))
    with client.pipeline(transaction=True) as pipe:
        same(pipe.set("{t}a", 1).incr("{t}a").get("{t}a").execute()[1:], [2, "2"])
        pipe.watch("{t}a")
        value = int(pipe.get("{t}a"))
        client.incr("{t}a")
        pipe.multi()
        pipe.set("{t}a", value + 1)
        try:
            pipe.execute()
        except lib.module.WatchError:
            return
    raise AssertionError("EXEC ignored the change of a watched key")


@check
def script(lib):
    client = lib.connect()
    add = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
    for tag in TAGS[::2000]:
        same(client.eval(add, 1, f"{{{tag}}}", 5), 5)
    sha = client.script_load(add)
    for tag in TAGS[::2000]:
        same(client.evalsha(sha, 1, f"{{{tag}}}", 6), 11)


@check
def sharded_pubsub(lib):
    client = lib.connect()
    for channel in TAGS[::3000]:
        subscriber = client.pubsub()
        subscriber.ssubscribe(channel)
        node = client.get_node_from_key(channel)
        same(next_message(subscriber, node)["type"], "ssubscribe")
        same(client.spublish(channel, "hello"), 1)
        same(next_message(subscriber, node)["data"], "hello")
        subscriber.close()


def next_message(subscriber, node):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        message = subscriber.get_sharded_message(timeout=1, target_node=node)
        if message:
            return message
    raise AssertionError(f"no message within {PATIENCE} s")


@check
def replica_reads(lib):
    client, reader = lib.connect(), lib.connect(read_from_replicas=True)
    for slot in range(0, len(TAGS), 40):
        client.set(f"{{{TAGS[slot]}}}", slot)
    do("replicated")
    before = int(do("replica_gets"))
    for slot in range(0, len(TAGS), 40):
        same(reader.get(f"{{{TAGS[slot]}}}"), str(slot))
    same(int(do("replica_gets")) > before + 100, True)


def retried(lib, errors, operation, *args, **options):
    """Repeats an operation that fails, and notes the errors."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return operation(*args, **options)
        except lib.error as error:
            errors.append(" ".join(f"{type(error).__name__}: {error}".split()))
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def wrote(lib, count, errors):
    for error in sorted(set(errors)):
        print(f"{lib.name}: {errors.count(error)} times {error}", file=sys.stderr)
    print(f"WROTE {lib.name} {count} {len(errors)}", flush=True)


@check
def streams(lib):
    consume_streams(lib, None)


@check
def streams_failover(lib):
    consume_streams(lib, "failover")


def consume_streams(lib, action):
    """Consumers of groups in three shards. If something happens meanwhile, when half of the entries are written."""
    client, entries, seen, lock, errors = lib.connect(), 600, [], threading.Lock(), []
    until = time.monotonic() + PATIENCE
    keys = [f"{{{TAGS[slot]}}}stream" for slot in (100, 8000, 16000)]
    for key in keys:
        client.xgroup_create(key, "group", id="0", mkstream=True)

    def consume(name, key):
        while len(seen) < entries and time.monotonic() < until:
            reply = retried(lib, errors, client.xreadgroup, "group", name, {key: ">"}, count=7, block=200) or []
            for _, batch in reply.items() if isinstance(reply, dict) else reply:
                for entry_id, fields in batch if isinstance(batch[0], tuple) else batch[0]:
                    same(retried(lib, errors, client.xack, key, "group", entry_id), 1)
                    with lock:
                        seen.append(int(fields["n"]))

    threads = [threading.Thread(target=consume, args=(f"c{number}", keys[number % 3])) for number in range(12)]
    for thread in threads:
        thread.start()
    for number in range(entries):
        if action and number == entries // 2:
            do(action)
        retried(lib, errors, client.xadd, keys[number % 3], {"n": number})
    for thread in threads:
        thread.join()
    same(sorted(seen), list(range(entries)))
    wrote(lib, entries, errors)


class Writers:
    """Threads that write numbered keys and read each back at once. At the end all are read again."""

    def __init__(self, lib):
        self.lib, self.client = lib, lib.connect()
        self.written, self.errors, self.failure = [0] * WRITERS, [], None
        self.ending = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(writer,)) for writer in range(WRITERS)]

    @staticmethod
    def key(writer, number):
        # Half of the keys are in the slots that migrate.
        slot = number // 2 % MOVING if number % 2 else number * 7919 % len(TAGS)
        return f"{{{TAGS[slot]}}}:{writer}:{number}"

    def work(self, writer):
        try:
            while not self.ending.is_set():
                number = self.written[writer]
                key = self.key(writer, number)
                same(retried(self.lib, self.errors, self.client.set, key, number), True)
                same(retried(self.lib, self.errors, self.client.get, key), str(number))
                self.written[writer] += 1
                time.sleep(0.002)
        except Exception as failure:
            self.failure = failure

    def progress(self, count):
        """Waits until each writer has written so many keys more."""
        goal = [written + count for written in self.written]
        until = time.monotonic() + PATIENCE
        while self.failure is None and any(written < least for written, least in zip(self.written, goal)):
            if time.monotonic() > until:
                raise AssertionError(f"{self.written} writes, not {goal}, within {PATIENCE} s")
            time.sleep(0.01)

    def during(self, action):
        for thread in self.threads:
            thread.start()
        try:
            self.progress(100)
            do(action)
            self.progress(100)
        finally:
            self.ending.set()
            for thread in self.threads:
                thread.join()
        if self.failure is not None:
            raise self.failure
        for writer, count in enumerate(self.written):
            for number in range(count):
                same(self.client.get(self.key(writer, number)), str(number))
        wrote(self.lib, sum(self.written), self.errors)


for named in ("failover", "kill", "migrate_keys", "migrate_slots"):
    CHECKS.append((named.replace("_", "-"), lambda lib, action=named: Writers(lib).during(action)))


def main():
    for lib in LIBRARIES:
        for name, function in CHECKS:
            try:
                do("flush")
                function(lib)
                print(f"CHECK {lib.name} {name} ok", flush=True)
            except Exception as error:
                traceback.print_exc()
                words = " ".join(f"{type(error).__name__}: {error}".split())
                print(f"CHECK {lib.name} {name} FAIL: {words}", flush=True)


main()
