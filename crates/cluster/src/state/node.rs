//! One node as this node sees it.

use super::{LinkId, NodeKey};
use crate::Epoch;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::slots::Slots;
use std::cell::OnceCell;

/// A node, except for what is in its pulse. Times are of the monotonic clock, in milliseconds; `None` means never, or
/// not now.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Its name: random until the handshake is over.
    pub(super) id: NodeId,
    /// The shard it is in.
    pub(super) shard_id: NodeId,
    /// What it is.
    pub(super) flags: NodeFlags,
    /// The epoch of its slots.
    pub(super) config_epoch: Epoch,
    /// Slots that it owns. Changed only together with `Cluster::owners`.
    pub(super) slots: Slots,
    /// Number of slots that it owns.
    pub(super) slot_count: u16,
    /// The slots as CLUSTER NODES has them, once they were needed.
    pub(super) slots_text: OnceCell<Box<str>>,
    /// Its replicas, in the order of their names.
    pub(super) replicas: Vec<NodeKey>,
    /// Its primary. A replica may lack it, if that node is not known.
    pub(super) replica_of: Option<NodeKey>,
    /// When it became known.
    pub(super) created_ms: u64,
    /// When the last PING was sent that it has answered.
    pub(super) acknowledged: Option<u64>,
    /// When anything was last received from it.
    pub(super) data_received: Option<u64>,
    /// When MEET was last sent to it.
    pub(super) meet_sent: Option<u64>,
    /// When it was marked as failed.
    pub(super) failed_since: Option<u64>,
    /// Since when it is a primary without a working replica.
    pub(super) orphaned_since: Option<u64>,
    /// When a connection to it was last attempted.
    pub(super) connect_attempt: Option<u64>,
    /// When its inbound link was last lost, or when the node became known.
    pub(super) inbound_lost_ms: u64,
    /// Its replication offset.
    pub(super) replication_offset: u64,
    /// IP address; empty if not known.
    pub(super) ip: String,
    /// TCP port for clients.
    pub(super) tcp_port: u16,
    /// TLS port for clients.
    pub(super) tls_port: u16,
    /// Port of the cluster bus.
    pub(super) bus_port: u16,
    /// IPv4 address that clients are redirected to.
    pub(super) client_ipv4: String,
    /// IPv6 address that clients are redirected to.
    pub(super) client_ipv6: String,
    /// TCP port that clients are redirected to.
    pub(super) client_tcp_port: u16,
    /// TLS port that clients are redirected to.
    pub(super) client_tls_port: u16,
    /// Announced host name.
    pub(super) hostname: String,
    /// Whether the last attempt to reach it at its known address failed: its host name may have another one.
    pub(super) is_address_dead: bool,
    /// Announced name for people.
    pub(super) human_name: String,
    /// Availability zone.
    pub(super) availability_zone: String,
    /// The link that this node has opened.
    pub(super) link: Option<LinkId>,
    /// The link that the other node has opened.
    pub(super) inbound: Option<LinkId>,
    /// Which nodes have reported it as failing.
    pub(super) reports: FailureReports,
}

impl Node {
    pub(super) fn new(id: NodeId, shard_id: NodeId, flags: NodeFlags, now_ms: u64) -> Node {
        Node {
            id,
            shard_id,
            flags,
            config_epoch: 0,
            slots: Slots::EMPTY,
            slot_count: 0,
            slots_text: OnceCell::new(),
            replicas: Vec::new(),
            replica_of: None,
            created_ms: now_ms,
            acknowledged: None,
            data_received: None,
            meet_sent: None,
            failed_since: None,
            orphaned_since: None,
            connect_attempt: None,
            inbound_lost_ms: now_ms,
            replication_offset: 0,
            ip: String::new(),
            tcp_port: 0,
            tls_port: 0,
            bus_port: 0,
            client_ipv4: String::new(),
            client_ipv6: String::new(),
            client_tcp_port: 0,
            client_tls_port: 0,
            hostname: String::new(),
            is_address_dead: false,
            human_name: String::new(),
            availability_zone: String::new(),
            link: None,
            inbound: None,
            reports: FailureReports::default(),
        }
    }

    /// Whether it has one of these flags.
    pub(super) fn is(&self, flags: NodeFlags) -> bool {
        self.flags.intersects(flags)
    }

    pub(super) fn is_primary(&self) -> bool {
        self.is(NodeFlags::PRIMARY)
    }

    pub(super) fn is_replica(&self) -> bool {
        self.is(NodeFlags::REPLICA)
    }

    pub(super) fn is_failed(&self) -> bool {
        self.is(NodeFlags::FAIL)
    }

    pub(super) fn is_suspected(&self) -> bool {
        self.is(NodeFlags::PFAIL)
    }

    pub(super) fn in_handshake(&self) -> bool {
        self.is(NodeFlags::HANDSHAKE)
    }

    pub(super) fn has_address(&self) -> bool {
        !self.is(NodeFlags::NO_ADDRESS)
    }

    /// Whether it may vote: a primary that owns slots.
    pub(super) fn votes(&self) -> bool {
        self.is_primary() && self.slot_count > 0
    }

    /// Whether nothing is wrong with it.
    pub(super) fn is_normal(&self) -> bool {
        !self.is(NodeFlags::HANDSHAKE | NodeFlags::MEET | NodeFlags::PFAIL | NodeFlags::FAIL)
    }
}

/// Which nodes have reported a node as failing, and when. Times are seconds of the monotonic clock, rounded up: few
/// reports change one, and a report takes 12 bytes. When half of a large cluster fails, there are half a million.
#[derive(Clone, Debug, Default)]
pub(super) struct FailureReports {
    /// In the order of the keys.
    by_reporter: Vec<(NodeKey, u32)>,
    /// Not above the time of any report.
    oldest_s: u32,
}

impl FailureReports {
    /// Adds or renews a report. Returns whether the reporter had none.
    pub(super) fn add(&mut self, reporter: NodeKey, now_ms: u64) -> bool {
        let time_s = u32::try_from(now_ms / 1000).map_or(u32::MAX, |now_s| now_s.saturating_add(1));
        if self.by_reporter.is_empty() {
            self.oldest_s = time_s;
        }
        match self.by_reporter.binary_search_by_key(&reporter, |report| report.0) {
            Ok(index) => {
                self.by_reporter[index].1 = time_s;
                false
            }
            Err(index) => {
                self.by_reporter.insert(index, (reporter, time_s));
                true
            }
        }
    }

    /// Removes a report. Returns whether there was one.
    pub(super) fn remove(&mut self, reporter: NodeKey) -> bool {
        match self.by_reporter.binary_search_by_key(&reporter, |report| report.0) {
            Ok(index) => {
                self.by_reporter.remove(index);
                true
            }
            Err(_) => false,
        }
    }

    /// Whether there are none, not even old ones.
    pub(super) fn is_empty(&self) -> bool {
        self.by_reporter.is_empty()
    }

    /// Number of reports that are not older than `validity_ms`. Removes the others.
    pub(super) fn count(&mut self, now_ms: u64, validity_ms: u64) -> usize {
        let Some(cutoff_ms) = now_ms.checked_sub(validity_ms) else { return self.by_reporter.len() };
        let is_old = |time_s: u32| u64::from(time_s) * 1000 <= cutoff_ms;
        if is_old(self.oldest_s) && !self.by_reporter.is_empty() {
            self.by_reporter.retain(|report| !is_old(report.1));
            self.oldest_s = self.by_reporter.iter().map(|report| report.1).min().unwrap_or(0);
        }
        self.by_reporter.len()
    }
}
