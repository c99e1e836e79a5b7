//! The command line.

use crate::controller::{self, Settings};
use crate::helm;
use crate::manifests::{self, Installation};
use clap::{Parser, Subcommand, ValueEnum};
use kvick_load::pages::{self, Page};
use kvick_operator::run;
use kvick_operator::view::{Lines, Screen};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Runs the shards of a Kvick cluster.
///
/// Observes the nodes, plans with their load, starts and heals processes or pods, moves slots, adds and removes shards.
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
    /// Run the shards as pods of Kubernetes
    ///
    /// Serves all KvickCluster resources of a namespace. The API server is that of KUBECONFIG, or of the pod that this
    /// runs in. Servers go on when the operator ends; another one continues with them.
    Kubernetes {
        /// Namespace; by default that of the configuration
        #[arg(long)]
        namespace: Option<String>,
        /// Time between two observations of a cluster
        #[arg(long, default_value_t = 1000, value_name = "MILLISECONDS")]
        #[arg(value_parser = clap::value_parser!(u64).range(50..=60_000))]
        interval: u64,
        /// Act only while holding a lease, so that several operators can run
        #[arg(long)]
        leader_election: bool,
        /// After which another operator takes over
        #[arg(long, default_value_t = 15, value_name = "SECONDS")]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
        lease: u64,
        /// Serve metrics (/metrics) and probes (/healthz, /readyz) on this port
        #[arg(long, value_name = "PORT")]
        #[arg(value_parser = clap::value_parser!(u16).range(1..))]
        metrics_port: Option<u16>,
    },
    /// Print what a Kubernetes cluster needs for the operator, as YAML
    Manifests {
        /// Which part
        #[arg(default_value = "all")]
        part: Part,
        /// Namespace of the operator and its clusters
        #[arg(long, default_value = manifests::NAMESPACE)]
        namespace: String,
        /// Container image of the operator
        #[arg(long, default_value = manifests::IMAGE)]
        image: String,
        /// Write a Helm chart into this directory instead
        #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["part", "namespace", "image"])]
        helm: Option<PathBuf>,
    },
    /// Print the manual page or completions for a shell
    Print {
        page: Page,
        /// Manual page of this subcommand
        subcommand: Option<String>,
    },
}

/// Parts of the manifests.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Part {
    /// Everything
    All,
    /// The definition of the resource KvickCluster
    Crd,
    /// Service account and rights
    Rbac,
    /// The operator
    Deployment,
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
            Action::Kubernetes { namespace, interval, leader_election, lease, metrics_port } => {
                controller::run(&Settings {
                    namespace,
                    interval: Duration::from_millis(interval),
                    leader_election,
                    lease: Duration::from_secs(lease),
                    metrics_port,
                })
            }
            Action::Manifests { helm: Some(directory), .. } => helm::write(&directory),
            Action::Manifests { part, namespace, image, helm: None } => {
                let rights = || manifests::rights(&namespace);
                let deployment = || manifests::deployment(&Installation::new(&namespace, &image));
                let documents = match part {
                    Part::All => [manifests::definition(), rights(), deployment()].concat(),
                    Part::Crd => manifests::definition(),
                    Part::Rbac => rights(),
                    Part::Deployment => deployment(),
                };
                io::stdout().write_all(manifests::yaml(&documents).as_bytes())
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
