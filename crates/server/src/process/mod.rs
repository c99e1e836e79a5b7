//! The life of the process: from the command line to the workers, and to its end.
//!
//! [`start`] has the order in which a server begins and ends; the other modules are its steps. [`shutdown`] decides
//! whether a server that is asked to end may. Everything that must happen while there is only one thread (the title's
//! memory, the fork, the signal mask) happens here, before the log's thread and the workers are started.

mod banner;
mod daemon;
pub mod limits;
mod memory_test;
pub mod shutdown;
mod start;
mod system;
pub mod title;
pub mod version;

use kvick_config::arguments::Invocation;
use std::process::ExitCode;

/// Runs the program: what `main` does.
pub fn run_script_call() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let program = args.first().cloned().unwrap_or_else(|| "kvick-server".into());
    match Invocation::parse(args.get(1..).unwrap_or_default()) {
        Invocation::Serve(sources) => start::serve(&program, &sources),
        Invocation::Version => print(&format!("Valkey server {}\n", version::line())),
        Invocation::Help => print(version::HELP),
        Invocation::CheckSystem => system::report(),
        Invocation::TestMemory { megabytes: Some(megabytes) } => memory_test::run(megabytes),
        Invocation::TestMemory { megabytes: None } => {
            eprint!("{}", memory_test::USAGE);
            ExitCode::FAILURE
        }
    }
}

/// Prints to standard output. Who closed it does not want to know.
fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
