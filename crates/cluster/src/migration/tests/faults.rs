//! Migrations that fail: each fault at each step.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    LinkLost,
    SourceDies,
    TargetDies,
    Cancel,
    SourceFlushed,
    TargetFlushed,
    SourceDemoted,
    TargetDemoted,
    SlotsTaken,
    OutOfMemory,
    CommandFails,
    SourceSilent,
    TargetSilent,
}

const FAULTS: [Fault; 13] = [
    Fault::LinkLost,
    Fault::SourceDies,
    Fault::TargetDies,
    Fault::Cancel,
    Fault::SourceFlushed,
    Fault::TargetFlushed,
    Fault::SourceDemoted,
    Fault::TargetDemoted,
    Fault::SlotsTaken,
    Fault::OutOfMemory,
    Fault::CommandFails,
    Fault::SourceSilent,
    Fault::TargetSilent,
];

fn strike(world: &mut World, fault: Fault) {
    let now_ms = world.now_ms;
    match fault {
        Fault::LinkLost => world.disconnect(true, true),
        Fault::SourceDies => {
            world.source.alive = false;
            world.disconnect(false, true);
            world.events.retain(|event| matches!(event, Event::Claimed | Event::Cleaned(_)));
        }
        Fault::TargetDies => {
            world.target.alive = false;
            world.disconnect(true, false);
            world.events.retain(|event| !matches!(event, Event::Claimed | Event::Cleaned(_)));
        }
        Fault::Cancel => {
            _ = world.source.call(now_ms, |jobs, context| jobs.cancel("client", context));
        }
        Fault::SourceFlushed => world.source.call(now_ms, |jobs, context| jobs.flushed(context)),
        Fault::TargetFlushed => world.target.call(now_ms, |jobs, context| jobs.flushed(context)),
        Fault::SourceDemoted => {
            world.source.view.is_primary = false;
            world.source.view.give(&ranges(&[(0, 99)]), 2);
            // A claim of the target has a higher epoch.
            world.target.view.owners.values_mut().filter(|owner| **owner == 0).for_each(|owner| *owner = 2);
            world.source.call(now_ms, |jobs, context| jobs.topology_changed(context));
            world.target.call(now_ms, |jobs, context| jobs.topology_changed(context));
        }
        Fault::TargetDemoted => {
            world.target.view.is_primary = false;
            world.target.call(now_ms, |jobs, context| jobs.topology_changed(context));
        }
        Fault::SlotsTaken => {
            world.source.view.give(&ranges(&[(12, 12)]), 2);
            world.target.view.give(&ranges(&[(12, 12)]), 2);
            world.source.call(now_ms, |jobs, context| jobs.topology_changed(context));
            world.target.call(now_ms, |jobs, context| jobs.topology_changed(context));
        }
        Fault::OutOfMemory => world.target.call(now_ms, |jobs, context| jobs.out_of_memory(name(7), context)),
        Fault::CommandFails => world.target.call(now_ms, |jobs, context| jobs.command_failed(name(7), context)),
        // Packets disappear, and no side learns that the other is gone.
        Fault::SourceSilent | Fault::TargetSilent => {
            world.connected = false;
            world.disconnect(false, false);
        }
    }
    world.settle();
}

#[test]
fn every_fault_at_every_step_ends_both_jobs() {
    for fault in FAULTS {
        for steps in 0..40 {
            let mut world = World::migrating();
            let taken = (0..steps).take_while(|_| world.step()).count();
            let at = (world.source.state(), world.target.state());
            strike(&mut world, fault);
            if taken < steps && fault != Fault::SourceDies {
                break;
            }
            world.run();
            world.pass(100_000);
            check(&world, &format!("{fault:?} after step {taken}, at {at:?}"));
        }
    }
}

fn check(world: &World, case: &str) {
    let (source, target) = (&world.source, &world.target);
    if source.alive {
        assert!(source.state().is_some_and(State::is_finished), "{case}: source {:?}", source.state());
        assert!(source.paused.is_empty(), "{case}: writes are paused");
        assert!(!source.jobs.pauses_writes(), "{case}");
    }
    let Some(state) = target.state() else { return };
    if !target.alive {
        return;
    }
    if target.view.is_primary {
        assert!(state.is_finished(), "{case}: target {state:?}");
        assert!(target.hidden.is_empty(), "{case}: keys are hidden");
        let owns = target.view.owner(10) == Some(id(1));
        assert_eq!(target.has_foreign_keys, owns, "{case}: keys without their slots");
        assert_eq!(state == State::Success, owns, "{case}: {state:?}");
        assert_eq!(target.propagated.len(), 1, "{case}: replicas learn of the end");
    } else if state != State::Success {
        assert_eq!(state, State::ImportOccurringOnPrimary, "{case}");
        assert!(!target.hidden.is_empty(), "{case}: the new primary decides");
        assert!(target.propagated.is_empty(), "{case}");
    }
    if source.alive && source.state() == Some(State::Success) {
        assert_eq!(target.view.owner(10), Some(id(1)), "{case}");
    }
}

