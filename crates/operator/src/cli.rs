//! The command line.

use crate::run;
use crate::view::{Lines, Screen};
use clap::{Parser, Subcommand};
use kvick_load::pages::{self, Page};
use std::io::{self, IsTerminal};
use std::path::PathBuf;

/// Runs the shards of a Kvick cluster.
///
/// Observes the nodes, plans with their load, starts and heals processes, moves slots, adds and removes shards.
#[derive(Debug, Parser)]
#[command(name = "kvick-operator", version)]
pub struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run the shards as processes of this machine
    ///
    /// The processes go on when the operator ends; another one continues with them. The file is read again when it
    /// changes.
    Local {
        /// Configuration file (TOML)
        file: PathBuf,
        /// Print lines instead of the live view, as without a terminal
        #[arg(long)]
        plain: bool,
        /// End all processes instead; their data stays
        #[arg(long)]
        stop: bool,
    },
    /// Print the manual page or completions for a shell
    Print {
        page: Page,
        /// Manual page of this subcommand
        subcommand: Option<String>,
    },
}

impl Cli {
    /// Does what the command line asks for.
    ///
    /// # Errors
    /// If that is not possible; the text says why.
    pub fn execute(self) -> io::Result<()> {
        match self.action {
            Action::Local { file, stop: true, .. } => {
                let stopped = run::stop(&file)?;
                println!("stopped {stopped} processes");
                Ok(())
            }
            Action::Local { file, plain, stop: false } => {
                if plain || !io::stdout().is_terminal() {
                    return run::run(&file, &mut Lines::default());
                }
                run::run(&file, &mut Screen::new()?)
            }
            Action::Print { page, subcommand } => pages::write::<Cli>(page, subcommand.as_deref(), &mut io::stdout()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_name_options_and_subcommands() {
        let page = |page, subcommand| {
            let mut text = Vec::new();
            pages::write::<Cli>(page, subcommand, &mut text).expect("a page");
            String::from_utf8(text).expect("text")
        };
        assert!(page(Page::Man, None).contains("kvick\\-operator\\-local(1)"));
        assert!(page(Page::Man, Some("local")).contains("plain"));
        assert!(page(Page::Bash, None).contains("plain"));
    }
}
