//! A machine with its disk and its clocks, and the server process on it.

use crate::data::{Dataset, Entry, Keys, Message, SlotChange};
use crate::network::{ConnId, Side};
use crate::packed::Frame;
use crate::slot_migration::{JobItem, Migrations, Step};
use kvick_cluster::state::{Action, Cluster, Facts, LinkId, Now};
use kvick_cluster::{NodeId, Slots};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Unix time at the start of a run, in milliseconds.
const UNIX_START_MS: i64 = 1_700_000_000_000;

/// Port of clients, the same on all machines. Addresses differ.
pub(crate) const PORT: u16 = 6379;

/// A machine.
pub(crate) struct Host {
    pub(crate) ip: String,
    /// Number of processes that were started on it.
    pub(crate) life: u32,
    pub(crate) process: Option<Box<Process>>,
    /// Whether the machine has no power. If not, it answers that nobody listens.
    pub(crate) is_off: bool,
    /// The process is stopped (SIGSTOP), or the whole virtual machine is.
    pub(crate) is_stopped: bool,
    /// What happened to the process while it was stopped or waited for the disk.
    pub(crate) inbox: VecDeque<Input>,
    pub(crate) disk: Disk,
    pub(crate) clock: Clock,
    /// Data that survived the last process.
    pub(crate) stored: Option<Dataset>,
    /// The shard and the name of the last process.
    pub(crate) last_shard: Option<NodeId>,
    pub(crate) last_id: Option<NodeId>,
}

/// The clocks of a machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// What the wall clock differs from the right time.
    pub(crate) skew_ms: i64,
    /// The monotonic clock at the start of the run.
    pub(crate) base_ms: u64,
    /// For how long the monotonic clock stood still.
    pub(crate) stood_still_ms: u64,
}

impl Clock {
    pub(crate) fn read(&self, now_ms: u64) -> Now {
        Now {
            mono_ms: self.base_ms + now_ms - self.stood_still_ms,
            unix_ms: UNIX_START_MS + now_ms as i64 + self.skew_ms,
        }
    }
}

/// `nodes.conf` on a disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    /// What a loss of power does not destroy.
    pub(crate) durable: Option<Arc<str>>,
    /// What the operating system has got; written to the disk some time.
    pub(crate) cached: Option<Arc<str>>,
    /// What is being written.
    pub(crate) pending: Option<Arc<str>>,
}

/// The connections of links. The state machine numbers links from 1 on, so that a number is a place. A node that tries
/// to reach failed nodes has had many more links than it has now: pages without any take no memory.
#[derive(Default)]
pub(crate) struct Conns(Vec<Option<Box<Page>>>);

const PAGE_LINKS: usize = 64;

struct Page {
    conns: [Option<ConnId>; PAGE_LINKS],
    /// How many of them there are.
    count: usize,
}

impl Conns {
    pub(crate) fn get(&self, link: LinkId) -> Option<ConnId> {
        self.0.get(link.0 as usize / PAGE_LINKS)?.as_ref()?.conns[link.0 as usize % PAGE_LINKS]
    }

    pub(crate) fn insert(&mut self, link: LinkId, conn: ConnId) {
        let place = link.0 as usize / PAGE_LINKS;
        if place >= self.0.len() {
            self.0.resize_with(place + 1, || None);
        }
        let page = self.0[place].get_or_insert_with(|| Box::new(Page { conns: [None; PAGE_LINKS], count: 0 }));
        let before = page.conns[link.0 as usize % PAGE_LINKS].replace(conn);
        page.count += usize::from(before.is_none());
    }

    pub(crate) fn remove(&mut self, link: LinkId) -> Option<ConnId> {
        let place = self.0.get_mut(link.0 as usize / PAGE_LINKS)?;
        let page = place.as_mut()?;
        let conn = page.conns[link.0 as usize % PAGE_LINKS].take()?;
        page.count -= 1;
        if page.count == 0 {
            *place = None;
        }
        Some(conn)
    }
}

