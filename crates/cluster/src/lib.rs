//! The parts of a Valkey cluster that need no I/O: the messages of the cluster bus ([`bus`]) and the content of
//! `nodes.conf` ([`nodes_conf`]), both as Valkey 9.1 writes and reads them, the state machine of a node ([`state`]),
//! and the jobs of atomic slot migration ([`migration`]).
//!
//! Nothing here opens a socket or a file, reads a clock or starts a thread. Functions take bytes and return values, or
//! the reverse. Input from outside never causes a panic, and a length that it claims reserves no memory.

pub mod bus;
mod field;
mod flags;
pub mod migration;
mod name_hash;
mod node_id;
pub mod nodes_conf;
mod slots;
pub mod state;
mod text;

pub use flags::NodeFlags;
pub use node_id::{InvalidNodeId, NodeId};
pub use slots::{SLOT_COUNT, SLOTS_BYTES, SlotRanges, Slots, SlotsRef};

/// A number that orders changes of the cluster's configuration: the higher one wins. 0 is the epoch of a new node.
pub type Epoch = u64;

/// What a cluster bus port is above the client port, unless configured otherwise.
pub const BUS_PORT_OFFSET: u16 = 10_000;
