//! Transactions: queueing, isolation, and WATCH.

mod common;

use common::for_workers;
use kvick_testing::SetOnDrop;
use redis::cmd;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn select_and_reset_work_in_a_transaction() {
    for_workers(&[], |server| {
        let mut raw = server.raw();
        raw.send("MULTI\r\nSET a 1\r\nSELECT 2\r\nSET b 2\r\nGET b\r\nEXEC\r\nMGET a b\r\n");
        raw.expect("+OK\r\n");
        (0..4).for_each(|_| raw.expect("+QUEUED\r\n"));
        raw.expect("*4\r\n+OK\r\n+OK\r\n+OK\r\n$1\r\n2\r\n*2\r\n$-1\r\n$1\r\n2\r\n");
        raw.send("MULTI\r\nSET b 4\r\nRESET\r\nEXEC\r\n");
        raw.expect("+OK\r\n+QUEUED\r\n+RESET\r\n-ERR EXEC without MULTI\r\n");
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
