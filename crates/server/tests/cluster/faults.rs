//! Rounds of faults on real clusters of Kvick and Valkey: three primaries with a replica each, clients that write, an
//! operation, and a node that gets SIGKILL at a random moment of it and starts again.
//!
//! In the end every slot has one owner, in the view of every node, and a checker reads every key from its owner and
//! from the replica. What must be found depends on the round ([`Promise`]), since replication is asynchronous:
//!
//! | promise | rounds | acknowledged means | may happen |
//! | --- | --- | --- | --- |
//! | `Reply` | no primary is killed | the reply arrived | manual failovers |
//! | `Replica` | a primary is killed, its replica may take over | the reply arrived, and WAIT found the replica | all |
//! | `Disk` | a node of a migration is killed; failovers are off | the reply arrived, with `appendfsync always` | |
//!
//! Acknowledged writes must be found exactly once, in their order. Others whose reply did not arrive, or whose WAIT
//! found no replica, may be found once or not at all. In rounds of `Replica`, the target of a migration is killed only
//! if it is Kvick with `cluster-slot-takeover-replicas`: Valkey takes the slots over when it has all keys itself, but
//! its replica need not have them. The moved keys of a migration key by key have the same gap on both sides.
//!
//! A seed determines the programs, the operation, the victim and the step. Scheduling and network timing are not
//! controlled, so a repeated round may run differently. Seeds in a row cover all operations and pairs of programs.
//!
//! - `KVICK_TEST_ROUNDS`: the number of rounds (5).
//! - `KVICK_TEST_SEED`: the first seed (1).
//! - `KVICK_TEST_PROGRAMS`: `mixed`, or only `kvick` or `valkey`, to see whether a loss is Valkey's too.

use crate::checker::{still_keys, violations, write_still_keys};
use crate::nodes::{Node, form, kvick, valkey};
use crate::operations::{Kill, World};
use crate::writers::{Load, WRITES_PER_S, Writers, Written};
use kvick_store::slot::SLOTS;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Primaries, each with a replica.
const SHARDS: usize = 3;

/// Slots of each shard that have keys, from its first one.
const SLOTS_WITH_KEYS: u16 = 64;

/// Of these, the ones that move with MIGRATESLOTS, and key by key.
const MOVED_AT_ONCE: RangeInclusive<u16> = 16..=47;
const MOVED_BY_KEY: RangeInclusive<u16> = 16..=31;

/// Writes before the operation and after it.
const WRITES_AROUND: u64 = WRITES_PER_S / 2;

/// Shards: where slots come from, or whose primary fails, and where they go.
const SOURCE: usize = 0;
const TARGET: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    /// CLUSTER MIGRATESLOTS.
    MigrateSlots,
    /// SETSLOT and MIGRATE.
    Reshard,
    /// CLUSTER FAILOVER, and back.
    Failover,
    /// Nothing but the kill.
    Crash,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    None,
    /// The primary of the shard.
    Primary(usize),
    /// The replica of the shard.
    Replica(usize),
}

/// What must survive; see the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Promise {
    Reply,
    Replica,
    Disk,
}

/// What a seed decides.
#[derive(Debug)]
struct Plan {
    operation: Operation,
    victim: Victim,
    promise: Promise,
    /// Whether each node is Kvick: primaries, then replicas.
    is_kvick: [bool; 2 * SHARDS],
    workers: &'static str,
    at_step: u32,
    delay: Duration,
    down: Duration,
    /// Whether all shards refuse requests while one has failed.
    full_coverage: &'static str,
}

