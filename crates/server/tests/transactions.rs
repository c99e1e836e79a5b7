//! Transactions: queueing, isolation, and WATCH.

mod common;

use common::for_workers;
use kvick_testing::SetOnDrop;
use redis::cmd;
use std::sync::atomic::{AtomicBool, Ordering};

const QUEUED: &str = "+QUEUED\r\n";
const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";

#[test]
fn commands_are_queued_and_executed_together() {
    for_workers(&[], |server| {
        let mut raw = server.raw();
        raw.ask(&["EXEC"], "-ERR EXEC without MULTI\r\n");
        raw.ask(&["DISCARD"], "-ERR DISCARD without MULTI\r\n");
        raw.send(
            "MULTI\r\nSET a 1\r\nINCR a\r\nLPUSH a x\r\nSELECT 2\r\nSET b 2\r\nUNWATCH\r\nGET b\r\nEXEC\r\nGET b\r\n",
        );
        raw.expect("+OK\r\n");
        (0..7).for_each(|_| raw.expect(QUEUED));
        raw.expect("*7\r\n+OK\r\n:2\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n");
        raw.expect("+OK\r\n+OK\r\n+OK\r\n$1\r\n2\r\n$1\r\n2\r\n");
        raw.send("MULTI\r\nSET b 3\r\nDISCARD\r\nGET b\r\nMULTI\r\nEXEC\r\n");
        raw.expect("+OK\r\n+QUEUED\r\n+OK\r\n$1\r\n2\r\n+OK\r\n*0\r\n");
        raw.send("MULTI\r\nSET b 4\r\nRESET\r\nEXEC\r\n");
        raw.expect("+OK\r\n+QUEUED\r\n+RESET\r\n-ERR EXEC without MULTI\r\n");
    });
}

