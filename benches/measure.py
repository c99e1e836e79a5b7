"""What the benchmarks here share: servers whose processor time is read, and clients that cost little themselves.

A client sends requests that were encoded beforehand, in pipelines, and reads the replies without looking at them. Only the
server's own time (user and system, from /proc) is compared, so that a slow client does not matter; Linux alone, therefore.
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
# Requests in flight on a connection.
PIPELINE = 64
# Ends each pipeline, to be recognised whatever the replies before it are.
END = b"the-last-of-them"


def kvick():
    """The path of the release build."""
    program = os.environ.get("KVICK_SERVER", ROOT / "target/release/kvick-server")
    if not pathlib.Path(program).exists():
        sys.exit(f"{program} is absent: build it with `cargo build --release`, or name another with KVICK_SERVER")
    return str(program)


def valkey():
    """The path of the server to compare with."""
    program = shutil.which(os.environ.get("KVICK_TEST_VALKEY", "valkey-server"))
    return program or sys.exit("valkey-server is absent: name it with KVICK_TEST_VALKEY, or put it on the PATH")


def pin(*cores):
    """Has this process, and those it starts, run on these cores alone."""
    os.sched_setaffinity(0, cores)


class Refused(Exception):
    """The server answers an error."""


class Server:
    """A server on a free port, pinned to cores, that ends with the `with` block."""

    def __init__(self, program, *args, cores):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.folder = tempfile.TemporaryDirectory()
        words = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder.name, *args]
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
        sys.exit("the server does not start")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def cpu(self):
        """Seconds of user and of system time so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) / TICKS, int(fields[12]) / TICKS

    def spent(self, work):
        """Seconds of user and of system time that `work` takes."""
        before = self.cpu()
        work()
        return tuple(after - earlier for after, earlier in zip(self.cpu(), before))


def encode(words):
    """A request of these words, as the protocol has it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def pipelines(requests, length=PIPELINE):
    """The requests as bytes to be sent at once, so many at a time, each with its end."""
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
        """Reads the replies to a pipeline; the first of them must not be an error."""
        tail, first = b"", True
        while not tail.endswith(END + b"\r\n"):
            got = self.socket.recv(1 << 20)
            if not got:
                raise ConnectionError("the server has closed the connection")
            if first and got.startswith(b"-"):
                raise Refused(got[:100])
            tail, first = (tail + got)[-64:], False

    def run(self, requests):
        """Sends requests and reads their replies."""
        for pipeline in pipelines(requests):
            self.send(pipeline)
            self.receive()


def drive(clients, prepared):
    """Has clients send the pipelines, each in its turn: there is one under way on every connection."""
    for at in range(0, len(prepared), len(clients)):
        busy = list(zip(clients, prepared[at : at + len(clients)]))
        for client, pipeline in busy:
            client.send(pipeline)
        for client, _ in busy:
            client.receive()
