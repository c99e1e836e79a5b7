//! Migrations that succeed, and the states they pass through.

use super::*;

fn states(log: &[String]) -> Vec<String> {
    let parts = log.iter().filter_map(|line| line.split_once(" state transition: "));
    parts.map(|(_, states)| states.split_once(" -> ").expect("two states").1.to_owned()).collect()
}

#[test]
fn slots_move_to_the_target() {
    let mut world = World::migrating();
    assert_eq!(world.source.state(), Some(State::ExportConnecting));
    world.run();
    assert_eq!((world.source.state(), world.target.state()), (Some(State::Success), Some(State::Success)));
    assert_eq!(world.target.view.owner(10), Some(id(1)));
    assert!(world.source.paused.is_empty() && world.target.hidden.is_empty());
    assert!(world.target.has_foreign_keys, "the keys are now its own");
    let expected = [
        "sending-establish-command",
        "reading-establish-response",
        "waiting-to-snapshot",
        "snapshotting",
        "replicating",
        "waiting-to-pause",
        "failover-paused",
        "failover-granted",
        "success",
    ];
    assert_eq!(states(&world.source.log), expected);
    let expected = ["receiving-snapshot", "waiting-for-paused", "failover-requested", "failover-granted", "success"];
    assert_eq!(states(&world.target.log), expected);
    let finish = format!("CLUSTER SYNCSLOTS FINISH STATE SUCCESS NAME {}", name(7));
    assert_eq!(world.target.propagated, [finish.into_bytes()]);
    assert!(world.source.propagated.is_empty());
}

#[test]
fn log_lines_name_the_job_and_the_other_node() {
    let mut world = World::migrating();
    world.run();
    let (job, source, target) = (name(7), id(0), id(1));
    let export = format!("{{name: {job}, operation: export, target_node_id: {target}, slots: 10-19}}");
    let import = format!("{{name: {job}, operation: import, source_node_id: {source}, slots: 10-19}}");
    let expected = [
        format!("Slot migration initiated through CLUSTER MIGRATESLOTS command: {export} (user request from 'client')"),
        format!("Connecting slot migration {export} (ip: 10.0.0.1, port 7001)"),
        format!("Slot migration {export} connection established."),
        format!("Slot migration {export} slots are now owned by target node."),
        format!("Slot migration {export} finished. State: success, Message: none"),
        format!("Pausing writes (remaining_repl_size is 0) to allow slot migration {export} to finalize failover."),
    ];
    for line in expected {
        assert!(world.source.log.contains(&line), "{line}\n{:#?}", world.source.log);
    }
    assert!(world.target.log.contains(&format!("New slot import job created: {import}.")));
}

#[test]
fn writes_pause_only_when_little_is_left() {
    let mut world = World::migrating();
    world.source.settings.prevent_pause = true;
    world.run();
    assert_eq!(world.source.state(), Some(State::ExportWaitingToPause));
    world.source.settings.prevent_pause = false;
    let progress = |world: &mut World, remaining_bytes, is_close| {
        let now_ms = world.now_ms;
        let progress = Progress { remaining_bytes, is_close, target_lags: false };
        world.source.call(now_ms, |jobs, context| jobs.progressed(name(7), progress, context));
        world.settle();
        !world.source.paused.is_empty()
    };
    assert!(!progress(&mut world, 1, false));
    assert_eq!(world.source.jobs.iter().next().map(Job::remaining_bytes), Some(1));
    world.source.settings.max_failover_repl_bytes = Some(500);
    assert!(!progress(&mut world, 501, false));
    assert!(progress(&mut world, 500, false));
    assert!(world.source.jobs.pauses_writes());
    world.run();
    assert_eq!((world.source.state(), world.source.jobs.pauses_writes()), (Some(State::Success), false));

    for (limit, bytes, is_close) in [(None, u64::MAX, false), (Some(0), 5000, true)] {
        let mut world = World::migrating();
        world.source.settings.prevent_pause = true;
        world.run();
        world.source.settings.prevent_pause = false;
        world.source.settings.max_failover_repl_bytes = limit;
        assert!(progress(&mut world, bytes, is_close));
    }
}

#[test]
fn target_that_lags_delays_the_pause() {
    let mut world = World::migrating();
    world.source.settings.prevent_pause = true;
    world.run();
    world.source.settings.prevent_pause = false;
    let now_ms = world.now_ms;
    // The target returns what the source sends to measure it.
    world.target.call(now_ms, |jobs, context| jobs.received(name(7), Message::Capa, context));
    world.settle();
    assert_eq!(world.events.pop_back(), Some(Event::ToSource(Message::Capa)));
    for (target_lags, state) in [(true, State::ExportWaitingToPause), (false, State::ExportFailoverPaused)] {
        let progress = Progress { remaining_bytes: 0, is_close: false, target_lags };
        world.source.call(now_ms, |jobs, context| jobs.progressed(name(7), progress, context));
        assert_eq!(world.source.state(), Some(state));
    }
}

#[test]
fn both_sides_show_that_they_are_alive() {
    let mut world = World::migrating();
    world.source.settings.prevent_pause = true;
    world.run();
    let before = world.source.jobs.iter().next().map(Job::acknowledged_s).expect("a job");
    world.pass(300_000);
    assert_eq!(world.source.state(), Some(State::ExportWaitingToPause));
    assert_eq!(world.target.state(), Some(State::ImportWaitingForPaused));
    for node in [&world.source, &world.target] {
        let job = node.jobs.iter().next().expect("a job");
        assert!(job.acknowledged_s() >= before + 298, "{job:?}");
        assert_eq!(job.created_s(), before);
    }
}

