//! What a server needs of the operating system as a process, independent of what it serves.
//!
//! - [`cpu_limit`]: how many cores the process may use.
//! - [`daemon`]: running in the background, and the PID file.
//! - [`limits`]: the limit of open files.
//! - [`memory_test`]: the test of `--test-memory`.
//! - [`restart`]: executing the program again.
//! - [`system`]: checks of the machine's settings.
//! - [`title`]: the title that `ps` shows.

pub mod cpu_limit;
pub mod daemon;
pub mod limits;
pub mod memory_test;
pub mod restart;
pub mod system;
pub mod title;
