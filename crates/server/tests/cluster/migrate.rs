//! MIGRATE of keys that clients change meanwhile.

use crate::nodes::{Node, form, kvick, wait_for};
use crate::with_workers;
use kvick_testing::SetOnDrop;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_key_deleted_during_migrate_stays_with_its_node_until_that_ends() {
    with_workers(|args| {
        // The target stands still for a while, but must not be taken for dead.
        let args = [args, &["--cluster-node-timeout", "60000"]].concat();
        let [source, target] = [0, 1].map(|_| Node::start(&kvick(), &args));
        form(&[&source, &target], &[]);
        // bar has slot 5061.
        assert_eq!(source.call("SET bar old"), "OK");
        assert_eq!(target.call(&format!("CLUSTER SETSLOT 5061 IMPORTING {}", source.id())), "OK");
        assert_eq!(source.call(&format!("CLUSTER SETSLOT 5061 MIGRATING {}", target.id())), "OK");
        target.signal(libc::SIGSTOP);
        std::thread::scope(|scope| {
            let migrating = scope.spawn(|| source.call(&format!("MIGRATE 127.0.0.1 {} bar 0 30000", target.port)));
            wait_for("MIGRATE waits for its target", || source.call("CLIENT LIST").contains("cmd=migrate"));
            // The target is about to get the old value.
            assert_eq!(source.call("DEL bar"), "1");
            assert_eq!(source.call("GET bar"), "");
            assert_eq!(source.call("APPEND bar new"), "3");
            target.signal(libc::SIGCONT);
            assert_eq!(migrating.join().expect("no panic"), "OK");
        });
        assert_eq!(source.call("GET bar"), format!("ASK 5061 127.0.0.1:{}", target.port));
        let mut client = target.client();
        redis::cmd("ASKING").exec(&mut client).expect("ASKING");
        assert_eq!(redis::cmd("GET").arg("bar").query::<String>(&mut client).expect("a value"), "new");
    });
}

/// Increments `bar` until told to stop, also where ASK leads. Returns how often that was acknowledged.
fn increment(source: &Node, target: &Node, stop: &AtomicBool) -> i64 {
    let (mut source, mut target) = (source.client(), target.client());
    let mut acknowledged = 0;
    while !stop.load(Ordering::SeqCst) {
        match redis::cmd("INCR").arg("bar").query::<i64>(&mut source) {
            Ok(_) => acknowledged += 1,
            Err(error) => {
                assert_eq!(error.code(), Some("ASK"), "{error}");
                redis::cmd("ASKING").exec(&mut target).expect("ASKING");
                acknowledged += i64::from(redis::cmd("INCR").arg("bar").query::<i64>(&mut target).is_ok());
            }
        }
    }
    acknowledged
}

#[test]
fn migrate_moves_a_key_that_never_stops_changing() {
    with_workers(|args| {
        let [source, target] = [0, 1].map(|_| Node::start(&kvick(), args));
        form(&[&source, &target], &[]);
        assert_eq!(source.call("SET bar 0"), "OK");
        assert_eq!(target.call(&format!("CLUSTER SETSLOT 5061 IMPORTING {}", source.id())), "OK");
        assert_eq!(source.call(&format!("CLUSTER SETSLOT 5061 MIGRATING {}", target.id())), "OK");
        let stop = AtomicBool::new(false);
        let acknowledged: i64 = std::thread::scope(|scope| {
            let stops = SetOnDrop(&stop);
            let writers: Vec<_> = (0..4).map(|_| scope.spawn(|| increment(&source, &target, &stop))).collect();
            wait_for("the key changes", || source.call("GET bar").parse::<i64>().is_ok_and(|value| value > 100));
            assert_eq!(source.call(&format!("MIGRATE 127.0.0.1 {} bar 0 30000", target.port)), "OK");
            drop(stops);
            writers.into_iter().map(|writer| writer.join().expect("no panic")).sum()
        });
        let mut client = target.client();
        redis::cmd("ASKING").exec(&mut client).expect("ASKING");
        assert_eq!(redis::cmd("GET").arg("bar").query::<i64>(&mut client).expect("a value"), acknowledged);
        assert_eq!(source.call("INCR foo"), format!("MOVED 12182 127.0.0.1:{}", target.port));
    });
}
