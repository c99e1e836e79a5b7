//! Imports that a node only tracks: on replicas, from the append-only file, and from dumps.

use super::*;

fn stream(node: &mut Node) {
    let name = name(7);
    let source = id(200);
    let arguments: [&[u8]; 7] = [b"SOURCE", source.as_bytes(), b"NAME", name.as_bytes(), b"SLOTSRANGE", b"10", b"19"];
    let result = node.call(0, |jobs, context| jobs.establish(&arguments, Origin::Stream, context));
    assert_eq!(result, Ok(name), "the source may be unknown here");
}

fn replica() -> Node {
    let mut node = Node::new(1);
    node.view.is_primary = false;
    stream(&mut node);
    settle(&mut node);
    assert_eq!(node.state(), Some(State::ImportOccurringOnPrimary));
    assert_eq!(node.hidden.len(), 10);
    let job = node.jobs.iter().next().expect("a job");
    assert!(job.is_tracking_only() && job.source().is_none() && job.target().is_none());
    assert!(job.description().contains("source_node_id: unknown"));
    node
}

/// Carries out the actions of a node that has no connections; returns whether keys are to be deleted.
fn settle(node: &mut Node) -> bool {
    let mut deletes = false;
    for action in node.jobs.take_actions() {
        match action {
            Action::Log(_, line) => node.log.push(line),
            Action::SetImporting { slots, importing: true } => node.hidden.extend(slots.slots()),
            Action::SetImporting { slots, importing: false } => node.hidden.retain(|slot| !slots.contains(*slot)),
            Action::Propagate { words } => node.propagated.push(words.join(&b' ')),
            Action::DeleteKeys { .. } => deletes = true,
            other => panic!("unexpected: {other:?}"),
        }
    }
    deletes
}

fn finish(node: &mut Node, state: &[u8]) {
    let name = name(7);
    let arguments: [&[u8]; 6] = [b"STATE", state, b"NAME", name.as_bytes(), b"MESSAGE", b"its end"];
    assert_eq!(node.call(0, |jobs, context| jobs.finish_command(&arguments, context)), Ok(()));
}

#[test]
fn replica_shows_the_keys_when_its_primary_has_finished() {
    for (state, expected) in [(&b"success"[..], State::Success), (b"FAILED", State::Failed)] {
        let mut node = replica();
        finish(&mut node, state);
        assert!(!settle(&mut node), "its primary sends the deletions");
        assert_eq!((node.state(), node.message()), (Some(expected), "its end".to_owned()));
        assert!(node.hidden.is_empty() && node.propagated.is_empty());
    }
}

#[test]
fn replica_waits_without_a_timeout() {
    let mut node = replica();
    for second in 0..1000 {
        node.call(second * 1000, |jobs, context| jobs.tick(context));
        node.call(second * 1000, |jobs, context| jobs.topology_changed(context));
    }
    assert!(!settle(&mut node));
    assert_eq!(node.state(), Some(State::ImportOccurringOnPrimary));
}

#[test]
fn promoted_replica_deletes_the_keys_and_tells_its_replicas() {
    let mut node = replica();
    node.view.is_primary = true;
    node.call(0, |jobs, context| jobs.topology_changed(context));
    assert!(settle(&mut node));
    assert_eq!((node.state(), node.hidden.len()), (Some(State::ImportCleaningUp), 10));
    assert!(node.jobs.imports_any(), "a dump in between still has the import");
    node.call(0, |jobs, context| jobs.cleaned(name(7), 1, context));
    settle(&mut node);
    assert_eq!(node.message(), "A failover occurred during slot import");
    assert_eq!((node.state(), node.hidden.len(), node.propagated.len()), (Some(State::Failed), 0, 1));
}

#[test]
fn full_synchronisation_replaces_the_imports() {
    let mut node = replica();
    node.call(0, |jobs, context| jobs.load_began(context));
    assert!(!settle(&mut node));
    assert!(node.log.iter().any(|line| line.ends_with("State: failed, Message: A new RDB is being loaded")));
    assert_eq!(node.jobs.iter().count(), 0);
    node.call(0, |jobs, context| jobs.load_import(name(8), ranges(&[(5, 6)]), context));
    node.call(0, |jobs, context| jobs.load_ended(context));
    settle(&mut node);
    assert_eq!((node.state(), node.hidden.len()), (Some(State::ImportOccurringOnPrimary), 2));
}

#[test]
fn restarted_primary_deletes_the_keys_of_unfinished_imports() {
    let mut node = Node::new(1);
    stream(&mut node);
    assert!(!settle(&mut node), "tracked even on a primary, while it loads");
    node.call(0, |jobs, context| jobs.load_ended(context));
    assert!(settle(&mut node));
    node.call(0, |jobs, context| jobs.cleaned(name(7), 1, context));
    settle(&mut node);
    assert_eq!((node.state(), node.message()), (Some(State::Failed), "Process restarted".to_owned()));
}

#[test]
fn import_that_begins_right_after_the_load_goes_on() {
    let mut world = World::migrating();
    world.source.settings.prevent_pause = true;
    world.run();
    let (before, now_ms) = (world.target.state(), world.now_ms);
    world.target.call(now_ms, |jobs, context| jobs.load_ended(context));
    world.settle();
    assert!(before.is_some() && world.target.state() == before, "{}", world.target.message());
    assert_eq!(world.source.message(), "");
}

#[test]
fn end_in_the_append_only_file_needs_no_cleaning() {
    let mut node = Node::new(1);
    let settings = Settings::default();
    let (name, view) = (name(7), node.view.clone());
    let context = Context { topology: &view, settings: &settings, now_ms: 0, mono_ms: 0, loading: true };
    stream(&mut node);
    let arguments: [&[u8]; 4] = [b"STATE", b"FAILED", b"NAME", name.as_bytes()];
    assert_eq!(node.jobs.finish_command(&arguments, &context), Ok(()));
    assert!(!settle(&mut node));
    assert_eq!((node.state(), node.propagated.len()), (Some(State::Failed), 0));
    node.call(0, |jobs, context| jobs.load_ended(context));
    assert!(!settle(&mut node));
}

#[test]
fn demoted_target_leaves_its_import_to_the_new_primary() {
    let mut world = World::migrating();
    world.source.settings.prevent_pause = true;
    world.run();
    world.target.view.is_primary = false;
    let now_ms = world.now_ms;
    world.target.call(now_ms, |jobs, context| jobs.topology_changed(context));
    world.settle();
    assert_eq!(world.target.state(), Some(State::ImportOccurringOnPrimary));
    assert!(world.target.jobs.iter().all(Job::is_tracking_only));
    assert!(world.source.message().starts_with("Connection lost to target."));
    finish(&mut world.target, b"failed");
    world.settle();
    assert_eq!(world.target.message(), "its end");
    assert!(world.target.hidden.is_empty());
}
