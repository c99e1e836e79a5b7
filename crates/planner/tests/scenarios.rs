//! The planner in the simulated cluster.

use kvick_planner::simulation::curves::{CURVES, Curve, DOUBLING, JUMP};
use kvick_planner::simulation::threshold::Threshold;
use kvick_planner::simulation::{NodeModel, Outcome, Settings, run};
use kvick_planner::{Action, Observation, Phase, Planner, Policy, Shard, ShardId, Slot};
use std::time::Duration;

fn planned(curve: &Curve, settings: &Settings, policy: Policy) -> Outcome {
    run(curve, settings, &mut Planner::new(policy))
}

fn shortened(curve: &Curve, seconds: u32) -> Curve {
    let mut curve = *curve;
    curve.seconds = curve.seconds.min(seconds);
    curve
}

/// The curve whose name begins so, cut to a length.
fn curve(name: &str, seconds: u32) -> Curve {
    shortened(CURVES.iter().find(|curve| curve.name.starts_with(name)).expect("a curve"), seconds)
}

fn coarse() -> Settings {
    Settings { slots: 256, step_s: 1.0, ..Settings::default() }
}

#[test]
fn five_million_requests_are_served_soon_after_they_are_offered() {
    let jump = shortened(&JUMP, 180);
    let outcome = planned(&jump, &coarse(), Policy::default());
    assert!(outcome.short_s <= 30.0, "{} s", outcome.short_s);
    let last = outcome.history.last().expect("a second");
    assert!(last.served_s >= 4.99e6 && last.p99_ms < 2.0, "{last:?}");
    assert!(outcome.shards_max <= 16, "{} shards", outcome.shards_max);
}

#[test]
fn a_load_that_doubles_every_30_seconds_is_followed() {
    let doubling = shortened(&DOUBLING, 420);
    let outcome = planned(&doubling, &coarse(), Policy::default());
    assert!(outcome.short_s <= 2.0, "{} s", outcome.short_s);
    let mut rule = Threshold::default();
    assert!(run(&doubling, &coarse(), &mut rule).short_s > 100.0, "the comparison is not a comparison");
}

#[test]
fn load_that_comes_and_goes_does_not_make_the_cluster_thrash() {
    for (name, turns_max) in [("sawtooth of 2", 0), ("on and off, 4", 1), ("wave of 10", 2), ("noise", 1)] {
        let outcome = planned(&curve(name, 3600), &coarse(), Policy::default());
        assert!(outcome.turns <= turns_max, "{name}: {} changes of direction", outcome.turns);
        // All slots move a few times while the cluster grows, and not more often later.
        assert!(outcome.moved_slots < 4 * 256, "{name}: {} slots moved", outcome.moved_slots);
        assert!(outcome.short_s < 40.0, "{name}: {} s short", outcome.short_s);
    }
}

#[test]
fn an_idle_cluster_shrinks_to_one_shard() {
    static NIGHT: Curve = Curve::new("night", 900, |at| kvick_planner::simulation::Load {
        requests_s: if at < 60.0 { 1.5e6 } else { 10e3 },
        bytes: 2e9,
        reads: 0.5,
        hot: Vec::new(),
    });
    let outcome = planned(&NIGHT, &Settings { shards: 4, ..coarse() }, Policy::default());
    assert_eq!(outcome.shards, 1, "{:?}", outcome.history.last());
    assert_eq!(outcome.lost, 0.0);
}

#[test]
fn memory_that_does_not_fit_keeps_the_shards() {
    static FULL: Curve = Curve::new("full", 900, |_| kvick_planner::simulation::Load {
        requests_s: 10e3,
        bytes: 30e9,
        reads: 0.5,
        hot: Vec::new(),
    });
    let outcome = planned(&FULL, &Settings { shards: 5, ..coarse() }, Policy::default());
    // 30 GB with 65 percent of 17.2 GB each.
    assert_eq!(outcome.shards, 3);
}