/// The server process.
pub(crate) struct Process {
    pub(crate) cluster: Cluster,
    pub(crate) conns: Conns,
    /// Links on which more waits to be sent than the network holds, or was when that was last reported.
    pub(crate) crowded: BTreeSet<LinkId>,
    /// Actions of the bus that wait for `nodes.conf` to be durable.
    pub(crate) actions: VecDeque<Action>,
    pub(crate) is_saving: bool,
    pub(crate) data: Dataset,
    pub(crate) upstream: Upstream,
    pub(crate) downstream: Vec<Downstream>,
    /// Until when writes are paused, on the monotonic clock.
    pub(crate) paused_until_ms: Option<u64>,
    /// Until when they are to be paused, once that is done.
    pub(crate) pause_until_ms: u64,
    /// Whether a pause was asked for, and has not begun.
    pub(crate) pause_is_pending: bool,
    /// The step in which the last pause ended.
    pub(crate) resumed_step: u64,
    /// Which request to pause writes is the last one.
    pub(crate) pause_number: u64,
    /// Slots whose keys are hidden, because another node has them.
    pub(crate) hidden: Slots,
    /// Requests that wait for the end of the pause.
    pub(crate) paused_requests: Vec<Request>,
    /// Requests that wait for replicas, with the offset.
    pub(crate) waiting: Vec<(u64, Request)>,
    /// SETSLOT commands that wait for replicas, with the offset.
    pub(crate) waiting_changes: Vec<(u64, u16, SlotChange)>,
    /// When the last heartbeat was sent to replicas.
    pub(crate) heartbeat_ms: u64,
    pub(crate) migrations: Migrations,
}

/// The primary that a replica follows.
#[derive(Debug, Default)]
pub(crate) struct Upstream {
    /// Its address, and whether all data must be copied.
    pub(crate) target: Option<(String, bool)>,
    pub(crate) conn: Option<ConnId>,
    pub(crate) is_online: bool,
    /// When the primary was last heard, or the link lost. `None` if there was no link to a primary with this data.
    pub(crate) heard_ms: Option<u64>,
    pub(crate) attempt_ms: u64,
}

/// A replica that follows this node.
#[derive(Debug)]
pub(crate) struct Downstream {
    pub(crate) conn: ConnId,
    pub(crate) is_online: bool,
    pub(crate) acknowledged: u64,
}

/// A write of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) client: usize,
    pub(crate) number: u32,
    pub(crate) slot: u16,
    pub(crate) key: u32,
    /// Whether the reply must wait for all replicas.
    pub(crate) waits: bool,
    pub(crate) asking: bool,
    pub(crate) hops: u32,
}

/// A reply to a client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// Executed. Whether all nodes of the shard had it at that moment.
    Done {
        everywhere: bool,
    },
    Moved(NodeId),
    Ask(NodeId),
    Down,
}

/// Something that happens to a process.
#[derive(Debug)]
pub(crate) enum Input {
    Tick,
    Accepted(ConnId),
    Connected(ConnId),
    ConnectFailed(LinkId),
    Frame(ConnId, Side, Frame),
    Closed(ConnId, Side),
    Replication(ConnId, Side, Box<Message>),
    FullSync(ConnId),
    WritesPaused(u64),
    JobItem(ConnId, Side, Box<JobItem>),
    JobRefused(ConnId),
    Migration(Step),
    Request(Request),
}

impl Process {
    /// Calls the state machine with the facts about the data.
    pub(crate) fn with_facts<T>(&mut self, now: Now, call: impl FnOnce(&mut Cluster, &Facts<'_>) -> T) -> T {
        let data_age_ms = self.data_age_ms(now.mono_ms);
        let keys: &Keys = &self.data.keys;
        let keys_in_slot = |slot: u16| keys.get(&slot).map_or(0, |keys| keys.len() as u64);
        let facts = Facts {
            now,
            replication_offset: self.data.offset,
            data_age_ms,
            has_keys: !keys.is_empty(),
            keys_in_slot: &keys_in_slot,
            jobs: self.migrations.slots(),
        };
        call(&mut self.cluster, &facts)
    }

    /// See [`Facts::data_age_ms`]. A replica that was never connected to a primary with its data has none to offer.
    fn data_age_ms(&self, mono_ms: u64) -> u64 {
        self.upstream.heard_ms.map_or(u64::MAX / 4, |heard_ms| mono_ms.saturating_sub(heard_ms))
    }

    pub(crate) fn is_paused(&self, mono_ms: u64) -> bool {
        self.paused_until_ms.is_some_and(|until_ms| mono_ms < until_ms)
    }

    /// Whether the stream is this node's own, not that of a primary.
    pub(crate) fn is_source(&self) -> bool {
        self.upstream.target.is_none()
    }

    /// The replicas that get the stream.
    pub(crate) fn online_replicas(&self) -> impl Iterator<Item = &Downstream> {
        self.downstream.iter().filter(|replica| replica.is_online)
    }

    /// Whether all replicas have processed the stream up to an offset.
    pub(crate) fn is_acknowledged(&self, offset: u64) -> bool {
        self.online_replicas().all(|replica| replica.acknowledged >= offset)
    }

    /// Appends an entry to the stream. Returns its end.
    pub(crate) fn append(&mut self, entry: Entry) -> u64 {
        self.data.append(entry);
        self.data.offset
    }
}
