//! Fault injection for disks: a seccomp filter intercepts `fsync`, `fdatasync` and `rename` of the server, and passes
//! them to a thread of the test, which lets the kernel execute them or makes them fail with EIO.
//!
//! The filter is installed before the program starts, so it applies to all of its threads. The handler thread ends with
//! the server.

use super::Server;
use parking_lot::Mutex;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

/// Under this number the server has the descriptor that the test takes over: none of its own has it so early.
const LISTENER: i32 = 200;

/// The calls that fail.
#[derive(Clone, Copy)]
pub enum Failing {
    /// Nothing.
    Nothing,
    /// Syncs of files or directories whose path satisfies the predicate.
    Syncs(fn(&str) -> bool),
    /// The next such sync: the one after that goes well, as it does on a real disk that could not write, and has
    /// forgotten.
    NextSync(fn(&str) -> bool),
    /// Renaming anything.
    Renames,
}

/// See the module's documentation.
pub struct Disk {
    /// The calls that fail, and the number of failed calls.
    failing: Arc<Mutex<(Failing, u64)>>,
}

impl Disk {
    /// Starts a server with such a disk. If the kernel lacks such filters, prints the reason and returns `None`.
    pub fn start(args: &[&str]) -> Option<(Server, Disk)> {
        if !is_possible() {
            println!("Not run: the kernel lets no filter put system calls to a process");
            return None;
        }
        let failing = Arc::new(Mutex::new((Failing::Nothing, 0)));
        let server = Server::start_watched(args, &mut prepare, &mut |pid| {
            let listener = take_over(pid).expect("the filter's descriptor");
            let failing = failing.clone();
            std::thread::spawn(move || answer(listener, pid, &failing));
        });
        Some((server, Disk { failing }))
    }

    /// From here on it fails at this.
    pub fn fail(&self, what: Failing) {
        *self.failing.lock() = (what, 0);
    }

    /// Number of failed calls since [`Disk::fail`].
    pub fn failures(&self) -> u64 {
        self.failing.lock().1
    }
}

fn filter() -> [libc::sock_filter; 8] {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let numbers =
        [libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_renameat2, libc::SYS_renameat, SYS_RENAME].map(|n| n as u32);
    let line = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    // The number of the call is the first word; from the n-th comparison it is so far to the last line.
    let [a, b, c, d, e] = numbers;
    [
        line(load, 0, 0),
        line(equal, 5, a),
        line(equal, 4, b),
        line(equal, 3, c),
        line(equal, 2, d),
        line(equal, 1, e),
        line(answer, 0, libc::SECCOMP_RET_ALLOW),
        line(answer, 0, libc::SECCOMP_RET_USER_NOTIF),
    ]
}

/// Some architectures have `renameat` alone.
#[cfg(target_arch = "x86_64")]
const SYS_RENAME: libc::c_long = libc::SYS_rename;
#[cfg(not(target_arch = "x86_64"))]
const SYS_RENAME: libc::c_long = libc::SYS_renameat;

/// Runs a program under the filter.
fn prepare(command: &mut Command) {
    // SAFETY: system calls alone, on memory of their own.
    unsafe { command.pre_exec(install) };
}

/// Puts the calling thread under the filter.
fn install() -> io::Result<()> {
    let mut lines = filter();
    let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    // SAFETY: the program lives as long as the calls.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) as i64)?;
        let (mode, flag) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
        let listener = check(libc::syscall(libc::SYS_seccomp, mode, flag, &program))? as i32;
        check(libc::dup2(listener, LISTENER).into())?;
    }
    Ok(())
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Whether the kernel lets a child be put under the filter.
fn is_possible() -> bool {
    let mut command = Command::new("true");
    prepare(&mut command);
    command.status().is_ok_and(|status| status.success())
}

/// The filter's descriptor, out of a child.
fn take_over(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: system calls that access no memory; the returned descriptor has no other owner.
    unsafe {
        let process = OwnedFd::from_raw_fd(check(libc::syscall(libc::SYS_pidfd_open, pid, 0))? as i32);
        let listener = check(libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), LISTENER, 0))?;
        Ok(OwnedFd::from_raw_fd(listener as i32))
    }
}

/// Answers for the disk until the server is gone.
fn answer(listener: OwnedFd, pid: u32, failing: &Mutex<(Failing, u64)>) {
    loop {
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which lives as long as the call.
        let polled = unsafe { libc::poll(&mut poll, 1, -1) };
        if polled < 0 || poll.revents & libc::POLLIN == 0 {
            return;
        }
        // SAFETY: the kernel wants the structure zeroed, which is a value that it may have, and fills it.
        let notification = unsafe {
            let mut notification = MaybeUninit::<libc::seccomp_notif>::zeroed();
            if libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, notification.as_mut_ptr()) < 0 {
                // Whoever asked has been killed.
                continue;
            }
            notification.assume_init()
        };
        let (error, flags) = match should_fail(&notification, pid, failing) {
            true => (-libc::EIO, 0),
            false => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        };
        let mut reply = libc::seccomp_notif_resp { id: notification.id, val: 0, error, flags };
        const { assert!(size_of::<libc::seccomp_notif_resp>() == 24) };
        // SAFETY: the structure lives as long as the call. One that was killed meanwhile needs no answer.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &mut reply) };
    }
}

fn should_fail(notification: &libc::seccomp_notif, pid: u32, failing: &Mutex<(Failing, u64)>) -> bool {
    let is_sync = [libc::SYS_fsync, libc::SYS_fdatasync].contains(&i64::from(notification.data.nr));
    let mut failing = failing.lock();
    let fails = match failing.0 {
        Failing::Nothing => false,
        Failing::Renames => !is_sync,
        Failing::Syncs(concerns) | Failing::NextSync(concerns) => {
            let path = std::fs::read_link(format!("/proc/{pid}/fd/{}", notification.data.args[0])).unwrap_or_default();
            is_sync && concerns(&path.to_string_lossy())
        }
    };
    failing.1 += u64::from(fails);
    if fails && matches!(failing.0, Failing::NextSync(_)) {
        failing.0 = Failing::Nothing;
    }
    fails
}
