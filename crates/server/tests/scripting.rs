//! Scripts and functions: permissions, atomicity, and service for other clients during a long script.

mod common;

use common::{Server, for_workers, wait_until};
use kvick_testing::SetOnDrop;
use redis::{Connection, Value, cmd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ACCOUNTS: i64 = 1_000;
const FUNDS: i64 = 100;

/// Moves money between two accounts of which one is chosen by the script itself, which has not declared it.
const MOVE_UNDECLARED: &str = "local to = 'account:' .. ARGV[1]
redis.call('decrby', KEYS[1], ARGV[2]) redis.call('incrby', to, ARGV[2]) return 1";
const MOVE: &str = "redis.call('decrby', KEYS[1], ARGV[1]) redis.call('incrby', KEYS[2], ARGV[1]) return 1";
/// Most of the time it only reads its key; otherwise it moves money to an account that it has not declared.
const MOVE_LYING: &str = "local function move(from, to, amount)
    redis.call('decrby', from, amount) redis.call('incrby', to, amount)
end
local funds = redis.call('get', KEYS[1])
if ARGV[3] == '0' then move(KEYS[1], 'account:' .. ARGV[1], ARGV[2]) end return funds";
const LIBRARY: &str = "#!lua name=bank
server.register_function('move', function(keys, args)
    redis.call('decrby', keys[1], args[1]) redis.call('incrby', keys[2], args[1]) return 1
end)";

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % bound as u64) as i64
    }
}

fn account(number: i64) -> String {
    format!("account:{number}")
}

fn open_accounts(client: &mut Connection) {
    let mut request = cmd("MSET");
    for number in 0..ACCOUNTS {
        request.arg(account(number)).arg(FUNDS);
    }
    request.exec(client).expect("MSET");
    cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(LIBRARY).exec(client).expect("FUNCTION LOAD");
}

fn sum(client: &mut Connection) -> i64 {
    let mut request = redis::pipe();
    request.atomic();
    for number in 0..ACCOUNTS {
        request.cmd("GET").arg(account(number));
    }
    let funds: Vec<i64> = request.query(client).expect("a transaction of reads");
    funds.into_iter().sum()
}

/// Moves money in one of several ways; whether it was moved.
fn transfer(client: &mut Connection, way: i64, random: &mut Random) -> bool {
    let (from, amount) = (random.below(ACCOUNTS), random.below(50));
    let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
    let (from_name, to_name) = (account(from), account(to));
    match way {
        0 => cmd("EVAL").arg(MOVE).arg(2).arg(from_name).arg(to_name).arg(amount).exec(client).is_ok(),
        1 => cmd("FCALL").arg("move").arg(2).arg(from_name).arg(to_name).arg(amount).exec(client).is_ok(),
        2 => cmd("EVAL").arg(MOVE_UNDECLARED).arg(1).arg(from_name).arg(to).arg(amount).exec(client).is_ok(),
        3 => {
            let mut request = redis::pipe();
            request.atomic().cmd("EVAL").arg(MOVE).arg(2).arg(from_name).arg(to_name).arg(amount);
            request.exec(client).is_ok()
        }
        4 => {
            let mut request = cmd("EVAL");
            // With a text of its own, a script starts as an unknown one.
            request.arg(format!("{MOVE_LYING} -- {}", random.below(20))).arg(1).arg(from_name).arg(to).arg(amount);
            request.arg(random.below(8)).exec(client).is_ok()
        }
        _ => {
            let keys = (from_name, to_name);
            cmd("WATCH").arg(&keys.0).arg(&keys.1).exec(client).expect("WATCH");
            let (from, to): (i64, i64) = cmd("MGET").arg(&keys.0).arg(&keys.1).query(client).expect("MGET");
            let mut request = redis::pipe();
            request.atomic().cmd("SET").arg(keys.0).arg(from - amount).cmd("SET").arg(keys.1).arg(to + amount);
            let moved: Option<Value> = request.query(client).expect("EXEC");
            moved.is_some()
        }
    }
}

