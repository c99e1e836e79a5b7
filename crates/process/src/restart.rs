//! DEBUG RESTART and CRASH-AND-RECOVER: starts the program again in the same process, with the same arguments.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// The arguments of the process: the process title overwrites the originals.
static ARGS: OnceLock<Vec<OsString>> = OnceLock::new();
/// The delay of a restart that was requested.
static DELAY: OnceLock<Duration> = OnceLock::new();

/// Keeps the arguments without the program's name, at the start of the process.
pub fn remember(args: &[OsString]) {
    let mut args = args.to_vec();
    // The configuration file is found again after a change of the working directory.
    if let Some(file) = args.first_mut().filter(|first| !first.as_encoded_bytes().starts_with(b"-"))
        && let Ok(path) = std::path::absolute(&*file)
    {
        *file = path.into();
    }
    // The first call is the one of the process's start.
    let _ = ARGS.set(args);
}

/// Requests a restart when the server has ended, after this delay.
pub fn request(delay: Duration) {
    // The first request applies.
    let _ = DELAY.set(delay);
}

/// Restarts if that was requested.
pub fn restart_if_requested() {
    if let Some(delay) = DELAY.get()
        && let Ok(executable) = std::env::current_exe()
    {
        restart(&executable, *delay);
    }
}

/// Starts the program again. All descriptors but the standard ones are closed by that. Ends the process on an error.
pub fn restart(executable: &Path, delay: Duration) -> ! {
    std::thread::sleep(delay);
    let error = Command::new(executable).args(ARGS.get().map_or(&[][..], Vec::as_slice)).exec();
    eprintln!("Cannot restart {}: {error}", executable.display());
    std::process::exit(1);
}
