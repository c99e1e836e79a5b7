"""A cluster of three primaries with a replica each, and what happens to it while clients use it."""

import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

SLOTS = 16384
# Slots that move between primaries. Half of all writes go to them.
MOVING_SLOTS = 24
# Timeout of a condition in seconds.
PATIENCE_S = 60
NODE_TIMEOUT_MS = 5000


class ReplyError(Exception):
    """An error reply."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(what, holds):
    until = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {PATIENCE_S} s until {what}")
        time.sleep(0.02)


def tags_of_slots():
    """A hash tag for each slot."""
    table = []
    for byte in range(256):
        crc = byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ (0x1021 if crc & 0x8000 else 0)
        table.append(crc & 0xFFFF)
    tags, missing, number = [None] * SLOTS, SLOTS, 0
    while missing:
        crc = 0
        for byte in str(number).encode():
            crc = (crc << 8 & 0xFFFF) ^ table[crc >> 8 ^ byte]
        if tags[crc % SLOTS] is None:
            tags[crc % SLOTS] = str(number)
            missing -= 1
        number += 1
    return tags


class Node:
    """A server in cluster mode."""

    def __init__(self, program, workers, options=()):
        self.port, self.bus_port = free_port(), free_port()
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvick-clients-"))
        self.command = [
            program, "--port", str(self.port), "--cluster-port", str(self.bus_port), "--bind", "127.0.0.1",
            "--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--save", "",
            "--repl-diskless-sync-delay", "0", "--io-threads", str(workers), "--dir", self.directory,
            "--logfile", self.directory / "log", *options]
        self.redirections = {}
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.socket = self.reader = None
        self.counted = {}
        wait_until(f"node {self.port} answers", self.answers)

    def answers(self):
        try:
            self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
            self.reader = self.socket.makefile("rb")
            # An endpoint shows this connection the cluster as it is.
            return self.call("CLIENT", "CAPA", "direct") == "OK" and self.call("PING") == "PONG"
        except (OSError, ReplyError):
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.kill()
        shutil.rmtree(self.directory)

    def call(self, *words):
        encoded = [str(word).encode() for word in words]
        bulks = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
        self.socket.sendall(b"*%d\r\n" % len(words) + bulks)
        return self.reply()

    def reply(self):
        line = self.reader.readline().decode().rstrip("\r\n")
        if not line:
            raise ConnectionError(f"node {self.port} closed the connection")
        kind, rest = line[0], line[1:]
        if kind == "-":
            raise ReplyError(rest)
        if kind == "$":
            return None if rest == "-1" else self.reader.read(int(rest) + 2)[:-2].decode()
        if kind == "*":
            return [self.reply() for _ in range(int(rest))]
        return int(rest) if kind == ":" else rest

    def info(self, section):
        lines = self.call("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def count_redirections(self):
        """Adds the MOVED and ASK replies since the last call, which the server has counted since it started."""
        for name in ("MOVED", "ASK"):
            now = int(self.info("errorstats").get(f"errorstat_{name}", "count=0").split("=")[1])
            self.redirections[name] = self.redirections.get(name, 0) + now - self.counted.get(name, 0)
            self.counted[name] = now

    def view(self):
        """The nodes as this one knows them: flags, ID of the primary and slots, by ID."""
        nodes = {}
        for line in self.call("CLUSTER", "NODES").splitlines():
            fields = line.split()
            nodes[fields[0]] = (fields[2].split(","), fields[3], [word for word in fields[8:] if word[0] != "["])
        return nodes

    def libraries(self):
        """The names of the client libraries that are connected, except those of nodes that forward requests."""
        lines = self.call("CLIENT", "LIST").splitlines()
        names = {dict(field.split("=", 1) for field in line.split() if "=" in field)["lib-name"] for line in lines}
        return names - {"", "kvick-forward"}

    def owns(self, slot):
        """Whether this node is the owner of a slot, by its own account."""
        ranges = next(slots for flags, _, slots in self.view().values() if "myself" in flags)
        bounds = (part.partition("-") for part in ranges)
        return any(int(first) <= slot <= int(last or first) for first, _, last in bounds)


class Cluster:
    """Six nodes, which stop at the end of the `with` block."""

    def __init__(self, program, workers, options=lambda index: ()):
        self.nodes = []
        try:
            for index in range(6):
                self.nodes.append(Node(program, workers, options(index)))
            self.form()
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for node in self.nodes:
            node.stop()

    def form(self):
        for index, node in enumerate(self.nodes):
            node.call("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            node.id = node.call("CLUSTER", "MYID")
            self.nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        for index, node in enumerate(self.nodes[:3]):
            node.call("CLUSTER", "ADDSLOTSRANGE", index * SLOTS // 3, (index + 1) * SLOTS // 3 - 1)
        ids = {node.id for node in self.nodes}
        wait_until("all know all", lambda: all(set(node.view()) == ids for node in self.nodes))
        for primary, replica in zip(self.nodes[:3], self.nodes[3:]):
            replica.call("CLUSTER", "REPLICATE", primary.id)
        self.settle()

    def settle(self):
        """Waits until all nodes agree and each primary has a replica in sync."""
        wait_until("the cluster agrees", self.is_settled)

    def is_settled(self):
        views = [
            {known: ([flag for flag in flags if flag != "myself"], primary, slots)
             for known, (flags, primary, slots) in node.view().items()}
            for node in self.nodes]
        replicated = [primary for flags, primary, _ in views[0].values() if "slave" in flags]
        return (
            all(view == views[0] for view in views)
            and len(set(replicated)) == 3 == len(replicated)
            and all("fail" not in flag for flags, _, _ in views[0].values() for flag in flags)
            and all("cluster_state:ok" in node.call("CLUSTER", "INFO") for node in self.nodes)
            and all(replica.info("replication")["master_link_status"] == "up" for replica in self.replicas()))

    def primaries(self):
        return [node for node in self.nodes if node.info("replication")["role"] == "master"]

    def replicas(self):
        return [node for node in self.nodes if node.info("replication")["role"] == "slave"]

    def pair(self, primary):
        """The primary and its replica."""
        port = str(primary.port)
        return primary, next(node for node in self.replicas() if node.info("replication")["master_port"] == port)

    def movement(self):
        """The primary of the slots that move, and another one."""
        source = next(node for node in self.primaries() if node.owns(0))
        return source, next(node for node in self.primaries() if node is not source)

    # What a program may ask for. A result is a text without blanks.

    def flush(self):
        for node in self.primaries():
            node.call("FLUSHALL")

    def replicated(self):
        """Waits until the replicas have what the primaries have."""
        for primary, replica in map(self.pair, self.primaries()):
            offset = int(primary.info("replication")["master_repl_offset"])
            wait_until("a replica has it", lambda: int(replica.info("replication")["slave_repl_offset"]) >= offset)

    def replica_gets(self):
        """How many GETs replicas have executed since they started."""
        counts = (node.info("commandstats").get("cmdstat_get", "calls=0") for node in self.replicas())
        return sum(int(count.split(",")[0].split("=")[1]) for count in counts)

    def failover(self):
        """CLUSTER FAILOVER of each primary."""
        for primary, replica in [self.pair(primary) for primary in self.primaries()]:
            replica.call("CLUSTER", "FAILOVER")
            wait_until("the replica is the primary", lambda: replica in self.primaries() and primary in self.replicas())
            self.settle()

    def kill(self):
        """SIGKILL of the primary of the slots that move. It acknowledges no write that its replica lacks, because
        writes pause before. It starts again as a replica."""
        source, _ = self.movement()
        _, replica = self.pair(source)
        source.call("CLIENT", "PAUSE", PATIENCE_S * 1000, "WRITE")
        self.replicated()
        source.count_redirections()
        source.kill()
        wait_until("the replica is promoted", lambda: replica.info("replication")["role"] == "master")
        source.start()
        self.settle()

    def migrate_keys(self):
        """Legacy migration: SETSLOT and MIGRATE of keys."""
        source, target = self.movement()
        source.count_redirections()
        for slot in range(MOVING_SLOTS):
            target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
            source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
            if slot == 0:
                self.wait_for_ask(source)
            while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 10):
                source.call("MIGRATE", "127.0.0.1", target.port, "", 0, PATIENCE_S * 1000, "KEYS", *keys)
            for node in [target, source, *self.primaries()]:
                node.call("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        self.settle()

    def wait_for_ask(self, source):
        """Waits until clients have followed ASK, which new keys in a migrating slot cause."""
        before = source.redirections["ASK"]

        def has_asked():
            source.count_redirections()
            return source.redirections["ASK"] >= before + 10

        wait_until("clients are redirected with ASK", has_asked)

    def migrate_slots(self):
        """Atomic migration: CLUSTER MIGRATESLOTS."""
        source, target = self.movement()
        source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", 0, MOVING_SLOTS - 1, "NODE", target.id)
        wait_until("the slots have moved", lambda: target.owns(0) and not source.owns(0))
        self.settle()

    def redirections(self):
        """The MOVED and ASK replies of all nodes so far."""
        for node in self.nodes:
            node.count_redirections()
        return {name: sum(node.redirections[name] for node in self.nodes) for name in ("MOVED", "ASK")}


class Endpoint(Cluster):
    """A cluster whose clients know only one node, which forwards their requests: "member", the last primary, or
    "proxy", a seventh node, without slots. `options` are for this node."""

    def __init__(self, program, workers, kind, options):
        # The programs for a server alone use several databases.
        options, databases = ["--cluster-forward", "yes", *options], ["--cluster-databases", "16"]
        self.kind = kind
        is_endpoint = lambda index: kind == "member" and index == 2
        super().__init__(program, workers, lambda index: [*databases, *(options if is_endpoint(index) else ())])
        self.node = self.nodes[2]
        if kind == "proxy":
            try:
                self.node = Node(program, workers, [*databases, *options])
                self.join()
            except BaseException:
                self.stop()
                raise

    def join(self):
        self.node.id = self.node.call("CLUSTER", "MYID")
        self.nodes[0].call("CLUSTER", "MEET", "127.0.0.1", self.node.port, self.node.bus_port)
        wait_until("all know the endpoint", lambda: all(self.node.id in node.view() for node in self.nodes))
        self.settle()
        wait_until("the endpoint agrees", lambda: {node.id for node in self.nodes} < set(self.node.view())
                   and "cluster_state:ok" in self.node.call("CLUSTER", "INFO"))

    def stop(self):
        if self.kind == "proxy" and hasattr(self, "node"):
            self.node.stop()
        super().stop()

    def movement(self):
        """Slots do not move to the endpoint: their primary is killed."""
        source, _ = super().movement()
        return source, next(node for node in self.primaries()
                            if node not in (source, self.node) and self.node not in self.pair(node))

    def strangers(self):
        """Libraries that are connected to other nodes than the endpoint."""
        return set().union(*(node.libraries() for node in self.nodes if node is not self.node))
