//! One node as this node sees it.

use super::pulse::Time;
use super::{LinkId, NodeKey};
use crate::Epoch;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::slots::Slots;
use std::cell::OnceCell;
use std::sync::Arc;

/// A node, except for what is in its pulse. Times are of the monotonic clock, in milliseconds.
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
    pub(super) acknowledged: Time,
    /// When anything was last received from it.
    pub(super) data_received: Time,
    /// When MEET was last sent to it.
    pub(super) meet_sent: Time,
    /// When it was marked as failed.
    pub(super) failed_since: Time,
    /// Since when it is a primary without a working replica.
    pub(super) orphaned_since: Time,
    /// When a connection to it was last attempted.
    pub(super) connect_attempt: Time,
    /// When its inbound link was last lost, or when the node became known.
    pub(super) inbound_lost_ms: u64,
    /// Its replication offset.
    pub(super) replication_offset: u64,
    /// IP address; empty if not known. Its links share the text.
    pub(super) ip: Arc<str>,
    /// TCP port for clients.
    pub(super) tcp_port: u16,
    /// TLS port for clients.
    pub(super) tls_port: u16,
    /// Port of the cluster bus.
    pub(super) bus_port: u16,
    /// Whether the last attempt to reach it at its known address failed: its host name may have another one.
    pub(super) is_address_dead: bool,
    /// What it announces beyond that. `None` for nothing, as most nodes do.
    announced: Option<Box<Announced>>,
    /// The link that this node has opened.
    pub(super) link: Option<LinkId>,
    /// The link that the other node has opened.
    pub(super) inbound: Option<LinkId>,
    /// Which nodes have reported it as failing.
    pub(super) reports: FailureReports,
}

/// What a node announces about itself, for people and for clients. Empty texts and ports of 0 are not announced.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Announced {
    /// Host name.
    pub(super) hostname: String,
    /// Name for people.
    pub(super) human_name: String,
    /// Availability zone.
    pub(super) availability_zone: String,
    /// IPv4 address that clients are redirected to.
    pub(super) client_ipv4: String,
    /// IPv6 address that clients are redirected to.
    pub(super) client_ipv6: String,
    /// TCP port that clients are redirected to.
    pub(super) client_tcp_port: u16,
    /// TLS port that clients are redirected to.
    pub(super) client_tls_port: u16,
}

