//! Failures, elections, manual failovers, replica migration, and the stricter rules.

use super::*;
use crate::bus::{Body, Header, Message, MessageFlags};
use crate::state::{Action, CommandError, FailReason, FailoverMode, Safety};

#[test]
fn the_replica_of_a_killed_primary_takes_over() {
    let mut net = Net::cluster(3, 1);
    net.hosts[0].offset = 5_000;
    net.run(1_000);
    let epoch = net.hosts[0].cluster.current_epoch();
    net.kill(0);
    net.run_until("the replica is primary", NODE_TIMEOUT_MS * 3, |net| net.hosts[3].cluster.is_primary());
    net.run_until("the cluster is up", 5_000, |net| net.all_ok() && net.agrees());
    assert_eq!(net.hosts[1].cluster.slot_owner(0), Some(net.id(3)));
    assert!(net.hosts[3].cluster.my_config_epoch() > epoch);
    assert!(net.logged(3, "Failover election won: I'm the new primary."));
    assert!(net.logged(1, "Marking node") || net.logged(2, "Marking node") || net.logged(1, "FAIL message received"));
    // The former primary comes back as a replica.
    net.restart(0);
    net.run_until("it is a replica", 10_000, |net| net.hosts[0].cluster.my_primary() == Some(net.id(3)));
    net.run_until("all agree", 10_000, |net| net.all_ok() && net.agrees());
    net.run_until("FAIL is cleared", 10_000, |net| !net.flags_at(1, 0).contains(NodeFlags::FAIL));
    assert_eq!(net.hosts[0].primary_ip, Some(net.hosts[3].ip.clone()));
}

#[test]
fn each_voter_votes_once_in_an_epoch() {
    let mut net = Net::cluster(3, 3);
    for host in &mut net.hosts {
        host.offset = 9_000;
    }
    net.run(1_000);
    net.kill(0);
    net.run_until("a replica is primary", NODE_TIMEOUT_MS * 5, |net| {
        [3, 6, 9].iter().any(|index| net.hosts[*index].cluster.is_primary())
    });
    net.run(2_000);
    assert_eq!([3, 6, 9].iter().filter(|index| net.hosts[**index].cluster.is_primary()).count(), 1);
    for voter in [1, 2] {
        let granted = net.hosts[voter].log.iter().filter(|line| line.contains("Failover auth granted"));
        let epochs: Vec<&str> = granted.filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(epochs.iter().collect::<BTreeSet<_>>().len(), epochs.len(), "{epochs:?}");
    }
    net.run_until("siblings follow", 10_000, |net| {
        let new = [3, 6, 9].into_iter().find(|index| net.hosts[*index].cluster.is_primary()).unwrap_or(0);
        [3, 6, 9].iter().all(|index| *index == new || net.hosts[*index].cluster.my_primary() == Some(net.id(new)))
    });
}

#[test]
fn the_replica_with_most_data_is_elected() {
    let mut net = Net::cluster(3, 3);
    net.kill(0);
    for (index, offset) in [(3, 100), (6, 300), (9, 200)] {
        net.hosts[index].offset = offset;
    }
    net.run_until("a replica is primary", NODE_TIMEOUT_MS * 5, |net| {
        [3, 6, 9].iter().any(|index| net.hosts[*index].cluster.is_primary())
    });
    assert!(net.hosts[6].cluster.is_primary());
    assert!(net.logged(6, "best ranked replica"));
}

#[test]
fn a_replica_with_old_data_is_not_elected() {
    let mut net = Net::cluster(3, 1);
    net.hosts[3].primary_ip = None;
    net.run(NODE_TIMEOUT_MS * 10 + 15_000);
    net.kill(0);
    net.run(20_000);
    assert!(!net.hosts[3].cluster.is_primary());
    assert!(net.logged(3, "Disconnected from primary for longer than allowed."));
    assert_eq!(net.hosts[1].cluster.fail_reason(), Some(FailReason::Coverage));
}

#[test]
fn half_of_the_primaries_are_replaced_at_once() {
    let mut net = Net::cluster(9, 1);
    for index in 0..4 {
        net.kill(index);
    }
    net.run_until("all shards are up", 30_000, |net| {
        (9..13).all(|index| net.hosts[index].cluster.is_primary()) && net.all_ok() && net.agrees()
    });
    let epochs: BTreeSet<u64> = net
        .hosts
        .iter()
        .filter(|host| host.up && host.cluster.is_primary())
        .map(|host| host.cluster.my_epoch())
        .collect();
    assert_eq!(epochs.len(), 9);
}

