//! Memory limits: which keys are evicted, and when writes are refused. The limit of these tests is one byte, so that
//! memory is above it whatever other tests do.

use super::{Harness, NIL_ARRAY, OK, QUEUED, bulk, for_executors};
use kvick_config::tables::{memory, replication};
use kvick_config::words::EvictionPolicy;

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";

impl Harness {
    /// Has eviction go on until no key may be evicted, however long that takes.
    fn configure_eviction(&self, policy: EvictionPolicy) {
        self.configure(memory::MAXMEMORY_POLICY, policy);
        self.configure(memory::MAXMEMORY_EVICTION_TENACITY, 100);
    }
}

#[test]
fn above_the_memory_limit_keys_are_evicted_or_writes_are_refused() {
    for_executors(1, |mut harness, other| {
        for n in 0..20 {
            harness.ask(0, 0, &format!("SET key:{n} 1"), OK);
        }
        harness.logged();
        harness.configure(memory::MAXMEMORY, 1);
        harness.ask(other, 0, "SET more 1", OOM);
        harness.ask(other, 0, "EXISTS key:1", ":1\r\n");
        assert_eq!(harness.logged(), "");
        harness.configure_eviction(EvictionPolicy::AllkeysRandom);
        harness.run(other, 0, "SET more 1");
        assert!(harness.services.keyspace.is_empty(0), "every key is evicted before a write is refused");
        assert_eq!(harness.logged().matches("UNLINK key:").count(), 20);
    });
}

#[test]
fn each_policy_evicts_only_its_keys() {
    use EvictionPolicy::*;
    for policy in [AllkeysLru, AllkeysLfu, AllkeysRandom, VolatileLru, VolatileLfu, VolatileRandom, VolatileTtl] {
        for_executors(1, |mut harness, other| {
            for n in 0..10 {
                harness.ask(0, 0, &format!("SET lasting:{n} 1"), OK);
                harness.ask(other, 0, &format!("SET volatile:{n} 1 EX {}", 1000 + n), OK);
            }
            harness.configure_eviction(policy);
            harness.configure(memory::MAXMEMORY, 1);
            let keeps_lasting = matches!(policy, VolatileLru | VolatileLfu | VolatileRandom | VolatileTtl);
            harness.ask(other, 0, "DBSIZE", if keeps_lasting { ":10\r\n" } else { ":0\r\n" });
            harness.ask(0, 0, "EXISTS lasting:0 lasting:9", if keeps_lasting { ":2\r\n" } else { ":0\r\n" });
            harness.ask(0, 0, "SET more 1", OOM);
        });
    }
}

#[test]
fn evicting_a_watched_key_aborts_the_transaction() {
    for_executors(2, |mut harness, other| {
        harness.configure_eviction(EvictionPolicy::AllkeysLru);
        harness.ask(0, 0, "SET key value", OK);
        harness.ask(0, 0, "WATCH key", OK);
        harness.ask(0, 0, "MULTI", OK);
        harness.ask(0, 0, "PING", QUEUED);
        harness.configure(memory::MAXMEMORY, 1);
        harness.ask(other, 1, "DBSIZE", ":0\r\n");
        harness.ask(0, 0, "EXEC", NIL_ARRAY);
    });
}

#[test]
fn nothing_is_evicted_in_import_mode_or_during_a_pause() {
    for_executors(1, |mut harness, other| {
        harness.configure_eviction(EvictionPolicy::AllkeysLru);
        harness.configure(replication::IMPORT_MODE, true);
        harness.ask(0, 0, "SET key value", OK);
        harness.configure(memory::MAXMEMORY, 1);
        harness.ask(other, 0, "DBSIZE", ":1\r\n");
        harness.ask(other, 0, "SET key x", OOM);
        let now_ms = harness.now_ms();
        harness.services.pause.begin(now_ms, now_ms + 100_000, false);
        harness.configure(replication::IMPORT_MODE, false);
        harness.ask(other, 0, "DBSIZE", ":1\r\n");
        harness.ask(0, 0, "GET key", &bulk("value"));
        harness.services.pause.end();
        harness.ask(other, 0, "DBSIZE", ":0\r\n");
    });
}
