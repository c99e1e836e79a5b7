//! The tables of `planner-sim`.

use super::curves::{CURVES, Curve, DOUBLING, DOUBLING_60, DOUBLING_120, JUMP};
use super::threshold::Threshold;
use super::{Controller, NodeModel, Outcome, Settings, run};
use crate::observation::Observation;
use crate::placement::Balancer;
use crate::plan::{Action, Plan};
use crate::{Planner, Policy};
use std::collections::BTreeSet;

fn planner(replicas: u32) -> Planner {
    Planner::new(Policy { read_replicas_max: replicas, ..Policy::default() })
}

/// All curves, with the planner and with the threshold rule.
pub fn curves() {
    println!("planner / threshold rule");
    println!(
        "{:<38} {:>13} {:>13} {:>15} {:>11} {:>11} {:>15}",
        "curve", "seconds short", "lost, percent", "slots moved", "turns", "most shards", "mean shards"
    );
    let settings = Settings::default();
    for curve in &CURVES {
        let outcomes = [run(curve, &settings, &mut planner(4)), run(curve, &settings, &mut Threshold::default())];
        let pair = |of: &dyn Fn(&Outcome) -> String| format!("{} / {}", of(&outcomes[0]), of(&outcomes[1]));
        println!(
            "{:<38} {:>13} {:>13} {:>15} {:>11} {:>11} {:>15}",
            curve.name,
            pair(&|outcome| format!("{:.0}", outcome.short_s + outcome.memory_short_s)),
            pair(&|outcome| format!("{:.2}", 100.0 * outcome.lost / outcome.offered)),
            pair(&|outcome| outcome.moved_slots.to_string()),
            pair(&|outcome| outcome.turns.to_string()),
            pair(&|outcome| outcome.shards_max.to_string()),
            pair(&|outcome| format!("{:.1}", outcome.shard_seconds / f64::from(curve.seconds))),
        );
    }
}

/// Seconds from the first offer of `rate` requests per second until they are served.
fn reached(outcome: &Outcome, rate: f64) -> Option<f64> {
    let offered = outcome.history.iter().find(|second| second.offered_s >= rate)?;
    let is_served = |at: usize| {
        let next = outcome.history.iter().skip(at).take(10);
        next.clone().count() == 10 && next.clone().all(|second| second.served_s >= 0.99 * rate)
    };
    let at = (0..outcome.history.len()).find(|at| is_served(*at))?;
    Some(outcome.history[at].at_s - offered.at_s)
}

/// From nothing to 5 million requests per second.
pub fn five_million() {
    println!(
        "{:<31} {:<10} {:>7} {:>18} {:>12} {:>12} {:>13} {:>7}",
        "offered load", "controller", "start", "5M served after", "p50, ms", "p99, ms", "seconds short", "shards"
    );
    let rule = "threshold";
    for curve in [&JUMP, &DOUBLING, &DOUBLING_60, &DOUBLING_120] {
        for (start_s, controller) in [(1.0, "planner"), (30.0, "planner"), (1.0, rule)] {
            let model = NodeModel { start_s, ..NodeModel::default() };
            // The 13 minutes from the moment when the load begins to rise.
            let settings = Settings { model, slots: 16_384, latency_s: 60.0..840.0, ..Settings::default() };
            let mut planner = planner(0);
            let mut threshold = Threshold::default();
            let chosen: &mut dyn Controller = if controller == rule { &mut threshold } else { &mut planner };
            let outcome = run(curve, &settings, chosen);
            let served =
                reached(&outcome, 5e6).map_or("never".to_owned(), |seconds| format!("{:.0} s", f64::max(seconds, 0.0)));
            println!(
                "{:<31} {controller:<10} {:>5} s {served:>18} {:>12.2} {:>12.2} {:>13.0} {:>7}",
                curve.name,
                start_s,
                outcome.latencies.quantile_ms(0.5),
                outcome.latencies.quantile_ms(0.99),
                outcome.short_s,
                outcome.shards_max
            );
        }
    }
}

