//! What other threads tell a worker. Objects that a worker takes over come by a [`handover`](crate::handover).

use crate::clients::ClientInfo;
use std::sync::Arc;

/// See the module's documentation.
pub enum Message {
    /// Close this client's connection, which is doomed, if it still exists.
    Close(Arc<ClientInfo>),
    /// CLIENT PAUSE or a long script may have ended: run what waited.
    Resume,
    /// The data set is loaded: timers are due.
    Loaded,
    /// There are new sockets to listen on.
    Listen,
    /// Try to write to all sockets, whatever the poll reports.
    Unclog,
}