static NOTHING: Announced = Announced {
    hostname: String::new(),
    human_name: String::new(),
    availability_zone: String::new(),
    client_ipv4: String::new(),
    client_ipv6: String::new(),
    client_tcp_port: 0,
    client_tls_port: 0,
};

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
            acknowledged: Time::NEVER,
            data_received: Time::NEVER,
            meet_sent: Time::NEVER,
            failed_since: Time::NEVER,
            orphaned_since: Time::NEVER,
            connect_attempt: Time::NEVER,
            inbound_lost_ms: now_ms,
            replication_offset: 0,
            ip: Arc::default(),
            tcp_port: 0,
            tls_port: 0,
            bus_port: 0,
            is_address_dead: false,
            announced: None,
            link: None,
            inbound: None,
            reports: FailureReports::default(),
        }
    }

    /// What it announces about itself.
    pub(super) fn announced(&self) -> &Announced {
        self.announced.as_deref().unwrap_or(&NOTHING)
    }

    /// Whether it announces nothing.
    pub(super) fn announces_nothing(&self) -> bool {
        self.announced.is_none()
    }

    pub(super) fn set_announced(&mut self, announced: Announced) {
        self.announced = (announced != NOTHING).then(|| Box::new(announced));
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

/// Which nodes have reported a node as failing, and when.
///
/// When half of a large cluster fails, a node has a quarter of a million reports, and most messages renew some hundred
/// of them. So a report takes four bytes, and few reports change one.
#[derive(Clone, Debug, Default)]
pub(super) struct FailureReports {
    /// In the order of the reporters.
    reports: Vec<Report>,
    /// The time from which the times of reports count: seconds of the monotonic clock.
    start_s: u32,
    /// Not above the time of any report, in seconds of the monotonic clock.
    oldest_s: u32,
}

/// The index of the reporter in the table and, in the lower [`TIME_BITS`] bits, seconds, rounded up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Report(u32);

/// Enough for 68 minutes. Older reports are dropped.
const TIME_BITS: u32 = 12;

/// Reports of nodes with higher indexes do not count: there are no tables of a million nodes.
const REPORTER_MAX: u32 = u32::MAX >> TIME_BITS;

const TIME_MAX_S: u32 = (1 << TIME_BITS) - 1;

impl Report {
    fn reporter(self) -> u32 {
        self.0 >> TIME_BITS
    }

    fn time_s(self) -> u32 {
        self.0 & TIME_MAX_S
    }
}

impl FailureReports {
    /// Adds or renews a report. Returns whether the reporter had none.
    pub(super) fn add(&mut self, reporter: NodeKey, now_ms: u64) -> bool {
        let reporter = reporter.index();
        if reporter > REPORTER_MAX {
            return false;
        }
        let now_s = u32::try_from(now_ms / 1000).map_or(u32::MAX, |now_s| now_s.saturating_add(1));
        if now_s.saturating_sub(self.start_s) > TIME_MAX_S {
            self.drop_until(now_s - TIME_MAX_S - 1);
        }
        if self.reports.is_empty() {
            (self.start_s, self.oldest_s) = (now_s, now_s);
        }
        let report = Report(reporter << TIME_BITS | now_s.saturating_sub(self.start_s));
        match self.place(reporter) {
            Ok(index) => {
                self.reports[index] = report;
                false
            }
            Err(index) => {
                self.reports.insert(index, report);
                true
            }
        }
    }

    /// Removes a report. Returns whether there was one.
    pub(super) fn remove(&mut self, reporter: NodeKey) -> bool {
        let place = self.place(reporter.index());
        place.is_ok_and(|index| {
            self.reports.remove(index);
            true
        })
    }

    /// Whether there are none, not even old ones.
    pub(super) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// Number of reports that are not older than `validity_ms`. Removes the others.
    pub(super) fn count(&mut self, now_ms: u64, validity_ms: u64) -> usize {
        let Some(cutoff_ms) = now_ms.checked_sub(validity_ms) else { return self.reports.len() };
        let cutoff_s = u32::try_from(cutoff_ms / 1000).unwrap_or(u32::MAX);
        if self.oldest_s <= cutoff_s && !self.reports.is_empty() {
            self.drop_until(cutoff_s);
        }
        self.reports.len()
    }

    /// Removes reports up to a time. The oldest of the others becomes the start.
    fn drop_until(&mut self, cutoff_s: u32) {
        let start_s = self.start_s;
        self.reports.retain(|report| start_s + report.time_s() > cutoff_s);
        let oldest_s = self.reports.iter().map(|report| report.time_s()).min().unwrap_or(0);
        self.reports.iter_mut().for_each(|report| report.0 -= oldest_s);
        (self.start_s, self.oldest_s) = (start_s + oldest_s, start_s + oldest_s);
    }

    fn place(&self, reporter: u32) -> Result<usize, usize> {
        self.reports.binary_search_by_key(&reporter, |report| report.reporter())
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::super::table::Table;
    use super::*;
    use std::collections::BTreeMap;

    fn reporters(count: u8) -> Vec<NodeKey> {
        let mut table = Table::default();
        let id = |index: u8| NodeId::from_random([index; 20]);
        (0..count).map(|index| table.insert(Node::new(id(index), id(100), NodeFlags::PRIMARY, 0))).collect()
    }

    #[test]
    fn reports_are_counted_until_they_are_too_old() {
        let reporters = reporters(20);
        let mut random = Random::new(1);
        let (mut reports, mut model) = (FailureReports::default(), BTreeMap::new());
        let mut now_ms = 5_000_000;
        for _ in 0..5_000 {
            now_ms += random.next() % 3_000;
            let reporter = reporters[random.next() as usize % reporters.len()];
            match random.next() % 10 {
                0 => assert_eq!(reports.remove(reporter), model.remove(&reporter).is_some()),
                1..4 => {
                    let cutoff_ms = now_ms - 30_000;
                    model.retain(|_, time_ms| *time_ms > cutoff_ms);
                    assert_eq!(reports.count(now_ms, 30_000), model.len());
                }
                _ => {
                    let rounded_ms = (now_ms / 1000 + 1) * 1000;
                    assert_eq!(reports.add(reporter, now_ms), model.insert(reporter, rounded_ms).is_none());
                }
            }
            assert_eq!(reports.is_empty(), model.is_empty());
        }
    }

    #[test]
    fn a_report_of_hours_ago_is_dropped() {
        let reporters = reporters(3);
        let hour_ms = 3_600_000;
        let mut reports = FailureReports::default();
        assert!(reports.add(reporters[0], hour_ms) && reports.add(reporters[1], 2 * hour_ms));
        assert_eq!(reports.count(2 * hour_ms, hour_ms * 2), 2);
        assert!(reports.add(reporters[2], 3 * hour_ms));
        assert_eq!(reports.count(3 * hour_ms, hour_ms * 3), 2);
        assert!(!reports.add(reporters[1], 3 * hour_ms) && reports.add(reporters[0], 9 * hour_ms));
        assert_eq!(reports.count(9 * hour_ms, hour_ms * 9), 1);
    }

    /// In a cluster of a thousand nodes each node knows a thousand.
    #[test]
    fn a_node_takes_little_memory() {
        assert!(size_of::<Node>() <= 344, "{}", size_of::<Node>());
    }
}
