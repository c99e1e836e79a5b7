//! Arguments of the commands and their error texts.

use super::*;

fn words<'a>(text: &'a str, nodes: &'a [(&'a str, NodeId)]) -> Vec<&'a [u8]> {
    let find = |word| nodes.iter().find(|(name, _)| *name == word);
    text.split_whitespace().map(|word| find(word).map_or(word.as_bytes(), |(_, id)| &id.as_bytes()[..])).collect()
}

#[test]
fn migrate_refuses_as_valkey_does() {
    let nodes = [("N0", id(0)), ("N1", id(1)), ("N2", id(2)), ("N9", id(9))];
    let cases = [
        ("INVALID 0 1", "syntax error"),
        ("SLOTSRANGE", "No slot ranges specified"),
        ("SLOTSRANGE 0", "No end slot for final slot range"),
        ("SLOTSRANGE 16385 16388", "Invalid or out of range slot"),
        ("SLOTSRANGE -1 5", "Invalid or out of range slot"),
        ("SLOTSRANGE 10 16388", "Invalid or out of range slot"),
        ("SLOTSRANGE a 0", "No slot ranges specified"),
        ("SLOTSRANGE +1 2", "No slot ranges specified"),
        ("SLOTSRANGE 0 a", "Invalid or out of range slot"),
        ("SLOTSRANGE 1 0", "Start slot number 1 is greater than end slot number 0."),
        ("SLOTSRANGE 0 250", "Requested slots span multiple shards"),
        ("SLOTSRANGE 300 300", "Slot 300 has no node served."),
        ("SLOTSRANGE 0 5 3 6", "Slot range 3-6 overlaps with previous range 0-5."),
        ("SLOTSRANGE 3 6 0 5", "Slot range 0-5 overlaps with previous range 3-6."),
        ("SLOTSRANGE 0 0", "syntax error"),
        ("SLOTSRANGE 0 0 NODE", "syntax error"),
        ("SLOTSRANGE 0 0 NODE blah", "Invalid node name: blah"),
        ("SLOTSRANGE 0 0 NODE N9", "Unknown node name: 0909090909090909090909090909090909090909"),
        ("SLOTSRANGE 0 0 NODE N0", "Target node can not be this node."),
        ("SLOTSRANGE 100 100 NODE N1", "Slots are not served by this node."),
        ("SLOTSRANGE 1 1 NODE N1 SLOTSRANGE 0 2 NODE N2", "Slot ranges in migrations overlap"),
        ("SLOTSRANGE 0 0 2 2 NODE N1 SLOTSRANGE 2 2 NODE N2", "Slot ranges in migrations overlap"),
        ("SLOTSRANGE 11 13 NODE N2", "I am already migrating slot 11."),
    ];
    let mut world = World::migrating();
    for (text, expected) in cases {
        let arguments = words(text, &nodes);
        let result = world.source.call(0, |jobs, context| jobs.migrate(&arguments, "c", || name(1), context));
        assert_eq!(result.expect_err(text).to_string(), expected, "{text}");
    }
    assert_eq!(world.source.jobs.iter().count(), 1, "a refused command starts nothing");
    let valid = words("SLOTSRANGE\0 0 0 2 3 NODE N1 slotsrange 1 1 node N2", &nodes);
    let mut names = [name(1), name(2)].into_iter();
    let mut new_name = || names.next().expect("two jobs");
    world.source.call(0, |jobs, context| jobs.migrate(&valid, "c", &mut new_name, context)).expect("valid");
    let jobs: Vec<_> = world.source.jobs.iter().map(|job| (job.name(), job.ranges().to_string())).collect();
    let expected = [(name(1), "0-0 2-3"), (name(2), "1-1"), (name(7), "10-19")];
    assert_eq!(jobs, expected.map(|(name, ranges)| (name, ranges.to_owned())));
}

#[test]
fn migration_starts_only_on_primaries_without_manual_migrations() {
    let target = id(1);
    let arguments: [&[u8]; 5] = [b"SLOTSRANGE", b"0", b"0", b"NODE", target.as_bytes()];
    type Change = fn(&mut View);
    let cases: [(Change, &str); 3] = [
        (|view| view.is_primary = false, "Slot migration can only be used on primary nodes."),
        (|view| view.imports_manually = true, "Slots are being manually imported"),
        (|view| view.migrates_manually = true, "Slots are being manually migrated"),
    ];
    for (change, expected) in cases {
        let mut node = Node::new(0);
        change(&mut node.view);
        let result = node.call(0, |jobs, context| jobs.migrate(&arguments, "c", || name(1), context));
        assert_eq!(result.expect_err("refused").to_string(), expected);
        let result = node.call(0, |jobs, context| jobs.establish(&[], Origin::Source, context));
        assert_eq!(result.expect_err("refused").to_string(), expected);
        let result = node.call(0, |jobs, context| jobs.establish(&[], Origin::Stream, context));
        assert_eq!(result.expect_err("refused"), CommandError::Syntax);
    }
    let mut node = Node::new(0);
    let result = node.call(0, |jobs, context| jobs.cancel("c", context));
    assert_eq!(result.expect_err("nothing").to_string(), "No migrations ongoing");
}

