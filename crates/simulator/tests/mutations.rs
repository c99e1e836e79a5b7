//! Deliberately wrong rules are found, and the right ones are not blamed.

use kvick_cluster::state::{Mutation, Settings};
use kvick_simulator::{Options, Workload, run};

/// Seeds in which each wrong rule must be found.
const SEEDS: u64 = 1000;

/// The first seed of a workload in which a violation is found, with what it was.
fn first_violation(workload: Workload, configure: fn(&mut Settings)) -> Option<(u64, String)> {
    (1..=SEEDS).find_map(|seed| {
        let options = Options {
            seed,
            nodes: Some(7),
            workload: Some(workload),
            configure: Some(configure),
            ..Options::default()
        };
        run(&options).violation.map(|violation| (seed, violation.what))
    })
}

fn check(workload: Workload, configure: fn(&mut Settings), expected: &str) {
    let Some((seed, what)) = first_violation(workload, configure) else {
        panic!("not found in {SEEDS} seeds");
    };
    println!("found by seed {seed}: {what}");
    assert!(what.contains(expected), "seed {seed} found something else: {what}");
}

#[test]
fn two_votes_in_an_epoch_are_found() {
    check(Workload::Failover, |settings| settings.mutation = Some(Mutation::DoubleVote), "votes twice");
}

#[test]
fn a_vote_that_is_not_saved_is_found() {
    check(Workload::Failover, |settings| settings.mutation = Some(Mutation::UnsavedVote), "not saved");
}

#[test]
fn an_epoch_that_goes_back_is_found() {
    check(Workload::Failover, |settings| settings.mutation = Some(Mutation::EpochGoesBack), "goes back");
}

#[test]
fn claims_with_an_old_epoch_are_found() {
    check(Workload::Failover, |settings| settings.mutation = Some(Mutation::OldClaims), "an older one");
}

#[test]
fn an_election_without_majority_is_found() {
    check(Workload::Failover, |settings| settings.mutation = Some(Mutation::NoMajority), "majority");
}

#[test]
fn an_offset_announced_before_the_pause_is_found() {
    check(Workload::Manual, |settings| settings.mutation = Some(Mutation::EarlyOffset), "paused");
}
