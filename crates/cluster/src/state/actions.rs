//! Actions: the outputs of the state machine.

use super::LinkId;
use crate::node_id::NodeId;
use crate::slots::Slots;
use std::sync::Arc;

/// Something for the environment to do.
///
/// Actions are carried out **in their order**. In particular nothing behind a [`Action::Save`] with `sync` may leave
/// the node before the content is durable: votes and epochs are promises.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Write a log line.
    Log(Level, String),
    /// Open a connection to the bus port of a node. Report it with `link_connected` or `link_closed`. Frames that are
    /// sent before it is open wait.
    Connect {
        /// The link that the connection will be.
        link: LinkId,
        /// The node's name; a random one while it is in handshake.
        node: NodeId,
        /// IP address.
        ip: String,
        /// Bus port.
        port: u16,
        /// Host name, if the address did not answer before: its present address is to be used, if it can be resolved.
        hostname: Option<String>,
    },
    /// Close a connection, without sending what waits. The state machine has forgotten the link already.
    Disconnect(LinkId),
    /// Send a frame.
    Send {
        /// Where to.
        link: LinkId,
        /// One message.
        frame: Arc<[u8]>,
    },
    /// Write `Cluster::config_content` to `nodes.conf`.
    Save {
        /// Whether the file and the rename of it must be durable before the next action.
        sync: bool,
    },
    /// What routing and topology replies depend on has changed. See `Cluster::topology`.
    TopologyChanged,
    /// Stop replicating and become a primary with the data at hand.
    BecomePrimary,
    /// Replicate a node.
    ReplicateFrom {
        /// Which node. Another node may have its address by now: ask it before copying its data.
        id: NodeId,
        /// IP address.
        ip: String,
        /// Port: TLS or TCP, as `Settings::tls_replication` says.
        port: u16,
        /// Whether the histories differ, so that a partial resynchronization must not be tried.
        full_sync: bool,
        /// Whether this is another primary than before, not only another address. Blocked clients are redirected.
        new_primary: bool,
    },
    /// Delete all keys of all databases (CLUSTER RESET of a replica, CLUSTER REPLICATE NO ONE).
    FlushData,
    /// Hide the keys in these slots, which another node has taken over, or show them again.
    HideKeys {
        /// The slots.
        slots: Box<Slots>,
        /// Whether they are hidden from now on.
        hidden: bool,
    },
    /// Delete the keys in these slots, and propagate that: other nodes own them.
    DeleteKeys(Box<Slots>),
    /// Pause writes of clients until a time of the monotonic clock, for a manual failover. Then call
    /// `Cluster::writes_paused`: only the offset of that moment may be announced.
    PauseWrites {
        /// Milliseconds of the monotonic clock.
        until_ms: u64,
    },
    /// End the pause of [`Action::PauseWrites`].
    ResumeWrites,
    /// Unsubscribe all clients from the shard channels in these slots.
    DropShardChannels(Box<Slots>),
    /// Set the statistics of these slots to zero.
    ResetSlotStats(Box<Slots>),
    /// The role of this node or the owner of a slot under migration has changed: the jobs of CLUSTER MIGRATESLOTS must
    /// be checked.
    CheckSlotMigrations,
    /// Deliver a message to local subscribers.
    Publish {
        /// The channel.
        channel: Vec<u8>,
        /// What to deliver.
        message: Vec<u8>,
        /// Whether it is a shard channel.
        sharded: bool,
    },
    /// Deliver a message to a local module.
    ModuleMessage {
        /// The node that sent it.
        sender: NodeId,
        /// The module's ID as on the bus.
        module_id: [u8; 8],
        /// The module's own type of message.
        kind: u8,
        /// The message.
        payload: Vec<u8>,
    },
}

/// Importance of a log line, as `loglevel` has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Level {
    /// For developers.
    Debug,
    /// Detailed.
    Verbose,
    /// Normal.
    #[default]
    Notice,
    /// Important.
    Warning,
}
