//! Some hundred seeds of mixed faults. The long run has thousands: see `docs/simulation.md`.

use kvick_simulator::{Options, Workload, run};

/// Seeds of each workload.
const SEEDS: u64 = 25;

fn check(workload: Workload) {
    for seed in 1..=SEEDS {
        let nodes = Some(3 + (seed as usize * 5) % 8);
        let outcome = run(&Options { seed, nodes, workload: Some(workload), ..Options::default() });
        if let Some(violation) = &outcome.violation {
            panic!(
                "{}\nrepeat: cargo run -p kvick-simulator --release -- --seed {seed} --nodes {} --workload {workload}",
                violation.what, outcome.nodes
            );
        }
    }
}

macro_rules! workloads {
    ($($name:ident: $workload:ident),+) => {
        $(#[test]
        fn $name() {
            check(Workload::$workload);
        })+
    };
}

workloads! {
    nothing_is_violated_by_failovers: Failover,
    nothing_is_violated_by_manual_failovers: Manual,
    nothing_is_violated_by_takeovers: Takeover,
    nothing_is_violated_by_resets: Reset,
    nothing_is_violated_by_new_addresses: Address,
    nothing_is_violated_by_rolling_restarts: Rolling,
    nothing_is_violated_by_moved_slots: Reshard,
    nothing_is_violated_by_atomic_migrations: Atomic,
    nothing_is_violated_by_faults_in_atomic_migrations: AtomicFaults,
    nothing_is_violated_by_replica_migration: Migration,
    nothing_is_violated_by_empty_primaries: Empty,
    nothing_is_violated_by_all_at_once: Mixed
}

#[test]
fn a_seed_determines_a_run() {
    let options = Options { seed: 7, nodes: Some(6), workload: Some(Workload::Mixed), ..Options::default() };
    let (one, other) = (run(&options), run(&Options { keep_events: true, ..options }));
    assert_eq!(one.to_string(), other.to_string(), "the same run, also if its events are kept");
    let different = run(&Options { seed: 8, ..options });
    assert_ne!(one.steps, different.steps);
}
