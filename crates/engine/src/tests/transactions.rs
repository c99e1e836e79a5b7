//! Transactions: queueing, WATCH, and what others see of a transaction.

use super::{NIL_ARRAY, OK, QUEUED, WAITS, bulk, bulks, for_executors};

#[test]
fn a_transaction_is_logged_as_one_and_aborted_when_a_watched_key_changes() {
    for_executors(2, |mut harness, other| {
        harness.ask(0, 0, "WATCH k", OK);
        assert_eq!(harness.exec(0, 0, &["INCR k", "RPUSH list a"]), "*2\r\n:1\r\n:1\r\n");
        assert_eq!(harness.logged(), "MULTI; INCR k; RPUSH list a; EXEC");
        harness.ask(0, 0, "WATCH k", OK);
        harness.ask(0, 0, "MULTI", OK);
        harness.ask(0, 0, "INCR k", QUEUED);
        harness.ask(other, 1, "SET k 9", OK);
        harness.ask(0, 0, "EXEC", NIL_ARRAY);
        harness.ask(0, 0, "GET k", &bulk("9"));
        assert_eq!(harness.logged(), "SET k 9");
    });
}

#[test]
fn commands_are_queued_and_executed_together() {
    for_executors(1, |mut harness, other| {
        harness.ask(0, 0, "EXEC", "-ERR EXEC without MULTI\r\n");
        harness.ask(0, 0, "DISCARD", "-ERR DISCARD without MULTI\r\n");
        let replies = harness.exec(other, 0, &["SET a 1", "INCR a", "LPUSH a x", "UNWATCH", "GET a"]);
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
        assert_eq!(replies, format!("*5\r\n+OK\r\n:2\r\n{wrong_type}+OK\r\n$1\r\n2\r\n"));
        harness.ask(0, 0, "MULTI", OK);
        harness.ask(0, 0, "SET a 3", QUEUED);
        harness.ask(0, 0, "DISCARD", OK);
        harness.ask(0, 0, "GET a", &bulk("2"));
        assert_eq!(harness.exec(0, 0, &[]), "*0\r\n");
    });
}

#[test]
fn scan_works_in_a_transaction() {
    for_executors(1, |mut harness, other| {
        harness.ask(other, 0, "MSET a 1 b 2 c 3", OK);
        let replies = harness.exec(0, 0, &["SET a 4", "SCAN 0 COUNT 1000 MATCH a", "GET a"]);
        assert_eq!(replies, format!("*3\r\n+OK\r\n*2\r\n{}{}{}", bulk("0"), bulks(&["a"]), bulk("4")));
    });
}

#[test]
fn a_refused_command_aborts_the_transaction() {
    for_executors(1, |mut harness, other| {
        for (line, error) in [
            ("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: \r\n"),
            ("SET a", "-ERR wrong number of arguments for 'set' command\r\n"),
            ("WATCH a", "-ERR Command 'watch' not allowed inside a transaction\r\n"),
            ("MULTI", "-ERR Command 'multi' not allowed inside a transaction\r\n"),
        ] {
            harness.ask(0, 0, "MULTI", OK);
            harness.ask(0, 0, "SET k 1", QUEUED);
            harness.ask(0, 0, line, error);
            harness.ask(0, 0, "SET k 2", QUEUED);
            harness.ask(0, 0, "EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n");
            harness.ask(other, 0, "EXISTS k", ":0\r\n");
        }
        assert_eq!(harness.logged(), "");
    });
}

#[test]
fn a_changed_watched_key_aborts_the_transaction() {
    // What is done to the data meanwhile, and whether it changes a watched key.
    let cases = [
        ("SET key x", true),
        ("SADD set new", true),
        ("SADD set member", false),
        ("SREM set nobody", false),
        ("GET key", false),
        ("SET elsewhere x", false),
        ("EXPIRE key 100", true),
        ("DEL set", true),
        ("DEL nothing", false),
        ("SET nothing x", true),
        ("FLUSHALL", true),
        ("SWAPDB 0 1", true),
        ("SWAPDB 2 3", false),
        ("RENAME key nothing", true),
    ];
    for_executors(2, |mut harness, other| {
        for (line, changes) in cases {
            for setup in ["FLUSHALL", "SET key value", "SADD set member"] {
                harness.run(other, 1, setup);
            }
            harness.ask(0, 0, "WATCH key set nothing", OK);
            harness.run(other, 1, line);
            let reply = harness.exec(0, 0, &["PING"]);
            assert_eq!(reply, if changes { NIL_ARRAY } else { "*1\r\n+PONG\r\n" }, "{line}");
            // EXEC ends the watch.
            harness.ask(other, 1, "SET key again", OK);
            assert_eq!(harness.exec(0, 0, &["PING"]), "*1\r\n+PONG\r\n", "after {line}");
        }
    });
}

#[test]
fn an_expired_watched_key_aborts_the_transaction() {
    for_executors(1, |mut harness, other| {
        for is_swept in [false, true] {
            harness.ask(other, 0, "SET key value PX 20", OK);
            harness.ask(0, 0, "WATCH key", OK);
            harness.advance(21);
            if is_swept {
                harness.sweep();
            }
            assert_eq!(harness.exec(0, 0, &["PING"]), NIL_ARRAY, "swept: {is_swept}");
        }
    });
}

#[test]
fn a_watched_key_that_has_not_expired_yet_aborts_nothing() {
    for_executors(1, |mut harness, other| {
        harness.ask(other, 0, "SET key value PX 20", OK);
        harness.ask(0, 0, "WATCH key", OK);
        harness.advance(20);
        harness.sweep();
        assert_eq!(harness.exec(0, 0, &["PING"]), "*1\r\n+PONG\r\n");
    });
}

#[test]
fn swapping_a_missing_watched_key_for_an_expired_one_is_no_change() {
    for_executors(2, |mut harness, other| {
        harness.select(0, 1);
        harness.ask(0, 0, "SET key value PX 1", OK);
        harness.select(0, 0);
        harness.ask(0, 0, "WATCH key", OK);
        harness.advance(3);
        // No command has accessed the key, so it still exists.
        harness.ask(other, 1, "SWAPDB 0 1", OK);
        assert_eq!(harness.exec(0, 0, &["PING"]), "*1\r\n+PONG\r\n");
    });
}

#[test]
fn blocked_clients_are_served_after_the_transaction() {
    for_executors(2, |mut harness, other| {
        harness.ask(other, 0, "BLPOP list 0", WAITS);
        let replies = harness.exec(0, 1, &["RPUSH list a", "DEL list", "RPUSH list b c", "BLPOP nothing 0"]);
        assert_eq!(replies, "*4\r\n:1\r\n:1\r\n:2\r\n*-1\r\n");
        assert_eq!(harness.delivered(), [(0, bulks(&["list", "b"]))]);
        assert_eq!(harness.logged(), "MULTI; RPUSH list a; DEL list; RPUSH list b c; EXEC; LPOP list");
    });
}