impl Plan {
    fn new(seed: u64) -> Plan {
        let mut rng = fastrand::Rng::with_seed(seed);
        let operations = [
            Operation::MigrateSlots,
            Operation::Reshard,
            Operation::Failover,
            Operation::Crash,
            Operation::MigrateSlots,
        ];
        let operation = operations[(seed % 5) as usize];
        let mut is_kvick = [(); 2 * SHARDS].map(|()| rng.bool());
        // Of a failover these are the two nodes of the shard.
        let second = if matches!(operation, Operation::Failover | Operation::Crash) { SOURCE + SHARDS } else { TARGET };
        (is_kvick[SOURCE], is_kvick[second]) = [(true, false), (false, true), (true, true)][(seed % 3) as usize];
        let moves = matches!(operation, Operation::MigrateSlots | Operation::Reshard);
        let victims: &[Victim] = match operation {
            Operation::Crash => &[Victim::Primary(SOURCE), Victim::Primary(SOURCE), Victim::Replica(SOURCE)],
            Operation::Failover => &[Victim::None, Victim::Primary(SOURCE), Victim::Replica(SOURCE)],
            Operation::MigrateSlots | Operation::Reshard => &[
                Victim::None,
                Victim::Primary(SOURCE),
                Victim::Primary(SOURCE),
                Victim::Primary(TARGET),
                Victim::Primary(TARGET),
                Victim::Replica(SOURCE),
                Victim::Replica(TARGET),
            ],
        };
        let victim = victims[rng.usize(..victims.len())];
        let promise = match victim {
            Victim::None => Promise::Reply,
            Victim::Primary(SOURCE) if operation == Operation::MigrateSlots && rng.bool() => Promise::Replica,
            Victim::Primary(TARGET)
                if operation == Operation::MigrateSlots && is_kvick[TARGET] && (is_kvick[SOURCE] || rng.bool()) =>
            {
                Promise::Replica
            }
            Victim::Primary(_) if moves => Promise::Disk,
            Victim::Replica(_) if operation != Operation::Failover => Promise::Reply,
            Victim::Primary(_) | Victim::Replica(_) => Promise::Replica,
        };
        let steps = match operation {
            Operation::MigrateSlots => 60,
            Operation::Reshard => 120,
            Operation::Failover => 120,
            Operation::Crash => 1,
        };
        Plan {
            operation,
            victim,
            promise,
            is_kvick,
            workers: if rng.bool() { "1" } else { "4" },
            at_step: rng.u32(1..=steps),
            delay: Duration::from_micros(rng.u64(..3_000)),
            down: Duration::from_millis(rng.u64(..4_000)),
            full_coverage: if rng.bool() { "yes" } else { "no" },
        }
    }

    fn kill(&self) -> Option<Kill> {
        let victim = match self.victim {
            Victim::None => return None,
            Victim::Primary(shard) => shard,
            Victim::Replica(shard) => SHARDS + shard,
        };
        Some(Kill { victim, at_step: self.at_step, delay: self.delay, down: self.down })
    }

    fn args(&self, is_kvick: bool) -> Vec<&str> {
        let mut args = vec!["--repl-diskless-sync-delay", "0", "--cluster-require-full-coverage", self.full_coverage];
        if is_kvick {
            args.extend(["--io-threads", self.workers]);
            if self.promise == Promise::Replica {
                args.extend(["--cluster-slot-takeover-replicas", "1"]);
            }
        }
        // With files a primary that starts again before its replica takes over has its data.
        if self.promise != Promise::Reply {
            args.extend(["--appendonly", "yes", "--appendfsync", "always"]);
        }
        if self.promise == Promise::Disk {
            args.extend(["--cluster-replica-no-failover", "yes"]);
        }
        args
    }
}

/// The programs to use.
struct Programs {
    kvick: PathBuf,
    valkey: PathBuf,
}

impl Programs {
    fn from_environment() -> Programs {
        let names = std::env::var("KVICK_TEST_PROGRAMS").unwrap_or_else(|_| "mixed".into());
        let valkey = || valkey().expect("KVICK_TEST_PROGRAMS=valkey needs valkey-server");
        match &*names {
            "kvick" => Programs { kvick: kvick(), valkey: kvick() },
            "valkey" => Programs { kvick: valkey(), valkey: valkey() },
            "mixed" => {
                let valkey = crate::nodes::valkey().unwrap_or_else(|| {
                    println!("All nodes are Kvick.");
                    kvick()
                });
                Programs { kvick: kvick(), valkey }
            }
            other => panic!("KVICK_TEST_PROGRAMS is {other}, not mixed, kvick or valkey"),
        }
    }

    fn start(&self, plan: &Plan, is_kvick: bool) -> Node {
        let program: &Path = if is_kvick { &self.kvick } else { &self.valkey };
        Node::start(program, &plan.args(*program == kvick()))
    }
}

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name);
    text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[test]
