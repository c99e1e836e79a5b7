//! Sessions of the debugger that run beside the server, each in a process of its own.
//!
//! Somebody who debugs a script takes his time, and what the script writes meanwhile is nobody else's business (SCRIPT
//! DEBUG YES). So the process is copied: the copy has the data set as it was at that moment, and the one connection;
//! the server lets go of that, and goes on. How the copy goes about it is in `kvick-engine`.
//!
//! **What a copy may do.** It has one thread, and whatever the other threads held at that moment is held in it forever.
//! So the world is held while the process is copied: no other thread is within a batch, and none has a lock that
//! commands take. What is left are locks outside of batches, for a moment each (the list of clients, a channel's, a
//! worker's inbox), of which few commands of scripts ask for one. A copy that met one, or hangs for any other reason,
//! is ended by an [alarm]. It closes all files and sockets but its connection, logs nothing, appends nothing to the
//! write log, and ends with the server.

use kvick_runtime::affinity::{self, Role};
use kvick_runtime::logging;
use parking_lot::Mutex;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// How EVAL of a client goes that has said SCRIPT DEBUG.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// In a copy of the process; what it writes is lost with that.
    Beside,
    /// In the server, whose other clients wait for the script as for any that takes long.
    Sync,
}

/// Sessions that there may be at a time.
const SESSIONS_MAX: usize = 64;

/// Seconds after which a copy ends if [`alarm`] is not called again.
const ALARM_S: libc::c_uint = 60;

/// See the module's documentation.
#[derive(Default)]
pub struct Sessions {
    /// The processes that have not ended.
    processes: Mutex<Vec<libc::pid_t>>,
    begun: AtomicU64,
    /// How long it took to copy the process the last time.
    copying_us: AtomicU64,
}

/// Which of the two processes this is.
#[derive(PartialEq, Eq, Debug)]
pub enum Copied {
    /// The server.
    Server,
    /// The session's.
    Session,
}

impl Sessions {
    /// Copies the process. To be called with the world held, by the worker that has the connection.
    ///
    /// # Errors
    ///
    /// If there are too many sessions, or the system refuses.
    pub fn copy(&'static self) -> io::Result<Copied> {
        let mut processes = self.processes.lock();
        if processes.len() == SESSIONS_MAX {
            return Err(io::Error::other("there are too many debugging sessions"));
        }
        let began = Instant::now();
        // SAFETY: always defined.
        let server = unsafe { libc::getpid() };
        // SAFETY: the copy keeps to what the module's documentation says of it.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                end_with(server);
                Ok(Copied::Session)
            }
            process => {
                let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.copying_us.store(us, Ordering::Relaxed);
                self.begun.fetch_add(1, Ordering::Relaxed);
                processes.push(process);
                drop(processes);
                self.watch(process)?;
                logging::notice(format_args!("Process {process} forked for debugging eval"));
                Ok(Copied::Server)
            }
        }
    }

    /// Has a thread wait for the end of a session.
    fn watch(&'static self, process: libc::pid_t) -> io::Result<()> {
        let watch = move || {
            kvick_runtime::memory::register_thread();
            affinity::set(Role::Background);
            self.await_end(process);
            logging::notice(format_args!("Lua debugging session of process {process} has ended"));
        };
        let watched = std::thread::Builder::new().name("debugger".into()).spawn(watch);
        watched.map(drop).inspect_err(|_| {
            end(process);
            self.await_end(process);
        })
    }

    /// Waits until a session has ended.
    fn await_end(&self, process: libc::pid_t) {
        // SAFETY: all-zero bytes are a valid value, for the call to fill.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let (id, options) = (process.unsigned_abs(), libc::WEXITED | libc::WNOWAIT);
        // SAFETY: `info` lives through the call.
        while unsafe { libc::waitid(libc::P_PID, id, &mut info, options) } != 0 {
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                break;
            }
        }
        // Its number is not given away before it is no longer among ours, so that nobody else's process is ended.
        let mut processes = self.processes.lock();
        processes.retain(|known| *known != process);
        // SAFETY: it has ended, and how is not asked for.
        unsafe { libc::waitpid(process, std::ptr::null_mut(), 0) };
    }

    /// Ends all sessions.
    pub fn end_all(&self) {
        for process in self.processes.lock().iter() {
            logging::notice(format_args!("Killing debugging session {process}"));
            end(*process);
        }
    }

    /// Sessions that have begun, and how long it took to copy the process for the last one, in microseconds.
    pub fn totals(&self) -> (u64, u64) {
        (self.begun.load(Ordering::Relaxed), self.copying_us.load(Ordering::Relaxed))
    }
}

fn end(process: libc::pid_t) {
    // SAFETY: it is a child that nobody has waited for.
    unsafe { libc::kill(process, libc::SIGKILL) };
}

/// Has this process, a copy, end when that one does.
fn end_with(server: libc::pid_t) {
    // SAFETY: no memory is involved.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != server {
            libc::_exit(0);
        }
    }
}

/// Prepares a copy of the process: it keeps this file, and has the alarm end it.
pub fn settle_in(connection: RawFd) {
    logging::silence();
    let fd = connection.unsigned_abs();
    // SAFETY: nothing here uses another file any more.
    unsafe {
        if fd > 0 {
            libc::syscall(libc::SYS_close_range, 0, fd - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, fd + 1, u32::MAX, 0);
    }
    // SAFETY: the set is initialised by `sigemptyset`, and all pointers are to values of ours.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGALRM);
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
    alarm();
}

/// Puts the end of a copy off: it does not hang.
pub fn alarm() {
    // SAFETY: the signal has its default effect, which ends the process.
    unsafe { libc::alarm(ALARM_S) };
}

/// Ends a copy, without running anything of what the server does at its end.
pub fn leave() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}