#[test]
fn growing_memory_never_exceeds_a_shard() {
    let outcome = planned(&curve("memory growth", 3900), &coarse(), Policy::default());
    assert_eq!(outcome.memory_short_s, 0.0);
    assert_eq!(outcome.turns, 0);
}

#[test]
fn a_hot_slot_gets_a_shard_of_its_own() {
    static HOT: Curve = Curve::new("hot", 300, |at| kvick_planner::simulation::Load {
        requests_s: 1.5e6,
        bytes: 4e9,
        reads: 0.0,
        hot: if at < 120.0 { Vec::new() } else { vec![(77, 0.4)] },
    });
    let outcome = planned(&HOT, &Settings { shards: 4, ..coarse() }, Policy::default());
    let isolated = outcome.history.iter().flat_map(|second| &second.steps).any(|step| step.contains("hot slot 77"));
    assert!(isolated || outcome.moved_slots > 0);
    // The slot alone needs 75 percent of a shard, so its shard serves it if it has nothing else.
    let last = outcome.history.last().expect("a second");
    assert!(last.served_s > 1.49e6 && last.p99_ms < 3.0, "{last:?}");
}

#[test]
fn reads_of_a_slot_beyond_a_shard_get_replicas() {
    static BEYOND: Curve = Curve::new("beyond", 300, |_| kvick_planner::simulation::Load {
        requests_s: 1.5e6,
        bytes: 4e9,
        reads: 0.95,
        hot: vec![(77, 0.8)],
    });
    let settings = Settings { shards: 3, ..coarse() };
    let without = planned(&BEYOND, &settings, Policy::default());
    let with = planned(&BEYOND, &settings, Policy { read_replicas_max: 4, ..Policy::default() });
    assert!(without.history.last().expect("a second").served_s < 1.2e6);
    let last = with.history.last().expect("a second");
    assert!(last.served_s > 1.49e6, "{last:?}");
}

#[test]
fn slow_starts_are_forecast() {
    // Shards need 20 s, and the load doubles in 60 s.
    static SLOW: Curve = Curve::new("slow", 360, |at| kvick_planner::simulation::Load {
        requests_s: (200e3 * 2_f64.powf((at - 60.0).max(0.0) / 60.0)).min(4e6),
        bytes: 4e9,
        reads: 0.5,
        hot: Vec::new(),
    });
    let settings = Settings { model: NodeModel { start_s: 20.0, ..NodeModel::default() }, ..coarse() };
    let outcome = planned(&SLOW, &settings, Policy { start_time: Duration::from_secs(20), ..Policy::default() });
    assert!(outcome.short_s <= 10.0, "{} s", outcome.short_s);
}

/// Three shards with one worker each at 7 to 32 percent, measured with noise. The second and the third are new, and of
/// the 16,384 slots only 2,000 have load. Returns the migrations of two minutes, with their time, and the slots of each
/// shard at the end.
fn migrations_at_low_load() -> (Vec<(u64, usize)>, [usize; 3]) {
    let mut owners = vec![ShardId(0); 16_384];
    let mut random = 1_u64;
    let mut noise = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as f64 / f64::from(1_u32 << 31)
    };
    let mut planner = Planner::new(Policy { shards_min: 3, shards_max: 3, ..Policy::default() });
    let mut migrations = Vec::new();
    for second in 0..120 {
        let slots: Vec<Slot> = (0..16_384)
            .map(|slot| {
                let (cpu_cores, bytes) = if slot % 8 == 0 { (noise() * 1e-4, 4096) } else { (0.0, 0) };
                Slot { owner: Some(owners[slot]), cpu_cores, bytes }
            })
            .collect();
        let shards = (0..3).map(|id| {
            let has_slots = owners.contains(&ShardId(id));
            Shard {
                id: ShardId(id),
                phase: Phase::Serving,
                workers: 1,
                workers_max: 1,
                busy_cores: if has_slots { 0.07 + 0.25 * noise() } else { 0.0 },
                queue_delay: Duration::ZERO,
                traffic_bytes_s: 0.0,
                traffic_bytes_s_max: 0.0,
                memory_bytes: 0,
                memory_bytes_max: 0,
                read_ratio: 0.5,
                replicas: 0,
            }
        });
        let at = Duration::from_secs(second);
        let observation = Observation { at, shards: shards.collect(), slots, migrations: Vec::new() };
        for step in planner.plan(&observation).steps {
            if let Action::Move { to, slots, .. } = step.action {
                slots.iter().for_each(|slot| owners[usize::from(*slot)] = to);
                migrations.push((second, slots.len()));
            }
        }
    }
    let count = |id: u32| owners.iter().filter(|owner| **owner == ShardId(id)).count();
    (migrations, [count(0), count(1), count(2)])
}