/// Moves 400 slots at a time between one pair of shards, as valkey-operator does.
#[derive(Default)]
struct OnePair {
    estimator: crate::estimate::Estimator,
    balancer: Balancer,
}

impl Controller for OnePair {
    fn plan(&mut self, observation: &Observation) -> Plan {
        let mut plan = Plan::default();
        if !observation.migrations.is_empty() {
            return plan;
        }
        let policy = Policy { migration_bytes_max: u64::MAX, ..Policy::default() };
        let estimate = self.estimator.observe(observation, &policy);
        let batches = self.balancer.balance(observation, &estimate, &policy, &BTreeSet::new());
        let planned: usize = batches.iter().map(|batch| batch.slots.len()).sum();
        if let Some(mut batch) = batches.into_iter().next() {
            batch.slots.truncate(400);
            self.balancer.note_left_out(planned - batch.slots.len());
            let bytes = batch.slots.iter().map(|slot| observation.slots[usize::from(*slot)].bytes).sum();
            plan.push(Action::Move { from: batch.from, to: batch.to, slots: batch.slots, bytes }, batch.reason);
        }
        plan
    }
}

/// How long it takes until new shards have their part of the slots.
pub fn moves() {
    println!("{:<22} {:>14} {:>30}", "shards, data", "planner", "one pair, 400 slots at a time");
    for (shards, more, bytes) in [(3_u32, 3_u32, 100e9), (10, 10, 400e9), (1, 2, 10e9)] {
        let memory_bytes = (2.0 * bytes / f64::from(shards)) as u64;
        let model = NodeModel { memory_bytes, ..NodeModel::default() };
        let settings = Settings { model, slots: 16_384, shards, ..Settings::default() };
        let seconds = |controller: &mut dyn Controller| {
            let mut cluster = super::Cluster::new(&STEADY, &settings);
            cluster.load.bytes = bytes;
            (0..more).for_each(|number| cluster.add_node(crate::ShardId(shards + number), 0.0));
            let mut last = 0.0;
            for second in 0..3600_u32 {
                let now_s = f64::from(second);
                for half in [0.0, 0.5] {
                    cluster.step(now_s + half);
                }
                let plan = controller.plan(&cluster.observation(now_s));
                plan.steps.into_iter().for_each(|step| {
                    if matches!(step.action, Action::Move { .. }) {
                        cluster.act(step.action, now_s);
                    }
                });
                if !cluster.transfers.is_empty() {
                    last = now_s + 1.0;
                }
            }
            last
        };
        let policy = Policy { shards_min: shards + more, ..Policy::default() };
        let (planned, one) = (seconds(&mut Planner::new(policy)), seconds(&mut OnePair::default()));
        let what = format!("{shards} to {}, {:.0} GB", shards + more, bytes / 1e9);
        println!("{what:<22} {planned:>12.0} s {one:>28.0} s");
    }
}

static STEADY: Curve =
    Curve::new("steady", 3600, |_| super::Load { requests_s: 400e3, bytes: 10e9, reads: 0.8, hot: Vec::new() });

/// One curve, second by second. Returns whether there is one with this name.
pub fn watch(name: &str) -> bool {
    let Some(curve) = CURVES.iter().chain([&JUMP]).find(|curve| curve.name.starts_with(name)) else { return false };
    let outcome = run(curve, &Settings::default(), &mut planner(4));
    for second in &outcome.history {
        println!(
            "{:>6.0} s  offered {:>9.0}/s  served {:>9.0}/s  shards {:>3}  p50 {:>8.2} ms  p99 {:>8.2} ms",
            second.at_s, second.offered_s, second.served_s, second.shards, second.p50_ms, second.p99_ms
        );
        second.steps.iter().for_each(|step| println!("          {step}"));
    }
    true
}