#[test]
fn establish_refuses_as_valkey_does() {
    let job = NodeId::from_random([7; 20]);
    let nodes = [("N0", id(0)), ("N1", id(1)), ("N2", id(2)), ("N9", id(9)), ("J", job)];
    let cases = [
        ("", "syntax error"),
        ("NAME J SLOTSRANGE 100 100", "syntax error"),
        ("SOURCE N1 SLOTSRANGE 100 100", "syntax error"),
        ("SOURCE N1 NAME J", "syntax error"),
        ("SOURCE N1 NAME J SLOTSRANGE", "No slot ranges specified"),
        ("SOURCE N1 NAME J SLOTSRANGE 100", "No end slot for final slot range"),
        ("SOURCE N9 NAME J SLOTSRANGE 100 100", "Target node does not know the source node"),
        ("SOURCE N0 NAME J SLOTSRANGE 100 100", "Source node is target node itself"),
        ("SOURCE N2 NAME J SLOTSRANGE 100 100", "Target node does not agree about current slot ownership"),
        ("SOURCE invalid NAME J SLOTSRANGE 100 100", "syntax error"),
        ("SOURCE N1 NAME invalid SLOTSRANGE 100 100", "syntax error"),
        ("SOURCE N1 NAME J SLOTSRANGE 100 100 SLOTSRANGE 101 101", "syntax error"),
        ("SOURCE N1 NAME J NAME J SLOTSRANGE 100 100", "syntax error"),
        ("SOURCE N1 SOURCE N1 NAME J SLOTSRANGE 100 100", "syntax error"),
        ("SOURCE N1 NAME J SLOTSRANGE 100 100 BAD_FIELD bad_value", "syntax error"),
        ("SOURCE N1 NAME", "syntax error"),
    ];
    let mut node = Node::new(0);
    for (text, expected) in cases {
        let arguments = words(text, &nodes);
        let result = node.call(0, |jobs, context| jobs.establish(&arguments, Origin::Source, context));
        assert_eq!(result.expect_err(text).to_string(), expected, "{text}");
    }
    assert!(!node.jobs.imports_any());
    let arguments = words("SLOTSRANGE 100 100 NAME J SOURCE N1", &nodes);
    node.view.deleting = Some(100);
    let result = node.call(0, |jobs, context| jobs.establish(&arguments, Origin::Source, context));
    assert_eq!(result, Err(CommandError::StillDeleting));
    node.view.deleting = None;
    assert_eq!(node.call(0, |jobs, context| jobs.establish(&arguments, Origin::Source, context)), Ok(name(7)));
    let result = node.call(0, |jobs, context| jobs.establish(&arguments, Origin::Source, context));
    let expected = "Slot is already being imported on the target by a different migration";
    assert_eq!(result.expect_err("again").to_string(), expected);
    assert!(node.jobs.is_importing(100) && !node.jobs.is_importing(101) && !node.jobs.is_exporting(100));
}

#[test]
fn finish_names_a_job_and_its_end() {
    let job = NodeId::from_random([7; 20]);
    let nodes = [("J", job)];
    let cases = [
        ("", "syntax error"),
        ("STATE success", "syntax error"),
        ("NAME J", "syntax error"),
        ("NAME J STATE", "syntax error"),
        ("NAME short STATE success", "syntax error"),
        ("NAME J STATE success STATE success", "syntax error"),
        ("NAME J STATE neither", "syntax error"),
        ("NAME J STATE success OTHER x", "syntax error"),
        ("NAME J STATE success", "No such slot migration job"),
    ];
    let mut node = Node::new(0);
    for (text, expected) in cases {
        let arguments = words(text, &nodes);
        let result = node.call(0, |jobs, context| jobs.finish_command(&arguments, context));
        assert_eq!(result.expect_err(text).to_string(), expected, "{text}");
    }
    let finish = Finish { name: name(7), success: false, message: Some("why it failed".to_owned()) };
    let words = finish.words();
    let arguments: Vec<&[u8]> = words[3..].iter().map(Vec::as_slice).collect();
    assert_eq!(Finish::parse(&arguments), Ok(finish));
}

#[test]
fn messages_are_found_by_name_and_refused_from_strangers() {
    for message in Message::ALL {
        assert_eq!(Message::from_name(message.name().to_lowercase().as_bytes()), Some(message));
    }
    let refused = Jobs::refuse_stray(b"request-pause").to_string();
    assert_eq!(refused, "CLUSTER SYNCSLOTS REQUEST-PAUSE should only be used by slot migration clients");
    assert_eq!(Jobs::refuse_stray(b"unknown"), CommandError::Syntax);
    assert_eq!(Message::Ack.encode(), b"*3\r\n$7\r\nCLUSTER\r\n$9\r\nSYNCSLOTS\r\n$3\r\nACK\r\n");
}

#[test]
fn ranges_are_checked_and_printed() {
    assert_eq!(ranges(&[(3, 5), (0, 0)]).to_string(), "3-5 0-0");
    for invalid in [&[(5, 3)][..], &[(0, 16_384)], &[(1, 2), (2, 3)], &[], &[(70_000, 70_000)]] {
        assert_eq!(RangeList::new(invalid.iter().copied()), None);
    }
}