#[test]
fn scan_works_in_a_transaction() {
    for_workers(&[], |server| {
        let mut raw = server.raw();
        raw.send("MSET a 1 b 2 c 3\r\nMULTI\r\nSET a 4\r\nSCAN 0 COUNT 1000 MATCH a\r\nGET a\r\nEXEC\r\n");
        raw.expect("+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
        raw.expect("*3\r\n+OK\r\n*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n$1\r\n4\r\n");
    });
}

#[test]
fn a_refused_command_aborts_the_transaction() {
    for_workers(&[], |server| {
        for (line, error) in [
            ("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: \r\n"),
            ("SET a", "-ERR wrong number of arguments for 'set' command\r\n"),
            ("WATCH a", "-ERR Command 'watch' not allowed inside a transaction\r\n"),
            ("MULTI", "-ERR Command 'multi' not allowed inside a transaction\r\n"),
        ] {
            let mut raw = server.raw();
            raw.send(format!("MULTI\r\nSET k 1\r\n{line}\r\nSET k 2\r\nEXEC\r\nEXISTS k\r\n"));
            raw.expect("+OK\r\n+QUEUED\r\n");
            raw.expect(error);
            raw.expect(QUEUED);
            raw.expect(ABORTED);
            raw.expect(":0\r\n");
        }
    });
}

#[test]
fn a_changed_watched_key_aborts_the_transaction() {
    for_workers(&[], |server| {
        let mut other = server.client();
        // What is done to the data meanwhile, and whether it touches the watched key.
        let cases: &[(&[&str], bool)] = &[
            (&["SET", "key", "x"], true),
            (&["SADD", "set", "new"], true),
            (&["SADD", "set", "member"], false),
            (&["SREM", "set", "nobody"], false),
            (&["GET", "key"], false),
            (&["SET", "elsewhere", "x"], false),
            (&["EXPIRE", "key", "100"], true),
            (&["DEL", "set"], true),
            (&["DEL", "nothing"], false),
            (&["SET", "nothing", "x"], true),
            (&["FLUSHALL"], true),
            (&["SWAPDB", "0", "1"], true),
            (&["SWAPDB", "2", "3"], false),
            (&["RENAME", "key", "nothing"], true),
        ];
        for (words, touched) in cases {
            let () = redis::pipe()
                .cmd("FLUSHALL")
                .cmd("SET")
                .arg(&["key", "value"])
                .cmd("SADD")
                .arg(&["set", "member"])
                .ignore()
                .query(&mut other)
                .expect("replies");
            let mut raw = server.raw();
            raw.ask(&["WATCH", "key", "set", "nothing"], "+OK\r\n");
            let _: redis::Value = cmd(words[0]).arg(&words[1..]).query(&mut other).expect("a reply");
            raw.send("MULTI\r\nPING\r\nEXEC\r\n");
            raw.expect("+OK\r\n+QUEUED\r\n");
            raw.expect(if *touched { "*-1\r\n" } else { "*1\r\n+PONG\r\n" });
            // What was watched is forgotten.
            let _: redis::Value = cmd("SET").arg(&["key", "again"]).query(&mut other).expect("a reply");
            raw.send("MULTI\r\nPING\r\nEXEC\r\n");
            raw.expect("+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n");
        }
    });
}

#[test]
fn an_expired_watched_key_aborts_the_transaction() {
    for_workers(&["--enable-debug-command", "yes"], |server| {
        for sweep in ["0", "1"] {
            let mut raw = server.raw();
            raw.ask(&["DEBUG", "SET-ACTIVE-EXPIRE", sweep], "+OK\r\n");
            raw.ask(&["SET", "key", "value", "PX", "20"], "+OK\r\n");
            raw.ask(&["WATCH", "key"], "+OK\r\n");
            common::wait_until("the key is gone", || {
                raw.request(&["TTL", "key"]);
                raw.line() == ":-2"
            });
            raw.send("MULTI\r\nPING\r\nEXEC\r\n");
            raw.expect("+OK\r\n+QUEUED\r\n*-1\r\n");
        }
    });
}

#[test]
fn blocked_clients_are_served_after_the_transaction() {
    for_workers(&[], |server| {
        let (mut waiting, mut raw) = (server.raw(), server.raw());
        waiting.request(&["BLPOP", "list", "0"]);
        common::wait_until("the client waits", || {
            raw.request(&["INFO", "clients"]);
            let mut blocked = false;
            loop {
                let line = raw.line();
                blocked |= line == "blocked_clients:1";
                if line.is_empty() {
                    return blocked;
                }
            }
        });
        raw.send("MULTI\r\nRPUSH list a\r\nDEL list\r\nRPUSH list b c\r\nBLPOP nothing 0\r\nEXEC\r\n");
        raw.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n:1\r\n:1\r\n:2\r\n*-1\r\n");
        waiting.expect("*2\r\n$4\r\nlist\r\n$1\r\nb\r\n");
    });
}

#[test]
fn transactions_are_isolated() {
    const ACCOUNTS: usize = 8;
    const TRANSFERS: usize = 300;
    for_workers(&[], |server| {
        let mut setup = server.client();
        for account in 0..ACCOUNTS {
            let () = cmd("SET").arg(format!("account:{account}")).arg(100).query(&mut setup).expect("OK");
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _done = SetOnDrop(&done);
            let movers: Vec<_> = (0..3)
                .map(|mover| {
                    scope.spawn(move || {
                        let mut client = server.client();
                        for n in 0..TRANSFERS {
                            let (from, to) = ((n * 3 + mover) % ACCOUNTS, (n * 5 + 1) % ACCOUNTS);
                            let () = redis::pipe()
                                .atomic()
                                .cmd("DECR")
                                .arg(format!("account:{from}"))
                                .ignore()
                                .cmd("INCR")
                                .arg(format!("account:{to}"))
                                .ignore()
                                .query(&mut client)
                                .expect("replies");
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let mut client = server.client();
                let names: Vec<String> = (0..ACCOUNTS).map(|account| format!("account:{account}")).collect();
                while !done.load(Ordering::Relaxed) {
                    let amounts: Vec<i64> = cmd("MGET").arg(&names).query(&mut client).expect("numbers");
                    assert_eq!(amounts.iter().sum::<i64>(), 100 * ACCOUNTS as i64);
                }
            });
            movers.into_iter().for_each(|mover| mover.join().expect("no panic"));
        });
    });
}

#[test]
fn optimistic_increments_lose_no_update() {
    const EACH: i64 = 50;
    for_workers(&[], |server| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut client = server.client();
                    for _ in 0..EACH {
                        let _: (i64,) = redis::transaction(&mut client, &["counter"], |client, pipe| {
                            let n: Option<i64> = cmd("GET").arg("counter").query(client)?;
                            pipe.cmd("SET").arg("counter").arg(n.unwrap_or(0) + 1).ignore();
                            pipe.cmd("GET").arg("counter").query(client)
                        })
                        .expect("a transaction in the end");
                    }
                });
            }
        });
        assert_eq!(cmd("GET").arg("counter").query::<i64>(&mut server.client()), Ok(4 * EACH));
    });
}

#[test]
fn swapping_a_missing_watched_key_for_an_expired_one_is_no_change() {
    for_workers(&["--enable-debug-command", "yes"], |server| {
        let mut raw = server.raw();
        raw.send("DEBUG SET-ACTIVE-EXPIRE 0\r\nSELECT 1\r\nSET key value PX 1\r\nSELECT 0\r\nWATCH key\r\n");
        raw.expect("+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n");
        // Whoever looks at the key to see whether its time has come drops it.
        let mut other = server.client();
        let time_us = |client: &mut redis::Connection| -> u64 {
            let (seconds, us): (u64, u64) = cmd("TIME").query(client).expect("a time");
            seconds * 1_000_000 + us
        };
        let began = time_us(&mut other);
        common::wait_until("the key's time has come", || time_us(&mut other) > began + 3_000);
        let () = cmd("SWAPDB").arg(0).arg(1).query(&mut other).expect("OK");
        raw.send("MULTI\r\nPING\r\nEXEC\r\n");
        raw.expect("+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n");
    });
}
