//! Owners of slots: migration by SETSLOT, claims, stale views, open slots.

use super::*;
use crate::state::claims::Says;
use crate::state::{CommandError, FailoverMode, SetSlot};

fn set_slot(net: &mut Net, host: usize, slot: u16, change: SetSlot<'_>) -> Result<(), CommandError> {
    net.command(host, |cluster, facts| cluster.set_slot(slot, change, false, facts))
}

#[test]
fn a_slot_moves_by_set_slot() {
    let mut net = Net::cluster(3, 1);
    let (source, target) = (net.id(0), net.id(1));
    net.hosts[0].keys.insert(5, 1);
    set_slot(&mut net, 1, 5, SetSlot::Importing(source.as_bytes())).expect("another node owns it");
    set_slot(&mut net, 0, 5, SetSlot::Migrating(target.as_bytes())).expect("it is the owner");
    assert!(net.hosts[0].cluster.has_migrating_slots() && net.hosts[1].cluster.has_importing_slots());
    assert!(net.hosts[0].conf.contains(&format!("[5->-{target}]")), "{}", net.hosts[0].conf);
    assert_eq!(set_slot(&mut net, 0, 5, SetSlot::Node(target.as_bytes())), Err(CommandError::SlotHasKeys(5)));
    net.hosts[0].keys.clear();
    let epoch = net.hosts[1].cluster.current_epoch();
    set_slot(&mut net, 1, 5, SetSlot::Node(target.as_bytes())).expect("it is known");
    assert!(net.hosts[1].cluster.my_config_epoch() >= epoch);
    net.run(10);
    // The source learns it from the claim, and so does everybody.
    assert_eq!(net.hosts[0].cluster.slot_owner(5), Some(target));
    set_slot(&mut net, 0, 5, SetSlot::Node(target.as_bytes())).expect("it is known");
    net.run(10);
    assert!(net.agrees() && net.all_ok());
    assert!(!net.hosts[0].cluster.has_migrating_slots() && !net.hosts[1].cluster.has_importing_slots());
}

#[test]
fn set_slot_refuses_what_makes_no_sense() {
    let mut net = Net::cluster(3, 1);
    let (own, other, replica) = (net.id(0), net.id(1), net.id(4));
    let unknown = [b'f'; 40];
    for (host, slot, change, error) in [
        (3, 5, SetSlot::Stable, "Please use SETSLOT only with masters."),
        (0, 6_000, SetSlot::Migrating(other.as_bytes()), "I'm not the owner of hash slot 6000"),
        (0, 5, SetSlot::Importing(other.as_bytes()), "I'm already the owner of hash slot 5"),
        (0, 5, SetSlot::Migrating(own.as_bytes()), "Target node is myself"),
        (0, 5, SetSlot::Migrating(replica.as_bytes()), "Target node is not a master"),
        (0, 5, SetSlot::Node(replica.as_bytes()), "Target node is not a master"),
        (0, 5, SetSlot::Migrating(&unknown), "I don't know about node ffffffffffffffffffffffffffffffffffffffff"),
        (0, 5, SetSlot::Node(b"short"), "Unknown node short"),
    ] {
        let refused = set_slot(&mut net, host, slot, change).expect_err(error);
        assert_eq!(refused.to_string(), error);
    }
}

#[test]
fn the_loser_of_the_last_slot_becomes_a_replica() {
    let mut net = Net::cluster(2, 1);
    // A third primary with a single slot.
    let ranges = [0..=0u16];
    let lonely = net.id(0);
    let target = net.id(1);
    net.command(0, |cluster, facts| {
        let rest = [1..=8_191u16];
        cluster.del_slots(&rest)?;
        let _ = facts;
        Ok::<(), CommandError>(())
    })
    .expect("they are assigned");
    net.command(1, |cluster, _| cluster.del_slots(&[1..=8_191])).expect("still assigned there");
    net.command(1, |cluster, _| cluster.add_slots(&[1..=8_191])).expect("free now");
    net.run(3_000);
    assert_eq!(net.hosts[1].cluster.slot_owner(0), Some(lonely));
    net.command(1, |cluster, facts| cluster.take_over_slots(&ranges, facts));
    net.run(100);
    assert_eq!(net.hosts[0].cluster.my_primary(), Some(target));
    assert_eq!(net.hosts[0].full_syncs, 1);
    net.run_until("its replica follows", 10_000, |net| net.hosts[2].cluster.my_primary() == Some(target));
    net.run_until("all agree", 10_000, |net| net.agrees() && net.all_ok());
}