#[test]
fn a_primary_that_returns_from_a_partition_becomes_a_replica() {
    let mut net = Net::cluster(3, 1);
    net.isolate(0);
    net.run_until("the replica is primary", 20_000, |net| net.hosts[3].cluster.is_primary());
    net.run_until("the old one is down", 10_000, |net| net.hosts[0].cluster.state() == ClusterState::Fail);
    assert_eq!(net.hosts[0].cluster.fail_reason(), Some(FailReason::Minority));
    assert!(net.logged(0, "Cluster state changed: fail"));
    net.heal();
    net.run_until("it is a replica", 30_000, |net| net.hosts[0].cluster.my_primary() == Some(net.id(3)));
    net.run_until("all agree", 10_000, |net| net.all_ok() && net.agrees());
    assert!(net.logged(0, "Configuration change detected. Reconfiguring myself as a replica of node"));
    assert_eq!(net.hosts[0].full_syncs, 0, "the histories are the same");
}

#[test]
fn a_minority_elects_nobody() {
    let mut net = Net::cluster(3, 1);
    for index in [0, 1] {
        net.isolate(index);
    }
    net.run(30_000);
    assert!((3..6).all(|index| !net.hosts[index].cluster.is_primary()));
    assert!(net.hosts.iter().all(|host| host.cluster.state() == ClusterState::Fail));
    net.heal();
    net.run_until("the cluster is up", 30_000, |net| net.all_ok() && net.agrees());
}

#[test]
fn a_coordinated_failover_pauses_and_loses_nothing() {
    let mut net = Net::cluster(3, 1);
    net.hosts[0].offset = 7_777;
    net.command(3, |cluster, facts| cluster.failover(FailoverMode::Coordinated, None, false, "test", facts))
        .expect("it is a replica");
    net.run(3);
    assert!(net.hosts[0].writes_paused);
    net.run_until("the replica is primary", 2_000, |net| net.hosts[3].cluster.is_primary());
    assert_eq!(net.hosts[3].offset, 7_777);
    net.run_until("the primary is a replica", 2_000, |net| net.hosts[0].cluster.my_primary() == Some(net.id(3)));
    assert!(!net.hosts[0].writes_paused);
    assert!(net.logged(3, "All primary replication stream processed, manual failover can start."));
    assert!(net.logged(0, "Manual failover requested by replica"));
    net.run_until("all agree", 5_000, |net| net.all_ok() && net.agrees());
}

#[test]
fn a_coordinated_failover_waits_for_the_stream_and_gives_up_in_time() {
    let mut net = Net::cluster(3, 1);
    net.hosts[3].primary_ip = None;
    net.hosts[0].offset = 7_777;
    net.command(3, |cluster, facts| cluster.failover(FailoverMode::Coordinated, None, false, "test", facts))
        .expect("it is a replica");
    net.run(4_000);
    assert!(net.hosts[0].writes_paused && !net.hosts[3].cluster.is_primary());
    assert_eq!(net.hosts[3].cluster.awaited_replication_offset(), Some(7_777));
    net.run(1_500);
    assert!(!net.hosts[0].writes_paused && !net.hosts[3].cluster.is_primary());
    assert!(net.logged(3, "Manual failover timed out.") && net.logged(0, "Manual failover timed out."));
    assert!(net.all_ok());
}

#[test]
fn a_primary_that_was_asked_for_its_vote_waits_longer_for_the_claim() {
    let mut net = Net::cluster(3, 1);
    // The other votes do not arrive, so that the primary cannot know whether the replica is elected.
    net.cut.extend([(1, 3), (2, 3)]);
    net.command(3, |cluster, facts| cluster.failover(FailoverMode::Coordinated, None, false, "test", facts))
        .expect("it is a replica");
    net.run_until("the primary has voted", 1_000, |net| net.logged(0, "Failover auth granted"));
    net.run(6_000);
    assert!(net.logged(3, "Manual failover timed out.") && net.hosts[0].writes_paused);
    net.run(4_500);
    assert!(net.logged(0, "Manual failover timed out.") && !net.hosts[0].writes_paused);
    assert!(net.hosts[0].cluster.is_primary());
}

#[test]
fn a_coordinated_failover_waits_while_slots_may_be_claimed() {
    let mut net = Net::cluster(3, 1);
    net.hosts[0].granted = vec![(net.id(1), (5..=9).collect())];
    net.command(3, |cluster, facts| cluster.failover(FailoverMode::Coordinated, None, false, "test", facts))
        .expect("it is a replica");
    net.run(1_000);
    assert!(net.hosts[0].writes_paused && net.hosts[0].cluster.is_failing_over());
    assert!(!net.logged(3, "Received replication offset"));
    net.hosts[0].granted.clear();
    net.run_until("the replica is primary", 2_000, |net| net.hosts[3].cluster.is_primary());
}

