"""Shared code of the benchmarks: servers with measured CPU time, and clients with little overhead.

A client sends pipelines of requests encoded in advance and discards the replies. Benchmarks compare only the CPU time
of the server (user and system, from /proc), so that slow clients do not matter. This requires Linux.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
# Requests per pipeline.
PIPELINE = 64
# Echoed by the PING at the end of each pipeline, to find the end of its replies.
END = b"the-last-of-them"


def kvick():
    """Path of Kvick's release build, or of the program in KVICK_SERVER."""
    program = os.environ.get("KVICK_SERVER", ROOT / "target/release/kvick-server")
    if not pathlib.Path(program).exists():
        sys.exit(f"{program} does not exist: run `cargo build --release`, or set KVICK_SERVER to a server")
    return str(program)


def valkey():
    """Path of the Valkey server to compare with."""
    program = shutil.which(os.environ.get("KVICK_TEST_VALKEY", "valkey-server"))
    return program or sys.exit("valkey-server not found: set KVICK_TEST_VALKEY, or add it to the PATH")


def pin(*cores):
    """Restricts this process and its future children to these cores."""
    os.sched_setaffinity(0, cores)


def set_congestion_control():
    """Sets the congestion control of TCP that CONGESTION names, which takes root, and prints the one in use. Large
    replies cost more with BBR, which divides and delays them even on one machine."""
    setting = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control")
    if wanted := os.environ.get("CONGESTION"):
        setting.write_text(wanted)
    print(f"congestion control of TCP: {setting.read_text().strip()}", flush=True)


class Refused(Exception):
    """The server replied with an error."""


class Server:
    """A server on a port, a free one if none is named, pinned to cores. It stops at the end of the `with` block."""

    def __init__(self, program, *args, cores, port=0):
        with socket.create_server(("127.0.0.1", port)) as free:
            self.port = free.getsockname()[1]
        self.directory = tempfile.TemporaryDirectory()
        words = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                 "--dir", self.directory.name, *args]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, preexec_fn=lambda: pin(*cores))

    def __enter__(self):
        deadline = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                Client(self).run([[b"PING"]])
                return self
            except (OSError, Refused):
                time.sleep(0.02)
        self.__exit__()
        sys.exit("the server did not start")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.directory.cleanup()

    def cpu(self):
        """User and system time of the server in seconds."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) / TICKS, int(fields[12]) / TICKS

    def precise_cpu(self):
        """Time on a processor in seconds of all threads together, to the nanosecond. Ended threads do not count."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def spent(self, work):
        """User and system time in seconds that the server spends during `work()`."""
        before = self.cpu()
        work()
        return tuple(after - earlier for after, earlier in zip(self.cpu(), before))

    def precisely_spent(self, work):
        """The same with a sum that is as exact as `precise_cpu`. How it is divided is known from clock ticks only."""
        before = self.precise_cpu()
        user, system = self.spent(work)
        total = self.precise_cpu() - before
        user_part = user / max(user + system, 1e-9)
        return total * user_part, total * (1 - user_part)


def encode(words):
    """Encodes a request in RESP."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def pipelines(requests, length=PIPELINE):
    """Encodes requests as pipelines of `length` requests, each followed by the END marker."""
    encoded = [encode(words) for words in requests]
    end = encode([b"PING", END])
    return [b"".join(encoded[at : at + length]) + end for at in range(0, len(encoded), length)]


class Client:
    """A connection."""

    def __init__(self, server):
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(60)

    def send(self, pipeline):
        """Sends a pipeline."""
        self.socket.sendall(pipeline)

    def receive(self):
        """Reads the replies of a pipeline; raises Refused if the first is an error."""
        tail, first = b"", True
        while not tail.endswith(END + b"\r\n"):
            got = self.socket.recv(1 << 20)
            if not got:
                raise ConnectionError("the server closed the connection")
            if first and got.startswith(b"-"):
                raise Refused(got[:100])
            tail, first = (tail + got)[-64:], False

    def run(self, requests):
        """Sends requests and reads their replies."""
        for pipeline in pipelines(requests):
            self.send(pipeline)
            self.receive()


def drive(clients, prepared):
    """Sends the pipelines over the clients in turn, with one pipeline in flight per connection."""
    for at in range(0, len(prepared), len(clients)):
        busy = list(zip(clients, prepared[at : at + len(clients)]))
        for client, pipeline in busy:
            client.send(pipeline)
        for client, _ in busy:
            client.receive()
