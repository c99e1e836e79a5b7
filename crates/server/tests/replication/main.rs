//! Replication between servers: a replica has the data of its primary, also after broken links and role changes.
//!
//! - `dumps`: full syncs in each of their variants.
//! - `peers`: Valkey and Redis servers on either side.

#[path = "../common/mod.rs"]
mod common;
mod dumps;
mod peers;

use common::{Server, wait_until};
use kvick_testing::{Deadline, SetOnDrop, accept};
use redis::{Connection, Value, cmd};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tempfile::TempDir;

/// Arguments of the servers: replicas do not wait for others to attach.
const SETTINGS: [&str; 6] =
    ["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];

fn start(workers: &str, args: &[&str]) -> Server {
    Server::start(&[&["--io-threads", workers], &SETTINGS[..], args].concat())
}

/// Runs a test with one worker and with four, on every server of the test.
fn with_workers(test: impl Fn(&str)) {
    for workers in ["1", "4"] {
        println!("with {workers} workers");
        test(workers);
    }
}

fn ask(client: &mut Connection, line: &str) -> Value {
    try_ask(client, line).unwrap_or_else(|error| panic!("{}: {error}", &line[..line.len().min(100)]))
}

fn try_ask(client: &mut Connection, line: &str) -> redis::RedisResult<Value> {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    words.for_each(|word| _ = command.arg(word));
    command.query(client)
}

fn text(client: &mut Connection, line: &str) -> String {
    redis::from_redis_value(ask(client, line)).expect("text")
}

fn number(client: &mut Connection, line: &str) -> i64 {
    redis::from_redis_value(ask(client, line)).expect("a number")
}

/// A field of INFO.
fn info(client: &mut Connection, field: &str) -> String {
    let all = text(client, "INFO everything");
    let found = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no field {field} in INFO")).to_string()
}

fn counted(client: &mut Connection, field: &str) -> u64 {
    info(client, field).parse().expect("a number")
}

/// Makes a server a replica of another.
fn follow(client: &mut Connection, primary: u16) {
    ask(client, &format!("REPLICAOF 127.0.0.1 {primary}"));
}

fn wait_for_link(client: &mut Connection) {
    wait_until("the link is up", || info(client, "master_link_status") == "up");
}

/// Waits until a replica has what its primary has, and checks that this is the same.
#[track_caller]
fn assert_same_data(primary: &mut Connection, replica: &mut Connection) {
    wait_until("the replica has all", || {
        info(primary, "master_repl_offset") == info(replica, "master_repl_offset")
            && info(replica, "master_link_status") == "up"
    });
    assert_eq!(text(primary, "DEBUG DIGEST"), text(replica, "DEBUG DIGEST"));
}

/// Clients that change data of all types until they are stopped, or the server exits.
struct Load {
    stop: &'static AtomicBool,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    fn begin(server: &Server) -> Load {
        Load::with(|| server.client())
    }

    fn with(connect: impl Fn() -> Connection) -> Load {
        let stop: &'static AtomicBool = Box::leak(Box::default());
        let clients = (0..3).map(|seed| {
            let mut client = connect();
            std::thread::spawn(move || {
                let mut n = seed * 7919;
                while !stop.load(Ordering::Relaxed) && write(&mut client, n).is_ok() {
                    n += 1;
                }
            })
        });
        Load { stop, clients: clients.collect() }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().expect("no panic"));
    }
}

