//! Replies that show large clusters.

use crate::client::slot_ranges;
use crate::common::wire::Wire;
use crate::nodes::{Node, kvick};
use crate::with_workers;
use kvick_testing::WAIT_LIMIT;

/// Ranges of one slot each: the reply to CLUSTER SLOTS is so long that it is sent by its pages.
const RANGES: usize = 2000;
/// Calls at once: more than are answered with copies.
const CALLS: usize = 40;

fn request(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(Into::into).collect()
}

#[test]
fn long_replies_are_whole_however_often_they_are_sent() {
    with_workers(|args| {
        let node = Node::start(&kvick(), args);
        let slots: Vec<String> = (0..RANGES).map(|range| (2 * range).to_string()).collect();
        assert_eq!(node.call(&format!("CLUSTER ADDSLOTS {}", slots.join(" "))), "OK");
        let mut client = Wire::connect(node.port, WAIT_LIMIT).expect("a connection");
        for removed in 0..3 {
            client.send(&vec![request("CLUSTER SLOTS"); CALLS]).expect("sent");
            let replies: Vec<_> = (0..CALLS).map(|_| client.read().expect("a reply")).collect();
            let expected = (removed..RANGES as u16).map(|range| (2 * range, 2 * range, node.port));
            assert!(expected.eq(slot_ranges(&replies[0])) && replies.iter().all(|reply| *reply == replies[0]));
            client.send(&["MULTI", "CLUSTER SHARDS", "CLUSTER SLOTS", "EXEC"].map(request)).expect("sent");
            let [.., executed] = [0; 4].map(|_| client.read().expect("a reply"));
            assert!(executed.items()[0].items().len() == 1 && executed.items()[1] == replies[0]);
            assert_eq!(node.call(&format!("CLUSTER DELSLOTS {}", 2 * removed)), "OK");
        }
    });
}