#[test]
fn a_failed_replica_that_is_promoted_is_not_replaced_at_once() {
    let mut net = Net::cluster(3, 2);
    net.isolate(3);
    net.run_until("the replica has failed", 20_000, |net| net.flags_at(6, 3).contains(NodeFlags::FAIL));
    net.command(3, |cluster, facts| cluster.failover(FailoverMode::Takeover, None, false, "test", facts))
        .expect("it is a replica");
    net.heal();
    net.run_until("its sibling follows it", 5_000, |net| net.hosts[6].cluster.my_primary() == Some(net.id(3)));
    net.run(NODE_TIMEOUT_MS);
    assert!((0..9).all(|host| !net.flags_at(host, 3).contains(NodeFlags::FAIL)));
    assert!(!net.logged(6, "Start of election"));
}

#[test]
fn a_forced_failover_works_without_the_primary() {
    let mut net = Net::cluster(3, 1);
    let failover =
        |mode| move |cluster: &mut Cluster, facts: &Facts<'_>| cluster.failover(mode, None, false, "test", facts);
    net.kill(0);
    net.run(10);
    assert_eq!(net.command(3, failover(FailoverMode::Coordinated)), Err(CommandError::FailoverPrimaryDown));
    net.command(3, failover(FailoverMode::Force)).expect("it is a replica");
    net.run_until("the replica is primary", 500, |net| net.hosts[3].cluster.is_primary());
    assert_eq!(net.command(3, failover(FailoverMode::Force)), Err(CommandError::FailoverOnPrimary));
}

#[test]
fn a_takeover_needs_no_vote() {
    let mut net = Net::cluster(3, 1);
    for index in 0..3 {
        net.kill(index);
    }
    net.run(NODE_TIMEOUT_MS * 2);
    for index in 3..6 {
        net.command(index, |cluster, facts| cluster.failover(FailoverMode::Takeover, None, false, "test", facts))
            .expect("it is a replica");
        assert!(net.hosts[index].cluster.is_primary());
    }
    net.run_until("the cluster is up", 20_000, |net| net.all_ok() && net.agrees());
}

#[test]
fn a_primary_that_shuts_down_hands_over_to_the_replica_it_names() {
    let mut net = Net::cluster(3, 2);
    let chosen = net.id(6);
    for index in [3, 6] {
        net.command(index, |cluster, facts| {
            cluster.failover(FailoverMode::Force, Some(chosen.as_bytes()), true, "primary", facts)
        })
        .expect("it is a replica");
    }
    net.kill(0);
    net.run_until("the chosen one is primary", 500, |net| net.hosts[6].cluster.is_primary());
    net.run(2_000);
    assert_eq!(net.hosts[3].cluster.my_primary(), Some(chosen));
    assert!(net.logged(6, "Forced failover primary request accepted (primary request from 'primary')."));
}

/// Two primaries with two replicas each, of which those of host 0 have failed. Host 3 and 5 replicate host 1.
fn cluster_with_orphan(settings: &Settings) -> Net {
    let mut net = Net::cluster_with_settings(2, 2, settings);
    net.kill(2);
    net.kill(4);
    net.run(NODE_TIMEOUT_MS * 3 + 10_000);
    net
}

#[test]
fn a_spare_replica_moves_to_an_orphaned_primary() {
    let net = cluster_with_orphan(&settings());
    let moved: Vec<usize> =
        [3, 5].into_iter().filter(|index| net.logged(*index, "Migrating to orphaned primary")).collect();
    assert_eq!(moved.len(), 1, "one of them has to stay");
    assert_eq!(net.hosts[moved[0]].cluster.my_primary(), Some(net.id(0)));
    assert_eq!(net.hosts[moved[0]].cluster.my_shard_id(), net.hosts[0].cluster.my_shard_id());
    assert_eq!(net.hosts[0].cluster.my_shard_slot_count(), 8_192);
    assert!(net.id(moved[0]) < net.id(8 - moved[0]), "it is the one with the lower name");
}

#[test]
fn replicas_stay_if_migration_is_forbidden_or_too_few_would_be_left() {
    for settings in
        [Settings { allow_replica_migration: false, ..settings() }, Settings { migration_barrier: 2, ..settings() }]
    {
        let net = cluster_with_orphan(&settings);
        assert!([3, 5].iter().all(|index| net.hosts[*index].cluster.my_primary() == Some(net.id(1))));
    }
}