/// Duration of the concurrency tests: KVICK_STRESS_SECONDS, or two seconds.
fn stress_time() -> Duration {
    let seconds = std::env::var("KVICK_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(2))
}

#[test]
fn concurrent_transfers_keep_the_total() {
    for_workers(
        &["--appendonly", "yes", "--appendfsync", "no", "--enable-debug-command", "yes"],
        transfer_concurrently,
    );
}

fn transfer_concurrently(server: &Server) {
    open_accounts(&mut server.client());
    let (stop, moved, seen) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        for number in 0..16 {
            let (stop, moved) = (&stop, &moved);
            scope.spawn(move || {
                let (mut client, mut random) = (server.client(), Random(number));
                while !stop.load(Ordering::Relaxed) {
                    let way = random.below(6);
                    moved.fetch_add(u64::from(transfer(&mut client, way, &mut random)), Ordering::Relaxed);
                }
            });
        }
        for _ in 0..2 {
            let (stop, seen) = (&stop, &seen);
            scope.spawn(move || {
                let mut client = server.client();
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(sum(&mut client), ACCOUNTS * FUNDS);
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(stress_time());
    });
    println!("{moved:?} transfers, {seen:?} sums");
    assert!(moved.into_inner() > 100 && seen.into_inner() > 1);
    let mut client = server.client();
    assert_eq!(sum(&mut client), ACCOUNTS * FUNDS);
    cmd("DEBUG").arg("LOADAOF").exec(&mut client).expect("a log of whole transfers");
    assert_eq!(sum(&mut client), ACCOUNTS * FUNDS);
}

/// Connections on all workers.
fn on_all_workers(server: &Server) -> Vec<common::Raw> {
    (0..16).map(|_| server.raw()).collect()
}

/// Runs until its argument is not `x`.
const ENDLESS: &str = "while ARGV[1] == 'x' do redis.call('get', KEYS[1]) end return 1";

#[test]
fn scripts_with_declared_keys_run_beside_a_long_script() {
    // With a seed of its own each run would have the keys in other partitions.
    let seed = ["--hash-seed", "a seed that keeps them apart"];
    let server = Server::start(&[&["--io-threads", "4", "--busy-reply-threshold", "0"], &seed[..]].concat());
    let count = "return redis.call('incr', KEYS[1])";
    let mut long = server.raw();
    // The first time a script runs alone.
    long.ask(&["EVAL", ENDLESS, "1", "long", "y"], ":1\r\n");
    long.ask(&["EVAL", count, "1", "{short}"], ":1\r\n");
    let counts: Vec<_> = (0..16).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (mut raw, done) in on_all_workers(&server).into_iter().zip(&counts) {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    raw.request(&["EVAL", count, "1", "{short}"]);
                    assert!(raw.line().starts_with(':'));
                    done.fetch_add(1, Ordering::Relaxed);
                }
                raw.request(&["SCRIPT", "KILL"]);
                raw.line();
            });
        }
        let _stop = SetOnDrop(&stop);
        long.request(&["EVAL", ENDLESS, "1", "long", "x"]);
        let read = || counts.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let mut base = read();
        wait_until("the clients of one worker wait, while others run scripts", || {
            let progress: Vec<_> = read().iter().zip(&base).map(|(now, base)| now - base).collect();
            if progress.iter().all(|progress| *progress > 0) {
                base = read();
            }
            progress.contains(&0) && progress.iter().filter(|progress| **progress > 200).count() >= 8
        });
    });
    assert!(long.line().starts_with("-ERR Script killed by user with SCRIPT KILL."));
}

