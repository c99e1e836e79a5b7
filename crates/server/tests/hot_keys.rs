//! HOTKEYS and MEMORY BIGKEYS, with a client library.

mod common;

use common::{Server, for_workers, wait_until};
use redis::{Connection, FromRedisValue, RedisResult, Value, cmd};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// An entry of a reply.
type Entry = HashMap<String, Value>;

/// Every command is a sample, and windows are short.
const DETECTING: &[&str] = &["--hotkeys-top-k", "16", "--hotkeys-sampling-percentage", "100"];
/// The search for big keys does not pause, and has ten times as many steps as by default.
const SEARCHING: &[&str] = &["--bigkeys-scan-pause-seconds", "0", "--hz", "100"];

fn run<T: FromRedisValue>(client: &mut Connection, line: &str) -> RedisResult<T> {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(client)
}

#[track_caller]
fn ok<T: FromRedisValue>(client: &mut Connection, line: &str) -> T {
    run(client, line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// The text of an error.
#[track_caller]
fn error(client: &mut Connection, line: &str) -> String {
    let error = run::<Value>(client, line).expect_err(line);
    format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default())
}

fn text(entry: &Entry, field: &str) -> String {
    redis::from_redis_value(entry[field].clone()).expect("text")
}

fn number(entry: &Entry, field: &str) -> u64 {
    redis::from_redis_value(entry[field].clone()).expect("a number")
}

fn names(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| text(entry, "key")).collect()
}

