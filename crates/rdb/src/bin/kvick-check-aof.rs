//! Checks whether an append-only file is valid, and truncates an invalid one.

use kvick_rdb::aof::check::{Request, USAGE, run};
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args();
    let program = args.next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    if matches!(&args[..], [arg] if arg == "-v" || arg == "--version") {
        println!("kvick-check-aof {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    if let Some(text) = kvick_usage::answer(&USAGE, &args, env!("CARGO_PKG_VERSION")) {
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    let Some(request) = Request::from_args(&args) else {
        println!("Usage: {program} {}", USAGE.synopses[0]);
        return ExitCode::FAILURE;
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match run(&request, &mut io::stdin().lock(), &mut out).and_then(|well| out.flush().map(|()| well)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}
