//! Shard channels whose slots other nodes own.

use super::caching::Client;
use super::{Cluster, config_epoch, join, wait_until_served};
use crate::nodes::{Node, form, kvick, wait_for};
use crate::with_workers;

#[test]
fn messages_of_shard_channels_reach_clients_of_the_endpoint() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        let mut clients = [Client::new(proxy), Client::resp3(proxy), Client::resp3(proxy), Client::resp3(proxy)];
        for client in &mut clients {
            for channel in ["foo", "bar", "hello"] {
                assert!(client.call(&format!("SSUBSCRIBE {channel}")).contains(&format!("ssubscribe {channel} ")));
            }
        }
        // Several clients of a worker share its subscription.
        let links: usize =
            cluster.primaries.iter().map(|node| node.call("PUBSUB SHARDNUMSUB bar")).filter_map(count).sum();
        assert!((1..=4).contains(&links), "{links}");
        for channel in ["foo", "bar", "hello"] {
            assert_ne!(proxy.call(&format!("SPUBLISH {channel} through")), "0");
            let owner = cluster
                .primaries
                .iter()
                .find(|node| !node.call(&format!("SPUBLISH {channel} direct")).starts_with("MOVED"));
            assert!(owner.is_some());
            for client in &mut clients {
                for text in ["through", "direct"] {
                    let message = client.read();
                    assert_eq!(message.trim_start_matches("push: "), format!("smessage {channel} {text}"));
                }
            }
        }
        assert!(clients[0].call("SSUBSCRIBE foo bar").contains("-CROSSSLOT"));
        // The last one that leaves ends the subscription of the worker.
        for client in &mut clients {
            assert!(client.call("SUNSUBSCRIBE bar").contains("sunsubscribe bar 2"));
        }
        wait_for("no worker is subscribed", || {
            cluster
                .primaries
                .iter()
                .all(|node| count(node.call("PUBSUB SHARDNUMSUB bar")).is_none_or(|count| count == 0))
        });
        drop(clients);
        wait_for("nobody is subscribed", || {
            cluster.primaries.iter().all(|node| node.call("PUBSUB SHARDCHANNELS") == "array([])")
        });
    });
}

/// The number in the reply to SHARDNUMSUB.
fn count(reply: String) -> Option<usize> {
    let (_, rest) = reply.rsplit_once("int(")?;
    rest.split(')').next()?.parse().ok()
}

#[test]
fn subscriptions_follow_their_slot() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let [one, two, _] = &cluster.primaries;
        let mut client = Client::resp3(&cluster.proxy);
        // Slot 5061 has the channel bar.
        assert!(client.call("SSUBSCRIBE bar").contains("ssubscribe bar 1"));
        for (from, to) in [(one, two), (two, one)] {
            let migrate = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 5061 5061 NODE {}", to.id());
            assert_eq!(from.call(&migrate), "OK");
            wait_for("it has moved", || to.call("GET bar").is_empty());
            wait_for("the worker has followed", || count(to.call("PUBSUB SHARDNUMSUB bar")) == Some(1));
            assert_eq!(to.call("SPUBLISH bar moved"), "1");
            assert_eq!(client.read(), "push: smessage bar moved");
            let epoch = |of: &Node, by: &Node| config_epoch(&by.known_nodes(), &of.id());
            wait_for("the epoch is known", || epoch(to, from) == epoch(to, to));
        }
    });
}

#[test]
fn subscriptions_survive_a_failover() {
    with_workers(|args| {
        let mut one = Node::start(&kvick(), args);
        let (two, three, replica) =
            (Node::start(&kvick(), args), Node::start(&kvick(), args), Node::start(&kvick(), args));
        let proxy = Node::start(&kvick(), &[args, &["--cluster-forward", "yes"]].concat());
        form(&[&one, &two, &three], &[&replica]);
        join(&two, &proxy);
        wait_for("the proxy is ready", || {
            proxy.has_info("cluster_known_nodes:5") && proxy.has_info("cluster_state:ok")
        });
        wait_until_served(&proxy);
        let mut client = Client::resp3(&proxy);
        assert!(client.call("SSUBSCRIBE bar").contains("ssubscribe bar 1"));
        one.kill();
        wait_for("the worker has followed", || {
            replica.role() == "master" && count(replica.call("PUBSUB SHARDNUMSUB bar")) == Some(1)
        });
        assert_eq!(replica.call("SPUBLISH bar again"), "1");
        assert_eq!(client.read(), "push: smessage bar again");
    });
}
