//! The program `kvick-load`.

use clap::Parser;
use kvick_load::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Cli::parse().execute() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kvick-load: {error}");
            ExitCode::FAILURE
        }
    }
}
