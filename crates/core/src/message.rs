//! Messages that other threads send to a worker. Objects that change owner, such as accepted sockets, go through a
//! [`handover`](crate::handover) instead.

use crate::clients::ClientInfo;
use std::sync::Arc;

/// A message to a worker.
pub enum Message {
    /// Close the connection of this client, which is doomed, if it still exists.
    Close(Arc<ClientInfo>),
    /// CLIENT PAUSE or a long script may have ended: run the requests that waited.
    Resume,
    /// The data set is loaded: run the timers.
    Loaded,
    /// There are new listening sockets.
    Listen,
    /// Delete the keys of these slots, which other nodes own.
    DeleteSlots(Box<[u16]>),
    /// Try to write to all sockets, even those that the poll does not report as writable.
    RetryWrites,
    /// Move connections to another worker: those that cause about a share of this worker's requests.
    Shed {
        /// The worker that gets them.
        to: usize,
        /// The share, above 0 and at most 1.
        share: f64,
    },
    /// Move this number of connections to another worker.
    Give {
        /// The worker that gets them.
        to: usize,
        /// The number.
        count: usize,
    },
}