/// A few changes.
fn write(client: &mut Connection, n: u64) -> redis::RedisResult<()> {
    let key = n * 2_654_435_761 % 500;
    redis::pipe()
        .cmd("SELECT")
        .arg(n % 3)
        .ignore()
        .cmd("SET")
        .arg(format!("s:{key}"))
        .arg("x".repeat((n % 300) as usize))
        .ignore()
        .cmd("INCRBYFLOAT")
        .arg(format!("f:{key}"))
        .arg(0.1)
        .ignore()
        .cmd("RPUSH")
        .arg(format!("l:{key}"))
        .arg(n)
        .ignore()
        .cmd("LTRIM")
        .arg(format!("l:{key}"))
        .arg(-40)
        .arg(-1)
        .ignore()
        .cmd("SADD")
        .arg(format!("t:{key}"))
        .arg(n % 64)
        .ignore()
        .cmd("SPOP")
        .arg(format!("t:{}", key / 2))
        .ignore()
        .cmd("ZADD")
        .arg(format!("z:{key}"))
        .arg(n as f64 / 7.0)
        .arg(n % 100)
        .ignore()
        .cmd("HSET")
        .arg(format!("h:{key}"))
        .arg(n % 50)
        .arg(n)
        .ignore()
        .cmd("XADD")
        .arg(format!("x:{key}"))
        .arg("MAXLEN")
        .arg(30)
        .arg("*")
        .arg("n")
        .arg(n)
        .ignore()
        .cmd("SET")
        .arg(format!("e:{n}"))
        .arg(n)
        .arg("PX")
        .arg(20 + n % 50)
        .ignore()
        .cmd("DEL")
        .arg(format!("s:{}", key + 1))
        .ignore()
        .query(client)
}

/// Waits until what expires has.
fn settle(client: &mut Connection) {
    wait_until("all that expires has expired", || {
        let all = text(client, "INFO keyspace");
        all.lines().filter(|line| line.starts_with("db")).all(|line| line.contains("expires=0"))
    });
}

#[test]
fn a_replica_syncs_fully_and_follows_under_load() {
    with_workers(|workers| {
        let (primary, replica) = (start(workers, &[]), start(workers, &[]));
        let (mut p, mut r) = (primary.client(), replica.client());
        ask(&mut p, "DEBUG POPULATE 20000 before 100");
        let load = Load::begin(&primary);
        ask(&mut r, "SET of-its-own goes");
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        let before = counted(&mut p, "master_repl_offset");
        wait_until("some more is written", || counted(&mut p, "master_repl_offset") > before + 100_000);
        // A broken link is re-established and continues.
        ask(&mut p, "CLIENT KILL TYPE replica");
        wait_until("the replica goes on", || counted(&mut p, "sync_partial_ok") == 1);
        load.end();
        settle(&mut p);
        assert_same_data(&mut p, &mut r);
        assert_eq!(counted(&mut p, "sync_full"), 1);
        assert!(try_ask(&mut r, "GET of-its-own").is_ok_and(|value| value == Value::Nil));
    });
}

#[test]
fn replicas_continue_with_a_promoted_replica() {
    with_workers(|workers| {
        let servers: Vec<Server> = (0..4).map(|_| start(workers, &[])).collect();
        let [a, b, c, d] = &servers[..] else { unreachable!() };
        let [mut ca, mut cb, mut cc, mut cd] = [a.client(), b.client(), c.client(), d.client()];
        // d follows c, which follows a.
        follow(&mut cb, a.port());
        follow(&mut cc, a.port());
        wait_for_link(&mut cc);
        follow(&mut cd, c.port());
        wait_for_link(&mut cb);
        wait_for_link(&mut cd);
        let load = Load::begin(a);
        wait_until("some is written", || counted(&mut ca, "master_repl_offset") > 100_000);
        load.end();
        settle(&mut ca);
        assert_same_data(&mut ca, &mut cb);
        assert_same_data(&mut ca, &mut cd);
        let full = counted(&mut cb, "sync_full") + counted(&mut cc, "sync_full");
        // b takes over; all others, including the old primary, continue with partial syncs.
        ask(&mut cb, "REPLICAOF NO ONE");
        follow(&mut cc, b.port());
        follow(&mut ca, b.port());
        wait_for_link(&mut cc);
        wait_for_link(&mut ca);
        write(&mut cb, 4711).expect("a primary that takes writes");
        settle(&mut cb);
        [&mut ca, &mut cc, &mut cd].into_iter().for_each(|other| assert_same_data(&mut cb, other));
        assert_eq!(counted(&mut cb, "sync_full") + counted(&mut cc, "sync_full"), full);
        assert_eq!(info(&mut cb, "master_replid"), info(&mut cd, "master_replid"));
        assert_eq!(counted(&mut cb, "sync_partial_ok"), 2);
    });
}

