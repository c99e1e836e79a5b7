//! Client-side caching: which clients receive an invalidation of which keys.

use super::{Harness, OK, WAITS, bulk, bulks, for_executors, stale};
use kvick_core::clients::ClientFlags;

/// The invalidation of all keys.
const ALL_STALE: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";
/// Tracking without options.
const PLAIN: ClientFlags = ClientFlags::empty();

/// A value of each type.
const VALUES: [&str; 7] = [
    "SET string 10",
    "RPUSH list a b c",
    "SADD set a b",
    "ZADD zset 1 a 2 b",
    "HSET hash f 1 g 2",
    "XADD stream 1-1 f v",
    "PFADD hll a",
];

/// Commands that read them.
const READS: [&str; 8] = [
    "GET string",
    "LRANGE list 0 -1",
    "SCARD set",
    "ZSCORE zset a",
    "HGETALL hash",
    "XLEN stream",
    "STRLEN hll",
    "EXISTS fresh",
];

/// Commands that change them, and the keys that they invalidate.
const CHANGES: [(&str, &[&str]); 39] = [
    ("SET string x", &["string"]),
    ("APPEND string x", &["string"]),
    ("SETRANGE string 1 x", &["string"]),
    ("SETBIT string 1 1", &["string"]),
    ("BITFIELD string SET u8 0 1", &["string"]),
    ("INCR string", &["string"]),
    ("INCRBYFLOAT string 1.5", &["string"]),
    ("GETDEL string", &["string"]),
    ("GETEX string EX 100", &["string"]),
    ("DEL string list", &["string", "list"]),
    ("UNLINK hash", &["hash"]),
    ("EXPIRE list 100", &["list"]),
    ("EXPIRE list -1", &["list"]),
    ("RENAME string fresh", &["string", "fresh"]),
    ("COPY string list REPLACE", &["list"]),
    ("MOVE string 1", &["string"]),
    ("LPUSH list x", &["list"]),
    ("RPOP list 3", &["list"]),
    ("LSET list 0 x", &["list"]),
    ("LMOVE list fresh LEFT LEFT", &["list", "fresh"]),
    ("SADD set x", &["set"]),
    ("SREM set a", &["set"]),
    ("SMOVE set fresh a", &["set", "fresh"]),
    ("SUNIONSTORE fresh set", &["fresh"]),
    ("ZADD zset 9 a", &["zset"]),
    ("ZREM zset a", &["zset"]),
    ("ZPOPMIN zset", &["zset"]),
    ("ZRANGESTORE fresh zset 0 -1", &["fresh"]),
    ("HSET hash f x", &["hash"]),
    ("HDEL hash f", &["hash"]),
    ("HINCRBY hash f 1", &["hash"]),
    ("HEXPIRE hash 100 FIELDS 1 f", &["hash"]),
    ("XADD stream 2-1 f v", &["stream"]),
    ("XDEL stream 1-1", &["stream"]),
    ("PFADD hll b", &["hll"]),
    ("SORT list ALPHA STORE fresh", &["fresh"]),
    ("MSET string x fresh y", &["string", "fresh"]),
    ("BITOP NOT fresh string", &["fresh"]),
    ("GEOADD fresh 13 38 a", &["fresh"]),
];

impl Harness {
    /// Runs commands that succeed.
    #[track_caller]
    fn run_all(&mut self, executor: usize, client: usize, lines: &[&str]) {
        for line in lines {
            let reply = self.run(executor, client, line);
            assert!(!reply.starts_with('-'), "{line}: {reply}");
        }
    }
}

#[test]
fn a_reader_gets_one_invalidation_of_a_changed_key() {
    for_executors(2, |mut harness, other| {
        harness.track(0, PLAIN, &[]);
        harness.ask(0, 0, "GET k", "$-1\r\n");
        harness.ask(other, 1, "SET elsewhere 1", OK);
        assert_eq!(harness.delivered(), []);
        harness.ask(other, 1, "SET k 1", OK);
        assert_eq!(harness.delivered(), [(0, stale(&["k"]))]);
        harness.ask(other, 1, "SET k 2", OK);
        assert_eq!(harness.delivered(), []);
    });
}

#[test]
fn every_change_of_a_key_invalidates() {
    for_executors(2, |mut harness, other| {
        harness.track(0, PLAIN, &[]);
        for (change, keys) in CHANGES {
            harness.ask(0, 0, "FLUSHALL", OK);
            assert_eq!(harness.delivered(), [(0, ALL_STALE.to_string())]);
            harness.run_all(other, 1, &VALUES);
            harness.run_all(0, 0, &READS);
            harness.run_all(other, 1, &[change]);
            // The order of several keys is that of their changes, which is up to the command.
            let mut expected: Vec<_> = keys.iter().map(|key| (0, stale(&[key]))).collect();
            expected.sort_unstable();
            let mut delivered = harness.delivered();
            delivered.sort_unstable();
            assert_eq!(delivered, expected, "{change}");
        }
    });
}

