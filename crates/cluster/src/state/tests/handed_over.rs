//! Keys of slots that were handed over, and slots that a primary has given up.

use super::*;
use crate::state::FailoverMode;

/// Host 1 takes slot 5, which has a key, from host 0, as at the end of an atomic migration.
fn hand_over(net: &mut Net) {
    let target = net.id(1);
    for host in [0, 1] {
        net.hosts[host].keys.insert(5, 1);
    }
    net.hosts[0].granted = vec![(target, Slots::from_iter([5]))];
    net.command(1, |cluster, facts| cluster.take_over_slots(&[5..=5], facts));
    net.run_until("the source knows", 100, |net| net.hosts[0].cluster.slot_owner(5) == Some(target));
    assert!(net.hosts[0].hidden.contains(5) || is_deleted(net));
}

/// Separates hosts from each other, but not from themselves.
fn separate(net: &mut Net, ones: &[usize], others: &[usize]) {
    for one in ones {
        for other in others {
            net.cut.extend([(*one, *other), (*other, *one)]);
        }
    }
}

fn is_deleted(net: &Net) -> bool {
    net.hosts[0].deleted.contains(&5) && !net.hosts[0].hidden.contains(5)
}

#[test]
fn keys_that_were_handed_over_are_deleted_when_others_know_the_new_owner() {
    let mut net = Net::cluster(3, 1);
    hand_over(&mut net);
    net.run_until("they are deleted", 100, is_deleted);
    assert!((0..6).all(|host| net.hosts[host].cluster.slot_owner(5) == Some(net.id(1))));
    assert!(net.logged(0, "Deleting keys in dirty slot 5 on node"));
}

#[test]
fn a_node_that_does_not_answer_delays_the_deletion_until_it_is_suspected() {
    let mut net = Net::cluster(3, 1);
    net.isolate(4);
    hand_over(&mut net);
    net.run(NODE_TIMEOUT_MS / 4);
    assert!(!is_deleted(&net));
    net.run_until("they are deleted", NODE_TIMEOUT_MS * 3, is_deleted);
    assert!(net.flags_at(0, 4).intersects(NodeFlags::PFAIL | NodeFlags::FAIL));
}

#[test]
fn keys_are_kept_while_no_majority_knows_the_new_owner() {
    let mut net = Net::cluster(5, 0);
    separate(&mut net, &[0, 1], &[2, 3, 4]);
    hand_over(&mut net);
    net.run(NODE_TIMEOUT_MS * 5);
    assert!(!is_deleted(&net));
    net.heal();
    net.run_until("they are deleted", 5_000, is_deleted);
    net.run_until("all agree", 5_000, |net| net.agrees() && net.all_ok());
    assert_eq!(net.hosts[4].cluster.slot_owner(5), Some(net.id(1)));
}

#[test]
fn a_primary_that_gets_slots_while_keys_wait_must_know_the_new_owner_too() {
    let without_migration = Settings { allow_replica_migration: false, ..settings() };
    let mut net = Net::cluster_with_settings(5, 0, &without_migration);
    net.command(3, |cluster, facts| cluster.take_over_slots(&[slot_share(4, 5)], facts));
    let last = SLOT_COUNT - 1;
    net.run_until("host 4 has no slots", 5_000, |net| {
        net.agrees() && net.hosts[0].cluster.slot_owner(last) == Some(net.id(3))
    });
    net.isolate(2);
    net.run(NODE_TIMEOUT_MS / 4);
    hand_over(&mut net);
    net.run(NODE_TIMEOUT_MS / 4);
    net.command(4, |cluster, facts| cluster.take_over_slots(&[slot_share(4, 5)], facts));
    net.run_until("the source knows", 1_000, |net| net.hosts[0].cluster.slot_owner(last) == Some(net.id(4)));
    net.isolate(4);
    net.run_until("host 2 is suspected", NODE_TIMEOUT_MS * 2, |net| {
        net.flags_at(0, 2).intersects(NodeFlags::PFAIL | NodeFlags::FAIL)
    });
    net.run(200);
    assert!(!is_deleted(&net) && !net.flags_at(0, 4).intersects(NodeFlags::PFAIL | NodeFlags::FAIL));
    net.run_until("they are deleted", NODE_TIMEOUT_MS * 3, is_deleted);
    assert!(net.flags_at(0, 4).intersects(NodeFlags::PFAIL | NodeFlags::FAIL));
}