#[test]
fn a_restarted_replica_resumes_with_a_partial_sync() {
    with_workers(|workers| {
        let data_dir = TempDir::new().expect("a directory");
        let args = ["--dir", data_dir.path().to_str().expect("a plain name")];
        let primary = start(workers, &[]);
        let mut p = primary.client();
        let mut replica = start(workers, &args);
        let mut r = replica.client();
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        write(&mut p, 1).expect("a change");
        settle(&mut p);
        assert_same_data(&mut p, &mut r);
        // Its connection ends without a reply.
        assert!(try_ask(&mut r, "SHUTDOWN SAVE").is_err());
        replica.end();
        write(&mut p, 2).expect("a change");
        let follows = ["--replicaof", "127.0.0.1", &primary.port().to_string()].map(String::from);
        let follows: Vec<&str> = follows.iter().map(String::as_str).collect();
        let replica = start(workers, &[&args[..], &follows].concat());
        let mut r = replica.client();
        wait_for_link(&mut r);
        settle(&mut p);
        assert_same_data(&mut p, &mut r);
        assert_eq!((counted(&mut p, "sync_full"), counted(&mut p, "sync_partial_ok")), (1, 1));
    });
}

#[test]
fn transactions_are_atomic_on_a_replica() {
    with_workers(|workers| {
        let (primary, replica) = (start(workers, &[]), start(workers, &[]));
        let (mut p, mut r) = (primary.client(), replica.client());
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        let stop = AtomicBool::new(false);
        let mut p = std::thread::scope(|scope| {
            let writer = scope.spawn({
                let stop = &stop;
                move || {
                    let mut n = 0;
                    while n < 2000 || !stop.load(Ordering::Relaxed) {
                        n += 1;
                        let () = redis::pipe().atomic().set("one", n).set("{one}two", n).query(&mut p).expect("EXEC");
                    }
                    p
                }
            });
            let _stop = SetOnDrop(&stop);
            let deadline = Deadline::of("values on the replica");
            let mut seen = 0;
            while seen < 100 {
                deadline.check();
                let (one, two): (Option<i64>, Option<i64>) =
                    cmd("MGET").arg("one").arg("{one}two").query(&mut r).expect("values");
                assert_eq!(one, two);
                seen += usize::from(one.is_some());
            }
            stop.store(true, Ordering::Relaxed);
            writer.join().expect("no panic")
        });
        assert_same_data(&mut p, &mut r);
    });
}

#[test]
fn a_replica_hides_expired_keys_until_the_primary_deletes_them() {
    with_workers(|workers| {
        let (primary, replica) = (start(workers, &[]), start(workers, &[]));
        let (mut p, mut r) = (primary.client(), replica.client());
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        ask(&mut p, "DEBUG SET-ACTIVE-EXPIRE 0");
        ask(&mut p, "SET key value PX 50");
        assert_eq!(number(&mut p, "WAIT 1 0"), 1);
        wait_until("its time has come", || ask(&mut r, "GET key") == Value::Nil);
        assert_eq!(number(&mut r, "DBSIZE"), 1);
        assert_eq!(ask(&mut p, "GET key"), Value::Nil);
        assert_same_data(&mut p, &mut r);
        assert_eq!(number(&mut r, "DBSIZE"), 0);
    });
}

