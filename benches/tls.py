#!/usr/bin/env python3
"""CPU time per request over TLS 1.3, compared with Valkey.

Usage: tls.py [ROUNDS]        (default: 3)

One worker, 50 connections of valkey-benchmark, servers in turn. Figures are medians of the rounds. The benchmark
needs openssl for certificates, and Valkey's server and valkey-benchmark built with TLS (KVICK_TEST_VALKEY and
KVICK_TEST_BENCHMARK, or the PATH). KVICK_SERVER names the Kvick server (default: target/release/kvick-server).
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

# (pipeline depth, value size in bytes, number of requests)
CASES = [(1, 100, 100_000), (16, 100, 1_000_000), (1, 16_384, 50_000), (16, 16_384, 50_000)]
KEYS = 1000


def make_certificates(directory):
    """Creates a certificate authority and one certificate for both sides."""
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=directory, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "2",
            "-subj", "/CN=authority")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=localhost")
    (directory / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "own.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "names", "-out", "own.crt")


def generator():
    program = shutil.which(os.environ.get("KVICK_TEST_BENCHMARK", "valkey-benchmark"))
    return program or sys.exit("valkey-benchmark not found: set KVICK_TEST_BENCHMARK, or add it to the PATH")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


@contextlib.contextmanager
def serve(program, directory, *more):
    """Starts a server with TLS, with `more` settings; yields it with the connection options for valkey-benchmark."""
    files = {name: str(directory / file) for name, file in [("ca", "ca.crt"), ("cert", "own.crt"), ("key", "own.key")]}
    port = free_port()
    settings = ["--tls-port", port, "--tls-cert-file", files["cert"], "--tls-key-file", files["key"],
                "--tls-ca-cert-file", files["ca"], "--io-threads", "1", *more]
    with Server(program, *settings, cores=[0]) as server:
        yield server, ["-p", port, "--tls", "--cacert", files["ca"], "--cert", files["cert"], "--key", files["key"]]


def measure(program, directory, command, depth, size, requests):
    """User and system time in microseconds per request."""
    with serve(program, directory) as (server, reach):
        def load(test, count):
            words = [generator(), *reach, "-c", "50", "-P", str(depth), "-d", str(size), "-r", str(KEYS), "-t", test,
                     "-n", str(count), "-q"]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        load("set", 5 * KEYS)
        return [seconds * 1e6 / requests for seconds in server.spent(lambda: load(command, requests))]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    pin(1)
    servers = [kvick(), valkey()]
    print("| command | pipelined | bytes | Kvick | Valkey | Kvick / Valkey, all CPU |")
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        make_certificates(directory)
        for depth, size, requests in CASES:
            for command in ("set", "get"):
                taken = [[measure(program, directory, command, depth, size, requests) for program in servers]
                         for _ in range(rounds)]
                medians = []
                for at in range(len(servers)):
                    user, system = (statistics.median(taken[round][at][kind] for round in range(rounds))
                                    for kind in (0, 1))
                    medians.append((user + system, f"{user + system:.2f} ({user:.2f}+{system:.2f})"))
                (ours, ours_text), (theirs, theirs_text) = medians
                cells = [command.upper(), depth, size, ours_text, theirs_text, f"{ours / theirs:.2f}"]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