#[test]
fn several_long_scripts_are_killed_one_by_one() {
    let server = Server::start(&["--io-threads", "4", "--busy-reply-threshold", "20"]);
    let mut raw = server.raw();
    raw.ask(&["EVAL", ENDLESS, "1", "a", "y"], ":1\r\n");
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (mut raw, ended) = (server.raw(), &ended);
            scope.spawn(move || {
                raw.request(&["EVAL", ENDLESS, "1", &format!("key:{number}"), "x"]);
                let line = raw.line();
                assert!(line.starts_with("-ERR Script killed") || line.starts_with("-BUSY "), "{line}");
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        wait_until("all have ended", || {
            raw.request(&["SCRIPT", "KILL"]);
            let line = raw.line();
            assert!(line == "+OK" || line.starts_with("-NOTBUSY "), "{line}");
            ended.load(Ordering::Relaxed) == 4
        });
    });
    raw.ask(&["PING"], "+PONG\r\n");
    raw.ask(&["EVAL", ENDLESS, "1", "a", "y"], ":1\r\n");
}

#[test]
fn libraries_with_state_have_it_once() {
    for_workers(&[], |server| {
        let library = "#!lua name=l\nlocal n = 0 server.register_function('next', function() n = n + 1 return n end)";
        server.raw().ask(&["FUNCTION", "LOAD", library], "$1\r\nl\r\n");
        let mut all = on_all_workers(server);
        for n in 1..=320 {
            all[n % 16].ask(&["FCALL", "next", "0"], &format!(":{n}\r\n"));
        }
    });
}

#[test]
fn changes_of_scripts_and_libraries_apply_to_all_workers() {
    for_workers(&[], |server| {
        let mut all = on_all_workers(server);
        let library = |n: i64| format!("#!lua name=l\nserver.register_function('f', function(keys) return {n} end)");
        let script = "return redis.call('incr', KEYS[1])";
        for round in 0..10 {
            let mut raw = server.raw();
            raw.ask(&["FUNCTION", "LOAD", "REPLACE", &library(round)], "$1\r\nl\r\n");
            raw.ask(&["SCRIPT", "FLUSH"], "+OK\r\n");
            raw.request(&["SCRIPT", "LOAD", script]);
            raw.line();
            let sum = raw.line();
            for (number, raw) in all.iter_mut().enumerate() {
                raw.ask(&["FCALL", "f", "1", "key"], &format!(":{round}\r\n"));
                raw.ask(&["FCALL", "F", "1", "key"], &format!(":{round}\r\n"));
                raw.ask(&["EVALSHA", &sum, "1", &format!("key:{number}")], &format!(":{}\r\n", round + 1));
            }
            raw.ask(&["SCRIPT", "FLUSH", "ASYNC"], "+OK\r\n");
            raw.ask(&["FUNCTION", "DELETE", "l"], "+OK\r\n");
            for raw in &mut all {
                raw.ask(&["EVALSHA", &sum, "1", "key"], "-NOSCRIPT No matching script.\r\n");
                raw.ask(&["FCALL", "f", "1", "key"], "-ERR Function not found\r\n");
            }
        }
    });
}

