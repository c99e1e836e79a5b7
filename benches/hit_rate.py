#!/usr/bin/env python3
"""How many requests find their key in a cache that is too small: Kvick and Valkey on the same traces.

Usage: hit_rate.py [SECONDS [RATE]]        40 seconds of 40,000 requests each for every figure, unless told otherwise

A request is a GET, and a SET of 100 bytes where it finds nothing. Two traces: in the first the keys' frequencies follow Zipf's
law; in the second a quarter of the requests, in runs, belong to a scan that asks for each of a million other keys once, and only
those of the first kind are counted. The second half of each trace counts. Requests come at a fixed rate, because the clocks of
both servers have seconds.

With the same `maxmemory` the server whose entries are smaller holds more keys. So Kvick is measured twice: with Valkey's
limit, and with one at which it holds as many keys as Valkey does. Valkey is the program that KVICK_TEST_VALKEY names, or
`valkey-server` on the PATH; Kvick is target/release/kvick-server, or what KVICK_SERVER names.
"""

import itertools
import random
import sys
import time

from measure import Client, Server, kvick, valkey

KEYS = 200_000
EXPONENT = 0.99
LIMIT = 5 << 20
VALUE = b"v" * 100
HIT = b"$100\r\n" + VALUE + b"\r\n"
MISS = b"$-1\r\n"
PIPELINE = 64
BYTES_PER_KEY = 138
SCAN_RUN = 1_000
SCAN_KEYS = 1_000_000


def zipf(count, generator):
    """Ranks of keys."""
    weights = itertools.accumulate(1 / rank**EXPONENT for rank in range(1, KEYS + 1))
    return generator.choices(range(KEYS), cum_weights=list(weights), k=count)


def traces(count):
    """The traces by name, each a list of keys; those of the scan are above KEYS."""
    plain = zipf(count, random.Random(1))
    mixed, ranks, cold = [], iter(zipf(count, random.Random(2))), itertools.cycle(range(KEYS, KEYS + SCAN_KEYS))
    while len(mixed) < count:
        mixed += itertools.islice(ranks, 3 * SCAN_RUN)
        mixed += itertools.islice(cold, SCAN_RUN)
    return {"Zipf": plain, "Zipf and scans": mixed[:count]}


def encoded():
    """Both requests for every key."""
    names = [b"key:%012d" % number for number in range(KEYS + SCAN_KEYS)]
    gets = [b"*2\r\n$3\r\nGET\r\n$16\r\n%s\r\n" % name for name in names]
    sets = [b"*3\r\n$3\r\nSET\r\n$16\r\n%s\r\n$100\r\n%s\r\n" % (name, VALUE) for name in names]
    return gets, sets


class Cache:
    """A server with a limit of memory, used as a cache."""

    def __init__(self, server, requests):
        self.client = Client(server)
        self.gets, self.sets = requests

    def info(self, field):
        """A number that INFO tells."""
        self.client.send(b"*1\r\n$4\r\nINFO\r\n*1\r\n$4\r\nPING\r\n")
        text = b""
        while not text.endswith(b"+PONG\r\n"):
            text += self.client.socket.recv(1 << 16)
        return int(text.split(b"\r\n%s:" % field.encode(), 1)[1].split(b"\r\n", 1)[0])

    def size(self):
        """Keys held."""
        self.client.send(b"*1\r\n$6\r\nDBSIZE\r\n")
        return int(self.client.socket.recv(100)[1:])

    def read(self, keys):
        """Which of these keys are there."""
        self.client.send(b"".join([self.gets[key] for key in keys]))
        found, replies, at = [], b"", 0
        while len(found) < len(keys):
            replies = replies[at:] + self.client.socket.recv(1 << 16)
            at = 0
            while len(found) < len(keys):
                if replies.startswith(MISS, at):
                    found.append(False)
                    at += len(MISS)
                elif len(replies) - at >= len(HIT):
                    found.append(True)
                    at += len(HIT)
                else:
                    break
        return found

    def write(self, keys):
        """Sets these keys."""
        self.client.send(b"".join([self.sets[key] for key in keys]))
        left = 5 * len(keys)
        while left > 0:
            left -= len(self.client.socket.recv(left))

    def replay(self, trace, rate):
        """The share of hits among the requests of the second half that are not a scan's."""
        hits = asked = 0
        began = time.monotonic()
        for at in range(0, len(trace), PIPELINE):
            keys = trace[at : at + PIPELINE]
            found = self.read(keys)
            missing = {key for key, there in zip(keys, found) if not there}
            if missing:
                self.write(missing)
            if at >= len(trace) // 2:
                counted = [there for key, there in zip(keys, found) if key < KEYS]
                hits += sum(counted)
                asked += len(counted)
            time.sleep(max(0, began + (at + PIPELINE) / rate - time.monotonic()))
        return hits / asked


def measure(program, policy, limit, trace, rate, requests):
    """The share of hits, the keys held at the end, and the seconds it took."""
    words = ["--io-threads", "1", "--maxmemory-policy", policy, "--maxmemory", str(limit)]
    with Server(program, *words, cores=[0]) as server:
        cache = Cache(server, requests)
        began = time.monotonic()
        share = cache.replay(trace, rate)
        took = time.monotonic() - began
        return share, cache.size(), took


def footprint(program, keys, requests):
    """The memory in use with this many keys."""
    with Server(program, "--io-threads", "1", cores=[0]) as server:
        cache = Cache(server, requests)
        for at in range(0, keys, PIPELINE):
            cache.write(range(at, min(at + PIPELINE, keys)))
        return cache.info("used_memory")


def measure_equal(policy, held, trace, rate, requests):
    """Kvick's figures with about as many keys as `held`: a limit is tried, and put right by what came of it."""
    limit = footprint(kvick(), held, requests)
    figures = measure(kvick(), policy, limit, trace, rate, requests)
    limit += (held - figures[1]) * BYTES_PER_KEY
    return measure(kvick(), policy, limit, trace, rate, requests)


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 40
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else 40_000
    requests = encoded()
    print(f"{KEYS:,} keys, Zipf {EXPONENT}, {LIMIT >> 20} MiB, {seconds:.0f} s of {rate:,.0f} requests; hits in percent (keys held)")
    for name, trace in traces(int(seconds * rate)).items():
        for policy in ["allkeys-lru", "allkeys-lfu"]:
            figures = [measure(valkey(), policy, LIMIT, trace, rate, requests)]
            held = figures[0][1]
            figures.append(measure(kvick(), policy, LIMIT, trace, rate, requests))
            figures.append(measure_equal(policy, held, trace, rate, requests))
            shown = [f"{100 * share:5.2f} ({keys:,})" for share, keys, *_ in figures]
            print(f"{name}, {policy}: Valkey {shown[0]}, Kvick {shown[1]}, with as many keys {shown[2]}", flush=True)
            late = [took for *_, took in figures if took > 1.05 * seconds]
            if late:
                print(f"  late: {', '.join(f'{took:.0f} s' for took in late)}")


if __name__ == "__main__":
    main()