#[test]
fn slots_taken_over_at_once_are_claimed_everywhere_and_their_keys_deleted() {
    let mut net = Net::cluster(3, 1);
    for slot in [3, 7, 8, 100] {
        net.hosts[0].keys.insert(slot, 3);
    }
    net.command(1, |cluster, facts| cluster.take_over_slots(&[0..=9], facts));
    net.run(10);
    assert!(net.agrees());
    assert_eq!(net.hosts[2].cluster.slot_owner(7), Some(net.id(1)));
    assert_eq!(net.hosts[0].deleted, BTreeSet::from([3, 7, 8]));
    assert!(net.logged(0, "Deleting keys in dirty slot 3,7-8 on node"));
    assert!(net.logged(0, "Slot range [0, 9] is migrated from node"));
    assert_eq!(net.hosts[0].cluster.my_shard_slot_count(), 5_461 - 10);
}

#[test]
fn slots_of_several_owners_and_of_none_are_taken_over_at_once() {
    let mut net = Net::cluster(3, 0);
    for host in 0..3 {
        net.command(host, |cluster, _| cluster.del_slots(&[100..=199])).expect("they are assigned");
    }
    // Its own slots are among them.
    let ranges = [50..=250, 5_000..=6_000, 16_000..=16_383];
    net.command(1, |cluster, facts| cluster.take_over_slots(&ranges, facts));
    net.run(10);
    assert!(net.agrees() && net.all_ok());
    for host in &net.hosts {
        assert_eq!(host.cluster.audit(), None);
        for slot in ranges.iter().cloned().flatten() {
            assert_eq!(host.cluster.slot_owner(slot), Some(net.id(1)), "slot {slot}");
        }
        assert_eq!(
            [49, 251, 4_999, 6_001, 15_999].map(|slot| host.cluster.slot_owner(slot) == Some(net.id(1))),
            [false, false, false, true, false]
        );
    }
}

#[test]
fn a_node_that_missed_a_claim_is_told_by_others() {
    let mut net = Net::cluster(3, 0);
    // Host 1 takes slots over while host 0 cannot hear it.
    for pair in [(0, 1), (1, 0)] {
        net.cut.insert(pair);
    }
    net.command(1, |cluster, facts| cluster.take_over_slots(&[0..=9], facts));
    net.run_until("host 0 was told", 15_000, |net| net.hosts[0].cluster.slot_owner(3) == Some(net.id(1)));
    assert!(net.logged(0, "Processing UPDATE message received from"));
    net.heal();
    net.run_until("all agree", 10_000, |net| net.agrees() && net.all_ok());
}

#[test]
fn of_two_claims_of_a_free_slot_one_remains() {
    let mut net = Net::new(2);
    for index in 0..2 {
        net.command(index, |cluster, _| cluster.add_slots(&[0..=SLOT_COUNT - 1])).expect("free");
    }
    net.meet(0, 1);
    net.run_until("one has all slots", 20_000, |net| {
        net.agrees() && net.hosts.iter().filter(|host| host.cluster.is_primary()).count() == 1
    });
}

#[test]
fn open_slots_reach_a_replica_by_full_synchronization() {
    let mut net = Net::cluster(3, 1);
    let (source, target) = (net.id(0), net.id(1));
    set_slot(&mut net, 0, 5, SetSlot::Migrating(target.as_bytes())).expect("the owner");
    set_slot(&mut net, 0, 6_000, SetSlot::Importing(target.as_bytes())).expect("not the owner");
    let field = net.hosts[0].cluster.open_slots_field().expect("there are some");
    assert_eq!(field, format!("6000<{target},5>{target},"));
    assert!(net.command(3, |cluster, facts| cluster.restore_open_slots(&field, facts)));
    assert!(net.hosts[3].cluster.has_migrating_slots() && net.hosts[3].cluster.has_importing_slots());
    for field in ["x", "5>", "16384>abc,", &format!("70000>{source},")] {
        assert!(!net.command(3, |cluster, facts| cluster.restore_open_slots(field, facts)), "{field}");
    }
}