#[test]
fn replicas_delete_what_their_primary_skips_in_a_dump() {
    with_workers(|workers| {
        let (primary, replica) = (start(workers, &[]), start(workers, &[]));
        let (mut p, mut r) = (primary.client(), replica.client());
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        ask(&mut p, "DEBUG SET-ACTIVE-EXPIRE 0");
        ask(&mut p, "HSETEX part PX 50 FIELDS 2 a 1 b 2");
        ask(&mut p, "HSET part c 3");
        ask(&mut p, "HSETEX all PX 50 FIELDS 2 a 1 b 2");
        ask(&mut p, "SET key value PX 50");
        assert_eq!(number(&mut p, "WAIT 1 0"), 1);
        assert_eq!((number(&mut r, "DBSIZE"), number(&mut r, "HLEN part")), (3, 3));
        wait_until("their time has come", || {
            ask(&mut p, "HGET all b") == Value::Nil && ask(&mut r, "GET key") == Value::Nil
        });
        ask(&mut p, "SAVE");
        ask(&mut p, "DEBUG RELOAD NOSAVE");
        assert_eq!((number(&mut p, "DBSIZE"), number(&mut p, "HLEN part")), (1, 1));
        wait_until("the replica has deleted them", || {
            number(&mut r, "DBSIZE") == 1 && number(&mut r, "HLEN part") == 1
        });
        assert_same_data(&mut p, &mut r);
    });
}

#[test]
fn replicas_refuse_writes_and_wait_counts_acknowledgements() {
    with_workers(|workers| {
        let (primary, replica) = (start(workers, &[]), start(workers, &[]));
        let (mut p, mut r) = (primary.client(), replica.client());
        assert_eq!(number(&mut p, "WAIT 1 10"), 0);
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        ask(&mut p, "SET key value");
        assert_eq!(number(&mut p, "WAIT 1 0"), 1);
        assert_eq!(text(&mut r, "GET key"), "value");
        let refused = try_ask(&mut r, "SET key other").expect_err("a refusal");
        assert_eq!(refused.code(), Some("READONLY"));
        let refused = try_ask(&mut r, "WAIT 1 0").expect_err("a refusal");
        assert!(refused.to_string().contains("WAIT cannot be used with replica instances"), "{refused}");
        ask(&mut r, "CONFIG SET replica-read-only no");
        ask(&mut r, "SET key other");
        assert_eq!(text(&mut p, "GET key"), "value");
        // With fewer replicas than it wants a primary refuses writes.
        ask(&mut r, "REPLICAOF NO ONE");
        ask(&mut p, "CONFIG SET min-replicas-to-write 1");
        let mut refused = None;
        wait_until("the replica is missed", || {
            refused = try_ask(&mut p, "SET key value").err();
            refused.is_some()
        });
        assert_eq!(refused.as_ref().and_then(|error| error.code()), Some("NOREPLICAS"));
    });
}

#[test]
fn a_replica_that_does_not_read_is_closed_and_its_memory_freed() {
    with_workers(|workers| {
        let server =
            start(workers, &["--client-output-buffer-limit", "replica 1mb 1mb 60", "--repl-backlog-size", "16kb"]);
        let mut client = server.client();
        let mut replica = server.raw();
        replica.request(&["REPLCONF", "capa", "eof"]);
        replica.expect("+OK\r\n");
        replica.request(&["PSYNC", "?", "-1"]);
        wait_until("it is sent a dump", || text(&mut client, "INFO replication").contains("state=send_bulk"));
        let before = counted(&mut client, "mem_not_counted_for_evict");
        let value = "x".repeat(100_000);
        let mut most = 0;
        wait_until("it is cut off", || {
            ask(&mut client, &format!("SET key {value}"));
            most = most.max(counted(&mut client, "mem_not_counted_for_evict"));
            counted(&mut client, "connected_slaves") == 0
        });
        assert!(most > before + 500_000, "{before} to {most}");
        // What is kept is the backlog, once another block of the log is begun.
        wait_until("its memory is given back", || {
            ask(&mut client, &format!("SET key {value}"));
            counted(&mut client, "mem_not_counted_for_evict") < before + 300_000
        });
        assert_eq!(counted(&mut client, "client_output_buffer_limit_disconnections"), 1);
    });
}

