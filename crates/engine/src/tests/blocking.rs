//! Blocking commands: which changes serve which clients, in which order, and what ends a wait.

use super::{NIL_ARRAY, OK, WAITS, bulk, bulks, for_executors};

#[test]
fn blocked_clients_are_served_in_order_and_once() {
    for_executors(3, |mut harness, other| {
        harness.ask(0, 0, "BLPOP list 0", WAITS);
        harness.ask(other, 1, "BRPOP other list 0", WAITS);
        harness.ask(other, 2, "RPUSH list a b c", ":3\r\n");
        assert_eq!(harness.delivered(), [(0, bulks(&["list", "a"])), (1, bulks(&["list", "c"]))]);
        assert_eq!(harness.logged(), "RPUSH list a b c; LPOP list; RPOP list");
        harness.ask(0, 2, "RPUSH list d", ":2\r\n");
        assert_eq!(harness.delivered(), []);
    });
}

#[test]
fn a_client_waits_for_several_keys_and_is_served_once() {
    for_executors(2, |mut harness, other| {
        harness.ask(0, 0, "BLPOP a b c 0", WAITS);
        harness.ask(other, 1, "RPUSH b 1", ":1\r\n");
        harness.ask(other, 1, "RPUSH a 2", ":1\r\n");
        assert_eq!(harness.delivered(), [(0, bulks(&["b", "1"]))]);
        harness.ask(0, 0, "LLEN a", ":1\r\n");
        harness.ask(0, 0, "BLPOP a b c 0", &bulks(&["a", "2"]));
        assert_eq!(harness.logged(), "RPUSH b 1; LPOP b; RPUSH a 2; LPOP a");
    });
}

#[test]
fn a_served_move_unblocks_clients_waiting_for_its_destination() {
    for_executors(4, |mut harness, other| {
        harness.ask(0, 0, "BLPOP three 0", WAITS);
        harness.ask(other, 1, "BLMOVE two three LEFT RIGHT 0", WAITS);
        harness.ask(0, 2, "BRPOPLPUSH one two 0", WAITS);
        harness.ask(other, 3, "RPUSH one element", ":1\r\n");
        let element = bulk("element");
        assert_eq!(harness.delivered(), [(2, element.clone()), (1, element), (0, bulks(&["three", "element"]))]);
        harness.ask(0, 3, "EXISTS one two three", ":0\r\n");
    });
}

#[test]
fn keys_of_another_type_do_not_unblock() {
    for_executors(2, |mut harness, other| {
        harness.ask(0, 0, "BLPOP key 0", WAITS);
        harness.ask(other, 1, "SET key string", OK);
        harness.ask(0, 1, "DEL key", ":1\r\n");
        harness.ask(other, 1, "ZADD key 1 member", ":1\r\n");
        harness.ask(0, 1, "DEL key", ":1\r\n");
        assert_eq!(harness.delivered(), []);
        assert!(harness.is_blocked(0));
        harness.ask(other, 1, "RPUSH elsewhere moved", ":1\r\n");
        harness.ask(other, 1, "RENAME elsewhere key", OK);
        assert_eq!(harness.delivered(), [(0, bulks(&["key", "moved"]))]);
    });
}

#[test]
fn changes_without_new_entries_do_not_unblock_readers() {
    const READ: &str = "XREADGROUP GROUP group one BLOCK 0 STREAMS stream >";
    for_executors(2, |mut harness, other| {
        harness.ask(0, 1, "XADD stream 1-1 field value", &bulk("1-1"));
        harness.ask(0, 1, "XGROUP CREATE stream group $", OK);
        harness.ask(0, 0, READ, WAITS);
        harness.ask(other, 1, "XGROUP SETID stream group 0", OK);
        harness.ask(other, 1, "XACK stream group 1-1", ":0\r\n");
        harness.ask(0, 1, "EXPIRE stream 1000", ":1\r\n");
        assert_eq!(harness.delivered(), []);
        assert!(harness.is_blocked(0));
        harness.ask(other, 1, "XADD stream 2-1 field value", &bulk("2-1"));
        // The group was set back meanwhile, so the first entry is new to it too.
        let entry = |id: &str| format!("*2\r\n{}{}", bulk(id), bulks(&["field", "value"]));
        let entries = format!("*1\r\n*2\r\n{}*2\r\n{}{}", bulk("stream"), entry("1-1"), entry("2-1"));
        assert_eq!(harness.delivered(), [(0, entries)]);
        harness.ask(0, 0, READ, WAITS);
        harness.ask(other, 1, "XGROUP DESTROY stream group", ":1\r\n");
        let error = "-NOGROUP No such key 'stream' or consumer group 'group' in XREADGROUP with GROUP option\r\n";
        assert_eq!(harness.delivered(), [(0, error.to_string())]);
    });
}

#[test]
fn swapdb_unblocks_clients() {
    for_executors(2, |mut harness, other| {
        harness.select(0, 3);
        harness.ask(0, 0, "BLPOP key 0", WAITS);
        harness.ask(other, 1, "RPUSH key swapped", ":1\r\n");
        assert_eq!(harness.delivered(), []);
        harness.ask(other, 1, "SWAPDB 0 3", OK);
        assert_eq!(harness.delivered(), [(0, bulks(&["key", "swapped"]))]);
        harness.ask(0, 1, "DBSIZE", ":0\r\n");
    });
}

#[test]
fn a_wait_ends_when_its_timeout_has_passed_and_not_before() {
    for_executors(2, |mut harness, other| {
        harness.ask(0, 0, "BLPOP list 0.05", WAITS);
        harness.advance(50);
        assert_eq!(harness.expire_waits(other), [], "the millisecond in which it began may have been nearly over");
        harness.advance(1);
        assert_eq!(harness.expire_waits(other), [(0, NIL_ARRAY.to_string())]);
        harness.ask(other, 1, "RPUSH list a", ":1\r\n");
        assert_eq!((harness.delivered(), harness.logged()), (vec![], "RPUSH list a".to_string()));
    });
}

#[test]
fn a_wait_that_was_served_in_time_neither_times_out_nor_is_cancelled() {
    for_executors(2, |mut harness, other| {
        harness.ask(0, 0, "BLPOP list 0.05", WAITS);
        harness.ask(other, 1, "RPUSH list a", ":1\r\n");
        harness.advance(1000);
        // The answer has not been delivered yet.
        assert_eq!(harness.expire_waits(other), []);
        assert!(harness.cancel_wait(0, 0).is_none());
        assert_eq!(harness.delivered(), [(0, bulks(&["list", "a"]))]);
    });
}

#[test]
fn a_cancelled_wait_takes_no_element_from_those_behind_it() {
    for_executors(3, |mut harness, other| {
        harness.ask(0, 0, "BLPOP list 0", WAITS);
        harness.ask(other, 1, "BLPOP list 0", WAITS);
        assert!(harness.cancel_wait(other, 0).is_some());
        harness.ask(0, 2, "RPUSH list a", ":1\r\n");
        assert_eq!(harness.delivered(), [(1, bulks(&["list", "a"]))]);
    });
}
