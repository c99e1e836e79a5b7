#!/usr/bin/env python3
"""Checks commands through the client libraries `valkey` and `redis`, and exits at the first unexpected reply.

Usage: python_clients.py PORT
"""

import sys
import time

import redis
import valkey

PIPELINE = 10_000
LARGE = bytes(range(256)) * (64 * 1024 * 1024 // 256)


def same(got, expected, what):
    if got != expected:
        raise SystemExit(f"{what}: expected {str(expected)[:200]}, got {str(got)[:200]}")


def strings(client, _):
    same(client.set("k", "value"), True, "SET")
    same(client.set("k", "other", nx=True), None, "SET NX")
    same(client.get("k"), b"value", "GET")
    same(client.append("k", "!"), 6, "APPEND")
    same(client.getrange("k", 1, -2), b"alue", "GETRANGE")
    same(client.incr("n", 5), 5, "INCRBY")
    same(client.incrbyfloat("n", 0.25), 5.25, "INCRBYFLOAT")
    same(client.mset({"a": 1, "b": 2}), True, "MSET")
    same(client.mget("a", "nothing", "b"), [b"1", None, b"2"], "MGET")
    same(client.delete("a", "b", "nothing"), 2, "DEL")
    same(client.get("nothing"), None, "GET of a missing key")


def bits_and_counts(client, _):
    same(client.setbit("bits", 70, 1), 0, "SETBIT")
    same(client.bitcount("bits"), 1, "BITCOUNT")
    same(client.bitpos("bits", 1), 70, "BITPOS")
    same(client.bitfield("bits").set("u8", 0, 200).get("i8", 0).execute(), [0, -56], "BITFIELD")
    same(client.pfadd("hll", *range(100)), 1, "PFADD")
    same(abs(client.pfcount("hll") - 100) <= 2, True, "PFCOUNT")


def pipelines(client, _):
    pipeline = client.pipeline(transaction=False)
    for number in range(PIPELINE // 2):
        pipeline.set(f"key:{number}", number)
        pipeline.get(f"key:{number}")
    replies = pipeline.execute()
    same(len(replies), PIPELINE, "replies of a pipeline")
    same(replies[::2], [True] * (PIPELINE // 2), "SETs of a pipeline")
    same(replies[1::2], [b"%d" % number for number in range(PIPELINE // 2)], "GETs of a pipeline")
    pipeline.get("key:1").execute_command("NONSENSE").get("key:2")
    first, error, second = pipeline.execute(raise_on_error=False)
    same((first, second), (b"1", b"2"), "replies around an error")
    same("unknown command 'NONSENSE'" in str(error), True, "an error in a pipeline")


def scans(client, _):
    names = {b"key:%d" % number for number in range(PIPELINE // 2)}
    same(set(client.scan_iter(match="key:*", count=1000)), names, "SCAN")
    same(list(client.scan_iter(match="none:*")), [], "SCAN without matches")
    same(client.dbsize() >= len(names), True, "DBSIZE")


def large_values(client, _):
    same(client.set("large", LARGE), True, "SET of 64 MB")
    same(client.strlen("large"), len(LARGE), "STRLEN of 64 MB")
    same(client.get("large") == LARGE, True, "GET of 64 MB")
    same(client.getrange("large", 1000, 1255), LARGE[1000:1256], "GETRANGE in 64 MB")
    same(client.unlink("large"), 1, "UNLINK of 64 MB")


def binary(client, _):
    every = bytes(range(256))
    same(client.set(every, every[::-1]), True, "SET of a binary key")
    same(client.get(every), every[::-1], "GET of a binary key")
    same(every in client.keys("*"), True, "KEYS with a binary key")
    pairs = {bytes([0, byte]): bytes([byte, 13, 10, byte]) for byte in range(256)}
    for key, value in pairs.items():
        client.set(key, value)
    same([client.get(key) for key in pairs], list(pairs.values()), "each byte in a key and a value")


def expiry(client, _):
    client.set("short", "v", px=20)
    client.set("long", "v", ex=100)
    same(90 < client.ttl("long") <= 100, True, "TTL")
    deadline = time.monotonic() + 10
    while client.exists("short"):
        same(time.monotonic() < deadline, True, "expiry of a key after 20 ms")
    same(client.ttl("short"), -2, "TTL of an expired key")
    same((client.persist("long"), client.ttl("long")), (True, -1), "PERSIST")
    same(client.expire("long", 50, gt=True), False, "EXPIRE GT")
    same(client.getex("long", ex=10), b"v", "GETEX")


def connections(client, protocol):
    same(client.ping(), True, "PING")
    same(client.echo("text"), b"text", "ECHO")
    same(client.client_setname("python"), True, "CLIENT SETNAME")
    same(client.client_getname() in ("python", b"python"), True, "CLIENT GETNAME")
    mine = [line for line in client.client_list() if line["name"] == "python"]
    same([(line["id"], line["resp"]) for line in mine], [(str(client.client_id()), str(protocol))], "CLIENT LIST")
    same(client.client_info()["cmd"], "client|info", "CLIENT INFO")
    same(client.client_no_evict("ON") in (True, "OK", b"OK"), True, "CLIENT NO-EVICT")
    same(client.client_pause(1, all=False), True, "CLIENT PAUSE")
    same(client.client_unpause() in (True, "OK", b"OK"), True, "CLIENT UNPAUSE")
    same(client.config_set("timeout", 0), True, "CONFIG SET")
    same(client.config_get("timeout"), {"timeout": "0"}, "CONFIG GET")
    same(client.info("server")["server_mode"], "standalone", "INFO")
    same(len(client.time()), 2, "TIME")


def check(library, protocol, port):
    make = getattr(library, {"valkey": "Valkey", "redis": "Redis"}[library.__name__])
    client = make(host="127.0.0.1", port=port, protocol=protocol, socket_timeout=20, single_connection_client=True)
    client.flushall()
    for part in (strings, bits_and_counts, pipelines, scans, large_values, binary, expiry, connections):
        part(client, protocol)
    other = make(host="127.0.0.1", port=port, protocol=protocol, db=3, socket_timeout=20)
    same(other.dbsize(), 0, "DBSIZE of another database")
    same(other.set("k", "3"), True, "SET in another database")
    same((client.get("k"), other.get("k")), (b"value!", b"3"), "GET in two databases")
    for one in (client, other):
        one.close()


def main():
    port = int(sys.argv[1])
    for library in (valkey, redis):
        for protocol in (2, 3):
            check(library, protocol, port)
            print(f"{library.__name__} {library.__version__} with RESP{protocol}: ok")


main()
