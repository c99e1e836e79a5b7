//! The command line.

use crate::access::Access;
use crate::manifest::Manifest;
use crate::storage::{self, Storage};
use crate::{create, restore, verify};
use clap::{Args, Parser, Subcommand};
use kvick_load::config::{Client as Settings, Tls};
use kvick_load::pages::{self, Page};
use kvick_load::transport::TlsSettings;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time for a reply: a value may be large.
const REQUEST_TIMEOUT_MS: u64 = 60_000;

/// Backs up a server or a cluster of Kvick or Valkey over the network, and restores backups.
#[derive(Debug, Parser)]
#[command(name = "kvick-backup", version)]
pub struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a backup of the server, or of all shards of the cluster at the same moment
    Create {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        connection: Connection,
        /// Ask a replica of each shard, if there is one, instead of the primary
        #[arg(long)]
        from_replicas: bool,
        /// Make a backup again and again, at this distance: seconds, or with the unit s, m, h or d
        #[arg(long, value_parser = parse_duration)]
        every: Option<Duration>,
        /// Remove the oldest backups, except for this number, after each one that succeeds
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        keep: Option<u32>,
        /// With --keep: also remove what failed backups have left behind, if nothing was added to it for this time
        #[arg(long, value_parser = parse_duration, default_value = "1h", requires = "keep")]
        leftovers_after: Duration,
    },
    /// List all backups, the oldest first
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Check that backups are complete and valid
    Verify {
        #[command(flatten)]
        place: Place,
        /// Name of one of them; all by default
        name: Option<String>,
    },
    /// Restore a backup into a server, or into a cluster with any number of shards
    Restore {
        #[command(flatten)]
        place: Place,
        /// Name of the backup; `latest` is the newest
        name: String,
        #[command(flatten)]
        connection: Connection,
        /// Overwrite keys and functions that exist; by default, the first one ends the restoration
        #[arg(long)]
        replace: bool,
    },
    /// Print the manual page or completions for a shell
    Print {
        page: Page,
        /// Manual page of this subcommand
        subcommand: Option<String>,
    },
}

#[derive(Debug, Args)]
struct Place {
    /// Where all backups are kept: a directory, or s3://BUCKET/PREFIX
    ///
    /// For a bucket, the environment has the keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN if
    /// they are temporary), the region (AWS_REGION), the address of a server that is not Amazon's (AWS_ENDPOINT_URL),
    /// and a file with certificates of authorities that the system does not know (AWS_CA_BUNDLE).
    storage: PathBuf,
}

impl Place {
    fn open(&self) -> io::Result<Box<dyn Storage>> {
        storage::open(&self.storage)
    }
}

#[derive(Debug, Args)]
struct Connection {
    /// Address of the server or of a node of the cluster, host:port; may be repeated
    #[arg(long = "endpoint", default_value = "127.0.0.1:6379")]
    endpoints: Vec<String>,
    /// User; without it, the default user
    #[arg(long, env = "KVICK_BACKUP_USER")]
    user: Option<String>,
    /// Password
    #[arg(long, env = "KVICK_BACKUP_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// Use TLS, and check certificates of servers against those of the authorities in this file
    #[arg(long)]
    tls_ca: Option<PathBuf>,
    /// Certificate of the client
    #[arg(long, requires = "tls_ca")]
    tls_cert: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Name that certificates of servers must be valid for, instead of the host names in addresses
    #[arg(long, requires = "tls_ca")]
    tls_server_name: Option<String>,
}

impl Connection {
    fn access(&self) -> io::Result<Access> {
        let settings = Settings {
            username: self.user.clone(),
            password: self.password.clone(),
            request_timeout: REQUEST_TIMEOUT_MS,
            ..Settings::default()
        };
        let tls = self.tls_ca.clone().map(|ca_file| Tls {
            private_key: self.tls_key.clone(),
            certificate: self.tls_cert.clone(),
            ca_file: Some(ca_file),
            server_name: self.tls_server_name.clone(),
        });
        let tls = tls.map(|tls| TlsSettings::new(&tls)).transpose().map_err(io::Error::other)?;
        Ok(Access { settings, tls })
    }
}

