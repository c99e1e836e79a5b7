//! The crash report in the log, and the end of the process after it.
//!
//! A panic in any thread ends the whole process: other threads must not continue with data in an unknown state. The
//! panic hook writes the report while the stack still exists, and aborts. [`fatal`] handles fault signals and SIGABRT;
//! it may use only system calls.
//!
//! The report begins and ends with Valkey's markers, because tools use them to extract it from the log.

mod fatal;

use crate::process::version;
use crate::server::Server;
use kvick_config::Values;
use kvick_config::tables::logging::CRASH_LOG_ENABLED;
use kvick_runtime::logging;
use kvick_runtime::logging::LogLevel;
use kvick_runtime::version::VALKEY;
use std::any::Any;
use std::backtrace::Backtrace;
use std::fmt::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The first line of a report.
const START: &str = "=== KVICK BUG REPORT START: Cut & paste starting from here ===";
/// The last line of a report.
const END: &str = "=== KVICK BUG REPORT END. ===";
/// Maximum number of clients in a report.
const CLIENTS_MAX: usize = 100;
/// Seconds after which an unfinished report is abandoned.
const REPORT_SECONDS_MAX: u32 = 20;
/// Maximum time that a report waits for the log.
const LOG_WAIT: Duration = Duration::from_secs(2);

/// `crash-log-enabled`.
static ENABLED: AtomicBool = AtomicBool::new(true);
/// Set by the first thread that crashes.
static CRASHING: AtomicBool = AtomicBool::new(false);
static SERVER: OnceLock<&'static Server> = OnceLock::new();

/// Enables reports of panics and fatal signals.
pub fn watch(values: &Values) {
    configure(values);
    std::panic::set_hook(Box::new(on_panic));
    fatal::install();
}

/// Applies `crash-log-enabled`, at startup and for CONFIG SET.
pub fn configure(values: &Values) {
    ENABLED.store(values.read(CRASH_LOG_ENABLED), Ordering::Relaxed);
}

/// Sets the server whose state a report describes.
pub fn attach(server: &'static Server) {
    // There is one server; the first would stay.
    let _ = SERVER.set(server);
}

/// SIGALRM: logs the server's state, or ends a process whose crash report does not finish.
pub fn on_alarm() {
    if CRASHING.load(Ordering::SeqCst) {
        fatal::abort();
    }
    log_state("Received SIGALRM");
}

/// Logs the server's state, below a heading.
pub fn log_state(heading: &str) {
    let mut state = format!("\n{heading}\n");
    if let Some(server) = SERVER.get() {
        // As in `on_panic`.
        let _ = describe_server(&mut state, server, "");
    }
    state.push_str("--------\n\n");
    logging::raw(LogLevel::Warning, &state);
}

/// Reports a panic and ends the process.
fn on_panic(panic: &PanicHookInfo<'_>) {
    if CRASHING.swap(true, Ordering::SeqCst) {
        // Another thread is writing its report, and then ends the process.
        loop {
            std::thread::park();
        }
    }
    fatal::abort_after(REPORT_SECONDS_MAX);
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a thread").to_owned();
    let message = message(panic.payload());
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    if ENABLED.load(Ordering::Relaxed) {
        let mut report = String::new();
        // Writing to a string fails only if a formatter fails; then the rest is missing.
        let _ = describe(&mut report, &name, message, &place);
        logging::raw(LogLevel::Warning, &report);
    } else {
        logging::warning(format_args!("{name} panicked at {place}: {message}"));
    }
    if !logging::flush_within(LOG_WAIT) {
        eprintln!("{name} panicked at {place}: {message}");
    }
    fatal::abort();
}

/// The panic's message: a literal or a formatted text.
fn message(payload: &dyn Any) -> &str {
    let literal = payload.downcast_ref::<&str>().copied();
    literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}

fn describe(out: &mut String, thread: &str, message: &str, place: &str) -> fmt::Result {
    let (version, pid) = (kvick_runtime::version::KVICK, std::process::id());
    writeln!(out, "\n\n{START}")?;
    writeln!(out, "Kvick {version} (Valkey {VALKEY}), pid {pid}, panicked in {thread}: {message}")?;
    writeln!(out, "at {place}")?;
    writeln!(out, "\n------ STACK TRACE ------\n{}", Backtrace::force_capture())?;
    writeln!(out, "------ STACK TRACE DONE ------")?;
    if let Some(server) = SERVER.get() {
        describe_server(out, server, thread)?;
    }
    writeln!(out, "\n{END}")?;
    writeln!(
        out,
        "\n       Please report this to Kvick's developers, from START to END, and tell what the server was doing.\n"
    )
}

fn describe_server(out: &mut String, server: &Server, thread: &str) -> fmt::Result {
    let sum =
        |read: fn(&kvick_core::stats::WorkerStats) -> u64| server.stats.iter().map(|stats| read(stats)).sum::<u64>();
    writeln!(out, "\n------ INFO OUTPUT ------")?;
    writeln!(out, "valkey_version:{VALKEY}")?;
    writeln!(out, "kvick_version:{}", kvick_runtime::version::KVICK)?;
    writeln!(out, "git_sha1:{}\ngit_dirty:{}", version::GIT_SHA, version::GIT_DIRTY)?;
    writeln!(out, "build_id:{}", version::BUILD_ID)?;
    writeln!(out, "process_id:{}", std::process::id())?;
    writeln!(out, "run_id:{}", server.run_id)?;
    writeln!(out, "uptime_in_seconds:{}", server.started.elapsed().as_secs())?;
    writeln!(out, "workers:{}", server.active_workers())?;
    writeln!(out, "connected_clients:{}", server.clients.count())?;
    writeln!(out, "total_connections_received:{}", sum(|stats| stats.connections.get()))?;
    writeln!(out, "total_commands_processed:{}", sum(|stats| stats.requests.get()))?;
    writeln!(out, "used_memory:{}", used_memory())?;
    writeln!(out, "\n------ CLIENT LIST OUTPUT ------")?;
    for client in server.clients.all().iter().take(CLIENTS_MAX) {
        let command = server.catalogue.get(client.command.load(Ordering::Relaxed));
        let here = if thread == format!("worker-{}", client.worker()) { " (of the thread that panicked)" } else { "" };
        writeln!(
            out,
            "id={} addr={} worker={}{here} db={} input={} output={} last-active-ms={} cmd={}",
            client.id,
            client.peer,
            client.worker(),
            client.db.load(Ordering::Relaxed),
            client.input.load(Ordering::Relaxed),
            client.output.load(Ordering::Relaxed),
            client.active_ms.load(Ordering::Relaxed),
            command.map_or("NULL", |command| &command.full_name)
        )?;
    }
    Ok(())
}

/// Bytes allocated; 0 if unknown.
fn used_memory() -> usize {
    // The figures date from the last epoch; if it cannot be advanced they are older.
    let _ = tikv_jemalloc_ctl::epoch::advance();
    tikv_jemalloc_ctl::stats::allocated::read().unwrap_or_default()
}
