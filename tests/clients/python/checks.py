#!/usr/bin/env python3
"""Checks documented features of redis-py and valkey-py against a server.

Usage: checks.py PORT TLS-PORT FOLDER, where FOLDER contains ca.crt, own.crt and own.key.
"""

import asyncio
import sys
import threading
import time
import traceback

import redis
import redis.asyncio
import valkey
import valkey.asyncio

PORT, TLS_PORT, FOLDER = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
HOST = "127.0.0.1"


class Library:
    """One of the two libraries, with the names that differ between them."""

    def __init__(self, name, module, client, asynchronous):
        self.name, self.module, self.client, self.asynchronous = name, module, client, asynchronous

    def connect(self, **options):
        return self.client(host=HOST, port=PORT, decode_responses=True, socket_timeout=20, **options)

    def connect_tls(self, **options):
        return self.client(
            host="localhost", port=TLS_PORT, ssl=True, ssl_ca_certs=f"{FOLDER}/ca.crt",
            ssl_certfile=f"{FOLDER}/own.crt", ssl_keyfile=f"{FOLDER}/own.key", decode_responses=True,
            socket_timeout=20, **options)


LIBRARIES = [
    Library("redis-py", redis, redis.Redis, redis.asyncio.Redis),
    Library("valkey-py", valkey, valkey.Valkey, valkey.asyncio.Valkey),
]
CHECKS = []


def check(function):
    CHECKS.append((function.__name__.replace("_", "-"), function))
    return function


def same(got, expected):
    if got != expected:
        raise AssertionError(f"expected {str(expected)[:100]}, got {str(got)[:100]}")


@check
def connect_resp2(lib):
    client = lib.connect(protocol=2, client_name="two")
    same(client.ping(), True)
    same(client.client_info()["resp"], "2")
    same(client.client_getname(), "two")
    same(lib.module.from_url(f"redis://{HOST}:{PORT}/9").connection_pool.connection_kwargs["db"], 9)


@check
def connect_resp3(lib):
    client = lib.connect(protocol=3)
    same(client.ping(), True)
    same(client.client_info()["resp"], "3")
    client.hset("h3", mapping={"a": "1", "b": "2"})
    same(client.hgetall("h3"), {"a": "1", "b": "2"})


@check
def connect_tls(lib):
    for protocol in (2, 3):
        client = lib.connect_tls(protocol=protocol)
        large = "x" * 5_000_000
        same(client.set("large", large), True)
        same(client.get("large") == large, True)
        same(client.client_info()["laddr"].endswith(f":{TLS_PORT}"), True)
    # The server refuses clients without a certificate.
    stranger = lib.client(host="localhost", port=TLS_PORT, ssl=True, ssl_ca_certs=f"{FOLDER}/ca.crt")
    try:
        stranger.ping()
    except lib.module.ConnectionError:
        return
    raise AssertionError("a client without a certificate was accepted")


@check
def acl_user(lib):
    admin = lib.connect()
    admin.acl_setuser("worker", enabled=True, passwords=["+secret"], keys=["app:*"], channels=["news"],
                      categories=["+@all", "-@dangerous"])
    same("worker" in admin.acl_users(), True)
    client = lib.connect(username="worker", password="secret")
    same(client.acl_whoami(), "worker")
    same(client.set("app:key", "1"), True)
    for refused in (lambda: client.get("other"), lambda: client.config_get("port"),
                    lambda: client.publish("other", "x")):
        try:
            refused()
        except lib.module.exceptions.NoPermissionError:
            continue
        raise AssertionError("a forbidden command was executed")
    try:
        lib.connect(username="worker", password="wrong").ping()
        raise AssertionError("a wrong password was accepted")
    except lib.module.AuthenticationError:
        pass
    same(lib.connect_tls(username="worker", password="secret").acl_whoami(), "worker")
    same(admin.acl_log()[0]["username"], "worker")
    same(admin.acl_deluser("worker"), 1)


