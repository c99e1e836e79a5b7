//! The trait of what starts and stops the nodes of a cluster. [`crate::local`] implements it with processes, the crate
//! `kvick-operator-kube` with pods.

use kvick_planner::ShardId;
use std::io;

/// A node that the backend runs, or should run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its name. It is never used for another node.
    pub name: String,
    /// Its shard.
    pub shard: ShardId,
    /// Where clients connect. Empty if it has no address now.
    pub host: String,
    /// See `host`.
    pub port: u16,
    /// Port of the cluster bus.
    pub bus_port: u16,
    /// The host name that it announces to the others, which stays the same when its address changes; or empty.
    pub hostname: String,
    /// Whether its shard is being drained.
    pub is_leaving: bool,
    /// Whether its process runs.
    pub is_running: bool,
    /// Whether its process has been asked to end.
    pub is_ending: bool,
    /// Whether its process is started again without the operator when it has ended.
    pub restarts_itself: bool,
    /// Whether it would have lost its data after a replacement.
    pub restarts_empty: bool,
    /// Whether it was started with settings that have changed since.
    pub is_outdated: bool,
    /// Whether it waits without slots until a new shard is needed. Its shard does not count before.
    pub is_spare: bool,
    /// Whether its machine has not been heard of, so that its process may run or not.
    pub is_lost: bool,
}

impl Member {
    /// Host and port.
    pub fn endpoint(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// Starts and stops nodes. What it knows outlives the operator, so that another one can continue.
pub trait Backend {
    /// All nodes, in the order of their names.
    fn list(&mut self) -> io::Result<Vec<Member>>;
    /// A number for a new shard.
    fn new_shard(&mut self) -> io::Result<ShardId>;
    /// Starts a new node. It need not answer yet.
    fn start(&mut self, shard: ShardId) -> io::Result<Member>;
    /// Starts a node again whose process has ended, with its data.
    fn restart(&mut self, name: &str) -> io::Result<()>;
    /// Ends the process of a node, so that it starts again with the settings of now and its data.
    fn replace(&mut self, name: &str) -> io::Result<()>;
    /// Ends the process of a node, and deletes its data.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Starts a node that waits without slots until a new shard is needed.
    fn start_spare(&mut self) -> io::Result<Member> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Makes such a node the first one of its shard.
    fn use_spare(&mut self, _name: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Notes that a shard is being drained, or no longer.
    fn set_leaving(&mut self, shard: ShardId, is_leaving: bool) -> io::Result<()>;
}
