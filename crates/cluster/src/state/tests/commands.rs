//! Subcommands and texts.

use super::*;
use crate::state::{BumpedEpoch, ClientView, CommandError, LinkDirections};

#[test]
fn slots_are_added_and_removed_all_or_none() {
    let mut net = Net::new(1);
    let mut run = |call: fn(&mut Cluster) -> Result<(), CommandError>| {
        net.command(0, |cluster, _| call(cluster)).map_err(|error| error.to_string())
    };
    assert_eq!(run(|cluster| cluster.add_slots(&[1..=3, 7..=7])), Ok(()));
    assert_eq!(run(|cluster| cluster.add_slots(&[4..=4, 3..=3])), Err("Slot 3 is already busy".to_owned()));
    assert_eq!(run(|cluster| cluster.add_slots(&[4..=4, 4..=4])), Err("Slot 4 specified multiple times".to_owned()));
    assert_eq!(run(|cluster| cluster.del_slots(&[1..=4])), Err("Slot 4 is already unassigned".to_owned()));
    assert_eq!(run(|cluster| cluster.del_slots(&[1..=2])), Ok(()));
    assert_eq!(net.hosts[0].cluster.my_slots().iter().collect::<Vec<_>>(), [3, 7]);
    net.hosts[0].keys.insert(3, 1);
    let refused = net.command(0, |cluster, facts| cluster.flush_slots(facts));
    assert_eq!(refused, Err(CommandError::FlushWithKeys));
    net.hosts[0].keys.clear();
    net.command(0, |cluster, facts| cluster.flush_slots(facts)).expect("it has no keys");
    assert!(net.hosts[0].cluster.my_slots().is_empty());
}

#[test]
fn epochs_are_set_and_bumped() {
    let mut net = Net::new(1);
    let mut set = |epoch| net.command(0, |cluster, _| cluster.set_config_epoch(epoch));
    assert_eq!(set(-1), Err(CommandError::InvalidEpoch(-1)));
    assert_eq!(set(10), Ok(()));
    assert_eq!(set(11), Err(CommandError::EpochNotZero));
    assert_eq!(net.hosts[0].cluster.current_epoch(), 10);
    assert_eq!(net.command(0, |cluster, _| cluster.bump_epoch()), BumpedEpoch::Still(10));
    let mut net = Net::cluster(3, 0);
    let lowest = (0..3).min_by_key(|index| net.hosts[*index].cluster.my_config_epoch()).unwrap_or(0);
    let next = net.hosts[lowest].cluster.current_epoch() + 1;
    assert_eq!(net.command(lowest, |cluster, _| cluster.bump_epoch()), BumpedEpoch::Bumped(next));
    assert_eq!(net.command(0, |cluster, _| cluster.set_config_epoch(5)), Err(CommandError::EpochWithNodes));
}

#[test]
fn refusals_have_the_texts_of_valkey() {
    let mut net = Net::cluster(3, 1);
    let (myself, primary, replica) = (net.id(3), net.id(0), net.id(4));
    net.hosts[0].keys.insert(1, 1);
    let text = |result: Result<(), CommandError>| result.expect_err("refused").to_string();
    let forget = |net: &mut Net, name: &[u8]| net.command(3, |cluster, facts| cluster.forget(name, "test", facts));
    assert_eq!(text(forget(&mut net, b"nobody")), "Unknown node nobody");
    assert_eq!(text(forget(&mut net, myself.as_bytes())), "I tried hard but I can't forget myself...");
    assert_eq!(text(forget(&mut net, primary.as_bytes())), "Can't forget my master!");
    let replicate =
        |net: &mut Net, host, name: &[u8]| net.command(host, |cluster, facts| cluster.replicate(name, facts));
    assert_eq!(text(replicate(&mut net, 3, myself.as_bytes())), "Can't replicate myself");
    let error = "I can only replicate a master, not a replica.";
    assert_eq!(text(replicate(&mut net, 3, replica.as_bytes())), error);
    let other = net.id(1);
    let error = "To set a master the node must be empty and without assigned slots.";
    assert_eq!(text(replicate(&mut net, 0, other.as_bytes())), error);
    let reset = net.command(0, |cluster, facts| cluster.reset(false, "test", facts));
    assert_eq!(text(reset), "CLUSTER RESET can't be called with master nodes containing keys");
    let meet = net.command(0, |cluster, facts| cluster.meet("nowhere", 1, 2, "test", facts));
    assert_eq!(text(meet), "Invalid node address specified: nowhere:1");
    let links = net.command(0, |cluster, facts| cluster.kill_links(b"x", LinkDirections::All, facts));
    assert_eq!(text(links), "Unknown node x");
}

