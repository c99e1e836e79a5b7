//! The program `kvick-backup`.

use clap::Parser;
use kvick_backup::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Cli::parse().execute() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kvick-backup: {error}");
            ExitCode::FAILURE
        }
    }
}
