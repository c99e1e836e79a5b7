//! Debugger sessions in forked processes.
//!
//! Debugging a script takes long, and with SCRIPT DEBUG YES its writes must not reach the server's data set. So the
//! process is forked: the child has the data set as of that moment, and the debugging client's connection, which the
//! server drops. `kvick-engine` runs the session in the child.
//!
//! **Restrictions in the child.** It has one thread, and locks held by other threads at the moment of the fork stay
//! held forever. So the process forks under the global lock: no other thread is within a batch or holds a lock that
//! commands take. What remains are locks taken briefly outside of batches (the list of clients, a channel's, a worker's
//! inbox), which few commands of scripts use. A child that hangs, on such a lock or for any other reason, is ended by
//! an [alarm]. It closes all files and sockets but its connection, logs nothing, appends nothing to the write log, and
//! ends with the server.

use kvick_runtime::affinity::{self, Role};
use kvick_runtime::logging;
use parking_lot::Mutex;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// How a client's EVAL runs after SCRIPT DEBUG.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// In a forked process; its writes are lost when the process ends.
    Beside,
    /// In the server; other clients wait as for any long script.
    Sync,
}

/// Maximum number of concurrent sessions.
const SESSIONS_MAX: usize = 64;

/// Seconds after which a child ends unless it calls [`alarm`] again.
const ALARM_SECONDS: libc::c_uint = 60;

/// The sessions in forked processes.
#[derive(Default)]
pub struct Sessions {
    /// Children that have not ended.
    processes: Mutex<Vec<libc::pid_t>>,
    started: AtomicU64,
    /// Duration of the last fork.
    fork_us: AtomicU64,
}

/// The process in which a fork returned.
#[derive(PartialEq, Eq, Debug)]
pub enum Forked {
    /// The server.
    Server,
    /// The debugger session's child process.
    Session,
}

impl Sessions {
    /// Forks the process. The caller is the worker that owns the connection and holds the global lock.
    ///
    /// # Errors
    ///
    /// If there are too many sessions, or the fork fails.
    pub fn copy(&'static self) -> io::Result<Forked> {
        let mut processes = self.processes.lock();
        if processes.len() == SESSIONS_MAX {
            return Err(io::Error::other("too many debugging sessions (maximum 64)"));
        }
        let began = Instant::now();
        // SAFETY: the call has no preconditions.
        let server = unsafe { libc::getpid() };
        // SAFETY: the child obeys the restrictions in the module's documentation.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                end_with_parent(server);
                Ok(Forked::Session)
            }
            process => {
                let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.fork_us.store(us, Ordering::Relaxed);
                self.started.fetch_add(1, Ordering::Relaxed);
                processes.push(process);
                drop(processes);
                self.watch(process)?;
                logging::notice(format_args!("Process {process} forked for debugging eval"));
                Ok(Forked::Server)
            }
        }
    }

    /// Starts a thread that waits for the end of a session.
    fn watch(&'static self, process: libc::pid_t) -> io::Result<()> {
        let watch = move || {
            kvick_runtime::memory::register_thread();
            affinity::set(Role::Background);
            self.wait_for_exit(process);
            logging::notice(format_args!("Lua debugging session of process {process} has ended"));
        };
        let watched = std::thread::Builder::new().name("debugger".into()).spawn(watch);
        watched.map(drop).inspect_err(|_| {
            end(process);
            self.wait_for_exit(process);
        })
    }

    /// Waits until a session has ended.
    fn wait_for_exit(&self, process: libc::pid_t) {
        // SAFETY: all-zero bytes are a valid value for the call to overwrite.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let (id, options) = (process.unsigned_abs(), libc::WEXITED | libc::WNOWAIT);
        // SAFETY: `info` outlives the call.
        while unsafe { libc::waitid(libc::P_PID, id, &mut info, options) } != 0 {
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                break;
            }
        }
        // The process is reaped under this lock, after it is removed from the list, so its id cannot be reused while
        // listed.
        let mut processes = self.processes.lock();
        processes.retain(|known| *known != process);
        // SAFETY: the child has ended, and its status is not requested.
        unsafe { libc::waitpid(process, std::ptr::null_mut(), 0) };
    }

    /// Ends all sessions.
    pub fn end_all(&self) {
        for process in self.processes.lock().iter() {
            logging::notice(format_args!("Killing debugging session {process}"));
            end(*process);
        }
    }

    /// Number of sessions so far, and the duration of the last fork in microseconds.
    pub fn totals(&self) -> (u64, u64) {
        (self.started.load(Ordering::Relaxed), self.fork_us.load(Ordering::Relaxed))
    }
}

fn end(process: libc::pid_t) {
    // SAFETY: it is a child that has not been reaped.
    unsafe { libc::kill(process, libc::SIGKILL) };
}

/// Makes this child process end when the server ends.
fn end_with_parent(server: libc::pid_t) {
    // SAFETY: the calls access no memory.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != server {
            libc::_exit(0);
        }
    }
}

/// Prepares the child: keeps only this file descriptor open, and starts the alarm.
pub fn prepare_child(connection: RawFd) {
    logging::disable();
    let fd = connection.unsigned_abs();
    // SAFETY: nothing in the child uses another file any more.
    unsafe {
        if fd > 0 {
            libc::syscall(libc::SYS_close_range, 0, fd - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, fd + 1, u32::MAX, 0);
    }
    // SAFETY: `sigemptyset` initialises the set, and all pointers refer to local values.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGALRM);
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
    alarm();
}

/// Restarts the alarm: the child is making progress.
pub fn alarm() {
    // SAFETY: the signal has its default effect, which ends the process.
    unsafe { libc::alarm(ALARM_SECONDS) };
}

/// Exits the child without running the server's exit handlers.
pub fn leave() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}
