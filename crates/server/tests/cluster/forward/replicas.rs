//! Reads of clients that have sent READONLY.

use super::{join, query, raw, wait_until_served};
use crate::nodes::{Node, form, kvick, wait_for};
use crate::with_workers;
use redis::Value;

/// How often a node has executed GET.
fn gets(node: &Node) -> usize {
    let info = node.call("INFO commandstats");
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_get:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Whether a replica has this value of bar.
fn has(replica: &Node, value: &str) -> bool {
    raw(replica, "READONLY\r\nGETRANGE bar 0 -1\r\n") == format!("+OK\r\n$1\r\n{value}\r\n")
}

#[test]
fn reads_of_readonly_clients_go_to_replicas() {
    with_workers(|args| {
        let [one, two] = [0, 1].map(|_| Node::start(&kvick(), args));
        let mut replica = Node::start(&kvick(), args);
        let proxy = Node::start(&kvick(), &[args, &["--cluster-forward", "yes"]].concat());
        form(&[&one, &two], &[&replica]);
        join(&one, &proxy);
        wait_for("the proxy knows all", || {
            proxy.has_info("cluster_known_nodes:4") && proxy.has_info("cluster_state:ok")
        });
        wait_until_served(&proxy);
        wait_for("the proxy knows the replica", || {
            let nodes = proxy.known_nodes();
            nodes.lines().any(|line| line.starts_with(&replica.id()) && line.contains("slave"))
        });
        // Slot 5061 has the key bar, slot 12182 foo.
        assert_eq!(proxy.call("SET bar 1"), "OK");
        assert_eq!(proxy.call("SET foo 2"), "OK");
        wait_for("the replica has it", || has(&replica, "1"));
        let mut client = proxy.client();
        assert_eq!(query(&mut client, &["GET", "bar"]), Ok(Value::BulkString(b"1".to_vec())));
        assert_eq!((gets(&one), gets(&replica)), (1, 0), "without READONLY");
        assert_eq!(query(&mut client, &["READONLY"]), Ok(Value::Okay));
        for (key, value) in [("bar", "1"), ("foo", "2"), ("bar", "1")] {
            assert_eq!(query(&mut client, &["GET", key]), Ok(Value::BulkString(value.into())));
        }
        assert_eq!((gets(&one), gets(&two), gets(&replica)), (1, 1, 2));
        // Writes, and everything else that is not merely read, are executed by the primary.
        assert_eq!(query(&mut client, &["INCR", "bar"]), Ok(Value::Int(2)));
        assert_eq!(
            raw(&proxy, "READONLY\r\nMULTI\r\nGET bar\r\nINCR bar\r\nEXEC\r\n"),
            "+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$1\r\n2\r\n:3\r\n"
        );
        wait_for("the replica has it", || has(&replica, "3"));
        let divided = Value::Array(["3", "2"].map(|value| Value::BulkString(value.into())).into());
        assert_eq!(query(&mut client, &["MGET", "bar", "foo"]), Ok(divided));
        assert!(replica.call("INFO commandstats").contains("cmdstat_mget:calls=1,"));
        assert_eq!(query(&mut client, &["READWRITE"]), Ok(Value::Okay));
        let before = gets(&replica);
        assert_eq!(query(&mut client, &["GET", "bar"]), Ok(Value::BulkString(b"3".to_vec())));
        assert_eq!(gets(&replica), before);

        // A replica that does not answer, or is gone: the primary does.
        assert_eq!(query(&mut client, &["READONLY"]), Ok(Value::Okay));
        replica.kill();
        assert_eq!(query(&mut client, &["GET", "bar"]), Ok(Value::BulkString(b"3".to_vec())));
        replica.restart();
        // Until then it answers from what it has, which is nothing.
        wait_for("the replica has it", || has(&replica, "3"));
        wait_for("reads go to it again", || {
            let before = gets(&replica);
            assert_eq!(query(&mut client, &["GET", "bar"]), Ok(Value::BulkString(b"3".to_vec())));
            gets(&replica) > before
        });
    });
}
