//! Primaries with equal config epochs.

use super::*;
use crate::state::FailoverMode;

/// A cluster, and a shard of it whose primary has the lower name: that one takes a new epoch in a collision.
fn cluster_and_primary() -> (Net, usize) {
    let mut net = Net::cluster(3, 1);
    for host in &mut net.hosts {
        host.log.clear();
    }
    let primary = (0..3).find(|index| net.id(*index) < net.id(index + 3)).expect("the seeds give such a shard");
    (net, primary)
}

/// Gives a host an epoch of its own.
fn take_epoch(net: &mut Net, host: usize) {
    net.command(host, |cluster, _| cluster.take_next_epoch());
}

fn epoch(net: &Net, host: usize) -> u64 {
    net.hosts[host].cluster.my_config_epoch()
}

/// Isolates a primary, which takes the epoch in which its replica is elected.
fn replace_with_equal_epoch(net: &mut Net, primary: usize) {
    let replica = primary + 3;
    net.isolate(primary);
    take_epoch(net, primary);
    net.run_until("the replica is primary", 20_000, |net| net.hosts[replica].cluster.is_primary());
    assert_eq!(epoch(net, primary), epoch(net, replica));
}

fn follows_its_former_replica(net: &mut Net, primary: usize) {
    let replica = primary + 3;
    net.run_until("it is a replica", 10_000, |net| {
        net.hosts[primary].cluster.my_primary() == Some(net.id(replica)) && net.all_ok() && net.agrees()
    });
    assert!(!net.logged(primary, "configEpoch collision"));
    assert!(!net.logged(replica, "Reconfiguring myself as a replica"));
}

#[test]
fn a_primary_that_returns_with_the_epoch_of_its_successor_follows_it() {
    let (mut net, primary) = cluster_and_primary();
    replace_with_equal_epoch(&mut net, primary);
    net.heal();
    follows_its_former_replica(&mut net, primary);
}

#[test]
fn a_primary_that_restarts_with_the_epoch_of_its_successor_follows_it() {
    let (mut net, primary) = cluster_and_primary();
    replace_with_equal_epoch(&mut net, primary);
    net.kill(primary);
    net.heal();
    net.restart(primary);
    follows_its_former_replica(&mut net, primary);
}

#[test]
fn a_primary_that_was_stopped_follows_its_successor_with_the_same_epoch() {
    let (mut net, primary) = cluster_and_primary();
    // Nothing happens in its process meanwhile.
    net.isolate(primary);
    take_epoch(&mut net, primary);
    net.hosts[primary].up = false;
    net.run_until("the replica is primary", 20_000, |net| net.hosts[primary + 3].cluster.is_primary());
    assert_eq!(epoch(&net, primary), epoch(&net, primary + 3));
    net.heal();
    net.hosts[primary].up = true;
    follows_its_former_replica(&mut net, primary);
}

#[test]
fn a_node_that_restarts_learns_what_it_has_missed_before_it_takes_an_epoch() {
    let mut net = Net::cluster(3, 0);
    // The lowest name, so that it is this node that would take a new epoch.
    let returning = (0..3).min_by_key(|index| net.id(*index)).expect("there are three");
    let others = [(returning + 1) % 3, (returning + 2) % 3];
    let first = *slot_share(others[0], 3).start();
    let owner = net.id(others[0]);
    // It claims a slot of another node while nobody hears it, and ends. Both others take its epoch, and a higher one.
    net.isolate(returning);
    net.command(returning, |cluster, facts| cluster.take_over_slots(&[first..=first], facts));
    net.kill(returning);
    take_epoch(&mut net, others[1]);
    assert_eq!(epoch(&net, others[1]), epoch(&net, returning));
    net.cut.clear();
    net.cut.extend([(returning, others[0]), (others[0], returning)]);
    net.run(10);
    take_epoch(&mut net, others[0]);
    net.run(100);
    // The owner of the slot cannot tell it so.
    net.restart(returning);
    net.run_until("all agree", 10_000, |net| net.agrees());
    net.heal();
    net.run_until("epochs differ", 10_000, |net| epoch(net, returning) != epoch(net, others[1]) && net.all_ok());
    assert!((0..3).all(|host| net.hosts[host].cluster.slot_owner(first) == Some(owner)));
}

#[test]
fn equal_epochs_in_a_shard_end_if_nobody_remembers_the_election() {
    let (mut net, primary) = cluster_and_primary();
    replace_with_equal_epoch(&mut net, primary);
    net.kill(primary + 3);
    net.restart(primary + 3);
    net.heal();
    net.run_until("one of them follows", 20_000, |net| {
        let follows = |one: usize, other: usize| net.hosts[one].cluster.my_primary() == Some(net.id(other));
        (follows(primary, primary + 3) || follows(primary + 3, primary)) && net.all_ok() && net.agrees()
    });
}

#[test]
fn an_operator_who_takes_over_decides_like_an_election() {
    let (mut net, primary) = cluster_and_primary();
    net.isolate(primary);
    take_epoch(&mut net, primary);
    net.command(primary + 3, |cluster, facts| cluster.failover(FailoverMode::Takeover, None, false, "test", facts))
        .expect("it is a replica");
    assert_eq!(epoch(&net, primary), epoch(&net, primary + 3));
    net.heal();
    follows_its_former_replica(&mut net, primary);
}
