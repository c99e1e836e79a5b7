//! What the process runs on: clock, logging, allocator and its statistics, latency histograms, mailboxes between threads,
//! CPU affinity, dialing, and durable file renames. Nothing here knows of keys, commands or settings.

pub mod affinity;
pub mod allocator;
pub mod clock;
pub mod dial;
pub mod fsync_dir;
pub mod histogram;
pub mod logging;
pub mod mailbox;
pub mod memory;
pub mod version;
