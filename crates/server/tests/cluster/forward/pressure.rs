//! A node that takes no more requests while clients send on.

use super::{Cluster, query};
use crate::with_workers;
use redis::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Clients that send requests for the node.
const CLIENTS: usize = 4;
/// Requests of each.
const REQUESTS: usize = 1_500;
/// Bytes of a value.
const VALUE: usize = 16 * 1024;
/// `cluster-forward-link-limit`.
const LINK_LIMIT: usize = 1024 * 1024;

fn used_memory(node: &crate::nodes::Node) -> usize {
    let info = node.call("INFO memory");
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a figure");
    used.parse().expect("a number")
}

#[test]
fn a_node_that_stops_costs_bounded_memory_and_holds_up_only_its_own_requests() {
    with_workers(|args| {
        let limit = LINK_LIMIT.to_string();
        let more = ["--cluster-forward-link-limit", &limit, "--cluster-node-timeout", "60000"];
        let cluster = Cluster::start(&[args, &more].concat());
        let (proxy, stopped) = (&cluster.proxy, &cluster.primaries[0]);
        // Slot 5061 has the key bar, slot 12182 foo: the links are there.
        assert_eq!((proxy.call("SET bar 1"), proxy.call("SET foo 1")), ("OK".to_owned(), "OK".to_owned()));
        let before = used_memory(proxy);
        stopped.freeze();
        let sent = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port)).expect("a connection");
                    stream.set_read_timeout(Some(3 * kvick_testing::WAIT_LIMIT)).expect("a timeout");
                    let replies = BufReader::new(stream.try_clone().expect("a socket"));
                    let sent = &sent;
                    scope.spawn(move || {
                        let value = "x".repeat(VALUE);
                        for _ in 0..REQUESTS {
                            let set = format!("*3\r\n$3\r\nSET\r\n$5\r\n{{bar}}\r\n${VALUE}\r\n{value}\r\n");
                            stream.write_all(set.as_bytes()).expect("open");
                            stream.write_all(format!("INCR {{bar}}{client}\r\n").as_bytes()).expect("open");
                            sent.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                    replies
                })
                .collect();
            // Until nothing more is taken.
            let (mut last, mut same, mut most) = (0, 0, 0);
            let mut other = proxy.client();
            while same < 25 {
                assert_eq!(query(&mut other, &["INCR", "foo"]).map(|reply| matches!(reply, Value::Int(_))), Ok(true));
                most = most.max(used_memory(proxy));
                let now = sent.load(Ordering::Relaxed);
                same = if now == last { same + 1 } else { 0 };
                last = now;
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(last < CLIENTS * REQUESTS, "the clients were stopped");
            // A link per worker, and what is read from a client before it is stopped.
            let workers: usize = args[1].parse().expect("a number");
            let allowed = workers * 2 * LINK_LIMIT + CLIENTS * 1024 * 1024 + 8 * 1024 * 1024;
            assert!(most < before + allowed, "{} bytes more", most - before);
            stopped.signal(libc::SIGCONT);
            for replies in readers {
                let mut lines = replies.lines();
                for number in 1..=REQUESTS {
                    assert_eq!(lines.next().expect("a reply").expect("a line"), "+OK");
                    assert_eq!(lines.next().expect("a reply").expect("a line"), format!(":{number}"));
                }
            }
        });
    });
}