#[test]
fn a_vote_is_saved_before_it_is_sent() {
    let mut net = Net::cluster(3, 1);
    net.kill(0);
    // Runs the rest by hand, to see the actions of a voter.
    let mut seen = false;
    for _ in 0..NODE_TIMEOUT_MS * 4 {
        net.now_ms += 1;
        net.replicate();
        while net.queue.front().is_some_and(|(due_ms, _)| *due_ms <= net.now_ms) {
            let Some((_, event)) = net.queue.pop_front() else { break };
            if let Event::Frame { to: 1, link, frame } = &event
                && frame[13] == 5
            {
                let facts = Facts { replication_offset: 1_000, ..Facts::without_data(net.now()) };
                let mut actions = Vec::new();
                net.hosts[1].cluster.received(*link, frame, &facts);
                net.hosts[1].cluster.settle(&facts, &mut actions);
                let saved = actions.iter().position(|action| matches!(action, Action::Save { sync: true }));
                let voted =
                    actions.iter().position(|action| matches!(action, Action::Send { frame, .. } if frame[13] == 6));
                assert!(saved.expect("a save") < voted.expect("a vote"));
                assert_eq!(net.hosts[1].cluster.last_vote_epoch(), net.hosts[1].cluster.current_epoch());
                seen = true;
                continue;
            }
            net.deliver(event);
        }
        for index in 0..net.hosts.len() {
            if net.hosts[index].up && (net.now_ms + index as u64 * 7).is_multiple_of(100) {
                net.command(index, |cluster, facts| cluster.tick(facts));
            }
        }
        if seen {
            return;
        }
    }
    panic!("no vote was requested");
}

/// How often a primary is isolated, each time at another moment between two PINGs.
const ROUNDS: u64 = 12;

#[test]
fn a_fenced_primary_stops_before_its_replica_takes_over() {
    let safety = Safety { fence_minority_primary: true, ..Safety::default() };
    for fenced in [false, true] {
        let safety = if fenced { safety } else { Safety::default() };
        let mut net = Net::cluster_with_settings(3, 1, &Settings { safety, ..settings() });
        let mut overlaps = 0;
        for round in 0..ROUNDS {
            net.run(137 * (round + 1));
            net.isolate(0);
            for _ in 0..10_000 {
                net.run(1);
                let both = net.hosts[3].cluster.is_primary()
                    && net.hosts[0].cluster.is_primary()
                    && net.hosts[0].cluster.state() == ClusterState::Ok;
                overlaps += usize::from(both);
            }
            net.heal();
            net.run_until("one is a replica", 30_000, |net| net.hosts[0].cluster.my_primary() == Some(net.id(3)));
            net.run_until("the cluster is up", 30_000, |net| net.all_ok() && net.agrees());
            net.command(0, |cluster, facts| cluster.failover(FailoverMode::Coordinated, None, false, "test", facts))
                .expect("it is a replica");
            net.run_until("roles are as before", 10_000, |net| {
                net.hosts[0].cluster.is_primary() && net.hosts[3].cluster.my_primary() == Some(net.id(0))
            });
        }
        assert_eq!(fenced, overlaps == 0, "{overlaps} ms with two primaries that serve");
    }
}

#[test]
fn an_empty_primary_waits_for_its_replica() {
    let safety = Safety { empty_primary_wait_ms: 20_000, ..Safety::default() };
    let settings = Settings { safety, ..settings() };
    let mut net = Net::cluster_with_settings(3, 1, &settings);
    net.hosts[0].keys.insert(0, 5);
    net.run(100);
    assert_eq!(net.hosts[3].keys.len(), 1);
    net.kill(0);
    net.run(100);
    net.hosts[0].keys.clear();
    net.hosts[0].offset = 0;
    net.hosts[3].primary_ip = None;
    net.restart_with(0, &settings);
    assert!(net.hosts[0].cluster.waits_for_takeover());
    net.run_until("the replica is primary", 20_000, |net| net.hosts[3].cluster.is_primary());
    net.run_until("the empty one is its replica", 20_000, |net| net.hosts[0].cluster.my_primary() == Some(net.id(3)));
    net.run_until("all agree", 20_000, |net| net.all_ok() && net.agrees());
    assert_eq!(net.hosts[0].keys.len(), 1);
    assert!(!net.hosts[0].cluster.waits_for_takeover());
}