#[test]
fn a_replica_logs_received_writes_to_its_append_only_file() {
    with_workers(|workers| {
        let data_dir = TempDir::new().expect("a directory");
        let args = ["--appendonly", "yes", "--dir", data_dir.path().to_str().expect("a plain name")];
        let primary = start(workers, &[]);
        let mut p = primary.client();
        ask(&mut p, "DEBUG POPULATE 1000 before 10");
        let mut replica = start(workers, &args);
        let mut r = replica.client();
        ask(&mut r, "SET of-its-own goes");
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        (0..50).for_each(|n| write(&mut p, n).expect("changes"));
        settle(&mut p);
        assert_same_data(&mut p, &mut r);
        // The files are begun anew with what came.
        wait_until("they are", || {
            info(&mut r, "aof_rewrite_in_progress") == "0" && info(&mut r, "aof_rewrite_scheduled") == "0"
        });
        assert_eq!(number(&mut p, "WAIT 1 0"), 1);
        ask(&mut r, "REPLICAOF NO ONE");
        ask(&mut r, "SET promoted yes");
        let digest = text(&mut r, "DEBUG DIGEST");
        assert!(matches!(ask(&mut r, "WAITAOF 1 0 5000"), Value::Array(had) if had[0] == Value::Int(1)));
        replica.signal(libc::SIGKILL);
        replica.end();
        let again = start(workers, &args);
        let mut client = again.client();
        assert_eq!(text(&mut client, "DEBUG DIGEST"), digest);
        assert_eq!(text(&mut client, "GET promoted"), "yes");
    });
}

#[test]
fn failover_loses_no_writes() {
    with_workers(|workers| {
        let (a, b) = (start(workers, &[]), start(workers, &[]));
        let (mut ca, mut cb) = (a.client(), b.client());
        let refused = try_ask(&mut ca, "FAILOVER").expect_err("a refusal");
        assert!(refused.to_string().contains("requires connected replicas"), "{refused}");
        follow(&mut cb, a.port());
        wait_for_link(&mut cb);
        wait_until("the replica is online", || text(&mut ca, "INFO replication").contains("state=online"));
        let counter = {
            let mut client = a.client();
            std::thread::spawn(move || {
                let (mut last, deadline) = (0, Deadline::of("the primary has handed over"));
                // Until it learns that this server is no longer a primary.
                while let Ok(n) = cmd("INCR").arg("counter").query::<i64>(&mut client) {
                    last = n;
                    deadline.check();
                }
                last
            })
        };
        wait_until("there are writes", || text(&mut ca, "EXISTS counter") == "1");
        ask(&mut ca, "FAILOVER");
        wait_until("b is the primary", || info(&mut cb, "role") == "master");
        let last = counter.join().expect("no panic");
        assert_eq!(number(&mut cb, "GET counter"), last);
        wait_for_link(&mut ca);
        ask(&mut cb, "INCR counter");
        assert_same_data(&mut cb, &mut ca);
        assert_eq!((counted(&mut cb, "sync_full"), counted(&mut cb, "sync_partial_ok")), (0, 1));
        assert_eq!(info(&mut ca, "master_failover_state"), "no-failover");
    });
}

#[test]
fn shutdown_waits_for_lagging_replicas() {
    with_workers(|workers| {
        let (mut primary, replica) = (start(workers, &["--shutdown-timeout", "20"]), start(workers, &[]));
        let (mut p, mut r) = (primary.client(), replica.client());
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        wait_until("the replica is online", || text(&mut p, "INFO replication").contains("state=online"));
        replica.signal(libc::SIGSTOP);
        ask(&mut p, "SET key value");
        let mut asks = primary.raw();
        asks.request(&["SHUTDOWN", "NOSAVE"]);
        wait_until("it waits", || primary.log().contains("Waiting for replicas before shutting down."));
        ask(&mut p, "SHUTDOWN ABORT");
        asks.expect("-ERR Errors trying to SHUTDOWN. Check logs.\r\n");
        ask(&mut p, "SET key last");
        asks.request(&["SHUTDOWN", "NOSAVE"]);
        replica.signal(libc::SIGCONT);
        assert_eq!(primary.end(), Some(0));
        assert!(primary.log().contains("1 of 1 replicas are in sync when shutting down."), "{}", primary.log());
        assert_eq!(text(&mut r, "GET key"), "last");
    });
}

