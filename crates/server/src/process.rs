//! The life of the process: from the command line to the workers, and to its end.

use crate::config::arguments::{Invocation, Sources};
use crate::config::load::load;
use crate::listen::Listeners;
use crate::server::Server;
use crate::worker::Worker;
use crate::{clock, logging};
use std::process::ExitCode;

/// Runs the program: what `main` does.
pub fn run_program() -> ExitCode {
    clock::calibrate();
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match Invocation::parse(&args) {
        Invocation::Serve(sources) => serve(&sources),
        _ => ExitCode::FAILURE,
    }
}

fn serve(sources: &Sources) -> ExitCode {
    let loaded = match load(sources, &mut std::io::stdin(), &mut |_| Ok(())) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let listeners = match Listeners::open(&loaded.values) {
        Ok(listeners) => listeners,
        Err(error) => {
            logging::warning(format_args!("{error}"));
            return ExitCode::FAILURE;
        }
    };
    let executable = std::env::current_exe().unwrap_or_default();
    let server = Server::leak(loaded.values, loaded.file, executable);
    match run(server, listeners) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::warning(format_args!("Cannot start: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Starts the workers and waits for them to end.
fn run(server: &'static Server, listeners: Listeners) -> std::io::Result<()> {
    server.set_listeners(listeners.clone());
    let mut listeners = Some(listeners);
    let mut workers = Vec::new();
    for number in 0..server.workers() {
        workers.push(Worker::new(server, number, listeners.take().unwrap_or_default())?);
    }
    server.set_mailboxes(workers.iter().map(Worker::mailbox).collect());
    for address in server.listening.read().iter() {
        logging::notice(format_args!("Ready to accept connections on {address}"));
    }
    let mut threads = Vec::new();
    for (number, worker) in workers.into_iter().enumerate() {
        let thread = std::thread::Builder::new().name(format!("worker-{number}"));
        threads.push(thread.spawn(move || worker.run())?);
    }
    for thread in threads {
        // A worker that panicked has written its report.
        let _ = thread.join();
    }
    Ok(())
}
