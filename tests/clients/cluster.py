"""Cluster modes of two Python client libraries against a running cluster.

usage: cluster.py PORT    a node of a cluster with three primaries and a replica for each, on 127.0.0.1
"""

import sys

import redis.cluster
import valkey.cluster

KEYS = 300


def check(name, got, expected):
    if got != expected:
        sys.exit(f"{name}: got {got!r}, expected {expected!r}")


def next_message(subscriber, node):
    """The next message on a shard channel. The node is named, since one library polls only some nodes otherwise."""
    for _ in range(20):
        message = subscriber.get_sharded_message(timeout=1, target_node=node)
        if message is not None:
            return message
    sys.exit("no message on a shard channel")


def exercise(library, make, protocol):
    """Keys, pipelines, keys of one slot, scripts, scans, shard channels, and reads from replicas."""
    cluster = make(protocol=protocol, read_from_replicas=False)
    cluster.flushall(target_nodes="primaries")
    for number in range(KEYS):
        cluster.set(f"key:{number}", number)
    got = [int(cluster.get(f"key:{number}")) for number in range(KEYS)]
    check("values", got, list(range(KEYS)))
    sizes = cluster.dbsize(target_nodes="primaries")
    check("keys on all nodes", sum(sizes.values()) if isinstance(sizes, dict) else sizes, KEYS)
    pipeline = cluster.pipeline()
    for number in range(KEYS):
        pipeline.incr(f"key:{number}")
    check("pipeline", pipeline.execute(), [number + 1 for number in range(KEYS)])
    check("keys of one slot", cluster.mset({"{tag}a": 1, "{tag}b": 2}), True)
    check("keys of one slot", cluster.mget("{tag}a", "{tag}b"), [b"1", b"2"])
    check("keys of several slots", cluster.mget_nonatomic("key:1", "key:2", "nothing"), [b"2", b"3", None])
    check("script", cluster.eval("return redis.call('incrby', KEYS[1], ARGV[1])", 1, "{tag}a", 5), 6)
    check("scan", len({key for key in cluster.scan_iter(match="key:*", count=50)}), KEYS)
    check("delete", cluster.delete("key:1", "key:2"), 2)
    subscriber = cluster.pubsub()
    subscriber.ssubscribe("news")
    node = cluster.get_node_from_key("news")
    message = next_message(subscriber, node)
    check("subscription", message["type"], "ssubscribe")
    check("receivers", cluster.spublish("news", "hello"), 1)
    check("message", next_message(subscriber, node)["data"], b"hello")
    subscriber.close()
    readers = make(protocol=protocol, read_from_replicas=True)
    check("acknowledged by replicas", cluster.wait(1, 5000, target_nodes="primaries") is not None, True)
    for number in range(3, 60):
        check("read from a replica", int(readers.get(f"key:{number}")), number + 1)
    print(f"{library} with RESP{protocol}: ok")


def main(port):
    for protocol in (2, 3):
        exercise(
            f"redis {redis.__version__}",
            lambda **options: redis.cluster.RedisCluster(host="127.0.0.1", port=port, **options),
            protocol,
        )
        exercise(
            f"valkey {valkey.__version__}",
            lambda **options: valkey.cluster.ValkeyCluster(host="127.0.0.1", port=port, **options),
            protocol,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