/// Runs `work` with connections of several threads until `check` has returned.
fn under_load(server: &Server, work: impl Fn(&mut Connection) + Sync, check: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = server.client();
                while !is_over.load(Ordering::Relaxed) {
                    work(&mut client);
                }
            });
        }
        // Ends the load also if the check fails.
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = checked {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn the_hottest_key_by_each_metric_comes_first() {
    for percentage in ["100", "20"] {
        let args = ["--hotkeys-top-k", "3", "--hotkeys-sampling-percentage", percentage];
        for_workers(&args, |server| {
            let mut client = server.client();
            let () = ok(&mut client, "SET often 1");
            let () = cmd("SET").arg("wide").arg(vec![b'w'; 20_000]).query(&mut client).unwrap();
            let _: Value = ok(&mut client, "SETBIT slow 8000000 1");
            let number_of_cold = std::sync::atomic::AtomicU64::new(0);
            let work = |client: &mut Connection| {
                let mut pipe = redis::pipe();
                (0..20).for_each(|_| _ = pipe.cmd("GET").arg("often"));
                for _ in 0..5 {
                    let n = number_of_cold.fetch_add(1, Ordering::Relaxed);
                    pipe.cmd("SET").arg(format!("cold:{n}")).arg("1");
                }
                pipe.cmd("GET").arg("wide").cmd("BITCOUNT").arg("slow");
                let _: Vec<Value> = pipe.query(client).expect("replies");
            };
            under_load(server, work, || {
                wait_until("the hottest keys are known", || {
                    let mut top = |by: &str| ok::<Vec<Entry>>(&mut client, &format!("HOTKEYS GET BY {by}"));
                    let tops = [top("QPS"), top("CPU"), top("BYTES")];
                    if tops.iter().any(|top| top.len() < 3) {
                        return false;
                    }
                    let first = tops.each_ref().map(|top| text(&top[0], "key"));
                    assert!(tops.iter().all(|top| top.len() == 3));
                    assert!(tops.iter().flatten().all(|entry| !entry.contains_key("slot")));
                    first == ["often", "slow", "wide"] && {
                        let [often, slow, wide] = tops.each_ref().map(|top| &top[0]);
                        // As many bytes as its value and a bit, for each access.
                        let per_access = number(wide, "net-bytes-per-sec") / number(wide, "qps").max(1);
                        assert!((15_000..30_000).contains(&per_access), "{per_access}");
                        assert!(number(often, "qps") > number(slow, "qps"));
                        // One worker cannot execute for more than a second per second.
                        assert!((1..=4_500_000).contains(&number(slow, "cpu-usec-per-sec")));
                        true
                    }
                });
            });
            let plain: Vec<Entry> = ok(&mut client, "HOTKEYS GET");
            for entry in &plain {
                let mut fields: Vec<&str> = entry.keys().map(String::as_str).collect();
                fields.sort_unstable();
                assert_eq!(fields, ["db", "key", "qps"]);
            }
        });
    }
}

#[test]
fn hot_keys_are_shown_while_they_are_detected() {
    for_workers(&["--hotkeys-sampling-percentage", "100"], |server| {
        let mut client = server.client();
        let get = |client: &mut Connection| ok::<Vec<Entry>>(client, "HOTKEYS GET");
        let () = ok(&mut client, "SET k 1");
        assert!(get(&mut client).is_empty(), "it is disabled");
        assert_eq!(ok::<String>(&mut client, "HOTKEYS RESET"), "OK");
        let () = ok(&mut client, "CONFIG SET hotkeys-top-k 16");
        let use_keys = |client: &mut Connection| {
            let mut pipe = redis::pipe();
            pipe.atomic();
            (0..50).for_each(|_| _ = pipe.cmd("GET").arg("k"));
            (0..20).for_each(|_| _ = pipe.cmd("EVAL").arg("return redis.call('TTL', KEYS[1])").arg(1).arg("script"));
            (0..100).for_each(|_| _ = pipe.cmd("OBJECT").arg("ENCODING").arg("k"));
            let _: Vec<Value> = pipe.query(client).expect("replies");
        };
        let () = ok(&mut client, "SELECT 5");
        let () = ok(&mut client, "SET k 1");
        let wait_for_keys = |client: &mut Connection| {
            let mut found = Vec::new();
            wait_until("a window ends with keys", || {
                use_keys(client);
                found = get(client);
                names(&found) == ["k", "script"]
            });
            found
        };
        let found = wait_for_keys(&mut client);
        assert!(found.iter().all(|entry| number(entry, "db") == 5));
        let ratio = number(&found[0], "qps") as f64 / number(&found[1], "qps") as f64;
        assert!((2.0..=3.0).contains(&ratio), "{ratio}");
        let info: String = ok(&mut client, "INFO hotkeys");
        let fields: HashMap<&str, u64> =
            info.lines().filter_map(|line| line.split_once(':')).map(|(name, n)| (name, n.parse().unwrap())).collect();
        assert!(fields["hotkeys_last_window_samples"] >= 70, "{info}");
        assert!((1000..2000).contains(&fields["hotkeys_last_window_duration_ms"]), "{info}");
        wait_until("an idle window ends", || get(&mut client).is_empty());
        for forget in ["FLUSHDB", "HOTKEYS RESET", "CONFIG SET hotkeys-top-k 0"] {
            wait_for_keys(&mut client);
            let () = ok(&mut client, forget);
            assert!(get(&mut client).is_empty(), "{forget}");
        }
    });
}

#[test]
fn wrong_arguments_are_refused_and_rights_are_needed() {
    let server = Server::start(DETECTING);
    let mut client = server.client();
    for (line, expected) in [
        ("HOTKEYS", "ERR wrong number of arguments for 'hotkeys' command"),
        ("HOTKEYS RESET x", "ERR wrong number of arguments for 'hotkeys|reset' command"),
        ("HOTKEYS START", "ERR unknown subcommand 'START'. Try HOTKEYS HELP."),
        ("HOTKEYS GET x", "ERR syntax error"),
        ("HOTKEYS GET BY x", "ERR BY must be QPS, CPU or BYTES"),
        ("HOTKEYS GET SLOTSRANGE 0 1", "ERR This instance has cluster support disabled"),
        ("MEMORY BIGKEYS BY", "ERR syntax error"),
        ("MEMORY BIGKEYS TYPE tree", "ERR unknown type name"),
        (
            "CONFIG SET hotkeys-top-k 1001",
            "ERR CONFIG SET failed (possibly related to argument 'hotkeys-top-k') - argument must be between 0 and \
             1000 inclusive",
        ),
    ] {
        assert_eq!(error(&mut client, line), expected);
    }
    for line in ["HOTKEYS HELP", "MEMORY HELP"] {
        let lines: Vec<String> = ok(&mut client, line);
        assert!(lines.iter().any(|line| line.contains("GET [BY") || line.contains("BIGKEYS [BY")), "{lines:?}");
    }
    let () = ok(&mut client, "ACL SETUSER limited on nopass ~* +@all -@dangerous");
    let () = ok(&mut client, "AUTH limited any");
    for line in ["HOTKEYS GET", "HOTKEYS RESET", "MEMORY BIGKEYS"] {
        assert!(error(&mut client, line).starts_with("NOPERM"), "{line}");
    }
    assert!(!ok::<Vec<String>>(&mut client, "HOTKEYS HELP").is_empty());
}

#[test]
fn hot_keys_have_slots_in_cluster_mode() {
    for_workers(&[DETECTING, &["--cluster-enabled", "yes"]].concat(), |server| {
        let mut client = server.client();
        let () = ok(&mut client, "CLUSTER ADDSLOTSRANGE 0 16383");
        wait_until("the cluster is up", || ok::<String>(&mut client, "CLUSTER INFO").contains("cluster_state:ok"));
        let () = ok(&mut client, "SET b 1");
        // The slots of a and b are 15495 and 3300.
        let use_keys = |client: &mut Connection| {
            let mut pipe = redis::pipe();
            (0..20).for_each(|_| _ = pipe.cmd("GET").arg("a").cmd("GET").arg("b").cmd("GET").arg("b"));
            let _: Vec<Value> = pipe.query(client).expect("replies");
        };
        under_load(server, use_keys, || {
            let mut found: Vec<Entry> = Vec::new();
            wait_until("a window ends with keys", || {
                found = ok(&mut client, "HOTKEYS GET BY BYTES");
                names(&found) == ["b", "a"]
            });
            assert_eq!(found.iter().map(|entry| number(entry, "slot")).collect::<Vec<_>>(), [3300, 15495]);
            wait_until("only a key of these slots is shown", || {
                found = ok(&mut client, "HOTKEYS GET SLOTSRANGE 3301 16383");
                names(&found) == ["a"]
            });
        });
        wait_until("a key is found", || {
            let keys = big_keys(&mut client, "");
            keys.first().is_some_and(|entry| number(entry, "slot") == 3300)
        });
        use_keys(&mut client);
        wait_until("the keys are hot", || {
            use_keys(&mut client);
            ok::<Vec<Entry>>(&mut client, "HOTKEYS GET").len() == 2
        });
        let _: Value = ok(&mut client, "CLUSTER DELSLOTS 15495");
        assert!(!names(&ok::<Vec<Entry>>(&mut client, "HOTKEYS GET")).contains(&"a".to_owned()));
    });
}

/// The keys of MEMORY BIGKEYS.
fn big_keys(client: &mut Connection, options: &str) -> Vec<Entry> {
    let reply: Entry = ok(client, format!("MEMORY BIGKEYS {options}").trim_end());
    redis::from_redis_value(reply["keys"].clone()).expect("an array of maps")
}

#[test]
fn big_keys_are_found_and_leave_when_they_are_deleted() {
    for_workers(&[SEARCHING, &["--enable-debug-command", "yes"]].concat(), |server| {
        let mut client = server.client();
        let () = ok(&mut client, "DEBUG POPULATE 5000 small 10");
        let () = cmd("SET").arg("string").arg(vec![b's'; 300_000]).query(&mut client).unwrap();
        let mut pipe = redis::pipe();
        for n in 0..500 {
            pipe.cmd("RPUSH").arg("list").arg(vec![b'l'; 100]);
            pipe.cmd("SADD").arg("set").arg(n);
            pipe.cmd("HSET").arg("hash").arg(n).arg("value");
            pipe.cmd("ZADD").arg("zset").arg(n).arg(n);
        }
        pipe.cmd("XADD").arg("stream").arg("*").arg("f").arg("v").cmd("SELECT").arg(3);
        pipe.cmd("RPUSH").arg("list").arg("one").arg("two").cmd("SELECT").arg(0);
        let _: Vec<Value> = pipe.query(&mut client).expect("replies");
        wait_until("all types are found", || {
            let largest = |(kind, count): (&str, usize)| {
                let keys = big_keys(&mut client, &format!("TYPE {kind}"));
                keys.len() == count && text(&keys[0], "type") == kind
            };
            [("string", 16), ("list", 2), ("set", 1), ("hash", 1), ("zset", 1), ("stream", 1)].into_iter().all(largest)
                && text(&big_keys(&mut client, "")[0], "key") == "string"
        });
        let first = &big_keys(&mut client, "COUNT 1")[0];
        let usage: u64 = ok(&mut client, "MEMORY USAGE string");
        assert_eq!((number(first, "bytes"), number(first, "elements"), number(first, "db")), (usage, 0, 0));
        let lists = big_keys(&mut client, "BY elements TYPE list");
        let shown = |entry: &Entry| (number(entry, "db"), number(entry, "elements"));
        assert_eq!(lists.iter().map(shown).collect::<Vec<_>>(), [(0, 500), (3, 2)]);
        let by_elements = big_keys(&mut client, "BY ELEMENTS COUNT 4");
        assert!(by_elements.iter().all(|entry| number(entry, "elements") == 500), "{by_elements:?}");
        // What the search has found is looked up.
        let _: Value = ok(&mut client, "DEL string");
        let _: Value = ok(&mut client, "LTRIM list 0 0");
        let now = big_keys(&mut client, "COUNT 16");
        assert!(!names(&now).contains(&"string".to_owned()), "{now:?}");
        assert_eq!(shown(&big_keys(&mut client, "BY elements TYPE list")[0]), (3, 2));
        let reply: Entry = ok(&mut client, "MEMORY BIGKEYS");
        assert!(number(&reply, "rounds") > 0 && number(&reply, "search-usec") > 0);
        wait_until("the search comes to all keys", || {
            let reply: Entry = ok(&mut client, "MEMORY BIGKEYS");
            number(&reply, "round-keys") == 5006
        });
        let () = ok(&mut client, "FLUSHALL");
        assert!(big_keys(&mut client, "").is_empty());
        let () = ok(&mut client, "SET another 1");
        wait_until("another key is found", || names(&big_keys(&mut client, "")) == ["another"]);
        let () = ok(&mut client, "CONFIG SET bigkeys-scan no");
        wait_until("nothing is searched", || big_keys(&mut client, "").is_empty());
    });
}