#[test]
fn an_import_follows_a_failover_of_the_source() {
    let mut net = Net::cluster(3, 1);
    let (source, target) = (net.id(0), net.id(1));
    set_slot(&mut net, 1, 5, SetSlot::Importing(source.as_bytes())).expect("another node owns it");
    set_slot(&mut net, 0, 5, SetSlot::Migrating(target.as_bytes())).expect("it is the owner");
    net.kill(0);
    net.run_until("the replica is primary", 20_000, |net| net.hosts[3].cluster.is_primary());
    net.run_until("all agree", 10_000, |net| net.agrees());
    let topology = net.hosts[1].cluster.topology(&Facts::without_data(net.now()));
    let source = topology.importing.get(&5).map(|index| topology.nodes[*index].id);
    assert_eq!(source, Some(net.id(3)));
}

#[test]
fn a_topology_is_what_the_accessors_say() {
    let net = Net::cluster(3, 1);
    let topology = net.hosts[3].cluster.topology(&Facts::without_data(net.now()));
    assert_eq!(topology.version, net.hosts[3].cluster.topology_version());
    assert_eq!(topology.myself().id, net.id(3));
    assert_eq!(topology.shards.len(), 3);
    assert!(topology.shards.iter().all(|shard| shard.nodes.len() == 2));
    for slot in (0..SLOT_COUNT).step_by(97) {
        assert_eq!(topology.owner(slot).map(|node| node.id), net.hosts[3].cluster.slot_owner(slot));
    }
    assert_eq!(topology.myself().primary.map(|index| topology.nodes[index].id), Some(net.id(0)));
}

/// Gives a host epochs that no other host hears of before the network runs.
fn take_epochs(net: &mut Net, host: usize) {
    for _ in 0..4 {
        let first = if host == 0 { 0 } else { 6_000 };
        net.command(host, |cluster, facts| cluster.take_over_slots(&[first..=first], facts));
    }
}

#[test]
fn messages_from_before_a_takeover_do_not_undo_it() {
    let mut net = Net::cluster(3, 0);
    for host in [0, 1] {
        net.hosts[host].keys.insert(7, 3);
    }
    take_epochs(&mut net, 0);
    net.command(1, |cluster, facts| cluster.take_over_slots(&[5..=9], facts));
    net.run(10);
    assert_eq!(net.hosts[1].deleted, BTreeSet::new());
    assert_eq!(net.hosts[0].deleted, BTreeSet::from([7]));
    assert!(net.logged(1, "above that of node"));
    assert!(net.agrees() && net.all_ok());
    assert_eq!(net.hosts[2].cluster.slot_owner(7), Some(net.id(1)));
    // Once the former owner has said that it has let go, it may take the slots back.
    net.run(NODE_TIMEOUT_MS);
    net.command(0, |cluster, facts| cluster.take_over_slots(&[5..=9], facts));
    net.run(10);
    assert!(net.agrees() && net.all_ok());
    assert_eq!(net.hosts[1].cluster.slot_owner(7), Some(net.id(0)));
}

#[test]
fn messages_from_before_set_slot_do_not_undo_it() {
    let mut net = Net::cluster(3, 0);
    let ids = [net.id(0), net.id(1)];
    for (from, to) in [(0, 1), (1, 0), (0, 1), (1, 0)] {
        set_slot(&mut net, to, 7, SetSlot::Importing(ids[from].as_bytes())).expect("another node owns it");
        set_slot(&mut net, from, 7, SetSlot::Migrating(ids[to].as_bytes())).expect("it is the owner");
        take_epochs(&mut net, from);
        net.hosts[to].keys.insert(7, 3);
        net.hosts[from].keys.remove(&7);
        set_slot(&mut net, to, 7, SetSlot::Node(ids[to].as_bytes())).expect("it is known");
        set_slot(&mut net, from, 7, SetSlot::Node(ids[to].as_bytes())).expect("it is known");
        net.run(10);
        assert_eq!(net.hosts[to].deleted, BTreeSet::new());
        assert!(net.agrees() && net.all_ok());
        assert_eq!(net.hosts[2].cluster.slot_owner(7), Some(ids[to]));
    }
}

#[test]
fn only_a_claim_of_all_granted_slots_is_the_takeover() {
    let mut net = Net::cluster(3, 0);
    let (source, target) = (net.id(0), net.id(1));
    take_epochs(&mut net, 0);
    net.hosts[0].granted = vec![(target, (5..=9).collect())];
    // A claim with a lower epoch to a part of them, as if the target had owned that before.
    net.command(1, |cluster, facts| cluster.take_over_slots(&[9..=9], facts));
    net.run(1);
    assert_eq!(net.hosts[0].cluster.slot_owner(9), Some(source));
    net.command(1, |cluster, facts| cluster.take_over_slots(&[5..=9], facts));
    net.run(10);
    assert_eq!(net.hosts[0].cluster.slot_owner(5), Some(target));
    assert!(net.agrees() && net.all_ok());
}

