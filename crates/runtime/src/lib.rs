//! The runtime of the process: clock, logging, allocator and its statistics, latency histograms, mailboxes between
//! threads, CPU affinity and time slices, outgoing connections, and durable file renames. This crate does not depend on
//! keys, commands or settings.

pub mod affinity;
pub mod allocator;
pub mod clock;
pub mod dial;
pub mod fsync_dir;
pub mod histogram;
pub mod locale;
pub mod logging;
pub mod mailbox;
pub mod memory;
pub mod time_slice;
pub mod version;
