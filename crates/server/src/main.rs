//! The server binary.

mod clients;
mod clock;
mod commandlog;
mod commands;
mod config;
mod latency;
mod listen;
mod logging;
mod mailbox;
mod pause;
mod server;
mod session;
mod stats;
mod table;
mod tunables;
mod worker;

use listen::Listeners;
use server::Server;
use std::process::ExitCode;
use worker::Worker;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    clock::calibrate();
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let loaded = match config::arguments::Invocation::parse(&args) {
        _ => todo!(),
    };
}
