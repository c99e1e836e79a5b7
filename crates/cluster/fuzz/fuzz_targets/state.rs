//! Any sequence of messages, link events and time leaves the state machine consistent: [`Cluster::audit`] finds
//! nothing, and its configuration can be written and read.
//!
//! The input is a program: a byte chooses the event, the next ones its arguments. Messages are a full header that a
//! node sent, with type, counts, epochs, flags, sender and some slots from the input, followed by bytes of the input.

#![no_main]

use kvick_cluster::bus::{HEADER_BYTES, Message};
use kvick_cluster::nodes_conf::NodesConf;
use kvick_cluster::state::{Accepted, Action, Cluster, Facts, LinkId, Now, Settings};
use libfuzzer_sys::fuzz_target;

const PING: &[u8] = include_bytes!("../../tests/frames/ping.bin");

/// Unix time at the start, in milliseconds.
const START_MS: i64 = 1_700_000_000_000;

/// This node, a primary with a replica, and two more primaries.
const NODES: &str = "\
    1111111111111111111111111111111111111111 127.0.0.1:1@11 myself,master - 0 0 1 connected 0-5000\n\
    2222222222222222222222222222222222222222 127.0.0.2:2@12 master - 0 0 2 connected 5001-10000\n\
    3333333333333333333333333333333333333333 127.0.0.3:3@13 master - 0 0 3 connected 10001-16383\n\
    4444444444444444444444444444444444444444 127.0.0.4:4@14 slave 1111111111111111111111111111111111111111 0 0 1 \
    connected\n\
    vars currentEpoch 3 lastVoteEpoch 0\n";

/// The same, where this node is the replica.
const AS_REPLICA: &str = "\
    4444444444444444444444444444444444444444 127.0.0.4:4@14 myself,slave 1111111111111111111111111111111111111111 0 0 \
    1 connected\n\
    1111111111111111111111111111111111111111 127.0.0.1:1@11 master - 0 0 1 connected 0-5000\n\
    2222222222222222222222222222222222222222 127.0.0.2:2@12 master - 0 0 2 connected 5001-10000\n\
    3333333333333333333333333333333333333333 127.0.0.3:3@13 master - 0 0 3 connected 10001-16383\n\
    vars currentEpoch 3 lastVoteEpoch 0\n";

/// Events between two audits, which take long.
const AUDIT_EVENTS: usize = 32;

/// First characters of node IDs. The last two nodes are strangers.
const NAMES: &[u8] = b"123456";

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let conf = if input.byte() % 2 == 0 { NODES } else { AS_REPLICA };
    let (conf, _) = NodesConf::parse(conf.as_bytes(), false).expect("a valid file");
    let mut now = Now { mono_ms: 1_000, unix_ms: START_MS };
    let mut cluster = Cluster::new(Some(&conf), Settings::default(), 1, now);
    let mut links: Vec<LinkId> = Vec::new();
    let mut actions = Vec::new();
    let mut events = 0;
    while !input.0.is_empty() {
        let facts = Facts::without_data(now);
        let event = input.byte();
        match event % 8 {
            0 => {
                let peer = Accepted { peer_ip: "127.0.0.9", peer_port: 9, local_ip: "127.0.0.1" };
                links.push(cluster.link_accepted(peer, &facts));
            }
            1 if !links.is_empty() => {
                let link = links.swap_remove(usize::from(input.byte()) % links.len());
                cluster.link_closed(link, "closed", &facts);
            }
            2 | 3 => {
                let elapsed_ms = u64::from(input.byte()) * 100;
                now = Now { mono_ms: now.mono_ms + elapsed_ms, unix_ms: now.unix_ms + elapsed_ms as i64 };
                cluster.tick(&Facts::without_data(now));
            }
            _ if !links.is_empty() => {
                let link = links[usize::from(input.byte()) % links.len()];
                cluster.received(link, &input.frame(), &facts);
            }
            _ => {}
        }
        cluster.settle(&Facts::without_data(now), &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Connect { link, .. } => {
                    links.push(link);
                    if event >= 64 {
                        let peer = Accepted { peer_ip: "127.0.0.2", peer_port: 12, local_ip: "127.0.0.1" };
                        cluster.link_connected(link, peer, &Facts::without_data(now));
                    }
                }
                Action::Disconnect(link) => links.retain(|open| *open != link),
                Action::Send { frame, .. } => {
                    Message::decode(&frame).expect("the state machine sends valid messages");
                }
                _ => {}
            }
        }
        events += 1;
        if events % AUDIT_EVENTS == 0 {
            assert_eq!(cluster.audit(), None);
        }
    }
    assert_eq!(cluster.audit(), None);
    let content = cluster.config_content(now).expect("it can be written");
    NodesConf::parse(content.as_bytes(), false).expect("it can be read");
});

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    /// The next byte, or zero.
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn bytes(&mut self, count: usize) -> &[u8] {
        self.0.split_off(..count.min(self.0.len())).unwrap_or_default()
    }

    fn name(&mut self) -> [u8; 40] {
        [NAMES[usize::from(self.byte()) % NAMES.len()]; 40]
    }

    /// A message with a full header.
    fn frame(&mut self) -> Vec<u8> {
        let mut frame = PING[..HEADER_BYTES].to_vec();
        frame[12..14].copy_from_slice(&u16::from(self.byte() % 12).to_be_bytes());
        frame[14..16].copy_from_slice(&u16::from(self.byte() % 4).to_be_bytes());
        frame[23] = self.byte();
        frame[31] = self.byte();
        frame[39] = self.byte();
        frame[40..80].copy_from_slice(&self.name());
        let (place, words) = (usize::from(self.byte()) * 8, usize::from(self.byte() % 8));
        frame[80..2128].fill(0);
        frame[80 + place..(80 + place + words * 8).min(2128)].fill(255);
        let primary = self.name();
        frame[2128..2168].copy_from_slice(if self.byte() % 2 == 0 { &[0; 40] } else { &primary });
        frame[2214..2216].copy_from_slice(&u16::from(self.byte() % 4).to_be_bytes());
        let flags = [self.byte(), self.byte()];
        frame[2250..2252].copy_from_slice(&flags);
        frame[2253] = self.byte();
        // What follows the header begins with an ID in most messages; it is one that is known.
        let (length, named) = (usize::from(self.byte()) * 4, self.name());
        frame.extend_from_slice(&named);
        frame.extend_from_slice(self.bytes(length));
        let length = frame.len() as u32;
        frame[4..8].copy_from_slice(&length.to_be_bytes());
        frame
    }
}
