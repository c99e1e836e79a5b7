//! Scripts: what they log, their errors, and what they do to other clients.

use super::{OK, WAITS, bulk, bulks, for_executors};

#[test]
fn the_writes_of_a_script_are_logged_together_including_those_before_its_error() {
    for_executors(1, |mut harness, other| {
        let script = "redis.call('set', KEYS[1], ARGV[1]) redis.call('incr', 'undeclared') return {KEYS[1]}";
        harness.ask(0, 0, &format!("EVAL \"{script}\" 1 a 7"), &bulks(&["a"]));
        assert_eq!(harness.logged(), "MULTI; set a 7; incr undeclared; EXEC");
        let failing = "redis.call('incr', KEYS[1]) redis.call('rpush', KEYS[1], 'x')";
        let reply = harness.run(other, 0, &format!("EVAL \"{failing}\" 1 a"));
        assert!(reply.starts_with("-WRONGTYPE "), "{reply}");
        harness.ask(0, 0, "GET a", &bulk("8"));
        assert_eq!(harness.logged(), "incr a");
    });
}

#[test]
fn blocked_clients_are_served_after_the_script() {
    for_executors(2, |mut harness, other| {
        harness.ask(other, 0, "BLPOP list 0", WAITS);
        let script =
            "redis.call('lpush', KEYS[1], 'a') redis.call('lpush', KEYS[1], 'b') return redis.call('llen', KEYS[1])";
        harness.ask(0, 1, &format!("EVAL \"{script}\" 1 list"), ":2\r\n");
        assert_eq!(harness.delivered(), [(0, bulks(&["list", "b"]))]);
        // A command in a script does not block.
        harness.ask(other, 1, "EVAL \"return redis.call('blpop', KEYS[1], 0)\" 1 none", "$-1\r\n");
    });
}

#[test]
fn script_errors_have_valkeys_texts() {
    for_executors(1, |mut harness, other| {
        let at_line = "script: on @user_script:1.";
        for (script, error) in [
            ("return redis.call('nosuch')", format!("Unknown command called from script {at_line}")),
            ("return redis.call('get')", format!("Wrong number of args calling command from script {at_line}")),
            ("return redis.call('multi')", format!("This Valkey command is not allowed from script {at_line}")),
            ("return redis.pcall('eval', 'return 1', 0)", "This Valkey command is not allowed from script".to_string()),
        ] {
            harness.ask(other, 0, &format!("EVAL \"{script}\" 0"), &format!("-ERR {error}\r\n"));
        }
        let write = "return redis.pcall('set', KEYS[1], 1)";
        let read_only = "-ERR Write commands are not allowed from read-only scripts.\r\n";
        harness.ask(0, 0, &format!("EVAL_RO \"{write}\" 1 k"), read_only);
        let too_many = "-ERR Number of keys can't be greater than number of args\r\n";
        harness.ask(0, 0, "EVAL \"return 1\" 2 k", too_many);
        harness.ask(0, 0, "EVALSHA 0 0", "-NOSCRIPT No matching script.\r\n");
        assert_eq!(harness.logged(), "");
    });
}

#[test]
fn scripts_see_keys_expire_at_their_time() {
    for_executors(1, |mut harness, other| {
        let script = "redis.call('set', KEYS[1], 1, 'px', 10) return redis.call('pttl', KEYS[1])";
        harness.ask(0, 0, &format!("EVAL \"{script}\" 1 k"), ":10\r\n");
        harness.advance(9);
        harness.ask(other, 0, "EVAL \"return redis.call('pttl', KEYS[1])\" 1 k", ":1\r\n");
        harness.advance(2);
        harness.ask(other, 0, "EVAL \"return redis.call('pttl', KEYS[1])\" 1 k", ":-2\r\n");
    });
}

/// Reads its key, and writes what it read to another key if told so.
const COPIER: &str = "local function copy(key, text) return redis.call('set', key, text) end
    local text = redis.call('get', KEYS[1]) if ARGV[1] == 'copy' then copy('undeclared', text) end return text";

#[test]
fn a_script_that_turns_out_to_write_runs_again_alone() {
    for_executors(1, |mut harness, other| {
        harness.ask(0, 0, "SET a 1", OK);
        // The first time it runs alone, and then as one that only reads.
        for executor in [0, other, 0, other] {
            harness.ask(executor, 0, &format!("EVAL \"{COPIER}\" 1 a read"), &bulk("1"));
        }
        assert_eq!(harness.logged(), "SET a 1");
        for executor in [other, 0] {
            harness.ask(executor, 0, &format!("EVAL \"{COPIER}\" 1 a copy"), &bulk("1"));
            harness.ask(0, 0, "GET undeclared", &bulk("1"));
            assert_eq!(harness.logged(), "set undeclared 1");
        }
        let wrong = harness.run(other, 0, &format!("EVAL \"{COPIER}\" 2 a copy"));
        assert_eq!(wrong, bulk("1"), "the second key is no argument");
    });
}

#[test]
fn scripts_with_declared_keys_keep_their_effects_together_on_every_executor() {
    for_executors(1, |mut harness, other| {
        let script =
            "for _, key in ipairs(KEYS) do redis.call('incr', key) end return redis.call('mget', unpack(KEYS))";
        for (executor, n) in [(0, 1), (other, 2), (0, 3), (other, 4)] {
            let text = n.to_string();
            harness.ask(executor, 0, &format!("EVAL \"{script}\" 2 a b"), &bulks(&[&text, &text]));
            assert_eq!(harness.logged(), "MULTI; incr a; incr b; EXEC");
        }
        let reply = harness.run(other, 0, &format!("EVAL \"{script}\" 3 a b"));
        assert_eq!(reply, "-ERR Number of keys can't be greater than number of args\r\n");
        harness.ask(0, 0, "RPUSH list 1", ":1\r\n");
        let reply = harness.run(other, 0, &format!("EVAL \"{script}\" 2 a list"));
        assert!(reply.starts_with("-WRONGTYPE "), "{reply}");
        assert_eq!(harness.logged(), "RPUSH list 1; incr a");
    });
}

#[test]
fn a_transaction_with_a_script_excludes_others() {
    for_executors(1, |mut harness, other| {
        let script = "return redis.call('incr', KEYS[1])";
        for executor in [0, other, 0, other] {
            harness.run(executor, 0, &format!("EVAL \"{script}\" 1 a"));
        }
        let reply = harness.exec(other, 0, &[&format!("EVAL \"{script}\" 1 a"), "GET a"]);
        assert_eq!(reply, "*2\r\n:5\r\n$1\r\n5\r\n");
    });
}

#[test]
fn random_numbers_do_not_repeat_on_another_executor() {
    for_executors(1, |mut harness, other| {
        let mut numbers = std::collections::BTreeSet::new();
        for executor in [0, other, 0, other, 0] {
            numbers.insert(harness.run(executor, 0, "EVAL \"return tostring(math.random())\" 0"));
        }
        assert_eq!(numbers.len(), 5);
    });
}
