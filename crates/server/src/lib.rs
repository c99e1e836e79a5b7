//! Kvick's server: workers that execute on every core, their connections, settings and statistics.
//!
//! [`process`] starts it all. A [`worker`] is a thread with its event loop; its [`worker::engine`] runs commands from the
//! [`table`]. [`server`] is what all threads share. Commands about connections and the server are in [`commands`], those
//! about data in `kvick-commands`.

pub use kvick_runtime::allocator;
pub use kvick_runtime::clock;
pub mod commands;
pub use kvick_config as config;
pub mod crash;
pub mod defrag;
pub use kvick_net::listen;
pub use kvick_runtime::dial;
pub use kvick_runtime::fsync_dir;
pub use kvick_runtime::histogram;
pub use kvick_runtime::logging;
pub use kvick_runtime::mailbox;
pub mod memory;
pub mod process;
pub use kvick_scripting as scripting;
pub mod server;
pub mod session;
pub mod signals;
pub use kvick_net::tls;
pub use kvick_runtime::version;
pub mod watchdog;
pub mod worker;
