//! What holds for plans of any cluster.

use kvick_planner::{Action, Migration, Observation, Phase, Plan, Planner, Policy, Shard, ShardId, Slot};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SLOTS: usize = 128;
const GB: u64 = 1 << 30;

fn shard(id: u32, phase: Phase, busy_cores: f64) -> Shard {
    Shard {
        id: ShardId(id),
        phase,
        workers: 4,
        workers_max: 4,
        busy_cores,
        queue_delay: Duration::ZERO,
        traffic_bytes_s: 0.0,
        traffic_bytes_s_max: 0.0,
        memory_bytes: 0,
        memory_bytes_max: 16 * GB,
        read_ratio: 0.5,
        replicas: 0,
    }
}

/// Any cluster: shards in all phases, slots of any cost with any owner, migrations.
fn clusters() -> impl Strategy<Value = Observation> {
    let phase = prop_oneof![6 => Just(Phase::Serving), 1 => Just(Phase::Starting), 1 => Just(Phase::Leaving)];
    let shards = proptest::collection::vec((phase, 0.0..4.2_f64), 1..8);
    let cost = prop_oneof![5 => 0.0..0.05_f64, 1 => 0.0..2.0_f64, 1 => Just(0.0)];
    let slots = proptest::collection::vec((0..8_usize, cost, 0..GB / 4), SLOTS);
    let migrations = proptest::collection::vec((0..8_usize, 0..SLOTS), 0..6);
    (shards, slots, migrations, 0..20_u64).prop_map(|(shards, slots, migrations, delay_ms)| {
        let mut shards: Vec<Shard> =
            (0..).zip(shards).map(|(id, (phase, busy_cores))| shard(id, phase, busy_cores)).collect();
        shards[0].phase = Phase::Serving;
        shards[0].queue_delay = Duration::from_millis(delay_ms);
        let owners: Vec<ShardId> =
            shards.iter().filter(|shard| shard.phase != Phase::Starting).map(|shard| shard.id).collect();
        let slots: Vec<Slot> = slots
            .into_iter()
            .map(|(owner, cpu_cores, bytes)| Slot { owner: Some(owners[owner % owners.len()]), cpu_cores, bytes })
            .collect();
        let mut moving = BTreeSet::new();
        let migrations = migrations
            .into_iter()
            .map(|(to, slot)| (owners[to % owners.len()], slots[slot].owner.expect("an owner"), slot as u16))
            .filter(|(to, from, slot)| to != from && moving.insert(*slot))
            .map(|(to, from, slot)| Migration { from, to, slots: vec![slot] })
            .collect();
        Observation { at: Duration::from_secs(1), shards, slots, migrations }
    })
}

/// Checks a plan against what must always hold.
fn check(observation: &Observation, plan: &Plan, policy: &Policy) -> Result<(), TestCaseError> {
    let mut moving: BTreeSet<u16> =
        observation.migrations.iter().flat_map(|migration| migration.slots.clone()).collect();
    let mut jobs: BTreeMap<(ShardId, bool), u32> = BTreeMap::new();
    for migration in &observation.migrations {
        *jobs.entry((migration.from, false)).or_default() += 1;
        *jobs.entry((migration.to, true)).or_default() += 1;
    }
    let drained: BTreeSet<ShardId> = plan
        .steps
        .iter()
        .filter_map(|step| if let Action::Drain { shard } = step.action { Some(shard) } else { None })
        .collect();
    let kept = |shard: ShardId| plan.steps.iter().any(|step| step.action == Action::Keep { shard });
    let mut staying = observation
        .shards
        .iter()
        .filter(|shard| (shard.phase != Phase::Leaving || kept(shard.id)) && !drained.contains(&shard.id))
        .count() as u32;
    for step in &plan.steps {
        prop_assert!(!step.reason.is_empty());
        match &step.action {
            Action::Move { from, to, slots, .. } => {
                prop_assert_ne!(from, to);
                prop_assert!(!slots.is_empty() && slots.is_sorted_by(|one, other| one < other));
                for slot in slots {
                    prop_assert_eq!(observation.slots[usize::from(*slot)].owner, Some(*from));
                    prop_assert!(moving.insert(*slot), "slot {} moves twice", slot);
                }
                let phase = observation.shard(*to).expect("a shard").phase;
                prop_assert!(phase == Phase::Serving || kept(*to), "{} cannot receive", to);
                prop_assert!(!drained.contains(to), "{} is being drained", to);
                for end in [(*from, false), (*to, true)] {
                    let count = jobs.entry(end).or_default();
                    *count += 1;
                    prop_assert!(*count <= policy.migrations_per_shard_max.max(6), "{:?} has {} jobs", end, count);
                }
            }
            Action::Stop { shard } => {
                prop_assert!(!observation.slots.iter().any(|slot| slot.owner == Some(*shard)));
            }
            Action::Start { shards } => staying += shards,
            Action::SetWorkers { shard, workers } => {
                prop_assert!((1..=observation.shard(*shard).expect("a shard").workers_max).contains(workers));
            }
            _ => {}
        }
    }
    prop_assert!(staying >= policy.shards_min && staying <= policy.shards_max.max(8), "{} shards", staying);
    Ok(())
}