#[test]
fn password_comes_before_establish() {
    let node = &mut Node::new(0);
    node.settings.authenticates = true;
    let target = id(2);
    let arguments: [&[u8]; 5] = [b"slotsrange", b"5", b"5", b"node", target.as_bytes()];
    node.call(0, |jobs, context| jobs.migrate(&arguments, "c", || name(1), context)).expect("valid");
    node.call(0, |jobs, context| jobs.connected(name(1), context));
    assert_eq!(node.state(), Some(State::ExportReadingAuthReply));
    assert!(node.jobs.take_actions().contains(&Action::Authenticate { job: name(1) }));
    assert!(node.jobs.iter().next().expect("a job").description().contains("target_node_human_name: third, "));
    node.call(0, |jobs, context| jobs.authenticated(name(1), Ok(()), context));
    assert_eq!(node.state(), Some(State::ExportReadingEstablishReply));

    for (error, message) in [
        ("", "Target node did not respond to AUTH command"),
        ("-WRONGPASS no", "Failed to AUTH to target node: -WRONGPASS no"),
    ] {
        let node = &mut Node::new(0);
        node.settings.authenticates = true;
        node.call(0, |jobs, context| jobs.migrate(&arguments, "c", || name(1), context)).expect("valid");
        node.call(0, |jobs, context| jobs.connected(name(1), context));
        node.call(0, |jobs, context| jobs.authenticated(name(1), Err(error), context));
        assert_eq!((node.state(), node.message()), (Some(State::Failed), message.to_owned()));
    }
}

#[test]
fn finished_jobs_are_forgotten_above_the_limit() {
    let mut world = World::migrating();
    world.run();
    for round in 0..3 {
        // The source and the slots again, as another job.
        world.source.view = View::new(0);
        world.target.view = View::new(1);
        world.source.call(0, |jobs, _| jobs.jobs.iter_mut().for_each(|job| job.name = name(100 + round)));
        world.target.call(0, |jobs, _| jobs.jobs.iter_mut().for_each(|job| job.name = name(100 + round)));
        world.migrate();
        world.run();
        assert_eq!(world.source.state(), Some(State::Success));
    }
    assert_eq!(world.source.jobs.iter().count(), 4);
    world.source.settings.log_max_len = 2;
    world.pass(100);
    assert_eq!(world.source.jobs.iter().count(), 2);
    assert_eq!(world.source.jobs.iter().next().map(Job::name), Some(name(7)), "the newest is kept");
    world.source.settings.log_max_len = 0;
    world.source.view = View::new(0);
    world.migrate();
    world.source.settings.prevent_pause = true;
    world.pass(100);
    assert_eq!(world.source.jobs.iter().count(), 1, "jobs in progress stay");
}

#[test]
fn slots_are_taken_over_when_replicas_have_them() {
    let mut world = World::migrating();
    world.target.settings.takeover_replicas = 2;
    world.replicas_answer = false;
    world.run();
    let states = |world: &World| (world.source.state(), world.target.state());
    assert_eq!(states(&world), (Some(State::ExportReplicating), Some(State::ImportWaitingForPaused)));
    assert!(world.source.paused.is_empty(), "no write waits for the snapshot to reach the replicas");
    // The last writes.
    world.target.call(world.now_ms, |jobs, context| jobs.replicated(name(7), context));
    world.settle();
    world.run();
    assert_eq!(states(&world), (Some(State::ExportFailoverPaused), Some(State::ImportFailoverRequested)));
    world.target.call(world.now_ms, |jobs, context| jobs.replicated(name(7), context));
    world.settle();
    world.run();
    assert_eq!(states(&world), (Some(State::Success), Some(State::Success)));
}

#[test]
fn an_import_without_enough_replicas_fails() {
    let mut world = World::migrating();
    world.target.settings.takeover_replicas = 1;
    world.replicas_answer = false;
    world.run();
    world.pass(60_000);
    assert_eq!(world.target.state(), Some(State::ImportWaitingForPaused));
    world.pass(2_000);
    assert_eq!((world.source.state(), world.target.state()), (Some(State::Failed), Some(State::Failed)));
    assert!(world.target.message().contains("cluster-slot-takeover-replicas"), "{}", world.target.message());
    assert_eq!(world.source.view.owner(10), Some(id(0)));
}

#[test]
fn a_target_that_still_deletes_old_keys_is_asked_again() {
    let mut world = World::migrating();
    world.target.view.deleting = Some(12);
    world.run();
    assert_eq!(world.source.state(), Some(State::ExportReadingEstablishReply));
    world.pass(1_000);
    assert_eq!((world.source.state(), world.target.state()), (Some(State::ExportReadingEstablishReply), None));
    world.target.view.deleting = None;
    world.pass(1_000);
    assert_eq!((world.source.state(), world.target.state()), (Some(State::Success), Some(State::Success)));
}

#[test]
fn a_target_that_never_ends_deleting_is_given_up() {
    let mut world = World::migrating();
    world.target.view.deleting = Some(12);
    world.run();
    world.pass(62_000);
    assert_eq!(world.source.state(), Some(State::Failed));
}
