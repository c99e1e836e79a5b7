//! Checks whether a dump is valid, and reports its contents.

use kvick_rdb::check::{CheckOptions, USAGE, check_file};
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args();
    let program = args.next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    if args.iter().any(|arg| arg == "-v" || arg == "--version") {
        println!("kvick-check-rdb {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    if let Some(text) = kvick_usage::answer(&USAGE, &args, env!("CARGO_PKG_VERSION")) {
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    let Some(options) = CheckOptions::from_args(args) else {
        eprintln!("Usage: {program} {}", USAGE.synopses[0]);
        return ExitCode::FAILURE;
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match check_file(&options, &mut out).and_then(|sound| out.flush().map(|()| sound)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}
