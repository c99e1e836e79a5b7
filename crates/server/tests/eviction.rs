//! Memory limits: which keys are evicted, which clients are notified, which commands are refused, and which connections
//! are closed.

mod common;

use common::{Raw, Server, for_workers, wait_until};
use kvick_testing::SetOnDrop;
use redis::{Connection, cmd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const POLICIES: [&str; 7] =
    ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"];
const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

fn info(client: &mut Connection, field: &str) -> u64 {
    let text: String = cmd("INFO").arg("everything").query(client).expect("a text");
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no field {field}")).parse().expect("a number")
}

fn set_config(client: &mut Connection, pairs: &[(&str, &str)]) {
    let mut command = cmd("CONFIG");
    command.arg("SET");
    pairs.iter().for_each(|pair| _ = command.arg(pair));
    command.exec(client).expect("settings that are taken");
}

/// Allows so many bytes beyond what is in use; the limit.
fn leave(client: &mut Connection, bytes: u64) -> u64 {
    let limit = info(client, "used_memory") + bytes;
    set_config(client, &[("maxmemory", &limit.to_string())]);
    limit
}

/// Sets so many keys with this prefix, pipelined; those that were refused do not matter.
fn fill(client: &mut Connection, prefix: &str, count: usize, volatile: bool) {
    let mut pipe = redis::pipe();
    for n in 0..count {
        pipe.cmd("SET").arg(format!("{prefix}{n}")).arg("x".repeat(200)).ignore();
        if volatile {
            pipe.cmd("EXPIRE").arg(format!("{prefix}{n}")).arg(1000 + n).ignore();
        }
    }
    let _ = pipe.exec(client);
}

fn count(client: &mut Connection, prefix: &str, of: usize) -> usize {
    let names: Vec<String> = (0..of).map(|n| format!("{prefix}{n}")).collect();
    cmd("EXISTS").arg(names).query(client).expect("a number")
}

#[test]
fn each_policy_respects_maxmemory_and_evicts_only_its_keys() {
    for_workers(&[], |server| {
        let mut client = server.client();
        for policy in POLICIES {
            cmd("FLUSHALL").arg("SYNC").exec(&mut client).expect("an empty server");
            set_config(&mut client, &[("maxmemory", "0"), ("maxmemory-policy", policy)]);
            fill(&mut client, "lasting:", 1000, false);
            fill(&mut client, "volatile:", 1000, true);
            let before = info(&mut client, "evicted_keys");
            let limit = leave(&mut client, 100_000);
            fill(&mut client, "more:", 2000, true);
            let used = info(&mut client, "used_memory");
            assert!(used < limit + 16_384, "{policy}: {used} of {limit}");
            assert!(info(&mut client, "evicted_keys") > before + 500, "{policy}");
            let persistent = count(&mut client, "lasting:", 1000);
            assert_eq!(persistent == 1000, policy.starts_with("volatile"), "{policy}: {persistent}");
        }
    });
}

#[test]
fn recently_used_frequent_and_long_lived_keys_are_kept() {
    for_workers(&["--maxmemory-samples", "10"], |server| {
        let mut client = server.client();
        for policy in ["allkeys-lru", "allkeys-lfu", "volatile-ttl"] {
            cmd("FLUSHALL").arg("SYNC").exec(&mut client).expect("an empty server");
            set_config(&mut client, &[("maxmemory", "0"), ("maxmemory-policy", policy)]);
            fill(&mut client, "cold:", 1000, policy == "volatile-ttl");
            if policy == "allkeys-lru" {
                // The clock has seconds.
                let began = Instant::now();
                wait_until("time has passed", || began.elapsed() > Duration::from_millis(2100));
            }
            fill(&mut client, "hot:", 1000, policy == "volatile-ttl");
            let uses = if policy == "allkeys-lfu" { 20 } else { 0 };
            for _ in 0..uses {
                let mut pipe = redis::pipe();
                (0..1000).for_each(|n| _ = pipe.cmd("GET").arg(format!("hot:{n}")).ignore());
                pipe.exec(&mut client).expect("values");
            }
            if policy == "volatile-ttl" {
                let mut pipe = redis::pipe();
                (0..1000).for_each(|n| _ = pipe.cmd("EXPIRE").arg(format!("hot:{n}")).arg(90_000).ignore());
                pipe.exec(&mut client).expect("keys");
            }
            let counted =
                |client: &mut Connection| info(client, "used_memory") - info(client, "mem_not_counted_for_evict");
            let limit = counted(&mut client) - 130_000;
            set_config(&mut client, &[("maxmemory", &limit.to_string())]);
            wait_until("enough keys have gone", || counted(&mut client) <= limit + 4096);
            let (cold, hot) = (count(&mut client, "cold:", 1000), count(&mut client, "hot:", 1000));
            assert!(cold < 600 && hot >= 980, "{policy}: {cold} cold ones, {hot} hot ones");
        }
    });
}

#[test]
fn memory_stays_within_bounds_under_several_writers() {
    for_workers(&["--maxmemory-policy", "allkeys-lru"], |server| {
        let mut client = server.client();
        let limit = leave(&mut client, 8 << 20);
        let done = AtomicBool::new(false);
        let most = std::thread::scope(|scope| {
            let writing = SetOnDrop(&done);
            let writers: Vec<_> = (0..4u64)
                .map(|writer| {
                    scope.spawn(move || {
                        let mut client = server.client();
                        let mut random = writer + 1;
                        for _ in 0..150 {
                            let mut pipe = redis::pipe();
                            for _ in 0..100 {
                                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                                pipe.cmd("SET").arg((random >> 40).to_string()).arg("x".repeat(1000)).ignore();
                            }
                            pipe.exec(&mut client).expect("none is refused");
                        }
                    })
                })
                .collect();
            let watcher = scope.spawn(|| {
                let mut most = 0;
                while !done.load(Ordering::Relaxed) {
                    most = most.max(info(&mut client, "used_memory"));
                }
                most
            });
            writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
            drop(writing);
            watcher.join().expect("no panic")
        });
        // Buffers of the requests and replies under way are not held up by anything.
        assert!(most < limit + (2 << 20), "{most} of {limit}");
        let mut client = server.client();
        assert!(info(&mut client, "evicted_keys") > 40_000);
        assert!(cmd("DBSIZE").query::<usize>(&mut client).expect("a number") > 4000);
    });
}

#[test]
fn noeviction_refuses_commands_that_use_memory() {
    for_workers(&["--maxmemory-policy", "noeviction"], |server| {
        let (mut client, mut raw) = (server.client(), server.raw());
        raw.send("SET key value\r\nMULTI\r\nSET other value\r\n");
        raw.expect("+OK\r\n+OK\r\n+QUEUED\r\n");
        set_config(&mut client, &[("maxmemory", "1")]);
        // What was queued while there was memory is not executed when there is none.
        raw.ask(&["EXEC"], &format!("-EXECABORT Transaction discarded because of: {OOM}\r\n"));
        raw.ask(&["EXEC"], "-ERR EXEC without MULTI\r\n");
        raw.ask(&["SET", "key", "x"], &format!("-{OOM}\r\n"));
        raw.ask(&["GET", "key"], "$5\r\nvalue\r\n");
        raw.send("MULTI\r\nGET key\r\nSET key x\r\nEXEC\r\n");
        raw.expect(&format!("+OK\r\n+QUEUED\r\n-{OOM}\r\n"));
        raw.expect("-EXECABORT Transaction discarded because of previous errors.\r\n");
        // Transactions that need no memory are executed.
        raw.send("MULTI\r\nGET key\r\nDEL key\r\nEXEC\r\n");
        raw.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$5\r\nvalue\r\n:1\r\n");
        assert!(info(&mut client, "current_eviction_exceeded_time") < 20_000);
        set_config(&mut client, &[("maxmemory", "0")]);
        raw.ask(&["SET", "key", "x"], "+OK\r\n");
        let text: String = cmd("INFO").arg("errorstats").query(&mut client).expect("a text");
        assert!(text.contains("errorstat_OOM:count=2\r\n"), "{text}");
        assert_eq!(info(&mut client, "current_eviction_exceeded_time"), 0);
    });
}

#[test]
fn a_lowered_limit_evicts_at_once_and_notifies_clients() {
    for_workers(&["--maxmemory-policy", "allkeys-random", "--notify-keyspace-events", "Ee"], |server| {
        let mut client = server.client();
        fill(&mut client, "key:", 200, false);
        let mut listener = server.raw();
        listener.ask(&["SUBSCRIBE", "__keyevent@0__:evicted"], "*3\r\n$9\r\nsubscribe\r\n$22\r\n");
        listener.skip_to(":1");
        set_config(&mut client, &[("maxmemory", "1")]);
        // No client sends requests meanwhile.
        for _ in 0..200 {
            listener.expect("*3\r\n$7\r\nmessage\r\n$22\r\n__keyevent@0__:evicted\r\n$");
            listener.line();
            assert!(listener.line().starts_with("key:"));
        }
        assert_eq!(info(&mut client, "evicted_keys"), 200);
    });
}

#[test]
fn large_evicted_or_overwritten_values_are_freed_in_the_background() {
    for_workers(&["--maxmemory-policy", "allkeys-lru"], |server| {
        let mut client = server.client();
        let members: Vec<String> = (0..2000).map(|n| format!("member-{n}")).collect();
        for kind in ["SADD", "RPUSH", "ZADD", "HSET"] {
            let mut command = cmd(kind);
            command.arg("large");
            for (n, member) in members.iter().enumerate() {
                match kind {
                    "ZADD" => _ = command.arg(n).arg(member),
                    "HSET" => _ = command.arg(member).arg("x".repeat(100)),
                    "RPUSH" => _ = command.arg(member.repeat(100)),
                    _ => _ = command.arg(member),
                }
            }
            let before = info(&mut client, "lazyfreed_objects");
            let freed = |client: &mut Connection| info(client, "lazyfreed_objects") - before;
            command.exec(&mut client).expect("a large value");
            cmd("SET").arg("large").arg("small").exec(&mut client).expect("another value");
            wait_until("what was overwritten is freed", || freed(&mut client) == 1);
            cmd("DEL").arg("large").exec(&mut client).expect("no key");
            command.exec(&mut client).expect("a large value");
            set_config(&mut client, &[("maxmemory", "1")]);
            wait_until("what was evicted is freed", || freed(&mut client) == 2);
            set_config(&mut client, &[("maxmemory", "0")]);
            assert_eq!(info(&mut client, "lazyfree_pending_objects"), 0, "{kind}");
        }
    });
}

#[test]
fn client_eviction_closes_the_largest_unprotected_connections() {
    for_workers(&[], |server| {
        let mut client = server.client();
        cmd("CLIENT").arg("NO-EVICT").arg("ON").exec(&mut client).expect("a flag");
        // Beginnings of requests, which are held.
        let mut holding = |bytes: usize, protected: bool| {
            let mut raw = server.raw();
            if protected {
                raw.ask(&["CLIENT", "NO-EVICT", "ON"], "+OK\r\n");
            }
            raw.ask(&["CLIENT", "SETNAME", &format!("holds-{bytes}")], "+OK\r\n");
            raw.send(format!("*2\r\n$4\r\nECHO\r\n${bytes}\r\n{}", "x".repeat(bytes - 1)));
            wait_until("it is received", || info(&mut client, "mem_clients_normal") as usize > bytes);
            raw
        };
        let mut small = holding(400_000, false);
        let mut middle = holding(1_000_000, false);
        let mut protected = holding(3_000_000, true);
        let mut large = holding(2_000_000, false);
        wait_until("all is received", || info(&mut client, "mem_clients_normal") > 6_400_000);
        set_config(&mut client, &[("maxmemory-clients", "5500000")]);
        large.expect_end();
        small.send("x\r\n");
        small.skip_to("$400000");
        assert_eq!(info(&mut client, "evicted_clients"), 1);
        // The limit may be a share of the data's.
        set_config(&mut client, &[("maxmemory", "100mb"), ("maxmemory-clients", "3%")]);
        middle.expect_end();
        protected.send("x\r\n");
        protected.skip_to("$3000000");
        assert_eq!(info(&mut client, "evicted_clients"), 2);
        let log = server.log();
        assert_eq!(log.matches("Evicting client: id=").count(), 2, "{log}");
    });
}

#[test]
fn client_eviction_counts_unread_replies() {
    for_workers(&["--maxmemory-clients", "2mb"], |server: &Server| {
        let mut client = server.client();
        cmd("SETRANGE").arg("key").arg(200_000).arg("x").exec(&mut client).expect("a value");
        let mut raw = server.raw();
        // More than sockets take, but not in one reply.
        (0..100).for_each(|_| raw.send("GET key\r\n"));
        wait_until("it is closed", || info(&mut client, "evicted_clients") == 1);
    });
}

#[test]
fn eviction_messages_evict_no_further_keys() {
    const KEYS: usize = 1000;
    for_workers(&["--maxmemory-policy", "allkeys-lru", "--maxmemory-eviction-tenacity", "100"], |server| {
        let mut client = server.client();
        let name = |n: usize| format!("{n}{}", "x".repeat(1000));
        (0..KEYS).for_each(|n| cmd("SET").arg(name(n)).arg("v").exec(&mut client).expect("a key"));
        let _caching: Vec<_> = (0..10)
            .map(|_| {
                let mut raw = server.raw();
                raw.send("HELLO 3\r\nCLIENT TRACKING ON\r\n");
                raw.skip_to("+OK");
                (0..KEYS).for_each(|n| raw.ask(&["GET", &name(n)], "$1\r\nv\r\n"));
                raw
            })
            .collect();
        // Ten times as much as what goes is sent: if that counted, all keys would go. Workers get buffers for it once
        // and for all.
        for _ in 0..2 {
            let before = info(&mut client, "evicted_keys");
            let limit = info(&mut client, "used_memory") - info(&mut client, "mem_not_counted_for_evict") - 40_000;
            set_config(&mut client, &[("maxmemory", &limit.to_string())]);
            wait_until("keys have gone", || info(&mut client, "evicted_keys") > before + 20);
            for _ in 0..20 {
                let evicted = info(&mut client, "evicted_keys") - before;
                assert!(evicted < KEYS as u64 * 4 / 10, "{evicted}");
            }
        }
    });
}

/// Bytes that a limit leaves for small keys: far less than the partitions' tables of several workers could take.
const NARROW: u64 = 100 * 1024;
/// Bytes by which memory may exceed its limit for a moment: buffers of requests and replies, counters of new commands.
const SLACK: u64 = 16 * 1024;

/// Sets keys of one byte with this prefix until memory is nearly at its limit; how many.
fn fill_to(client: &mut Connection, limit: u64, prefix: &str, volatile: impl Fn(usize) -> bool) -> usize {
    for n in 1.. {
        set_small(client, &format!("{prefix}{}", n - 1), volatile(n - 1)).expect("there is room left");
        // As many keys take less than the margin.
        if n % 16 == 0 && info(client, "used_memory") + 4096 > limit {
            return n;
        }
    }
    unreachable!("the limit is reached some time")
}

fn set_small(client: &mut Connection, key: &str, volatile: bool) -> redis::RedisResult<()> {
    let mut command = cmd("SET");
    command.arg(key).arg("x");
    if volatile {
        command.arg("EX").arg(10_000);
    }
    command.exec(client)
}

#[test]
fn evicting_small_keys_makes_room_for_equally_many() {
    for_workers(&[], |server| {
        let mut client = server.client();
        for policy in POLICIES {
            cmd("FLUSHALL").arg("SYNC").exec(&mut client).expect("an empty server");
            set_config(&mut client, &[("maxmemory", "0"), ("maxmemory-policy", policy)]);
            let limit = leave(&mut client, NARROW);
            let keys = fill_to(&mut client, limit, "key:", |_| true);
            assert!(keys > 100, "{policy}: {keys}");
            for n in 0..2 * keys {
                let set = set_small(&mut client, &format!("more:{n}"), true);
                set.unwrap_or_else(|error| panic!("{policy}: {n} of {keys}: {error}"));
            }
            let used = info(&mut client, "used_memory");
            assert!(used < limit + SLACK, "{policy}: {used} of {limit}");
            // No more keys are evicted than are set.
            let left: usize = cmd("DBSIZE").query(&mut client).expect("a number");
            assert!(left > keys * 8 / 10, "{policy}: {left} of {keys}");
        }
    });
}

#[test]
fn volatile_policies_keep_persistent_keys_and_allkeys_never_refuse() {
    for_workers(&[], |server| {
        let mut client = server.client();
        for policy in POLICIES {
            cmd("FLUSHALL").arg("SYNC").exec(&mut client).expect("an empty server");
            set_config(&mut client, &[("maxmemory", "0"), ("maxmemory-policy", policy)]);
            let limit = leave(&mut client, NARROW);
            let keys = fill_to(&mut client, limit, "key:", |n| n % 2 == 1);
            let (mut set, mut refused) = (0, 0);
            for n in 0..keys {
                match set_small(&mut client, &format!("lasting:{n}"), false) {
                    Ok(()) => set += 1,
                    Err(error) if error.to_string().contains("OOM") => refused += 1,
                    Err(error) => panic!("{policy}: {error}"),
                }
            }
            let used = info(&mut client, "used_memory");
            assert!(used < limit + SLACK, "{policy}: {used} of {limit}");
            if policy.starts_with("allkeys") {
                assert_eq!(refused, 0, "{policy}");
                continue;
            }
            // All that may go has gone when the first is refused.
            assert!(refused > 0, "{policy}");
            let even: Vec<String> = (0..keys).step_by(2).map(|n| format!("key:{n}")).collect();
            let persistent: usize = cmd("EXISTS").arg(&even).query(&mut client).expect("a number");
            assert_eq!(persistent, even.len(), "{policy}");
            let left: usize = cmd("DBSIZE").query(&mut client).expect("a number");
            assert_eq!(left, even.len() + set, "{policy}");
        }
    });
}

#[test]
fn tables_of_deleted_keys_are_freed() {
    const KEYS: usize = 4000;
    for_workers(&["--maxmemory-policy", "volatile-lru"], |server| {
        let mut client = server.client();
        cmd("FLUSHALL").arg("SYNC").exec(&mut client).expect("an empty server");
        leave(&mut client, NARROW);
        // Never more than one key, and no key that may be evicted.
        for n in 0..KEYS {
            let key = format!("key:{n}");
            set_small(&mut client, &key, false).unwrap_or_else(|error| panic!("{n}: {error}"));
            assert!(cmd("DEL").arg(&key).query::<bool>(&mut client).expect("a number"));
        }
    });
}

#[test]
fn the_first_key_of_a_database_needs_little_memory() {
    for_workers(&[], |server| {
        let mut client = server.client();
        cmd("SET").arg("key").arg("x").exec(&mut client).expect("a key");
        let before = info(&mut client, "used_memory");
        for database in 1..5 {
            cmd("SELECT").arg(database).exec(&mut client).expect("a database");
            cmd("SET").arg("key").arg("x").exec(&mut client).expect("a key");
        }
        let after = info(&mut client, "used_memory");
        assert!(after < before + SLACK, "{before}, then {after}");
    });
}

/// Connections that take much memory.
const GREEDY: usize = 20;
const VALUES: usize = 50;
const VALUE_BYTES: usize = 100_000;

/// Has connections take memory until keys are evicted, or until connections are while there is a limit for these; never
/// both. `take_more` makes a connection take more memory, and may fail when that is closed.
fn assert_keys_or_connections_are_evicted(server: &Server, mut take_more: impl FnMut(&Server, &mut Vec<Raw>)) {
    let mut client = server.client();
    cmd("CLIENT").arg("NO-EVICT").arg("ON").exec(&mut client).expect("a flag");
    let others = info(&mut client, "connected_clients");
    for limit in ["0", "3mb"] {
        cmd("FLUSHALL").arg("SYNC").exec(&mut client).expect("an empty server");
        set_config(&mut client, &[("maxmemory-clients", limit)]);
        cmd("CONFIG").arg("RESETSTAT").exec(&mut client).expect("counts of zero");
        for n in 0..VALUES {
            cmd("SETRANGE").arg(n).arg(VALUE_BYTES).arg("x").exec(&mut client).expect("a value");
        }
        let mut greedy = Vec::new();
        wait_until("something is evicted", || {
            take_more(server, &mut greedy);
            info(&mut client, "evicted_keys") + info(&mut client, "evicted_clients") > 0
        });
        let (keys, connections) = (info(&mut client, "evicted_keys"), info(&mut client, "evicted_clients"));
        let left: usize = cmd("DBSIZE").query(&mut client).expect("a number");
        match limit {
            "0" => {
                assert!(connections == 0 && keys > 0 && left < VALUES, "{connections} connections, {left} keys left")
            }
            _ => assert!(connections > 0 && keys == 0 && left == VALUES, "{connections} connections, {left} keys left"),
        }
        drop(greedy);
        wait_until("the connections are closed", || info(&mut client, "connected_clients") == others);
    }
}

const ROOM_FOR_VALUES: [&str; 4] = ["--maxmemory", "11mb", "--maxmemory-policy", "allkeys-lru"];

#[test]
fn unread_replies_evict_keys_or_connections() {
    for_workers(&ROOM_FOR_VALUES, |server| {
        assert_keys_or_connections_are_evicted(server, |server, greedy| {
            greedy.resize_with(GREEDY, || server.raw());
            greedy.iter_mut().for_each(|raw| _ = raw.try_send("MGET 1\r\n"));
        });
    });
}

#[test]
fn incomplete_requests_evict_keys_or_connections() {
    for_workers(&ROOM_FOR_VALUES, |server| {
        assert_keys_or_connections_are_evicted(server, |server, greedy| {
            greedy.extend((0..30).map(|_| {
                // Many arguments, the last of which is missing.
                let mut request = String::from("*251\r\n$4\r\nMGET\r\n");
                (0..249).for_each(|_| request += &format!("$1000\r\n{}\r\n", "x".repeat(1000)));
                let mut raw = server.raw();
                let _ = raw.try_send(request);
                raw
            }));
        });
    });
}

#[test]
fn unread_messages_evict_keys_or_connections() {
    for_workers(&ROOM_FOR_VALUES, |server| {
        let mut publisher = server.client();
        cmd("CLIENT").arg("NO-EVICT").arg("ON").exec(&mut publisher).expect("a flag");
        assert_keys_or_connections_are_evicted(server, |server, greedy| {
            greedy.resize_with(GREEDY, || {
                let mut raw = server.raw();
                raw.send("SUBSCRIBE channel\r\n");
                raw.skip_to(":1");
                raw
            });
            cmd("PUBLISH").arg("channel").arg("x".repeat(VALUE_BYTES)).exec(&mut publisher).expect("a message");
        });
    });
}
