#!/usr/bin/env python3
"""Lists the cache lines that two or more workers write while clients send requests: what keeps workers apart.

Usage: shared_lines.py [LOAD...]        (get, set, types, eval; default: all)

The server runs with four workers in QEMU's user mode, whose plugin (plugin.c) records all stores. For each group of
lines that the same code writes, the output has the number of lines, the stores to them per 1000 requests, and the
functions. Groups with fewer than one store per 1000 requests are left out.

Lines of partitions (their locks, tables and values) are expected: keys are random, so workers meet at them. Everything
else that appears limits how far workers scale.

Needs qemu-x86_64, cc and addr2line. KVICK_SERVER names the server (default: target/release/kvick-server), which has to
have debug information.
"""

import collections
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from measure import Client, drive, kvick, pipelines  # noqa: E402

REQUESTS = 40_000
KEYS = 1000
CONNECTIONS = 16
DEPTH = 16
WORKERS = 4
# QEMU loads programs at this address.
BASE = 0x4000000000
SCRIPT = b"return redis.call('INCR', KEYS[1])"


def request(load, dice):
    number = b"%d" % dice.randrange(KEYS)
    if load == "types":
        element = b"%d" % dice.randrange(20)
        return dice.choice(
            [
                [b"INCR", b"counter:" + number],
                [b"RPUSH", b"list:" + number, element],
                [b"LPOP", b"list:" + number],
                [b"SADD", b"set:" + number, element],
                [b"HSET", b"hash:" + number, element, number],
                [b"ZADD", b"zset:" + number, number, element],
                [b"XADD", b"stream:" + number, b"MAXLEN", b"20", b"*", b"name", element],
                [b"SET", b"expiring:" + number, element, b"EX", b"1000"],
                [b"MGET", b"key:" + number, b"key:" + element],
            ]
        )
    return {
        "get": [b"GET", b"key:" + number],
        "set": [b"SET", b"key:" + number, b"value"],
        "eval": [b"EVAL", SCRIPT, b"1", b"counter:" + number],
    }[load]


def run(load, folder):
    """The shared lines: for each, its stores by thread, with the place in the program of each thread's first one."""
    begin, end, result = (folder / name for name in ("begin", "end", "result"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    plugin = f"{folder / 'plugin.so'},begin={begin},end={end},out={result}"
    words = ["qemu-x86_64", "-plugin", plugin, kvick(), "--port", str(port), "--bind", "127.0.0.1", "--save", "",
             "--dir", str(folder), "--io-threads", str(WORKERS)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the server did not start")
                time.sleep(0.1)
        dice = random.Random(1)
        clients = [Client(type("Address", (), {"port": port})) for _ in range(CONNECTIONS)]
        prepared = pipelines([request(load, dice) for _ in range(REQUESTS)], DEPTH)
        drive(clients, prepared[: len(prepared) // 8])
        begin.touch()
        time.sleep(0.2)
        drive(clients, prepared)
        end.touch()
        server.wait(60)
    finally:
        server.kill()
        server.wait()
    lines = collections.defaultdict(list)
    for row in result.read_text().splitlines():
        line, name, _, stores, place = row.split("\t")
        if name.startswith("worker"):
            lines[line].append((int(stores), int(place, 16) - BASE))
    for file in (begin, end, result):
        file.unlink()
    return [writers for writers in lines.values() if len(writers) > 1]


def functions(places):
    """The name of the innermost function of the project at each place."""
    words = ["addr2line", "-a", "-i", "-f", "-C", "-e", kvick(), *(hex(place) for place in places)]
    found, frames = {}, []
    for text in subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        if re.fullmatch(r"0x[0-9a-f]+", text):
            frames = found[int(text, 16)] = []
        else:
            frames.append(text)
    names = {}
    for place, frames in found.items():
        own = [re.search(r"crates/(\w.*?)(?: \(.*)?$", source) for source in frames[1::2]]
        names[place] = next((match.group(1) for match in own if match), frames[0] if frames else "?")
    return names


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        words = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(folder / "plugin.so")]
        subprocess.run([*words, str(HERE / "plugin.c")], check=True)
        for load in sys.argv[1:] or ["get", "set", "types", "eval"]:
            shared = run(load, folder)
            names = functions(sorted({place for writers in shared for _, place in writers}) or [0])
            groups = collections.defaultdict(lambda: [0, 0])
            for writers in shared:
                group = groups[", ".join(sorted({names.get(place, "?") for _, place in writers}))]
                group[0] += 1
                group[1] += sum(stores for stores, _ in writers)
            print(f"{load}: lines, stores per 1000 requests, written at")
            for where, (count, stores) in sorted(groups.items(), key=lambda item: -item[1][1]):
                if stores * 1000 >= REQUESTS:
                    print(f"  {count:6} {stores * 1000 / REQUESTS:9.1f}  {where}", flush=True)


if __name__ == "__main__":
    main()