/// A world whose source has reached `state`.
fn at(state: State) -> World {
    let mut world = World::migrating();
    while world.source.state() != Some(state) {
        assert!(world.step(), "never reached {state:?}");
    }
    world
}

#[test]
fn messages_say_why_a_job_failed() {
    let mut world = at(State::ExportReplicating);
    strike(&mut world, Fault::LinkLost);
    assert!(world.source.message().starts_with("Connection lost to target."));
    assert!(world.target.message().starts_with("Connection lost to source."));

    let mut world = at(State::ExportReplicating);
    strike(&mut world, Fault::Cancel);
    assert_eq!((world.source.state(), world.source.message()), (Some(State::Cancelled), String::new()));
    assert!(world.target.message().starts_with("Connection lost to source."));

    let mut world = at(State::ExportReplicating);
    strike(&mut world, Fault::SourceFlushed);
    assert_eq!(world.source.message(), "Data was flushed");

    let mut world = at(State::ExportReplicating);
    strike(&mut world, Fault::OutOfMemory);
    assert_eq!(world.target.message(), "Ran out of memory (OOM) during slot import");
    assert_eq!(world.target.state(), Some(State::ImportCleaningUp));
    world.run();
    assert_eq!(world.target.message(), "Ran out of memory (OOM) during slot import");
    let finish = "CLUSTER SYNCSLOTS FINISH STATE FAILED NAME";
    let text = String::from_utf8_lossy(&world.target.propagated[0]).into_owned();
    assert!(text.starts_with(finish) && text.ends_with("MESSAGE Ran out of memory (OOM) during slot import"));

    let mut world = at(State::ExportReplicating);
    strike(&mut world, Fault::SlotsTaken);
    assert_eq!(world.source.message(), "Slots are no longer owned by myself");
    assert_eq!(world.target.message(), "Slots are no longer owned by source node");

    let mut world = at(State::ExportReplicating);
    world.target.view.give(&ranges(&[(10, 19)]), 1);
    let now_ms = world.now_ms;
    world.target.call(now_ms, |jobs, context| jobs.topology_changed(context));
    assert_eq!(world.target.message(), "Slots were unexpectedly assigned to myself during import");
}

#[test]
fn silence_ends_a_job_after_the_timeout() {
    for fault in [Fault::SourceSilent, Fault::TargetSilent] {
        let mut world = at(State::ExportReplicating);
        world.source.settings.prevent_pause = true;
        strike(&mut world, fault);
        world.pass(60_000);
        assert_eq!(world.source.state(), Some(State::ExportReplicating));
        world.pass(2_000);
        assert_eq!(world.source.message(), "Timed out after too long with no interaction");
        assert_eq!(world.target.message(), "Timed out after too long with no interaction");
    }
}

#[test]
fn target_that_does_not_answer_connect_or_establish_times_out() {
    for state in [State::ExportConnecting, State::ExportReadingEstablishReply] {
        let mut world = at(state);
        world.events.clear();
        world.pass(62_000);
        assert_eq!(world.source.message(), "Timed out after too long with no interaction");
    }
    let mut world = World::migrating();
    world.target.alive = false;
    world.run();
    assert_eq!(world.source.message(), "Unable to connect to target node: Connection refused");
    let mut world = at(State::ExportReadingEstablishReply);
    world.target.view.imports_manually = true;
    world.run();
    let message = "Received error during handshake to target: -ERR Slots are being manually imported";
    assert_eq!(world.source.message(), message);
}

#[test]
fn pause_ends_even_if_the_target_does_not_take_over() {
    let mut world = World::migrating();
    world.target.settings.prevent_failover = true;
    world.source.settings.manual_failover_timeout_ms = 100;
    world.run();
    assert_eq!(world.source.state(), Some(State::ExportFailoverGranted));
    assert_eq!(world.source.paused.len(), 10);
    assert!(world.source.jobs.failover_granted(10) && !world.source.jobs.failover_granted(9));
    world.pass(1_900);
    assert_eq!(world.source.paused.len(), 10, "the claim has 2 seconds to arrive");
    world.pass(300);
    assert!(world.source.paused.is_empty());
    assert!(world.source.has_withdrawn, "a claim that comes now does not win");
    assert!(world.source.message().starts_with("Unpaused before migration completed"));
    assert!(world.source.log.iter().any(|line| line.starts_with("Write loss risk! During slot migration")));
    assert!(world.target.message().starts_with("Connection lost to source."));
    assert!(!world.target.has_foreign_keys);
}