#[test]
fn nodes_that_were_told_on_a_lost_connection_are_told_again() {
    let mut net = Net::cluster(5, 0);
    separate(&mut net, &[0, 1], &[2, 3, 4]);
    hand_over(&mut net);
    for _ in 0..3 {
        // Connections are opened again, and break before anything arrives.
        net.heal();
        net.run(3);
        separate(&mut net, &[0, 1], &[2, 3, 4]);
        net.run(NODE_TIMEOUT_MS);
        assert!(
            !is_deleted(&net)
                || (2..5).filter(|host| net.hosts[*host].cluster.slot_owner(5) == Some(net.id(1))).count() > 0
        );
    }
    net.heal();
    net.run_until("they are deleted", 5_000, is_deleted);
}

#[test]
fn keys_of_slots_that_come_back_are_shown_again() {
    let mut net = Net::cluster(5, 0);
    separate(&mut net, &[0, 1], &[2, 3, 4]);
    hand_over(&mut net);
    // Until then the new owner would defend it.
    net.run(NODE_TIMEOUT_MS);
    assert!(net.hosts[0].hidden.contains(5));
    net.command(0, |cluster, facts| cluster.take_over_slots(&[5..=5], facts));
    assert!(!net.hosts[0].hidden.contains(5));
    net.heal();
    net.run_until("all agree", 10_000, |net| net.agrees() && net.all_ok());
    assert!(!is_deleted(&net) && net.hosts[0].keys.contains_key(&5));
    assert_eq!(net.hosts[4].cluster.slot_owner(5), Some(net.id(0)));
}

#[test]
fn a_primary_that_is_replaced_gives_the_keys_up() {
    let mut net = Net::cluster(5, 1);
    separate(&mut net, &[0, 1], &[2, 3, 4, 5, 6, 7, 8, 9]);
    hand_over(&mut net);
    net.run_until("both are replaced", 20_000, |net| [5, 6].iter().all(|host| net.hosts[*host].cluster.is_primary()));
    net.heal();
    net.run_until("all agree", 20_000, |net| net.agrees() && net.all_ok());
    assert!(net.hosts[0].cluster.my_primary() == Some(net.id(5)) && !net.hosts[0].hidden.contains(5));
    // The claim that nobody had heard has the same epoch as one of the elections, so either may have won.
    let owner = net.hosts[2].cluster.slot_owner(5);
    let owner = (0..10).find(|host| owner == Some(net.id(*host))).expect("it has an owner");
    assert!(net.hosts[owner].keys.contains_key(&5));
}

#[test]
fn a_replica_does_not_claim_what_its_primary_has_given_up() {
    let mut net = Net::cluster(3, 1);
    // The replica of host 0 hears that its primary has given slot 5 up, but not who has it.
    net.hosts[3].keys.insert(5, 1);
    separate(&mut net, &[1], &[2, 3, 4, 5]);
    net.command(1, |cluster, facts| cluster.take_over_slots(&[5..=5], facts));
    net.run_until("the replica knows", 2_000, |net| net.hosts[3].cluster.is_unclaimed(5));
    net.hosts[3].keys.insert(5, 1);
    net.hosts[3].primary_ip = None;
    net.command(3, |cluster, facts| cluster.failover(FailoverMode::Takeover, None, false, "test", facts))
        .expect("it is a replica");
    net.run(10);
    assert!(net.hosts[3].cluster.is_primary());
    assert_ne!(net.hosts[3].cluster.slot_owner(5), Some(net.id(3)));
    // It keeps the keys until the owner is known.
    assert!(net.hosts[3].keys.contains_key(&5));
    net.heal();
    net.run_until("all agree", 10_000, |net| net.agrees() && net.all_ok());
    assert_eq!(net.hosts[3].cluster.slot_owner(5), Some(net.id(1)));
    assert_eq!(net.hosts[3].keys.len(), 0);
}