@check
def values(lib):
    client = lib.connect(protocol=3)
    same(client.set("s", "v", ex=100, get=True), None)
    same(client.ttl("s") in (99, 100), True)
    same(client.getex("s", persist=True), "v")
    same(client.mset({"one": 1, "two": 2}), True)
    same(client.mget(["one", "two", "none"]), ["1", "2", None])
    same(client.rpush("l", *range(5)), 5)
    same(client.lrange("l", 1, -2), ["1", "2", "3"])
    same(client.lmove("l", "{l}2", "LEFT", "RIGHT"), "0")
    same(client.sadd("set", "a", "b"), 2)
    same(set(client.smembers("set")), {"a", "b"})
    same(client.zadd("z", {"a": 1, "b": 2.5}), 2)
    same([list(pair) for pair in client.zrange("z", 0, -1, withscores=True)], [["a", 1.0], ["b", 2.5]])
    same(client.hincrbyfloat("h", "f", 0.5), 0.5)
    same(client.geoadd("geo", (13.361389, 38.115556, "Palermo")), 1)
    same(client.geosearch("geo", longitude=13, latitude=38, radius=200, unit="km"), ["Palermo"])
    same(client.pfadd("hll", *range(50)), 1)
    same(client.object("encoding", "l"), "listpack")


@check
def pipeline(lib):
    client = lib.connect()
    with client.pipeline(transaction=False) as pipe:
        for number in range(1000):
            pipe.set(f"p:{number}", number).get(f"p:{number}")
        replies = pipe.execute()
    same(replies[1::2], [str(number) for number in range(1000)])
    with client.pipeline() as pipe:
        same(pipe.set("{t}foo", 5).set("{t}bar", 18.5).set("{t}blee", "hello world!").execute(), [True, True, True])


@check
def scan(lib):
    client = lib.connect()
    with client.pipeline(transaction=False) as pipe:
        for number in range(2500):
            pipe.set(f"scan:{number}", number)
            pipe.sadd("scanned", number)
        pipe.execute()
    same(len(set(client.scan_iter(match="scan:*", count=100))), 2500)
    same(len(set(client.sscan_iter("scanned", count=100))), 2500)


@check
def transaction(lib):
    client, other = lib.connect(), lib.connect()
    client.set("counter", 1)
    with client.pipeline() as pipe:
        pipe.watch("counter")
        value = int(pipe.get("counter"))
        other.incr("counter")
        pipe.multi()
        pipe.set("counter", value + 1)
        try:
            pipe.execute()
            raise AssertionError("EXEC ignored the change of a watched key")
        except lib.module.WatchError:
            pass

    def increment(pipe):
        value = int(pipe.get("counter"))
        pipe.multi()
        pipe.set("counter", value + 1)

    same(client.transaction(increment, "counter"), [True])
    same(client.get("counter"), "3")
    with client.lock("a-lock", timeout=10, blocking_timeout=1):
        same(client.exists("a-lock"), 1)
    same(client.exists("a-lock"), 0)


@check
def script(lib):
    client = lib.connect()
    client.set("num", 3)
    multiply = client.register_script("return redis.call('GET', KEYS[1]) * ARGV[1]")
    client.script_flush()
    same(multiply(keys=["num"], args=[4]), 12)
    same(client.script_exists(multiply.sha), [True])
    same(client.eval("return {1, 'two', {KEYS[1]}, false, ARGV[1]}", 1, "k", "a"), [1, "two", ["k"], None, "a"])
    with client.pipeline() as pipe:
        multiply(keys=["num"], args=[5], client=pipe)
        same(pipe.execute(), [15])
    try:
        client.eval("return redis.call('LPUSH', KEYS[1], 1)", 1, "num")
        raise AssertionError("an error in a script was not raised")
    except lib.module.ResponseError as error:
        same("WRONGTYPE" in str(error), True)
    client.function_load("#!lua name=lib\n"
                         "redis.register_function('twice', function(keys, args) return 2 * args[1] end)",
                         replace=True)
    same(client.fcall("twice", 0, 21), 42)
    same(client.function_delete("lib") in (True, "OK"), True)