/// Commands that change a stream's consumer groups, which are not part of what clients cache or watch.
const GROUP_CHANGES: [&str; 10] = [
    "XGROUP CREATE stream g 0",
    "XGROUP CREATECONSUMER stream g c",
    "XGROUP SETID stream g 0",
    "XREADGROUP GROUP g c STREAMS stream >",
    "XCLAIM stream g d 0 1-1",
    "XAUTOCLAIM stream g e 0 0",
    "XACK stream g 1-1",
    "XGROUP DELCONSUMER stream g d",
    "XGROUP DESTROY stream g",
    "XSETID stream 5-5",
];

#[test]
fn changes_of_consumer_groups_are_not_changes_of_the_key() {
    for_executors(3, |mut harness, other| {
        harness.ask(0, 1, "XADD stream 1-1 f v", &bulk("1-1"));
        harness.track(0, PLAIN, &[]);
        harness.track(2, ClientFlags::BROADCAST, &[]);
        harness.ask(0, 0, "XLEN stream", ":1\r\n");
        for change in GROUP_CHANGES {
            harness.ask(0, 0, "WATCH stream", OK);
            harness.run_all(other, 1, &[change]);
            assert_eq!(harness.exec(0, 0, &[]), "*0\r\n", "{change}");
        }
        assert_eq!(harness.delivered(), []);
        harness.run_all(other, 1, &["DEL stream", "XGROUP CREATE stream g $ MKSTREAM"]);
        let key = || stale(&["stream"]);
        let mut delivered = harness.delivered();
        delivered.sort_unstable();
        assert_eq!(delivered, [(0, key()), (2, key()), (2, key())]);
    });
}

#[test]
fn noloop_covers_changes_by_own_scripts_except_in_broadcasting_mode() {
    for_executors(2, |mut harness, other| {
        harness.track(0, ClientFlags::NOLOOP, &[]);
        harness.track(1, ClientFlags::NOLOOP | ClientFlags::BROADCAST, &[]);
        harness.ask(0, 0, "GET k", "$-1\r\n");
        harness.ask(other, 1, "SET other 1", OK);
        assert_eq!(harness.delivered(), []);
        harness.ask(0, 0, "EVAL \"redis.call('SET', 'k', 1)\" 0", "$-1\r\n");
        harness.ask(other, 1, "EVAL \"redis.call('SET', 'l', 1)\" 0", "$-1\r\n");
        assert_eq!(harness.delivered(), [(1, stale(&["k"])), (1, stale(&["l"]))]);
    });
}

#[test]
fn an_unknown_command_uses_up_client_caching() {
    for_executors(2, |mut harness, other| {
        harness.track(0, ClientFlags::OPTIN, &[]);
        harness.clients[0].client.info.set_flags(ClientFlags::CACHING, true);
        harness.run(0, 0, "NOSUCH");
        harness.ask(0, 0, "GET k", "$-1\r\n");
        harness.ask(other, 1, "SET k 1", OK);
        assert_eq!(harness.delivered(), []);
    });
}

#[test]
fn unchanged_keys_are_not_invalidated() {
    for_executors(2, |mut harness, other| {
        harness.track(0, PLAIN, &[]);
        harness.run_all(other, 1, &VALUES);
        harness.run_all(0, 0, &READS);
        let vain = [
            "SETNX string x",
            "SET string x NX",
            "DEL fresh",
            "SADD set a",
            "SREM set x",
            "HDEL hash x",
            "HSETNX hash f x",
            "ZADD zset 1 a",
            "LPUSHX fresh x",
            "PERSIST string",
            "XDEL stream 9-9",
            "PFADD hll a",
        ];
        harness.run_all(other, 1, &vain);
        assert_eq!(harness.delivered(), []);
        harness.ask(other, 1, "SADD set x", ":1\r\n");
        assert_eq!(harness.delivered(), [(0, stale(&["set"]))]);
    });
}

#[test]
fn expired_keys_and_fields_are_invalidated() {
    for_executors(3, |mut harness, other| {
        let (reader, all) = (0, 1);
        harness.track(reader, PLAIN, &[]);
        harness.track(all, ClientFlags::BROADCAST, &[]);
        let both = |key: &str| [(reader, stale(&[key])), (all, stale(&[key]))];

        harness.ask(other, 2, "SET active x PX 30", OK);
        assert_eq!(harness.delivered(), [(all, stale(&["active"]))]);
        harness.ask(0, reader, "GET active", &bulk("x"));
        harness.sweep();
        assert_eq!(harness.delivered(), []);
        harness.advance(31);
        harness.sweep();
        assert_eq!(harness.delivered(), both("active"));

        harness.run_all(other, 2, &["HSET hash f v g v", "HPEXPIRE hash 30 FIELDS 1 f"]);
        assert_eq!(harness.delivered(), [(all, stale(&["hash"])), (all, stale(&["hash"]))]);
        harness.ask(0, reader, "HGET hash f", &bulk("v"));
        harness.advance(31);
        harness.sweep();
        assert_eq!(harness.delivered(), both("hash"));

        // Without active expiry, the client that accesses an expired key causes the invalidation.
        harness.ask(other, 2, "SET lazy x PX 100", OK);
        assert_eq!(harness.delivered(), [(all, stale(&["lazy"]))]);
        harness.ask(0, reader, "EXISTS lazy", ":1\r\n");
        harness.advance(101);
        harness.ask(other, reader, "MGET x lazy", "*2\r\n$-1\r\n$-1\r\n");
        assert_eq!(harness.delivered(), both("lazy"));
    });
}

