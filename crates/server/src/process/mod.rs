//! The process: from the command line to the workers, and to its exit.
//!
//! [`start`] defines the order of startup and exit; the other modules and [`kvick_process`] are its steps. [`shutdown`]
//! decides whether a requested shutdown may proceed. Everything that requires a single thread (the title's memory, the
//! fork, the signal mask) happens here, before the log's thread and the workers start.

mod banner;
pub mod shutdown;
mod start;
mod usage;
pub mod version;

use kvick_config::arguments::Invocation;
use kvick_process::{memory_test, restart, system};
use kvick_runtime::version::KVICK;
use std::process::ExitCode;

/// Runs the program: what `main` does.
pub fn run() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let program = args.first().cloned().unwrap_or_else(|| "kvick-server".into());
    restart::remember(args.get(1..).unwrap_or_default());
    match Invocation::parse(args.get(1..).unwrap_or_default()) {
        Invocation::Serve(sources) => {
            let ended = start::serve(&program, &sources);
            restart::restart_if_requested();
            ended
        }
        Invocation::Version => print(&format!("Valkey server {}\n", version::line())),
        Invocation::Help => print(&usage::USAGE.help()),
        Invocation::Print { form } => match usage::printed(&form, KVICK) {
            Some(text) => print(&text),
            None => {
                eprintln!("--print expects man, bash, zsh or fish");
                ExitCode::FAILURE
            }
        },
        Invocation::CheckSystem => system::report(),
        Invocation::TestMemory { megabytes: Some(megabytes) } => memory_test::run(megabytes),
        Invocation::TestMemory { megabytes: None } => {
            eprint!("{}", memory_test::USAGE);
            ExitCode::FAILURE
        }
    }
}

/// Prints to standard output. Errors are ignored: the reader may have closed it.
fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
