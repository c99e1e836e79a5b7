//! The startup messages.

use super::version::{GIT_DIRTY, GIT_SHA};
use kvick_config::Values;
use kvick_config::tables::cluster::CLUSTER_ENABLED;
use kvick_config::tables::logging::{LOGFILE, SYSLOG_ENABLED};
use kvick_config::tables::network::{IO_THREADS, PORT};
use kvick_config::tables::process::ALWAYS_SHOW_LOGO;
use kvick_config::tables::tls::TLS_PORT;
use kvick_runtime::logging;
use kvick_runtime::logging::LogLevel;
use kvick_runtime::version::{KVICK, VALKEY};
use std::io::IsTerminal;

/// Shows the logo if `always-show-logo` is set or the output is a terminal; otherwise one line for tools.
pub fn show(values: &Values, listening: &[String]) {
    let mode = mode(values);
    let on_terminal =
        !values.read(SYSLOG_ENABLED) && values.read(LOGFILE).is_empty() && std::io::stdout().is_terminal();
    if values.read(ALWAYS_SHOW_LOGO) || on_terminal {
        logging::raw(LogLevel::Notice, &logo(mode, values.read(IO_THREADS), listening));
        return;
    }
    let port = if values.read(PORT) != 0 { values.read(PORT) } else { values.read(TLS_PORT) };
    logging::notice(format_args!("Running mode={mode}, port={port}."));
}

fn mode(values: &Values) -> &'static str {
    if values.read(CLUSTER_ENABLED) { "cluster" } else { "standalone" }
}

/// The logo next to the facts. Valkey's test suite waits for ` PID: ` followed by the number.
fn logo(mode: &str, workers: u32, listening: &[String]) -> String {
    let listening = if listening.is_empty() { "nothing".to_owned() } else { listening.join(", ") };
    let (bits, pid) = (usize::BITS, std::process::id());
    let commit = format!("{GIT_SHA}/{GIT_DIRTY}");
    format!(
        r"
    ##    ##
    ##   ##      Kvick {KVICK} ({commit}) {bits} bit
    ##  ##       Compatible with Valkey {VALKEY}
    ## ##
    ####         Running in {mode} mode
    ## ##        Listening on {listening}
    ##  ##       Workers: {workers}
    ##   ##      PID: {pid}
    ##    ##

"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logo_shows_process_addresses_and_workers() {
        let logo = logo("standalone", 4, &["127.0.0.1:7".into(), "/run/kv.sock".into()]);
        assert!(logo.contains(&format!(" PID: {}\n", std::process::id())));
        assert!(logo.contains("Listening on 127.0.0.1:7, /run/kv.sock\n"));
        assert!(logo.contains("Workers: 4\n"));
    }
}
