//! Protects against cross-protocol requests. A web page can send requests to any port of the visitor's machine, and the
//! lines of a posted form could be parsed as commands. A connection is closed at its first HTTP-specific line.

use crate::session::Client;
use kvick_resp::Args;
use std::sync::atomic::{AtomicI64, Ordering};

/// Minimum interval between log messages, in milliseconds.
const LOG_INTERVAL_MS: i64 = 60_000;

/// Whether an unknown command is the beginning of an HTTP POST or a header that every HTTP request has.
pub fn is_http(args: Args<'_>) -> bool {
    args.get(0).is_some_and(|word| word.eq_ignore_ascii_case(b"post") || word.eq_ignore_ascii_case(b"host:"))
}

/// Logs the request, at most once per interval.
#[cold]
pub fn warn(client: &Client, now_ms: i64) {
    static LOGGED_MS: AtomicI64 = AtomicI64::new(0);
    let logged = LOGGED_MS.load(Ordering::Relaxed);
    let due = now_ms.abs_diff(logged) > LOG_INTERVAL_MS as u64;
    if due && LOGGED_MS.compare_exchange(logged, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        kvick_runtime::logging::warning(format_args!(
            "Possible SECURITY ATTACK detected. It looks like somebody is sending POST or Host: commands to Kvick. \
             This is likely due to an attacker attempting to use Cross Protocol Scripting to compromise your Kvick \
             instance. Connection from {} aborted.",
            client.info.peer
        ));
    }
}
