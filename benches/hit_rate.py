#!/usr/bin/env python3
"""Cache hit rate under memory pressure, compared with Valkey on the same traces.

Usage: hit_rate.py [SECONDS [RATE]]        (default: 40 seconds of 40000 requests per second for each figure)

A request is a GET, followed by a SET of 100 bytes on a miss. In the first trace, key frequencies follow Zipf's law.
In the second, a quarter of the requests come in runs from a scan over a million other keys and are not counted. Only
the second half of each trace counts. Requests arrive at a fixed rate, because the LRU and LFU clocks of both servers
count seconds.

With the same maxmemory, the server with smaller entries holds more keys. Kvick is therefore measured twice: with
Valkey's limit, and with a limit at which it holds as many keys as Valkey.

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
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
    """Draws `count` key numbers with Zipf-distributed frequencies."""
    weights = itertools.accumulate(1 / rank**EXPONENT for rank in range(1, KEYS + 1))
    return generator.choices(range(KEYS), cum_weights=list(weights), k=count)


def traces(count):
    """Traces by name, as lists of key numbers; keys of the scan start at KEYS."""
    plain = zipf(count, random.Random(1))
    mixed, ranks, cold = [], iter(zipf(count, random.Random(2))), itertools.cycle(range(KEYS, KEYS + SCAN_KEYS))
    while len(mixed) < count:
        mixed += itertools.islice(ranks, 3 * SCAN_RUN)
        mixed += itertools.islice(cold, SCAN_RUN)
    return {"Zipf": plain, "Zipf and scans": mixed[:count]}


def encoded():
    """Encoded GET and SET requests for every key."""
    names = [b"key:%012d" % number for number in range(KEYS + SCAN_KEYS)]
    gets = [b"*2\r\n$3\r\nGET\r\n$16\r\n%s\r\n" % name for name in names]
    sets = [b"*3\r\n$3\r\nSET\r\n$16\r\n%s\r\n$100\r\n%s\r\n" % (name, VALUE) for name in names]
    return gets, sets


class Cache:
    """A server with a memory limit, used as a cache."""

    def __init__(self, server, requests):
        self.client = Client(server)
        self.gets, self.sets = requests

    def info(self, field):
        """A numeric field of INFO."""
        self.client.send(b"*1\r\n$4\r\nINFO\r\n*1\r\n$4\r\nPING\r\n")
        text = b""
        while not text.endswith(b"+PONG\r\n"):
            text += self.client.socket.recv(1 << 16)
        return int(text.split(b"\r\n%s:" % field.encode(), 1)[1].split(b"\r\n", 1)[0])

    def size(self):
        """Number of keys."""
        self.client.send(b"*1\r\n$6\r\nDBSIZE\r\n")
        return int(self.client.socket.recv(100)[1:])

    def read(self, keys):
        """Reads keys; returns whether each one exists."""
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
        """Replays a trace; returns the hit rate of its second half, without scan requests."""
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
    """Hit rate, number of keys at the end, and duration in seconds."""
    words = ["--io-threads", "1", "--maxmemory-policy", policy, "--maxmemory", str(limit)]
    with Server(program, *words, cores=[0]) as server:
        cache = Cache(server, requests)
        began = time.monotonic()
        share = cache.replay(trace, rate)
        took = time.monotonic() - began
        return share, cache.size(), took


def footprint(program, keys, requests):
    """used_memory with this many keys."""
    with Server(program, "--io-threads", "1", cores=[0]) as server:
        cache = Cache(server, requests)
        for at in range(0, keys, PIPELINE):
            cache.write(range(at, min(at + PIPELINE, keys)))
        return cache.info("used_memory")


def measure_equal(policy, held, trace, rate, requests):
    """Kvick's figures with about `held` keys: measures with an estimated limit, corrects it and measures again."""
    limit = footprint(kvick(), held, requests)
    figures = measure(kvick(), policy, limit, trace, rate, requests)
    limit += (held - figures[1]) * BYTES_PER_KEY
    return measure(kvick(), policy, limit, trace, rate, requests)


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 40
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else 40_000
    requests = encoded()
    load = f"{seconds:.0f} s of {rate:,.0f} requests/s"
    print(f"{KEYS:,} keys, Zipf {EXPONENT}, {LIMIT >> 20} MiB, {load}; hits in percent (number of keys)")
    for name, trace in traces(int(seconds * rate)).items():
        for policy in ["allkeys-lru", "allkeys-lfu"]:
            figures = [measure(valkey(), policy, LIMIT, trace, rate, requests)]
            held = figures[0][1]
            figures.append(measure(kvick(), policy, LIMIT, trace, rate, requests))
            figures.append(measure_equal(policy, held, trace, rate, requests))
            shown = [f"{100 * share:5.2f} ({keys:,})" for share, keys, *_ in figures]
            print(f"{name}, {policy}: Valkey {shown[0]}, Kvick {shown[1]}, same number of keys {shown[2]}", flush=True)
            late = [took for *_, took in figures if took > 1.05 * seconds]
            if late:
                print(f"  slower than the requested rate: {', '.join(f'{took:.0f} s' for took in late)}")


if __name__ == "__main__":
    main()