fn rounds_of_faults_lose_and_double_nothing() {
    let programs = Programs::from_environment();
    let (rounds, first) = (number("KVICK_TEST_ROUNDS", 5), number("KVICK_TEST_SEED", 1));
    let mut failed = Vec::new();
    for seed in first..first + rounds {
        // The next seeds are of interest even then.
        println!("round {seed}:");
        if catch_unwind(AssertUnwindSafe(|| round(&Plan::new(seed), &programs))).is_err() {
            println!("round {seed} FAILED; repeat it with KVICK_TEST_ROUNDS=1 KVICK_TEST_SEED={seed}");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "failed rounds: {failed:?}");
}

/// A client that follows redirections sees nothing else of CLUSTER FAILOVER.
#[test]
fn manual_failovers_under_load_show_only_redirections() {
    let programs = Programs::from_environment();
    for (primary, replica) in [(true, true), (true, false), (false, true)] {
        let mut plan = Plan::new(1);
        (plan.operation, plan.victim, plan.promise) = (Operation::Failover, Victim::None, Promise::Reply);
        (plan.is_kvick[SOURCE], plan.is_kvick[SOURCE + SHARDS]) = (primary, replica);
        let written = round(&plan, &programs);
        assert!(written.events.moved > 0, "clients were redirected");
    }
}

fn round(plan: &Plan, programs: &Programs) -> Written {
    let began = Instant::now();
    println!("  {plan:?}");
    let nodes: Vec<Node> = plan.is_kvick.iter().map(|is_kvick| programs.start(plan, *is_kvick)).collect();
    {
        let all: Vec<&Node> = nodes.iter().collect();
        form(&all[..SHARDS], &all[SHARDS..]);
    }
    let first_slot = |shard: usize| (shard * usize::from(SLOTS) / SHARDS) as u16;
    let with_keys = |shard: usize| first_slot(shard)..first_slot(shard) + SLOTS_WITH_KEYS;
    let slots: Vec<u16> = (0..SHARDS).flat_map(with_keys).collect();
    let still = still_keys(&slots);
    let owner = |slot: u16| nodes[(0..SHARDS).rev().find(|shard| first_slot(*shard) <= slot).unwrap_or(0)].port;
    write_still_keys(&still, owner).expect("a cluster that takes keys");
    let mut world = World::new(nodes, plan.kill());
    let writers = Writers::start(&Load {
        ports: world.ports(),
        slots,
        waits_for_replica: plan.promise == Promise::Replica,
        // A MIGRATE that a crash interrupts can leave a copy on the target, which would show again if the key is
        // deleted on the source before it moves.
        deletes: plan.operation != Operation::Reshard,
    });
    write_more(&writers);
    let moved = match plan.operation {
        Operation::MigrateSlots => Some(MOVED_AT_ONCE),
        Operation::Reshard => Some(MOVED_BY_KEY),
        Operation::Failover | Operation::Crash => None,
    };
    let moved = moved.map(|slots| first_slot(SOURCE) + slots.start()..=first_slot(SOURCE) + slots.end());
    world.say("the operation begins");
    match (plan.operation, moved.clone()) {
        (Operation::MigrateSlots, Some(slots)) => world.migrate_slots([SOURCE, TARGET], slots),
        (Operation::Reshard, Some(slots)) => world.reshard([SOURCE, TARGET], slots),
        // Clients whose writes wait for both failovers see no redirection, so there are some writes between the two.
        (Operation::Failover, _) if plan.victim == Victim::None => {
            world.fail_over_and_back(SOURCE, || write_more(&writers));
        }
        (Operation::Failover, _) => world.fail_over_and_back(SOURCE, || ()),
        _ => world.crash(),
    }
    world.say(&format!("the operation is over after {} steps", world.steps()));
    let owners = world.settle();
    world.say("all nodes agree");
    write_more(&writers);
    let written = writers.finish();
    report(&written);
    let replicas: BTreeMap<u16, u16> = world.synchronise().into_iter().collect();
    if let Some(mut slots) = moved {
        let targets = world.shards[TARGET].map(|node| world.nodes[node].port);
        assert!(slots.all(|slot| targets.contains(&owners[usize::from(slot)])), "the slots have moved");
    }
    let found = violations(&written.keys, &still, &owners, &replicas).expect("nodes that answer");
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
    let victim = plan.kill().map(|kill| world.nodes[kill.victim].port);
    let broken: Vec<&u16> = written.events.broken.keys().filter(|port| Some(**port) != victim).collect();
    // A primary that becomes a replica closes the connections of clients in WAIT.
    assert!(
        broken.is_empty() || plan.promise == Promise::Replica,
        "connections to {broken:?} broke, which nobody killed"
    );
    assert!(written.events.unexpected.is_empty(), "unexpected errors: {:?}", written.events.unexpected);
    if plan.victim == Victim::None {
        assert_eq!((written.unknown, written.events.down), (0, 0), "unknown writes, and errors CLUSTERDOWN");
    }
    println!("  {} keys checked, round of {:.1} s", written.keys.len() + still.len(), began.elapsed().as_secs_f64());
    written
}

/// Waits until the clients have written some more.
fn write_more(writers: &Writers) {
    let goal = writers.acknowledged() + WRITES_AROUND;
    crate::nodes::wait_for("the clients write", || writers.acknowledged() >= goal);
}

fn report(written: &Written) {
    let Written { acknowledged, unknown, writes_per_s, longest_wait, events, .. } = written;
    println!(
        "  {acknowledged} writes acknowledged ({writes_per_s}/s), {unknown} unknown, longest wait {longest_wait:.1?}; \
         MOVED {}, ASK {}, TRYAGAIN {}, CLUSTERDOWN {}, LOADING {}, broken connections {:?}",
        events.moved, events.ask, events.try_again, events.down, events.loading, events.broken
    );
}
