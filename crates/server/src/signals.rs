//! Signals that shut the server down or request a status report, and signals to ignore.
//!
//! SIGTERM, SIGINT and SIGALRM are blocked in every thread and received by a separate thread, so that no code runs in a
//! signal handler. Threads inherit the mask, so [`block`] is called before any other thread exists. For fatal signals
//! see [`crash`].

use crate::crash;
use crate::server::Server;
use kvick_runtime::logging;
use std::io;

/// The signals that the thread receives.
const HANDLED: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGALRM];
/// Ignored signals: a closed terminal or a disconnected client must not end the process.
const IGNORED: [libc::c_int; 2] = [libc::SIGHUP, libc::SIGPIPE];

/// Blocks the received signals in this thread and in all threads that it starts later.
pub fn block() {
    for signal in IGNORED {
        // SAFETY: no handler of ours is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let set = handled_signals();
    // SAFETY: the set is initialised, and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

/// Starts the thread that receives signals. It lives as long as the process.
pub fn listen(server: &'static Server) -> io::Result<()> {
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        kvick_runtime::memory::register_thread();
        let set = handled_signals();
        loop {
            let mut signal = 0;
            // SAFETY: both arguments point to values of ours that live through the call.
            if unsafe { libc::sigwait(&set, &mut signal) } == 0 {
                match signal {
                    libc::SIGALRM => crash::on_alarm(),
                    signal => shut_down(server, signal),
                }
            }
        }
    })?;
    Ok(())
}

/// Requests a shutdown. A second SIGINT ends the process at once.
fn shut_down(server: &Server, signal: libc::c_int) {
    let name = if signal == libc::SIGINT { "SIGINT" } else { "SIGTERM" };
    let shutdown = &server.shutdown;
    if signal == libc::SIGINT && (shutdown.is_requested() || shutdown.is_in_progress() || server.is_shutting_down()) {
        logging::warning(format_args!("You insist... exiting now."));
        server.persistence.abandon();
        logging::flush();
        // SAFETY: ends the process without running anything of it.
        unsafe { libc::_exit(1) };
    }
    server.shutdown.record(signal, || logging::warning(format_args!("Received {name} scheduling shutdown...")));
}

fn handled_signals() -> libc::sigset_t {
    // SAFETY: all-zero bytes are a valid set, which `sigemptyset` then makes an empty one.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the argument points to a value of ours that lives through the call.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in HANDLED {
        // SAFETY: as above, and the signals exist.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}
