//! Running in the background, and the PID file.
//!
//! Invariant: [`fork_to_background`] is called while the process has one thread. A forked process has only the thread
//! that forked; locks held by other threads would stay locked in it forever.

use kvick_config::Refusal;
use kvick_config::Values;
use kvick_config::tables::process::{DAEMONIZE, DIR, PIDFILE};
use kvick_runtime::logging;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// The default path of the PID file in the background; Valkey's path.
const PIDFILE_DEFAULT: &str = "/var/run/valkey.pid";

/// Continues as a child process with its own session and no terminal; the parent exits with 0. Output to standard
/// streams is discarded from then on.
pub fn fork_to_background() -> io::Result<()> {
    // SAFETY: the process has one thread (see the module's documentation).
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        // SAFETY: ends the process at once, without running what the child still needs to run at its own end.
        _ => unsafe { libc::_exit(0) },
    }
    // SAFETY: no arguments. It fails only in a process that leads a group, which a new child does not.
    unsafe { libc::setsid() };
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for standard in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: both are descriptors; no code relies on the previous standard streams.
        if unsafe { libc::dup2(null.as_raw_fd(), standard) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The PID file, deleted by [`PidFile::remove`].
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file if one is configured, or if the server runs in the background. Errors are logged and otherwise
    /// ignored.
    pub fn write(values: &Values, in_background: bool) -> Option<Self> {
        let name = match values.read(PIDFILE) {
            Some(name) => name.to_vec(),
            None if in_background => PIDFILE_DEFAULT.into(),
            None => return None,
        };
        let path = values.read(DIR).resolve(&name);
        if let Err(error) = fs::write(&path, format!("{}\n", std::process::id())) {
            logging::warning(format_args!("Failed to write PID file: {}", Refusal::from(error)));
        }
        Some(PidFile(path))
    }

    /// Removes the file. It may be gone already.
    pub fn remove(self) {
        logging::notice(format_args!("Removing the pid file."));
        let _ = fs::remove_file(&self.0);
    }
}

/// Whether the settings request a background process.
pub fn is_enabled(values: &Values) -> bool {
    values.read(DAEMONIZE)
}