#[test]
fn scripts_with_undeclared_keys_do_not_deadlock() {
    let server = Server::start(&["--io-threads", "4", "--save", ""]);
    let stop = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        for number in 0..12 {
            let (server, stop, rounds) = (&server, &stop, &rounds);
            scope.spawn(move || {
                let (mut client, mut random) = (server.client(), Random(100 + number));
                while !stop.load(Ordering::Relaxed) {
                    let [a, b, c] = [(); 3].map(|()| format!("key:{}", random.below(50)));
                    let script = |text: &str| {
                        let mut request = cmd("EVAL");
                        request.arg(text).arg(1).arg(&a).arg(&b).arg(&c);
                        request
                    };
                    let mut request = match random.below(10) {
                        0 => script("redis.call('set', KEYS[1], 1) return redis.call('keys', 'key:1*')"),
                        1 => script(
                            "redis.call('incr', ARGV[1]) redis.call('incr', ARGV[2]) redis.call('incr', KEYS[1])",
                        ),
                        2 => script("redis.call('set', ARGV[1], 'x') redis.call('swapdb', 0, 1)"),
                        3 => script("redis.call('get', ARGV[2]) return redis.call('dbsize')"),
                        4 => script("redis.call('set', KEYS[1], 1) return redis.call('scan', '0')"),
                        5 => cmd("SWAPDB").arg(0).arg(1).to_owned(),
                        6 => cmd("FLUSHALL").to_owned(),
                        7 => cmd("MSET").arg(&a).arg(1).arg(&b).arg(2).arg(&c).arg(3).to_owned(),
                        8 => cmd("SCAN").arg(0).arg("COUNT").arg(1000).to_owned(),
                        _ => cmd("MGET").arg(&a).arg(&b).arg(&c).to_owned(),
                    };
                    // INCR may meet what SET left.
                    let _: Result<Value, _> = request.query(&mut client);
                    request = cmd("PING");
                    assert_eq!(request.query(&mut client), Ok("PONG".to_string()));
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let began = Instant::now();
        let mut last = 0;
        while began.elapsed() < stress_time() {
            std::thread::sleep(Duration::from_millis(500));
            let now = rounds.load(Ordering::Relaxed);
            assert!(now > last, "nothing happens any more after {now} rounds");
            last = now;
        }
    });
}

/// Starts an endless script, and waits until the server replies BUSY to others.
fn become_busy(server: &Server, request: &[&str]) -> common::Raw {
    let mut client = server.client();
    cmd("CONFIG").arg("SET").arg("busy-reply-threshold").arg(20).exec(&mut client).expect("CONFIG SET");
    let mut raw = server.raw();
    raw.request(request);
    wait_until("the server is busy", || {
        let reply: Result<String, _> = cmd("PING").query(&mut client);
        reply.is_err_and(|error| error.code() == Some("BUSY"))
    });
    raw
}

const BUSY: &str = "-BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";
const BUSY_FUNCTION: &str =
    "-BUSY Valkey is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.\r\n";

#[test]
fn a_long_script_can_be_killed() {
    for_workers(&[], |server| {
        kill_long_script(server, "while true do end");
        // A single search with more combinations than can ever be tried.
        for call in ["find(pattern)", "match(pattern)", "gsub(pattern, '')", "gmatch(pattern)()"] {
            let search = format!("local pattern = ('a-'):rep(30) .. 'b' return ('a'):rep(1000):{call}");
            kill_long_script(server, &search);
            kill_long_script(server, &format!("return pcall(function() {search} end)"));
        }
    });
}

fn kill_long_script(server: &Server, script: &str) {
    let mut busy = become_busy(server, &["EVAL", script, "0"]);
    // Each worker has one of these.
    for _ in 0..8 {
        let mut raw = server.raw();
        raw.ask(&["DBSIZE"], BUSY);
        raw.ask(&["FUNCTION", "KILL"], BUSY);
        raw.ask(&["SELECT", "1"], "+OK\r\n");
        raw.ask(&["EVAL", "return 1", "0"], BUSY);
    }
    server.raw().ask(&["SCRIPT", "KILL"], "+OK\r\n");
    assert!(busy.line().starts_with("-ERR Script killed by user with SCRIPT KILL. script: on @user_script:1."));
    busy.ask(&["PING"], "+PONG\r\n");
    server.raw().ask(&["SCRIPT", "KILL"], "-NOTBUSY No scripts in execution right now.\r\n");
}

#[test]
fn a_long_function_is_reported_and_can_be_killed() {
    for_workers(&[], |server| {
        let library =
            "#!lua name=l\nserver.register_function('f', function() while true do redis.call('ping') end end)";
        server.raw().ask(&["FUNCTION", "LOAD", library], "$1\r\nl\r\n");
        let mut busy = become_busy(server, &["FCALL", "f", "1", "key"]);
        let mut raw = server.raw();
        raw.ask(&["SCRIPT", "KILL"], BUSY_FUNCTION);
        raw.request(&["FUNCTION", "STATS"]);
        raw.expect(
            "*4\r\n$14\r\nrunning_script\r\n*6\r\n$4\r\nname\r\n$1\r\nf\r\n$7\r\ncommand\r\n*4\r\n$5\r\nFCALL\r\n",
        );
        raw.skip_to(":1");
        raw.skip_to(":1");
        raw.ask(&["FUNCTION", "KILL"], "+OK\r\n");
        assert!(busy.line().starts_with("-ERR Script killed by user with FUNCTION KILL."));
    });
}

#[test]
fn a_script_that_has_written_can_only_be_ended_by_shutdown() {
    for workers in ["1", "4"] {
        let mut server = Server::start(&["--io-threads", workers]);
        let script = "redis.call('set', KEYS[1], 1) while true do end";
        let _busy = become_busy(&server, &["EVAL", script, "1", "key"]);
        let mut raw = server.raw();
        raw.request(&["SCRIPT", "KILL"]);
        assert!(raw.line().starts_with("-UNKILLABLE "));
        raw.request(&["SHUTDOWN", "NOSAVE"]);
        raw.expect_end();
        assert_eq!(server.end(), Some(0));
    }
}

#[test]
fn undeclared_keys_of_a_long_script_are_served_by_other_workers() {
    // With a seed of its own each run would have the keys in other partitions, and some time in that of the script.
    let server = Server::start(&["--io-threads", "4", "--hash-seed", "a seed that keeps them apart"]);
    let mut busy = become_busy(&server, &["EVAL", "redis.call('get', KEYS[1]) while true do end", "1", "mine"]);
    for number in 0..8 {
        let mut raw = server.raw();
        let key = format!("{{other}}{number}");
        raw.ask(&["SET", &key, "1"], "+OK\r\n");
        raw.ask(&["GET", &key], "$1\r\n1\r\n");
        raw.ask(&["GET", "mine"], BUSY);
        raw.ask(&["MULTI"], "+OK\r\n");
        raw.ask(&["INCR", &key], BUSY);
        raw.ask(&["EXEC"], "-EXECABORT Transaction discarded because of: BUSY Valkey is busy");
        raw.line();
        raw.ask(&["GET", &key], "$1\r\n1\r\n");
    }
    server.raw().ask(&["SCRIPT", "KILL"], "+OK\r\n");
    assert!(busy.line().starts_with("-ERR Script killed"));
    server.raw().ask(&["GET", "mine"], "$-1\r\n");
}

#[test]
fn requests_behind_a_long_script_are_answered_in_order() {
    for_workers(&[], |server| {
        let mut client = server.client();
        cmd("CONFIG").arg("SET").arg("busy-reply-threshold").arg(20).exec(&mut client).expect("CONFIG SET");
        let mut raw = server.raw();
        let script = "local last = redis.call('get', KEYS[1]) while true do end";
        raw.send(format!("SET key 1\r\nPING one\r\nEVAL \"{script}\" 1 key\r\nPING two\r\nGET key\r\n"));
        raw.expect("+OK\r\n$3\r\none\r\n");
        wait_until("the script can be ended", || cmd("SCRIPT").arg("KILL").exec(&mut client).is_ok());
        assert!(raw.line().starts_with("-ERR Script killed"));
        raw.expect("$3\r\ntwo\r\n$1\r\n1\r\n");
    });
}

#[test]
fn select_in_a_script_does_not_change_the_clients_database() {
    for_workers(&[], |server| {
        let mut raw = server.raw();
        raw.ask(&["EVAL", "redis.call('select', 5) return redis.call('set', 'k', 'five')", "0"], "+OK\r\n");
        raw.ask(&["EXISTS", "k"], ":0\r\n");
    });
}

#[test]
fn functions_are_saved_in_the_dump() {
    for_workers(&["--enable-debug-command", "yes"], |server| {
        let mut raw = server.raw();
        raw.ask(&["FUNCTION", "LOAD", LIBRARY], "$4\r\nbank\r\n");
        raw.ask(&["FLUSHALL"], "+OK\r\n");
        raw.ask(&["DEBUG", "RELOAD"], "+OK\r\n");
        raw.ask(&["FCALL", "MOVE", "2", "a", "b", "5"], ":1\r\n");
        raw.ask(&["MGET", "a", "b"], "*2\r\n$2\r\n-5\r\n$1\r\n5\r\n");
        let mut client = server.client();
        let dump: Vec<u8> = cmd("FUNCTION").arg("DUMP").query(&mut client).expect("FUNCTION DUMP");
        raw.ask(&["FUNCTION", "FLUSH"], "+OK\r\n");
        raw.ask(&["FCALL", "move", "0"], "-ERR Function not found\r\n");
        cmd("FUNCTION").arg("RESTORE").arg(&dump).exec(&mut client).expect("FUNCTION RESTORE");
        raw.ask(&["FCALL", "move", "2", "a", "b", "-5"], ":1\r\n");
    });
}

#[test]
fn clients_get_their_own_replies_during_a_long_script_that_waited_for_locks() {
    /// Continues for a while.
    const LONG: &str = "local from = redis.call('time') local now repeat now = redis.call('time') \
        until (now[1] - from[1]) * 1000000 + now[2] - from[2] > 15000 return 'done'";
    const ROUNDS: usize = 100;
    let server = Server::start(&["--io-threads", "1", "--busy-reply-threshold", "3"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        for talker in 0..6 {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                let mut client = server.raw();
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let word = format!("{talker}-{number}");
                    client.request(&["ECHO", &word]);
                    let line = client.line();
                    if !line.starts_with("-BUSY") {
                        assert_eq!((line, client.line()), (format!("${}", word.len()), word));
                    }
                }
            });
        }
        let mut client = server.raw();
        for _ in 0..ROUNDS {
            // The script is read with what it has to wait for, and begins in the turn in which that has ended.
            client.request(&["BLPOP", "nothing", "0.001"]);
            client.request(&["EVAL", LONG, "0"]);
            client.expect("*-1\r\n$4\r\ndone\r\n");
        }
    });
}