#[test]
fn noise_at_low_load_moves_no_slots() {
    let (migrations, _) = migrations_at_low_load();
    // Each new shard gets its part at once.
    assert_eq!(migrations.iter().map(|(second, _)| *second).collect::<Vec<u64>>(), [0, 0], "{migrations:?}");
    assert!(migrations.iter().all(|(_, slots)| *slots > 1000), "{migrations:?}");
}

#[test]
fn slots_without_load_are_divided_as_well() {
    let (_, slots) = migrations_at_low_load();
    assert!(slots.iter().all(|slots| (4000..7000).contains(slots)), "{slots:?}");
}

/// Two shards, one of which has all load. What is measured is two seconds old.
#[test]
fn slots_move_again_only_when_their_loads_have_been_measured() {
    const SLOTS: usize = 128;
    let mut owners = vec![ShardId(0); SLOTS];
    (0..SLOTS / 2).for_each(|slot| owners[slot * 2] = ShardId(1));
    // The slots of the second shard have a tenth of the others' load.
    let cores = |slot: usize| if slot.is_multiple_of(2) { 0.0009 } else { 0.009 };
    let busy = |owners: &[ShardId], id| {
        let own = owners.iter().enumerate().filter(|(_, owner)| **owner == ShardId(id));
        own.map(|(slot, _)| cores(slot)).sum::<f64>()
    };
    let mut planner = Planner::new(Policy { shards_min: 2, shards_max: 2, ..Policy::default() });
    let mut measured = std::collections::VecDeque::from(vec![[busy(&owners, 0), busy(&owners, 1)]; 3]);
    let mut moves = Vec::new();
    for second in 0..60 {
        let slots =
            (0..SLOTS).map(|slot| Slot { owner: Some(owners[slot]), cpu_cores: cores(slot) / 4.0, bytes: 4096 });
        let old = measured.pop_front().expect("a measurement");
        let shards = (0..2).map(|id| Shard {
            id: ShardId(id),
            phase: Phase::Serving,
            workers: 1,
            workers_max: 1,
            busy_cores: old[id as usize],
            queue_delay: Duration::ZERO,
            traffic_bytes_s: 0.0,
            traffic_bytes_s_max: 0.0,
            memory_bytes: 0,
            memory_bytes_max: 0,
            read_ratio: 0.5,
            replicas: 0,
        });
        let (at, slots) = (Duration::from_secs(second), slots.collect());
        let observation = Observation { at, shards: shards.collect(), slots, migrations: Vec::new() };
        let steps = planner.plan(&observation).steps;
        for step in steps {
            if let Action::Move { to, slots, .. } = step.action {
                slots.iter().for_each(|slot| owners[usize::from(*slot)] = to);
                moves.push(second);
            }
        }
        measured.push_back([busy(&owners, 0), busy(&owners, 1)]);
    }
    assert!(!moves.is_empty() && moves.len() <= 3, "{moves:?}");
    assert!(moves.windows(2).all(|pair| pair[1] - pair[0] >= 3), "{moves:?}");
    let even = busy(&owners, 0) / busy(&owners, 1);
    assert!((0.75..1.3).contains(&even), "{even}");
}
