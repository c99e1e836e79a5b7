//! A replica follows a node, not an address.

use crate::nodes::{Node, form, kvick, wait_for, wait_for_data};
use crate::with_workers;

#[test]
fn a_replica_does_not_copy_a_stranger_at_the_address_of_its_primary() {
    with_workers(|args| {
        let args: Vec<&str> = args.iter().copied().chain(["--appendonly", "yes"]).collect();
        let [mut primary, two, three] = [0, 1, 2].map(|_| Node::start(&kvick(), &args));
        let replica = Node::start(&kvick(), &[&args[..], &["--cluster-replica-no-failover", "yes"]].concat());
        form(&[&primary, &two, &three], &[&replica]);
        assert_eq!(primary.call("SET bar 1"), "OK");
        wait_for_data(&primary, &replica);
        let id = primary.id();
        primary.kill();
        let stranger = primary.give_address_away(&args);
        let refusal = format!("is {}, but this node replicates {id}", stranger.id());
        wait_for("the replica refuses the stranger", || replica.log().contains(&refusal));
        assert_eq!(replica.call("DBSIZE"), "1");
        primary.restart();
        // The primary tells its new address by the links it opens.
        wait_for("the replica finds its primary", || {
            primary.call("INCR bar") == "2" || primary.call("WAIT 1 100") == "1"
        });
        wait_for("the replica is in sync", || replica.call("INFO replication").contains("master_link_status:up"));
        assert_eq!(replica.call("DBSIZE"), "1");
    });
}