#[test]
fn slots_that_had_left_do_not_follow_a_failover() {
    let mut net = Net::cluster(3, 1);
    let (owner, promoted) = (net.id(2), net.id(3));
    // Host 5, a replica of host 2, does not hear that host 2 takes slots of host 0.
    net.kill(5);
    net.command(2, |cluster, facts| cluster.take_over_slots(&[5..=9], facts));
    net.run_until("all know that", 2_000, |net| net.agrees());
    net.kill(2);
    // Then host 3 replaces host 0, with a higher epoch, and ends as well: host 5 hears of it from host 0.
    net.command(3, |cluster, facts| cluster.failover(FailoverMode::Takeover, None, false, "test", facts))
        .expect("it is a replica");
    net.run_until("host 3 is the primary", 5_000, |net| net.hosts[0].cluster.my_primary() == Some(promoted));
    net.kill(3);
    net.restart(5);
    net.run_until("host 5 knows", 5_000, |net| net.hosts[5].cluster.slot_owner(0) == Some(promoted));
    net.restart(2);
    net.run(5_000);
    for host in [1, 2, 5] {
        let cluster = &net.hosts[host].cluster;
        assert_eq!(cluster.slot_owner(5), Some(owner), "host {host}");
        assert_ne!(cluster.slot_owner(0), Some(owner), "host {host}");
    }
}

#[test]
fn a_claim_that_other_nodes_refuse_is_no_takeover() {
    let mut net = Net::cluster(3, 0);
    let (source, target) = (net.id(0), net.id(1));
    net.hosts[0].keys.insert(5, 1);
    net.hosts[0].granted = vec![(target, (5..=9).collect())];
    take_epochs(&mut net, 0);
    let mine = net.hosts[0].cluster.my_epoch();
    for (epoch, owner, hidden) in [(mine - 1, source, 0), (mine, target, 1)] {
        let mut slots: Slots = slot_share(1, 3).collect();
        slots.insert_range(5..=9);
        net.command(0, |cluster, facts| {
            let node = cluster.nodes.find(&target).expect("it is known");
            let says = Says { config_epoch: epoch, current_epoch: mine, slots: slots.view() };
            cluster.process_claim(node, says, facts);
        });
        assert_eq!(net.hosts[0].cluster.slot_owner(5), Some(owner));
        assert_eq!((net.hosts[0].hidden.len(), net.hosts[0].deleted.len()), (hidden, 0));
    }
}

#[test]
fn a_node_that_was_replaced_does_not_fight_for_slots() {
    let mut net = Net::cluster(3, 1);
    net.isolate(1);
    net.command(1, |cluster, facts| cluster.take_over_slots(&[5..=9], facts));
    take_epochs(&mut net, 0);
    net.run_until("its replica replaces it", 20_000, |net| net.hosts[4].cluster.is_primary());
    net.heal();
    net.run_until("it follows", 5_000, |net| net.hosts[1].cluster.my_primary() == Some(net.id(4)));
    net.run_until("all agree", 5_000, |net| net.agrees() && net.all_ok());
    assert!(net.hosts[4].cluster.is_primary() && !net.logged(1, "above that of node"));
    assert_eq!(net.hosts[4].cluster.slot_owner(5), Some(net.id(0)));
}

#[test]
fn a_node_that_restarts_does_not_speak_for_slots_that_were_given_up() {
    let mut net = Net::cluster(3, 0);
    // Host 1 takes slots over, and only their former owner hears of it.
    net.cut.extend([(1, 2), (2, 1)]);
    net.command(1, |cluster, facts| cluster.take_over_slots(&[5..=9], facts));
    net.run_until("the source knows", 1_000, |net| net.hosts[0].cluster.slot_owner(5) == Some(net.id(1)));
    net.run_until("host 2 hears that", 2_000, |net| net.hosts[2].cluster.is_unclaimed(5));
    net.kill(1);
    // The former owner takes a higher epoch for other slots.
    take_epochs(&mut net, 0);
    net.run(2_000);
    net.kill(2);
    net.restart(2);
    assert_eq!(net.hosts[2].cluster.slot_owner(5), None);
    net.heal();
    net.restart(1);
    net.run_until("all agree", 5_000, |net| net.agrees() && net.all_ok());
    assert_eq!(net.hosts[1].cluster.slot_owner(5), Some(net.id(1)));
}