#[test]
fn a_replicas_rewritten_file_selects_the_primarys_database() {
    with_workers(|workers| {
        let data_dir = TempDir::new().expect("a directory");
        let args = ["--appendonly", "yes", "--dir", data_dir.path().to_str().expect("a plain name")];
        let (primary, mut replica) = (start(workers, &[]), start(workers, &args));
        let (mut p, mut r) = (primary.client(), replica.client());
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        ask(&mut p, "SELECT 5");
        ask(&mut p, "SET before rewriting");
        assert_same_data(&mut p, &mut r);
        let rewritten = counted(&mut r, "aof_rewrites") + 1;
        ask(&mut r, "BGREWRITEAOF");
        wait_until("the file has a new base", || {
            counted(&mut r, "aof_rewrites") >= rewritten && info(&mut r, "aof_rewrite_in_progress") == "0"
        });
        ask(&mut p, "SET after rewriting");
        assert!(matches!(ask(&mut p, "WAITAOF 0 1 0"), Value::Array(had) if had[1] == Value::Int(1)));
        let digest = text(&mut r, "DEBUG DIGEST");
        replica.signal(libc::SIGKILL);
        replica.end();
        let again = start(workers, &args);
        assert_eq!(text(&mut again.client(), "DEBUG DIGEST"), digest);
    });
}

#[test]
fn a_writable_replica_expires_its_own_keys() {
    with_workers(|workers| {
        let (primary, replica) = (start(workers, &[]), start(workers, &["--replica-read-only", "no"]));
        let (mut p, mut r) = (primary.client(), replica.client());
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        ask(&mut p, "DEBUG SET-ACTIVE-EXPIRE 0");
        ask(&mut p, "SET the-primarys value PX 1");
        assert_same_data(&mut p, &mut r);
        ask(&mut r, "SET own value PX 30");
        redis::pipe()
            .atomic()
            .cmd("SADD")
            .arg("other")
            .arg("x")
            .cmd("PEXPIRE")
            .arg("other")
            .arg(30)
            .query::<()>(&mut r)
            .expect("a transaction");
        ask(&mut r, "SET lasting value PX 30");
        ask(&mut r, "PERSIST lasting");
        wait_until("they are gone", || number(&mut r, "DBSIZE") == 2);
        // The primary has the other one yet.
        assert_eq!((text(&mut r, "GET lasting").as_str(), number(&mut p, "DBSIZE")), ("value", 1));
        // A key that the primary sets later is not its own, although its clients have used the name.
        ask(&mut r, "INCR shared");
        ask(&mut r, "DEL shared");
        assert_eq!(counted(&mut r, "slave_expires_tracked_keys"), 0);
        ask(&mut p, "SET shared value PX 1");
        wait_until("it has arrived", || number(&mut r, "DBSIZE") == 3);
        // Also when the replica does not accept writes any more.
        ask(&mut r, "SET own value PX 100");
        ask(&mut r, "CONFIG SET replica-read-only yes");
        wait_until("it is forgotten", || counted(&mut r, "slave_expires_tracked_keys") == 0);
        assert_eq!(number(&mut r, "DBSIZE"), 3);
    });
}

#[test]
fn keys_of_a_writable_replica_are_remembered_until_they_need_not_be() {
    with_workers(|workers| {
        let (primary, other) = (start(workers, &[]), start(workers, &[]));
        let replica = start(workers, &["--replica-read-only", "no"]);
        let mut r = replica.client();
        let tracked = || counted(&mut replica.client(), "slave_expires_tracked_keys");
        ask(&mut r, "DEBUG SET-ACTIVE-EXPIRE 0");
        let mut follow_and_write = |primary: &Server| {
            follow(&mut r, primary.port());
            wait_for_link(&mut r);
            (0..10).for_each(|n| _ = ask(&mut r, &format!("SET own:{n} value PX 1")));
            assert_eq!(tracked(), 10);
        };
        follow_and_write(&primary);
        ask(&mut replica.client(), "FLUSHALL");
        assert_eq!(tracked(), 0);
        // They are gone after a full sync.
        follow_and_write(&primary);
        let mut r = replica.client();
        follow(&mut r, other.port());
        wait_for_link(&mut r);
        assert_eq!(tracked(), 0);
        (0..10).for_each(|n| _ = ask(&mut r, &format!("SET own:{n} value PX 1")));
        ask(&mut r, "REPLICAOF NO ONE");
        assert_eq!((tracked(), number(&mut r, "DBSIZE")), (10, 10));
        ask(&mut r, "DEBUG SET-ACTIVE-EXPIRE 1");
        wait_until("they are forgotten", || tracked() == 0);
        wait_until("they have expired", || number(&mut r, "DBSIZE") == 0);
    });
}