#[test]
fn keys_read_by_a_blocking_command_are_tracked() {
    for_executors(2, |mut harness, other| {
        harness.track(0, PLAIN, &[]);
        harness.ask(0, 0, "XREAD BLOCK 0 STREAMS s $", WAITS);
        harness.ask(other, 1, "XADD s 1-1 f v", &bulk("1-1"));
        // It gets the invalidation of the stream that it read before it blocked, and the entry.
        let entry = format!("*2\r\n{}{}", bulk("1-1"), bulks(&["f", "v"]));
        let entries = format!("*1\r\n*2\r\n{}*1\r\n{entry}", bulk("s"));
        assert_eq!(harness.delivered(), [(0, stale(&["s"])), (0, entries)]);
        // The command read the stream again when it was served.
        harness.ask(other, 1, "XADD s 2-1 f v", &bulk("2-1"));
        assert_eq!(harness.delivered(), [(0, stale(&["s"]))]);
        harness.ask(0, 0, "XLEN s", ":2\r\n");
        harness.ask(other, 1, "XADD s 3-1 f v", &bulk("3-1"));
        assert_eq!(harness.delivered(), [(0, stale(&["s"]))]);
    });
}

#[test]
fn noloop_suppresses_own_changes() {
    for_executors(4, |mut harness, other| {
        let (client, reader, all, writer) = (0, 1, 2, 3);
        harness.track(client, ClientFlags::NOLOOP, &[]);
        harness.track(reader, PLAIN, &[]);
        harness.ask(0, client, "GET k", "$-1\r\n");
        harness.ask(other, reader, "GET k", "$-1\r\n");
        assert_eq!(harness.exec(0, client, &["SET k 1", "GET k"]), "*2\r\n+OK\r\n$1\r\n1\r\n");
        assert_eq!(harness.delivered(), [(reader, stale(&["k"]))]);
        harness.ask(other, writer, "SET k 2", OK);
        assert_eq!(harness.delivered(), [(client, stale(&["k"]))]);

        harness.track(all, ClientFlags::BROADCAST | ClientFlags::NOLOOP, &["p"]);
        harness.ask(0, all, "MSET p1 x p2 x q x", OK);
        assert_eq!(harness.delivered(), []);
        harness.ask(other, writer, "MSET p1 x q x", OK);
        assert_eq!(harness.delivered(), [(all, stale(&["p1"]))]);
    });
}

#[test]
fn broadcasting_batches_the_keys_of_a_prefix() {
    for_executors(3, |mut harness, other| {
        let (some, all, writer) = (0, 1, 2);
        harness.track(some, ClientFlags::BROADCAST, &["a:", "b:"]);
        harness.track(all, ClientFlags::BROADCAST, &[]);
        harness.ask(other, writer, "MSET b:1 x a:2 x c:1 x a:1 x", OK);
        let of_all = stale(&["a:1", "a:2", "b:1", "c:1"]);
        let expected = [(all, of_all), (some, stale(&["a:1", "a:2"])), (some, stale(&["b:1"]))];
        assert_eq!(harness.delivered(), expected);
        // Prefixes are added to those that a client has.
        harness.track(some, ClientFlags::BROADCAST, &["c"]);
        harness.ask(other, writer, "DEL c:1", ":1\r\n");
        assert_eq!(harness.delivered(), [(all, stale(&["c:1"])), (some, stale(&["c:1"]))]);
        harness.ask(other, writer, "DEL b:1", ":1\r\n");
        assert_eq!(harness.delivered(), [(all, stale(&["b:1"])), (some, stale(&["b:1"]))]);
        let services = harness.services;
        assert_eq!((services.tracking.clients(), services.tracking.prefixes()), (2, 4));
        [some, all].into_iter().for_each(|client| harness.clients[client].client.stop_tracking(services));
        assert_eq!((services.tracking.clients(), services.tracking.prefixes()), (0, 0));
        harness.ask(other, writer, "SET a:1 x", OK);
        assert_eq!(harness.delivered(), []);
    });
}

#[test]
fn invalidations_do_not_mix_databases() {
    for_executors(2, |mut harness, other| {
        harness.track(0, PLAIN, &[]);
        harness.ask(0, 0, "GET k", "$-1\r\n");
        harness.select(1, 1);
        harness.ask(other, 1, "SET k 1", OK);
        assert_eq!(harness.delivered(), []);
        harness.ask(other, 1, "MOVE k 0", ":1\r\n");
        assert_eq!(harness.delivered(), [(0, stale(&["k"]))]);
    });
}