#[test]
fn pause_ends_if_the_target_does_not_ask_for_the_slots() {
    let mut world = at(State::ExportFailoverPaused);
    world.connected = false;
    world.disconnect(false, false);
    world.pass(10_000);
    assert_eq!(world.source.paused.len(), 10);
    world.pass(200);
    assert_eq!(world.source.message(), "Timed out before streaming completed");
    assert!(world.source.paused.is_empty());
}

#[test]
fn pause_does_not_end_with_a_jump_of_the_clock() {
    for state in [State::ExportFailoverPaused, State::ExportFailoverGranted] {
        let mut world = at(state);
        world.source.skew_ms = 30_000;
        world.source.call(world.now_ms, |jobs, context| jobs.tick(context));
        assert_eq!((world.source.state(), world.source.paused.len()), (Some(state), 10));
    }
}

#[test]
fn slots_are_not_claimed_after_the_source_may_have_resumed_writes() {
    for (late_ms, state) in [(1_000, State::Success), (1_001, State::Failed)] {
        let mut world = at(State::ExportFailoverGranted);
        world.now_ms += late_ms;
        world.run();
        assert_eq!(world.target.state(), Some(state));
    }
    // With a short node timeout, a replica of the source could have replaced it.
    let mut world = at(State::ExportFailoverGranted);
    world.target.settings.node_timeout_ms = 500;
    world.now_ms += 251;
    world.run();
    assert_eq!(world.target.message(), "The source's permission to take the slots over came too late");
}

#[test]
fn slots_are_not_claimed_if_the_process_stood_still_after_the_grant() {
    for (mono_ms, skew_ms) in [(1_001, 0), (0, 1_001)] {
        let mut world = at(State::ExportFailoverGranted);
        let target = &mut world.target;
        target.call(world.now_ms, |jobs, context| jobs.received(name(7), Message::FailoverGranted, context));
        let claims = |action: &Action| matches!(action, Action::Claim { .. });
        assert!(target.jobs.take_actions().iter().any(claims));
        target.skew_ms = skew_ms;
        assert!(!target.call(world.now_ms + mono_ms, |jobs, context| jobs.may_claim(name(7), context)));
        assert_eq!(target.state(), Some(State::ImportCleaningUp));
    }
}

#[test]
fn a_grant_that_is_taken_back_holds_writes_until_it_is_void() {
    let mut world = at(State::ExportFailoverGranted);
    // The target does not answer.
    world.events.clear();
    assert_eq!(world.source.call(world.now_ms, |jobs, context| jobs.cancel("client", context)), Ok(()));
    world.source.call(world.now_ms, |jobs, context| jobs.flushed(context));
    assert_eq!((world.source.state(), world.source.paused.len()), (Some(State::ExportFailoverGranted), 10));
    world.settle();
    assert!(!world.connected);
    world.pass(1_900);
    assert_eq!(world.source.paused.len(), 10);
    world.pass(300);
    assert_eq!((world.source.state(), world.source.paused.len()), (Some(State::Cancelled), 0));
    assert!(world.source.has_withdrawn);

    // The target claims the slots after all.
    let mut world = at(State::ExportFailoverGranted);
    assert_eq!(world.source.call(world.now_ms, |jobs, context| jobs.cancel("client", context)), Ok(()));
    world.source.view.give(&ranges(&[(10, 19)]), 1);
    world.source.call(world.now_ms, |jobs, context| jobs.topology_changed(context));
    assert_eq!(world.source.state(), Some(State::Success));
    assert!(!world.source.has_withdrawn);
}

#[test]
fn a_claim_of_a_target_that_failed_does_not_win() {
    let mut world = at(State::ExportFailoverGranted);
    world.events.clear();
    world.source.view.peers.remove(&1);
    world.source.call(world.now_ms, |jobs, context| jobs.topology_changed(context));
    world.settle();
    assert!(world.source.has_withdrawn);
    // It may work all the same, and take a higher epoch.
    world.pass(1_900);
    assert_eq!((world.source.state(), world.source.paused.len()), (Some(State::ExportFailoverGranted), 10));
    world.source.has_withdrawn = false;
    world.pass(300);
    assert_eq!((world.source.state(), world.source.paused.len()), (Some(State::Failed), 0));
    assert_eq!(world.source.message(), "Target node failed");
    assert!(world.source.has_withdrawn);
}