#[test]
fn a_replica_that_runs_commands_is_closed_and_a_role_change_ends_waits() {
    with_workers(|workers| {
        let (one, other) = (start(workers, &[]), start(workers, &[]));
        let mut client = one.client();
        let mut odd = one.raw();
        odd.request(&["SYNC"]);
        wait_until("it is attached", || counted(&mut client, "connected_slaves") == 1);
        odd.request(&["GET", "key"]);
        wait_until("it is gone", || counted(&mut client, "connected_slaves") == 0);
        assert!(one.log().contains("Replica generated a reply to command 'get', disconnecting it"));
        let mut waits = one.raw();
        waits.ask(&["SET", "key", "value"], "+OK\r\n");
        waits.request(&["WAIT", "1", "0"]);
        wait_until("it waits", || counted(&mut client, "blocked_clients") == 1);
        follow(&mut client, other.port());
        waits.expect(
            "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n",
        );
        waits.expect_end();
    });
}

#[test]
fn a_busy_script_on_a_replica_delays_but_loses_no_writes() {
    with_workers(|workers| {
        let primary = start(workers, &[]);
        let replica = start(workers, &["--busy-reply-threshold", "20"]);
        let (mut client, mut other) = (primary.client(), replica.client());
        follow(&mut other, primary.port());
        wait_for_link(&mut other);
        for line in ["SET key 0", "SET gone 0", "WAIT 1 0"] {
            ask(&mut client, line);
        }
        let mut busy = replica.raw();
        busy.request(&["EVAL_RO", "redis.call('get', KEYS[1]) while true do end", "1", "key"]);
        wait_until("the replica is busy", || {
            try_ask(&mut other, "PING").is_err_and(|error| error.code() == Some("BUSY"))
        });
        // One key, several, all of them, and a transaction.
        for line in ["INCR key", "MSET key 5 another 1", "FLUSHDB", "SET key 7", "MULTI", "INCR key", "EXEC"] {
            ask(&mut client, line);
        }
        let mut last = replica.raw();
        last.ask(&["SCRIPT", "KILL"], "+OK\r\n");
        assert!(busy.line().starts_with("-ERR Script killed"));
        assert_same_data(&mut client, &mut other);
        assert_eq!(number(&mut other, "GET key"), 8);
    });
}

/// Acts as a primary that starts a full sync with these bytes. Fails if the replica disconnects.
fn act_as_primary(listener: &TcpListener, dump: &[u8]) -> std::io::Result<TcpStream> {
    let mut requests = BufReader::new(accept(listener)?);
    let mut line = String::new();
    // Each request is a line that says what it is, among others that are not looked at.
    while !line.trim().eq_ignore_ascii_case("psync") {
        line.clear();
        if requests.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let answer = match line.trim().to_ascii_lowercase().as_str() {
            "ping" => "+PONG\r\n".to_string(),
            "replconf" => "+OK\r\n".to_string(),
            "psync" => format!("+FULLRESYNC {} 0\r\n", "a".repeat(40)),
            _ => String::new(),
        };
        requests.get_mut().write_all(answer.as_bytes())?;
    }
    let mut stream = requests.into_inner();
    stream.write_all(dump)?;
    Ok(stream)
}

/// Acts as a primary of this test's replica. A replica of another test may try a port that was its primary's.
fn played_primary(listener: &TcpListener, dump: &[u8]) -> TcpStream {
    let played = std::iter::repeat_with(|| act_as_primary(listener, dump)).take(5).find_map(Result::ok);
    played.expect("a replica that synchronises")
}