impl Cli {
    /// Does what the command line asks for.
    ///
    /// # Errors
    /// If that is not possible; the text says why.
    pub fn execute(self) -> io::Result<ExitCode> {
        match self.action {
            Action::Create { place, connection, from_replicas, every, keep, leftovers_after } => {
                let access = connection.access()?;
                let plan = create::Plan { endpoints: connection.endpoints, access, from_replicas };
                let prune = keep.map(|keep| Prune { keep: keep as usize, leftovers_after });
                return run(&plan, &*place.open()?, every, prune.as_ref());
            }
            Action::List { place } => {
                let storage = place.open()?;
                for name in storage.list()? {
                    println!("{}", describe(&Manifest::read(&*storage, &name)?));
                }
            }
            Action::Verify { place, name } => {
                let storage = place.open()?;
                return verify_all(&*storage, name.map_or_else(|| storage.list(), |name| Ok(vec![name]))?);
            }
            Action::Restore { place, name, connection, replace } => {
                let storage = place.open()?;
                let name = if name == "latest" { storage.list()?.pop().unwrap_or(name) } else { name };
                let access = connection.access()?;
                let plan = restore::Plan { endpoints: connection.endpoints, access, replaces: replace };
                let restored = restore::restore(&*storage, &name, &plan)?;
                let restore::Restored { keys, expired, functions } = restored;
                println!("{name}: restored {keys} keys and {functions} libraries; {expired} keys have expired");
            }
            Action::Print { page, subcommand } => pages::write::<Cli>(page, subcommand.as_deref(), &mut io::stdout())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Makes one backup, or one each time that `every` has passed. A failure ends it in the first case only.
fn run(
    plan: &create::Plan,
    storage: &dyn Storage,
    every: Option<Duration>,
    prune: Option<&Prune>,
) -> io::Result<ExitCode> {
    let mut due = Instant::now();
    loop {
        let made = create::create(plan, storage).and_then(|manifest| {
            println!("{}", describe(&manifest));
            prune.map_or(Ok(()), |prune| prune.execute(storage))
        });
        let Some(every) = every else { return made.map(|()| ExitCode::SUCCESS) };
        if let Err(error) = made {
            eprintln!("kvick-backup: {error}");
        }
        due += every;
        // After a backup that took longer, the next one begins at once.
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due = due.max(Instant::now());
    }
}

/// What is removed after a backup.
struct Prune {
    /// Number of backups that are kept.
    keep: usize,
    leftovers_after: Duration,
}

impl Prune {
    fn execute(&self, storage: &dyn Storage) -> io::Result<()> {
        let names = storage.list()?;
        for name in &names[..names.len().saturating_sub(self.keep)] {
            storage.remove(name)?;
            println!("{name} removed");
        }
        for name in storage.remove_leftovers(self.leftovers_after)? {
            println!("{name} removed: it was not complete");
        }
        Ok(())
    }
}

fn verify_all(storage: &dyn Storage, names: Vec<String>) -> io::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for name in names {
        match verify::verify(storage, &name) {
            Ok(manifest) => println!("{}: valid", describe(&manifest)),
            Err(error) => {
                println!("{name}: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn describe(manifest: &Manifest) -> String {
    let Manifest { name, span_ms, shards, .. } = manifest;
    let (keys, mib) = (manifest.keys(), manifest.bytes() as f64 / f64::from(1 << 20));
    format!("{name}  {} shards, {keys} keys, {mib:.1} MiB, snapshots within {span_ms} ms", shards.len())
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit_s) = match text.chars().last() {
        Some('s') => (&text[..text.len() - 1], 1),
        Some('m') => (&text[..text.len() - 1], 60),
        Some('h') => (&text[..text.len() - 1], 3_600),
        Some('d') => (&text[..text.len() - 1], 86_400),
        _ => (text, 1),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_s)).filter(|s| *s > 0);
    seconds.map(Duration::from_secs).ok_or_else(|| format!("'{text}' is no duration such as 90s, 15m, 6h or 1d"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units() {
        let seconds = |text| parse_duration(text).map(|duration| duration.as_secs());
        assert_eq!(["90", "90s", "15m", "6h", "1d"].map(seconds), [90, 90, 900, 21_600, 86_400].map(Ok));
        for text in ["", "0", "h", "-1s", "1w", "99999999999999999999", "9999999999999999999d", "é"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