#[test]
fn a_pause_is_announced_only_when_writes_are_paused() {
    let mut net = Net::cluster(3, 1);
    let request = |cluster: &mut Cluster, facts: &Facts<'_>| {
        cluster.failover(FailoverMode::Coordinated, None, false, "test", facts)
    };
    net.command(3, request).expect("it is a replica");
    // The primary is asked to pause, and has not done so: nothing that it sends says that it has.
    let facts = Facts::without_data(net.now());
    let Some((_, Event::Frame { to: 0, link, frame })) = net.queue.pop_back() else { panic!("a request") };
    let mut actions = Vec::new();
    let primary = &mut net.hosts[0].cluster;
    primary.received(link, &frame, &facts);
    primary.tick(&facts);
    primary.settle(&facts, &mut actions);
    assert!(actions.iter().any(|action| matches!(action, Action::PauseWrites { .. })));
    let is_paused = |action: &Action| match action {
        Action::Send { frame, .. } => frame[2253] & 1 == 1,
        _ => false,
    };
    assert!(!actions.iter().any(is_paused));
    actions.clear();
    primary.writes_paused(&facts);
    primary.settle(&facts, &mut actions);
    assert!(actions.iter().any(is_paused));
}

#[test]
fn of_two_candidates_in_an_epoch_one_gets_the_vote() {
    let mut net = Net::cluster(3, 2);
    let (epoch, slots) = (net.hosts[1].cluster.current_epoch() + 1, net.hosts[0].cluster.my_slots().clone());
    let mut votes = 0;
    for candidate in [3, 6, 3] {
        let header = Header {
            current_epoch: epoch,
            config_epoch: net.hosts[0].cluster.my_config_epoch(),
            replication_offset: 1_000,
            sender: net.id(candidate),
            slots: slots.view(),
            primary: Some(net.id(0)),
            ip: "",
            port: 6379,
            secondary_port: 0,
            bus_port: 16379,
            flags: NodeFlags::REPLICA,
            state: ClusterState::Ok,
            message_flags: MessageFlags::FORCE_ACK,
        };
        let mut frame = Vec::new();
        Message::Full { header, body: Body::FailoverAuthRequest }.encode(&mut frame).expect("a valid message");
        let peers = &net.hosts[1].peers;
        let link = peers.iter().find(|(_, (peer, _))| *peer == candidate).map(|(link, _)| *link).expect("a link");
        let facts = Facts::without_data(net.now());
        let mut actions = Vec::new();
        net.hosts[1].cluster.received(link, &frame, &facts);
        net.hosts[1].cluster.settle(&facts, &mut actions);
        votes += actions.iter().filter(|action| matches!(action, Action::Send { frame, .. } if frame[13] == 6)).count();
    }
    assert_eq!(votes, 1);
    assert_eq!(net.hosts[1].cluster.last_vote_epoch(), epoch);
}

#[test]
fn votes_count_for_the_election_that_asked_for_them() {
    let mut net = Net::cluster(5, 1);
    let replica = 5;
    // A replica without data waits before it asks for votes.
    (net.hosts[0].offset, net.hosts[replica].offset) = (0, 0);
    net.run(1_000);
    net.kill(0);
    net.run_until("an election is due", NODE_TIMEOUT_MS * 3, |net| net.logged(replica, "Start of election delayed"));
    // Votes of an earlier election, which were late, of nodes that will not be heard again for now.
    for voter in [1, 2] {
        let header = Header {
            current_epoch: net.hosts[replica].cluster.current_epoch(),
            config_epoch: net.hosts[voter].cluster.my_config_epoch(),
            replication_offset: 0,
            sender: net.id(voter),
            slots: net.hosts[voter].cluster.my_slots().view(),
            primary: None,
            ip: "",
            port: 6379,
            secondary_port: 0,
            bus_port: 16379,
            flags: NodeFlags::PRIMARY,
            state: ClusterState::Ok,
            message_flags: MessageFlags::empty(),
        };
        let mut frame = Vec::new();
        Message::Full { header, body: Body::FailoverAuthAck }.encode(&mut frame).expect("a valid message");
        let peers = &net.hosts[replica].peers;
        let link = peers.iter().find(|(_, (peer, _))| *peer == voter).map(|(link, _)| *link).expect("a link");
        net.command(replica, |cluster, facts| cluster.received(link, &frame, facts));
        net.isolate(voter);
    }
    net.run(NODE_TIMEOUT_MS * 3);
    assert!(net.logged(replica, "Number of votes received so far: 2"));
    assert!(!net.hosts[replica].cluster.is_primary());
    net.heal();
    net.run_until("the replica is primary", NODE_TIMEOUT_MS * 10, |net| net.hosts[replica].cluster.is_primary());
}
