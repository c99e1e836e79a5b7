//! The program `kvick-operator`.

use clap::Parser;
use kvick_operator_kube::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Cli::parse().execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvick-operator: {error}");
            ExitCode::FAILURE
        }
    }
}