/// Carries a plan out at once.
fn carry_out(observation: &mut Observation, plan: &Plan) {
    for step in &plan.steps {
        let mut set_phase = |id: ShardId, phase| {
            let shard = observation.shards.iter_mut().find(|shard| shard.id == id);
            shard.expect("a shard").phase = phase;
        };
        match &step.action {
            Action::Drain { shard } => set_phase(*shard, Phase::Leaving),
            Action::Keep { shard } => set_phase(*shard, Phase::Serving),
            Action::Stop { shard } => observation.shards.retain(|other| other.id != *shard),
            Action::Start { shards } => {
                let next = observation.shards.iter().map(|shard| shard.id.0).max().unwrap_or(0) + 1;
                observation.shards.extend((next..next + shards).map(|id| shard(id, Phase::Serving, 0.0)));
            }
            Action::Move { to, slots, .. } => {
                slots.iter().for_each(|slot| observation.slots[usize::from(*slot)].owner = Some(*to));
            }
            Action::Assign { shard, slots } => {
                slots.iter().for_each(|slot| observation.slots[usize::from(*slot)].owner = Some(*shard));
            }
            Action::SetWorkers { .. } | Action::AddReplica { .. } | Action::RemoveReplica { .. } => {}
        }
    }
    observation.at += Duration::from_secs(1);
    observation.migrations.clear();
    for shard in &mut observation.shards {
        let own = observation.slots.iter().filter(|slot| slot.owner == Some(shard.id));
        // Two thirds of the time are not execution.
        shard.busy_cores = (3.0 * own.map(|slot| slot.cpu_cores).sum::<f64>()).min(4.0);
        shard.queue_delay = Duration::ZERO;
        if shard.phase == Phase::Starting {
            shard.phase = Phase::Serving;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn plans_are_consistent(observation in clusters()) {
        let policy = Policy::default();
        let plan = Planner::new(policy.clone()).plan(&observation);
        check(&observation, &plan, &policy)?;
        prop_assert_eq!(&plan, &Planner::new(policy).plan(&observation), "the same observation, the same plan");
    }

    #[test]
    fn a_constant_load_comes_to_rest(mut observation in clusters()) {
        // Seven shards can serve it: growing is not what is tested here.
        let sum: f64 = observation.slots.iter().map(|slot| slot.cpu_cores).sum();
        let factor = 3.0 / (3.0 * sum).max(1e-6);
        observation.slots.iter_mut().for_each(|slot| slot.cpu_cores *= factor.min(1.0));
        let policy = Policy { shards_min: 2, ..Policy::default() };
        let mut planner = Planner::new(policy.clone());
        let mut last_move_s = 0;
        for second in 0..900 {
            let plan = planner.plan(&observation);
            check(&observation, &plan, &policy)?;
            if plan.steps.iter().any(|step| matches!(step.action, Action::Move { .. } | Action::Drain { .. })) {
                last_move_s = second;
            }
            carry_out(&mut observation, &plan);
        }
        prop_assert!(last_move_s < 800, "slots still move after {} s", last_move_s);
        let leaving = observation.shards.iter().filter(|shard| shard.phase == Phase::Leaving).count();
        prop_assert_eq!(leaving, 0, "shards leave for ever");
    }

    #[test]
    fn a_shard_is_removed_only_if_memory_fits(used_gb in 1..31_u64, shards in 2..6_u32) {
        let slots = (0..SLOTS).map(|slot| Slot {
            owner: Some(ShardId(slot as u32 % shards)),
            cpu_cores: 0.0,
            bytes: used_gb * GB / SLOTS as u64,
        });
        let mut observation = Observation {
            at: Duration::ZERO,
            shards: (0..shards).map(|id| shard(id, Phase::Serving, 0.01)).collect(),
            slots: slots.collect(),
            migrations: Vec::new(),
        };
        let mut planner = Planner::new(Policy::default());
        for _ in 0..700 {
            let plan = planner.plan(&observation);
            carry_out(&mut observation, &plan);
            for shard in &observation.shards {
                let own = observation.slots.iter().filter(|slot| slot.owner == Some(shard.id));
                prop_assert!(own.map(|slot| slot.bytes).sum::<u64>() <= 16 * GB, "{} is full", shard.id);
            }
        }
        let fit = (used_gb as f64 / (16.0 * 0.65)).ceil() as usize;
        prop_assert!(observation.shards.len() >= fit.min(shards as usize));
        prop_assert!(observation.shards.len() <= fit.max(1), "{} shards for {} GB", observation.shards.len(), used_gb);
    }
}
