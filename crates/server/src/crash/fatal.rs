//! Fatal signals: SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT.
//!
//! Invariant: a handler may have interrupted anything, including the allocator or a thread that holds a lock. So it
//! allocates nothing, takes no lock, and calls only async-signal-safe functions: `write`, `nanosleep`, `prctl`,
//! `getpid`, `raise`, and finally the unwinder, after everything reliable has been written. It runs on the alternative
//! stack that the standard library gives every thread, in case of a stack overflow. The handler is reset before it
//! runs, so that a second fault ends the process.

use super::{CRASHING, ENABLED, END, START};
use kvick_runtime::logging;
use kvick_runtime::version::{KVICK, VALKEY};
use libc::{c_int, c_void, siginfo_t};
use std::sync::atomic::{AtomicUsize, Ordering};

const FATAL: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT];
/// Maximum number of stack frames in a report.
const FRAMES_MAX: usize = 64;
/// Time for the log's thread to write earlier messages.
const LOG_PAUSE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The load address of the program's code, so that addresses can be looked up in its file.
static CODE_START: AtomicUsize = AtomicUsize::new(0);
static CODE_END: AtomicUsize = AtomicUsize::new(0);

/// Installs the handlers.
pub fn install() {
    find_code();
    for signal in FATAL {
        // SAFETY: all-zero bytes are a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_fatal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND | libc::SA_NODEFER;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, and keeps the module's rules.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
}

/// Schedules SIGALRM after this time, which ends a process that is still writing its report.
pub fn abort_after(seconds: u32) {
    // SAFETY: a plain number.
    unsafe { libc::alarm(seconds) };
}

/// Ends the process by SIGABRT, without a report.
pub fn abort() -> ! {
    // SAFETY: the default action ends the process.
    unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
    std::process::abort()
}

/// Finds the address range of the program's own file.
fn find_code() {
    let (maps, file) = (std::fs::read_to_string("/proc/self/maps"), std::env::current_exe());
    let (Ok(maps), Ok(file)) = (maps, file) else { return };
    let file = file.to_string_lossy();
    let ranges = maps.lines().filter(|line| line.ends_with(&*file)).filter_map(parse_range);
    let (start, end) = ranges.fold((usize::MAX, 0), |(start, end), range| (start.min(range.0), end.max(range.1)));
    if start < end {
        CODE_START.store(start, Ordering::Relaxed);
        CODE_END.store(end, Ordering::Relaxed);
    }
}

/// The address range at the start of a line of `/proc/self/maps`.
fn parse_range(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

extern "C" fn on_fatal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    if !CRASHING.swap(true, Ordering::SeqCst) && ENABLED.load(Ordering::Relaxed) {
        // SAFETY: the pause is a constant.
        unsafe { libc::nanosleep(&LOG_PAUSE, std::ptr::null_mut()) };
        // SAFETY: the kernel passes pointers to values that live through the handler.
        let (info, context) = unsafe { (&*info, &*context.cast::<libc::ucontext_t>()) };
        report(Writer(logging::descriptor()), signal, info, context);
    }
    // SAFETY: the handler has been reset, so this ends the process by the same signal.
    unsafe { libc::raise(signal) };
}

fn report(out: Writer, signal: c_int, info: &siginfo_t, context: &libc::ucontext_t) {
    // SAFETY: no arguments.
    let pid = unsafe { libc::getpid() };
    out.text("\n\n").text(START).text("\nKvick ").text(KVICK).text(" (Valkey ").text(VALKEY);
    out.text("), pid ")
        .number(pid.unsigned_abs().into())
        .text(", crashed by signal: ")
        .number(signal.unsigned_abs().into());
    out.text(", si_code: ").text(if info.si_code < 0 { "-" } else { "" }).number(info.si_code.unsigned_abs().into());
    out.text("\nThread: ").bytes(thread_name(&mut [0; 16]));
    if info.si_code > 0 && signal != libc::SIGABRT {
        // SAFETY: signals that the kernel sends for a fault carry an address.
        out.text("\nAccessing address: ").address(unsafe { info.si_addr() } as usize);
    } else {
        // SAFETY: signals that a process sends carry its number and its user's.
        let (sender, user) = unsafe { (info.si_pid(), info.si_uid()) };
        out.text("\nKilled by PID: ").number(sender.unsigned_abs().into()).text(", UID: ").number(user.into());
    }
    if let Some(address) = instruction(context) {
        out.text("\nCrashed running the instruction at: ").frame(address);
    }
    out.text("\n\n------ STACK TRACE ------\n");
    let mut trace = Trace { out, frames: 0 };
    // SAFETY: the callback has the signature that the unwinder calls, and its argument lives through the call.
    unsafe { _Unwind_Backtrace(on_frame, (&raw mut trace).cast()) };
    out.text("------ STACK TRACE DONE ------\n\n").text(END);
    out.text(
        "\n\n       Please report this to Kvick's developers, from START to END, and tell what the server was doing.\n",
    );
    out.text("       Addresses in parentheses count from the program's beginning: addr2line -e kvick-server.\n\n");
}

/// The name of the present thread.
fn thread_name(buffer: &mut [u8; 16]) -> &[u8] {
    // SAFETY: the call writes at most 16 bytes, the last of them 0.
    unsafe { libc::prctl(libc::PR_GET_NAME, buffer.as_mut_ptr()) };
    buffer.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The address of the instruction that was being executed.
fn instruction(context: &libc::ucontext_t) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    return Some(context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize);
    #[cfg(target_arch = "aarch64")]
    return Some(context.uc_mcontext.pc as usize);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return None;
}

// The unwinder that the standard library is linked with.
// SAFETY: the declarations are those of the Itanium C++ ABI, which that unwinder implements.
unsafe extern "C" {
    fn _Unwind_Backtrace(on_frame: extern "C" fn(*mut c_void, *mut c_void) -> c_int, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

struct Trace {
    out: Writer,
    frames: usize,
}

/// Writes one frame's address. The return value makes the unwinder continue (0) or stop (5).
extern "C" fn on_frame(frame: *mut c_void, trace: *mut c_void) -> c_int {
    // SAFETY: the unwinder passes a frame of its own, and the argument given in `report`.
    let (address, trace) = unsafe { (_Unwind_GetIP(frame), &mut *trace.cast::<Trace>()) };
    trace.out.frame(address).text("\n");
    trace.frames += 1;
    if trace.frames < FRAMES_MAX { 0 } else { 5 }
}

/// Unbuffered writes to a file descriptor.
#[derive(Clone, Copy)]
struct Writer(c_int);

impl Writer {
    fn bytes(self, mut bytes: &[u8]) -> Self {
        while !bytes.is_empty() {
            // SAFETY: pointer and length are those of a slice.
            let written = unsafe { libc::write(self.0, bytes.as_ptr().cast(), bytes.len()) };
            match usize::try_from(written) {
                Ok(written) if written > 0 => bytes = &bytes[written..],
                _ => break,
            }
        }
        self
    }

    fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    fn digits(self, mut number: u64, base: u64) -> Self {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b"0123456789abcdef"[(number % base) as usize];
            number /= base;
            if number == 0 {
                return self.bytes(&digits[at..]);
            }
        }
    }

    fn number(self, number: u64) -> Self {
        self.digits(number, 10)
    }

    fn address(self, address: usize) -> Self {
        self.text("0x").digits(address as u64, 16)
    }

    /// An address of code: in the program's file, if it is part of it, and in memory.
    fn frame(self, address: usize) -> Self {
        let (start, end) = (CODE_START.load(Ordering::Relaxed), CODE_END.load(Ordering::Relaxed));
        if (start..end).contains(&address) {
            self.text("kvick-server(+").address(address - start).text(") ");
        }
        self.text("[").address(address).text("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};
    use std::os::fd::AsRawFd;

    #[test]
    fn numbers_are_formatted_without_allocation() {
        let mut file = tempfile::tempfile().unwrap();
        let out = Writer(file.as_raw_fd());
        out.number(0).text(" ").number(u64::MAX).text(" ").address(0xdead_beef).text(" ").address(usize::MAX);
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "0 18446744073709551615 0xdeadbeef 0xffffffffffffffff");
    }

    #[test]
    fn the_code_range_of_the_program_is_found() {
        find_code();
        let here = the_code_range_of_the_program_is_found as *const () as usize;
        assert!((CODE_START.load(Ordering::Relaxed)..CODE_END.load(Ordering::Relaxed)).contains(&here));
        assert_eq!(parse_range("55d0-55ff r-xp 00000000 08:01 1 /bin/x"), Some((0x55d0, 0x55ff)));
        assert_eq!(parse_range("nonsense"), None);
    }
}