#[test]
fn refused_commands_have_valkeys_errors() {
    let server = Server::start(&[]);
    let mut raw = server.raw();
    let call = |words: &str| format!("return redis.pcall({words}).err");
    let cases = [
        ("'NOSUCH'", "ERR Unknown command called from script"),
        ("'XGROUP', 'nosuch'", "ERR unknown subcommand 'nosuch'. Try XGROUP HELP."),
        ("'DEL', 'k'", "ERR ACL failure in script: User limited has no permissions to run the 'del' command"),
        ("'GET', 'other'", "ERR ACL failure in script: No permissions to access a key"),
    ];
    raw.ask(&["ACL", "SETUSER", "limited", "on", "nopass", "+@all", "-del", "~k"], "+OK\r\n");
    raw.ask(&["AUTH", "limited", "any"], "+OK\r\n");
    for (words, error) in cases {
        raw.ask(&["EVAL", &call(words), "0"], &format!("${}\r\n{error}\r\n", error.len()));
    }
    let counts: String = cmd("INFO").arg("errorstats").query(&mut server.client()).expect("a text");
    assert!(counts.contains("errorstat_ERR:count=2\r\nerrorstat_NOPERM:count=2\r\n"), "{counts}");
}

#[test]
fn permissions_of_every_command_can_be_checked_without_its_arguments() {
    const CHECK: &str = "local n = 0 for _, name in ipairs(ARGV) do
        n = n + (redis.acl_check_cmd(unpack((function() local words = {} for word in name:gmatch('[^|]+') do
            words[#words + 1] = word end return words end)())) and 1 or 0)
    end return n";
    let server = Server::start(&[]);
    let mut client = server.client();
    let names: Vec<String> = cmd("COMMAND").arg("LIST").query(&mut client).expect("names");
    let check = |client: &mut Connection| -> usize {
        cmd("EVAL").arg(CHECK).arg(0).arg(&names).query(client).expect("a number")
    };
    assert_eq!(check(&mut client), names.len());
    let user = ["SETUSER", "limited", "on", "nopass", "+@all", "-get", "~a*", "&c*", "db=0"];
    let set = cmd("ACL").arg(&user).exec(&mut client);
    set.or_else(|_| cmd("ACL").arg(&user[..8]).exec(&mut client)).expect("a user");
    cmd("AUTH").arg("limited").arg("any").exec(&mut client).expect("a password");
    assert!((1..names.len()).contains(&check(&mut client)));
}
