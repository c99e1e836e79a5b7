#!/usr/bin/env python3
"""What TLS costs: processor time of the server per request, beside Valkey, over valkey-benchmark's connections with TLS 1.3.

Usage: tls.py [ROUNDS]        3, unless told otherwise

Needs a Valkey that was built with TLS (KVICK_TEST_VALKEY names its server) and its load generator (KVICK_TEST_BENCHMARK, or
valkey-benchmark on the PATH), and openssl for certificates. One worker; servers in turn; 50 connections. A figure is the median
of the rounds. Kvick is target/release/kvick-server, or what KVICK_SERVER names.
"""

import contextlib
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

from measure import Server, kvick, pin, valkey

# Pipelined requests, bytes of a value, requests.
CASES = [(1, 100, 100_000), (16, 100, 1_000_000), (1, 16_384, 50_000), (16, 16_384, 50_000)]
KEYS = 1000


def make_certificates(folder):
    """An authority and a certificate for both ends."""
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj",
            "/CN=authority")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "own.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile",
            "names", "-out", "own.crt")


def generator():
    program = shutil.which(os.environ.get("KVICK_TEST_BENCHMARK", "valkey-benchmark"))
    return program or sys.exit("valkey-benchmark is absent: name it with KVICK_TEST_BENCHMARK, or put it on the PATH")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


@contextlib.contextmanager
def serve(program, folder):
    """A server with TLS, and what the load generator is told to reach it."""
    files = {name: str(folder / file) for name, file in [("ca", "ca.crt"), ("cert", "own.crt"), ("key", "own.key")]}
    port = free_port()
    settings = ["--tls-port", port, "--tls-cert-file", files["cert"], "--tls-key-file", files["key"], "--tls-ca-cert-file",
                files["ca"], "--io-threads", "1"]
    with Server(program, *settings, cores=[0]) as server:
        yield server, ["-p", port, "--tls", "--cacert", files["ca"], "--cert", files["cert"], "--key", files["key"]]


def measure(program, folder, command, depth, size, requests):
    """Microseconds of user and of system time per request."""
    with serve(program, folder) as (server, reach):
        def load(test, count):
            words = [generator(), *reach, "-c", "50", "-P", str(depth), "-d", str(size), "-r", str(KEYS), "-t", test, "-n",
                     str(count), "-q"]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        load("set", 5 * KEYS)
        return [seconds * 1e6 / requests for seconds in server.spent(lambda: load(command, requests))]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    pin(1)
    servers = [kvick(), valkey()]
    print("| command | pipelined | bytes | Kvick | Valkey | Kvick / Valkey, all CPU |")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_certificates(folder)
        for depth, size, requests in CASES:
            for command in ("set", "get"):
                taken = [[measure(program, folder, command, depth, size, requests) for program in servers]
                         for _ in range(rounds)]
                medians = []
                for at in range(len(servers)):
                    user, system = (statistics.median(taken[round][at][kind] for round in range(rounds)) for kind in (0, 1))
                    medians.append((user + system, f"{user + system:.2f} ({user:.2f}+{system:.2f})"))
                (ours, told), (theirs, shown) = medians
                print(f"| {command.upper()} | {depth} | {size} | {told} | {shown} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