def next_message(pubsub):
    """The next message that is not a subscription confirmation."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        message = pubsub.get_message(ignore_subscribe_messages=True, timeout=1)
        if message:
            return message
    raise AssertionError("no message within 20 s")


@check
def publish_subscribe(lib):
    client = lib.connect()
    for protocol in (2, 3):
        pubsub = lib.connect(protocol=protocol).pubsub()
        pubsub.subscribe("my-first-channel")
        pubsub.psubscribe("my-*")
        for kind in ("subscribe", "psubscribe"):
            same(pubsub.get_message(timeout=10)["type"], kind)
        same(client.publish("my-first-channel", "some data"), 2)
        got = [next_message(pubsub) for _ in range(2)]
        same(sorted(message["type"] for message in got), ["message", "pmessage"])
        same({message["data"] for message in got}, {"some data"})
        pubsub.close()
    received = threading.Event()
    pubsub = lib.connect_tls().pubsub()
    pubsub.subscribe(**{"handled": lambda message: received.set()})
    thread = pubsub.run_in_thread(sleep_time=0.01)
    for _ in range(100):
        client.publish("handled", "x")
        if received.wait(0.1):
            break
    thread.stop()
    thread.join()
    same(received.is_set(), True)
    sharded = lib.connect().pubsub()
    sharded.execute_command("SSUBSCRIBE", "shard")
    same(sharded.parse_response()[0], "ssubscribe")


@check
def blocking(lib):
    client, other = lib.connect(), lib.connect_tls()
    other.delete("queue", "{queue}answers")

    def serve():
        _, task = other.blpop(["{queue}nothing", "queue"], timeout=10)
        other.rpush("{queue}answers", task + "!")

    thread = threading.Thread(target=serve)
    thread.start()
    client.rpush("queue", "task")
    same(client.blmove("{queue}answers", "{queue}kept", 10), "task!")
    thread.join()
    same(client.bzpopmin("nothing", timeout=0.05), None)


@check
def streams_and_groups(lib):
    client = lib.connect()
    client.delete("stream")
    client.xgroup_create("stream", "group", id="0", mkstream=True)
    entries, seen, lock = 400, [], threading.Lock()

    def consume(number):
        # Every second consumer uses TLS.
        own = lib.connect_tls() if number % 2 else lib.connect(protocol=3)
        while True:
            reply = own.xreadgroup("group", f"consumer-{number}", {"stream": ">"}, count=7, block=5000)
            for _, batch in reply.items() if isinstance(reply, dict) else reply:
                for entry_id, fields in batch if isinstance(batch[0], tuple) else batch[0]:
                    same(own.xack("stream", "group", entry_id), 1)
                    if fields["n"] == "end":
                        return
                    with lock:
                        seen.append(int(fields["n"]))

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for number in range(entries):
        client.xadd("stream", {"n": number})
    for _ in threads:
        client.xadd("stream", {"n": "end"})
        time.sleep(0.01)
    until = time.monotonic() + 30
    while any(thread.is_alive() for thread in threads) and time.monotonic() < until:
        # A consumer stops at the first end marker of a batch, so send more until all have stopped.
        client.xadd("stream", {"n": "end"})
        time.sleep(0.05)
    same(sorted(seen), list(range(entries)))
    same(client.xinfo_groups("stream")[0]["consumers"], 16)
    same(client.xlen("stream") >= entries + 16, True)
    claimed = client.xautoclaim("stream", "group", "collector", 0)
    same(all(fields["n"] == "end" for _, fields in claimed[1]), True)


@check
def asynchronous(lib):
    async def work():
        client = lib.asynchronous(host=HOST, port=PORT, decode_responses=True, protocol=3)
        async with client.pipeline(transaction=True) as pipe:
            same(await pipe.set("{k}1", "1").set("{k}2", "2").get("{k}1").execute(), [True, True, "1"])
        async with client.pubsub() as pubsub:
            await pubsub.subscribe("async")
            same((await pubsub.get_message(timeout=10))["type"], "subscribe")
            await client.publish("async", "hello")
            same((await pubsub.get_message(ignore_subscribe_messages=True, timeout=10))["data"], "hello")
        replies = await asyncio.gather(*(client.incr("async-counter") for _ in range(50)))
        same(sorted(replies), list(range(1, 51)))
        await client.aclose()

    asyncio.run(work())


@check
def server_commands(lib):
    client = lib.connect()
    same(client.info("server")["tcp_port"], PORT)
    same(client.config_get("maxclients")["maxclients"], "10000")
    same(client.config_set("slowlog-max-len", 64), True)
    same(client.client_id() > 0, True)
    same(len(client.client_list()) > 0, True)
    same(client.command_count() > 200, True)
    client.set("key", "value")
    same(client.memory_usage("key") > 0, True)
    same(isinstance(client.time()[0], int), True)
    same(client.dbsize() > 0, True)


def main():
    lib_admin = LIBRARIES[0].connect()
    for lib in LIBRARIES:
        for name, function in CHECKS:
            lib_admin.flushall()
            try:
                function(lib)
                print(f"CHECK {lib.name} {name} ok", flush=True)
            except Exception as error:
                traceback.print_exc()
                words = " ".join(f"{type(error).__name__}: {error}".split())
                print(f"CHECK {lib.name} {name} FAIL: {words}", flush=True)


main()