#[test]
fn a_replica_becomes_an_empty_primary() {
    let mut net = Net::cluster(3, 1);
    net.hosts[0].keys.insert(1, 1);
    net.run(10);
    assert_eq!(net.hosts[3].keys.len(), 1);
    let shard = net.hosts[3].cluster.my_shard_id();
    net.command(3, |cluster, _| cluster.replicate_no_one("test"));
    assert!(net.hosts[3].cluster.is_primary() && net.hosts[3].keys.is_empty());
    assert_ne!(net.hosts[3].cluster.my_shard_id(), shard);
    net.run(1_000);
    assert!(net.flags_at(1, 3).contains(NodeFlags::PRIMARY));
    assert_eq!(net.hosts[0].cluster.replica_count(), 0);
    assert!(net.all_ok() && net.agrees());
}

#[test]
fn nodes_text_reads_as_that_of_valkey() {
    let net = Net::cluster(3, 1);
    let facts = Facts::without_data(net.now());
    let text = net.hosts[0].cluster.nodes_text(ClientView::default(), &facts);
    assert_eq!(text.lines().count(), 6);
    let first = text.lines().next().expect("the node itself");
    let epoch = net.hosts[0].cluster.my_epoch();
    assert_eq!(first, format!("{} 10.0.0.0:6379@16379 myself,master - 0 0 {epoch} connected 0-5460", net.id(0)));
    let line = text.lines().find(|line| line.starts_with(net.id(3).as_str())).expect("a member");
    let fields: Vec<&str> = line.split(' ').collect();
    assert_eq!(fields[1..4], ["10.0.0.3:6379@16379", "slave", net.id(0).as_str()]);
    assert!(fields[5].parse::<i64>().is_ok_and(|ms| ms > EPOCH_MS));
    assert_eq!(fields[6..], [epoch.to_string().as_str(), "connected"]);
    let lines = net.hosts[0].cluster.replicas_lines(net.id(0).as_bytes(), ClientView::default(), &facts);
    assert_eq!(lines, Ok(vec![line.to_owned()]));
    let error = net.hosts[0].cluster.replicas_lines(net.id(3).as_bytes(), ClientView::default(), &facts);
    assert_eq!(error.expect_err("a replica").to_string(), "The specified node is not a master");
}

#[test]
fn info_text_counts_slots_nodes_and_messages() {
    let mut net = Net::cluster(3, 1);
    net.kill(5);
    net.run(NODE_TIMEOUT_MS * 3);
    let info = net.hosts[0].cluster.info_text(true);
    for line in [
        "cluster_state:ok",
        "cluster_slots_assigned:16384",
        "cluster_slots_ok:16384",
        "cluster_slots_fail:0",
        "cluster_nodes_fail:1",
        "cluster_voting_nodes_fail:0",
        "cluster_known_nodes:6",
        "cluster_size:3",
        "total_cluster_links_buffer_limit_exceeded:0",
    ] {
        assert!(info.split("\r\n").any(|found| found == line), "{line} in {info}");
    }
    let not_yet = net.hosts[0].cluster.info_text(false);
    assert!(not_yet.starts_with("cluster_state:fail\r\n"), "{not_yet}");
    assert!(info.contains("cluster_stats_messages_ping_sent:") && info.contains("cluster_stats_messages_fail_"));
}

#[test]
fn links_are_listed_limited_and_killed() {
    let mut net = Net::cluster(3, 0);
    let links = net.hosts[0].cluster.links();
    assert_eq!(links.len(), 4);
    assert_eq!(links.iter().filter(|link| link.inbound).count(), 2);
    let victim = links.iter().find(|link| !link.inbound).expect("a link to another node").clone();
    let settings = Settings { link_send_buffer_limit: 1_000, ..settings() };
    net.command(0, |cluster, _| {
        cluster.set_settings(settings);
        cluster.link_send_buffer(victim.link, 1_001);
    });
    net.run(200);
    assert!(!net.hosts[0].cluster.has_link(victim.link));
    assert_eq!(net.hosts[0].cluster.statistics().links_over_limit, 1);
    assert!(net.logged(0, "exceeding send buffer memory limit."));
    net.run(1_000);
    assert_eq!(net.hosts[0].cluster.links().len(), 4);
    let name = net.id(1);
    net.command(0, |cluster, facts| cluster.kill_links(name.as_bytes(), LinkDirections::All, facts)).expect("known");
    assert_eq!(net.hosts[0].cluster.links().len(), 2);
    net.run(1_000);
    assert_eq!(net.hosts[0].cluster.links().len(), 4);
    assert!(net.all_ok());
    // Even an empty queue is above this limit.
    let settings = Settings { link_send_buffer_limit: 1, ..self::settings() };
    net.command(0, |cluster, _| cluster.set_settings(settings));
    net.run(100);
    assert_eq!(net.hosts[0].cluster.statistics().links_over_limit, 5);
}

#[test]
fn the_same_inputs_give_the_same_run() {
    let run = || {
        let mut net = Net::cluster(3, 1);
        net.kill(0);
        net.run(10_000);
        let logs: Vec<Vec<String>> = net.hosts.iter().map(|host| host.log.clone()).collect();
        let confs: Vec<String> = net.hosts.iter().map(|host| host.conf.clone()).collect();
        (logs, confs)
    };
    assert_eq!(run(), run());
}