#[test]
fn data_survives_a_sync_that_breaks_before_its_dump() {
    const FRAMING: &[u8] = b"$EOF:0123456789012345678901234567890123456789\r\n";
    with_workers(|workers| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let replica = start(workers, &["--repl-diskless-load", "flush-before-load"]);
        let mut client = replica.client();
        ask(&mut client, "SET key 5");
        follow(&mut client, port);
        let mut primary = played_primary(&listener, FRAMING);
        wait_until("the replica waits", || replica.log().contains("receiving streamed RDB"));
        primary.write_all(b"REDIS001").expect("a connection");
        // Less than the dump's version: nothing is loaded yet, so nothing may be dropped.
        assert_eq!((counted(&mut client, "loading"), number(&mut client, "GET key")), (0, 5));
        drop(primary);
        let primary = played_primary(&listener, &[FRAMING, b"REDIS0011"].concat());
        wait_until("the replica loads", || counted(&mut client, "loading") == 1);
        drop(primary);
        wait_until("the load has failed", || counted(&mut client, "loading") == 0);
        assert_eq!(number(&mut client, "DBSIZE"), 0);
    });
}

#[test]
fn scripts_from_an_old_primary_are_executed() {
    const DUMP: &[u8] = b"$18\r\nREDIS0011\xff\0\0\0\0\0\0\0\0*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*5\r\n$4\r\nEVAL\r\n\
        $40\r\nreturn redis.call('set',KEYS[1],ARGV[1])\r\n$1\r\n1\r\n$3\r\nkey\r\n$1\r\n5\r\n";
    with_workers(|workers| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let replica = start(workers, &[]);
        let mut other = replica.client();
        follow(&mut other, port);
        let _primary = played_primary(&listener, DUMP);
        wait_until("the script has run", || try_ask(&mut other, "GET key") == Ok(Value::BulkString(b"5".to_vec())));
    });
}

#[test]
fn a_transaction_is_replicated_once() {
    with_workers(|workers| {
        let (primary, replica) = (start(workers, &[]), start(workers, &[]));
        let (mut client, mut other) = (primary.client(), replica.client());
        follow(&mut other, primary.port());
        wait_for_link(&mut other);
        for line in ["MULTI", "INCR key", "UNWATCH", "RPUSH list a", "UNWATCH", "GET key", "EXEC"] {
            ask(&mut client, line);
        }
        assert_same_data(&mut client, &mut other);
        assert_eq!((number(&mut other, "GET key"), number(&mut other, "LLEN list")), (1, 1));
    });
}

#[test]
fn a_replica_with_a_failing_disk_continues_only_if_configured() {
    with_workers(|workers| {
        let (primary, mut replica) = (start(workers, &[]), start(workers, &[]));
        let (mut writer, mut client) = (primary.client(), replica.client());
        follow(&mut client, primary.port());
        wait_for_link(&mut client);
        let dump = replica.dir().join("dump.rdb");
        // It may be there, as the primary's came.
        let _ = std::fs::remove_file(&dump);
        std::fs::create_dir(dump).expect("a directory in place of the dump");
        ask(&mut client, "CONFIG SET replica-ignore-disk-write-errors yes");
        cmd("CONFIG").arg("SET").arg("save").arg("3600 100000").exec(&mut client).expect("a setting");
        ask(&mut client, "BGSAVE");
        wait_until("the save has failed", || info(&mut client, "rdb_last_bgsave_status") == "err");
        ask(&mut writer, "SET a 1");
        assert_same_data(&mut writer, &mut client);
        assert_eq!(number(&mut client, "GET a"), 1);
        assert!(replica.log().contains("Replica is applying a command even though it is unable to write to disk."));
        ask(&mut client, "CONFIG SET replica-ignore-disk-write-errors no");
        // Nothing is written: that is no reason.
        ask(&mut writer, "PUBLISH channel message");
        assert_same_data(&mut writer, &mut client);
        ask(&mut writer, "SET a 2");
        assert_ne!(replica.end(), Some(0));
        assert!(replica.log().contains("Replica was unable to write command to disk."));
    });
}