#[test]
fn a_grant_is_withdrawn_before_writes_resume() {
    let mut world = at(State::ExportFailoverGranted);
    world.events.clear();
    let source = &mut world.source;
    source.call(world.now_ms + 20_000, |jobs, context| jobs.tick(context));
    let actions = source.jobs.take_actions();
    let place = |wanted: fn(&Action) -> bool| actions.iter().position(wanted).expect("it is among the actions");
    let withdrawn = place(|action| matches!(action, Action::WithdrawGrant { .. }));
    assert!(withdrawn < place(|action| matches!(action, Action::ResumeWrites { .. })));
}

#[test]
fn slots_are_not_granted_while_a_replica_is_about_to_take_over() {
    for message in ["A manual failover is in progress", "Target node failed"] {
        let mut world = at(State::ExportFailoverPaused);
        match message {
            "Target node failed" => _ = world.source.view.peers.remove(&1),
            _ => world.source.view.is_failing_over = true,
        }
        world.run();
        assert_eq!((world.source.state(), world.target.state()), (Some(State::Failed), Some(State::Failed)));
        assert_eq!(world.source.message(), message);
        assert!(world.source.paused.is_empty());
    }
}

#[test]
fn late_request_for_the_slots_is_denied() {
    let mut world = at(State::ExportFailoverPaused);
    let now_ms = world.now_ms + 10_001;
    world.source.call(now_ms, |jobs, context| jobs.received(name(7), Message::RequestFailover, context));
    assert_eq!(world.source.message(), "Unpaused before failover completed");
    assert!(!world.source.jobs.take_actions().contains(&Action::GrantFailover { job: name(7) }));
}

#[test]
fn lost_link_after_the_grant_keeps_writes_paused_until_the_owner_is_known() {
    let mut world = at(State::ExportFailoverGranted);
    let granted = world.events.contains(&Event::ToTarget(Message::FailoverGranted));
    assert!(granted);
    assert!(world.step());
    strike(&mut world, Fault::LinkLost);
    assert_eq!(world.source.state(), Some(State::ExportFailoverGranted));
    assert_eq!(world.source.paused.len(), 10);
    world.run();
    assert_eq!((world.source.state(), world.target.state()), (Some(State::Success), Some(State::Success)));
    assert!(world.source.paused.is_empty());
}

#[test]
fn import_without_keys_ends_at_once_so_that_the_next_one_can_begin() {
    for (has_keys, expected) in [(true, State::ImportCleaningUp), (false, State::Failed)] {
        let mut world = World::migrating();
        while world.target.state() != Some(State::ImportReceivingSnapshot) {
            assert!(world.step());
        }
        world.target.view.has_keys = has_keys;
        let now_ms = world.now_ms;
        world.target.call(now_ms, |jobs, context| jobs.received(name(7), Message::Paused, context));
        assert_eq!(world.target.state(), Some(expected));
    }
}

#[test]
fn messages_out_of_turn_fail_the_job() {
    let wrong_for_target = [
        (State::ExportReadingEstablishReply, Message::SnapshotEof),
        (State::ExportSnapshotting, Message::Paused),
        (State::ExportSnapshotting, Message::FailoverGranted),
        (State::ExportSnapshotting, Message::RequestPause),
        (State::ExportWaitingToPause, Message::SnapshotEof),
    ];
    for (state, message) in wrong_for_target {
        let mut world = World::migrating();
        world.source.settings.prevent_pause = true;
        while world.source.state() != Some(state) || world.target.state().is_none() {
            assert!(world.step());
        }
        let now_ms = world.now_ms;
        world.target.call(now_ms, |jobs, context| jobs.received(name(7), message, context));
        world.settle();
        world.run();
        assert_eq!(world.target.message(), "Unexpected state machine transition", "{message:?}");
        assert!(!world.target.has_foreign_keys);
    }
    let wrong_for_source = [
        (State::ExportWaitingToSnapshot, Message::RequestPause),
        (State::ExportReplicating, Message::RequestFailover),
        (State::ExportReplicating, Message::SnapshotEof),
        (State::ExportFailoverPaused, Message::RequestPause),
    ];
    for (state, message) in wrong_for_source {
        let mut world = at(state);
        let now_ms = world.now_ms;
        world.source.call(now_ms, |jobs, context| jobs.received(name(7), message, context));
        world.settle();
        assert_eq!(world.source.message(), "Unexpected state machine transition", "{message:?}");
        assert!(world.source.paused.is_empty());
    }
    let mut world = at(State::ExportReplicating);
    let now_ms = world.now_ms;
    world.target.call(now_ms, |jobs, context| jobs.received_unknown(name(7), context));
    assert_eq!(world.target.message(), "Unknown SYNCSLOTS subcommand used");
}
