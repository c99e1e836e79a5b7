//! Expiry: when keys and fields are gone, and how their deletion is logged.

use super::{OK, bulk, for_executors};

#[test]
fn an_expired_key_is_gone_and_its_deletion_is_logged_once() {
    for_executors(2, |mut harness, other| {
        harness.ask(0, 0, "SET k 1 PX 1000", OK);
        let until_ms = harness.now_ms() + 1000;
        assert_eq!(harness.logged(), format!("SET k 1 PXAT {until_ms}"));
        harness.advance(1000);
        harness.ask(0, 0, "GET k", &bulk("1"));
        harness.advance(1);
        harness.ask(other, 1, "GET k", "$-1\r\n");
        harness.ask(0, 0, "GET k", "$-1\r\n");
        assert_eq!(harness.logged(), "UNLINK k");
    });
}

#[test]
fn active_expiry_deletes_keys_and_fields_that_no_command_accesses() {
    for_executors(1, |mut harness, other| {
        for n in 0..20 {
            harness.ask(other, 0, &format!("SET key:{n} 1 PX {}", 10 + n % 2 * 10), OK);
        }
        harness.ask(0, 0, "HSET hash f v g v", ":2\r\n");
        harness.ask(0, 0, "HPEXPIRE hash 10 FIELDS 1 f", "*1\r\n:1\r\n");
        harness.logged();
        harness.advance(10);
        harness.sweep();
        assert_eq!(harness.logged(), "");
        harness.advance(1);
        harness.sweep();
        harness.ask(other, 0, "DBSIZE", ":11\r\n");
        harness.ask(other, 0, "HLEN hash", ":1\r\n");
        let logged = harness.logged();
        assert_eq!((logged.matches("UNLINK key:").count(), logged.matches("HDEL hash f").count()), (10, 1), "{logged}");
        harness.advance(9);
        harness.sweep();
        harness.ask(other, 0, "DBSIZE", ":11\r\n");
        harness.advance(1);
        harness.sweep();
        harness.ask(other, 0, "DBSIZE", ":1\r\n");
    });
}
