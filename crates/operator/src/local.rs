//! Nodes as processes of this machine.
//!
//! Each node has a directory with its data, its log, and `node.json`, which says what it is. The processes are in
//! groups of their own: they go on when the operator ends, and another operator finds them by these files. A lock on
//! the directory keeps a second operator away.

use crate::backend::{Backend, Member};
use crate::config::Config;
use kvick_planner::ShardId;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The bus port is the client port plus this.
const BUS_OFFSET: u16 = 10_000;
/// Time for a process to end by itself.
const END_LIMIT: Duration = Duration::from_secs(5);
const RECORD: &str = "node.json";

/// What is known of a node after a restart of the operator.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Record {
    name: String,
    shard: u32,
    host: String,
    port: u16,
    is_leaving: bool,
    /// The process, when it was started last.
    pid: i32,
}

/// Numbers that were used already.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Numbers {
    shards: u32,
    nodes: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Local {
    config: Config,
    /// Processes that this operator has started, which it has to reap.
    children: HashMap<String, Child>,
    _lock: File,
}

impl Local {
    /// Opens, or creates, the directory.
    ///
    /// # Errors
    /// If another operator uses it, or if it cannot be written.
    pub fn open(config: Config) -> io::Result<Local> {
        fs::create_dir_all(&config.directory)?;
        let lock = File::create(config.directory.join("lock"))?;
        lock.try_lock()
            .map_err(|_| io::Error::other(format!("another operator uses {}", config.directory.display())))?;
        Ok(Local { config, children: HashMap::new(), _lock: lock })
    }

    /// Changes what applies to nodes that start from now on.
    pub fn set_config(&mut self, config: Config) {
        let directory = std::mem::take(&mut self.config.directory);
        self.config = Config { directory, ..config };
    }

    /// Where a node's files are.
    pub fn directory_of(&self, name: &str) -> PathBuf {
        self.config.directory.join(name)
    }

    fn records(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.config.directory)? {
            let path = entry?.path().join(RECORD);
            match fs::read(&path) {
                Ok(text) => records.push(serde_json::from_slice::<Record>(&text).map_err(io::Error::other)?),
                Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
        records.sort_by_key(|record| number_of(&record.name));
        Ok(records)
    }

    fn record(&self, name: &str) -> io::Result<Record> {
        let text = fs::read(self.directory_of(name).join(RECORD))?;
        serde_json::from_slice(&text).map_err(io::Error::other)
    }

    fn save(&self, record: &Record) -> io::Result<()> {
        replace(&self.directory_of(&record.name).join(RECORD), record)
    }

    fn change_numbers(&self, change: impl FnOnce(&mut Numbers)) -> io::Result<Numbers> {
        let path = self.config.directory.join("numbers.json");
        let mut numbers: Numbers = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Numbers::default(),
            Err(error) => return Err(error),
        };
        change(&mut numbers);
        replace(&path, &numbers)?;
        Ok(numbers)
    }

    fn is_running(&mut self, record: &Record) -> bool {
        if let Some(child) = self.children.get_mut(&record.name) {
            if matches!(child.try_wait(), Ok(None)) {
                return true;
            }
            self.children.remove(&record.name);
            return false;
        }
        is_alive(record)
    }

    fn free_port(&self, records: &[Record]) -> io::Result<u16> {
        let is_free = |port: &u16| {
            let can_listen = |port: u16| TcpListener::bind((&*self.config.address, port)).is_ok();
            !records.iter().any(|record| record.port == *port) && can_listen(*port) && can_listen(*port + BUS_OFFSET)
        };
        let mut ports = self.config.first_port..u16::MAX - BUS_OFFSET;
        ports.find(is_free).ok_or_else(|| io::Error::other("no port is free"))
    }

    fn program(&self) -> PathBuf {
        let program = &self.config.program;
        let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(program)));
        let is_bare = program.components().count() == 1;
        beside.filter(|path| is_bare && path.is_file()).unwrap_or_else(|| program.clone())
    }

    fn spawn(&mut self, record: &mut Record) -> io::Result<()> {
        let directory = self.directory_of(&record.name);
        let limits = &self.config.limits;
        let mut directives: Vec<(String, String)> = [
            ("port", record.port.to_string()),
            ("bind", record.host.clone()),
            ("dir", directory.display().to_string()),
            ("logfile", directory.join("log").display().to_string()),
            ("daemonize", "no".into()),
            ("cluster-enabled", "yes".into()),
            ("cluster-port", (record.port + BUS_OFFSET).to_string()),
            ("cluster-node-timeout", "5000".into()),
            ("cluster-slot-stats-enabled", "yes".into()),
            // An empty primary must stay one: it is a new shard, or one that was drained.
            ("cluster-allow-replica-migration", "no".into()),
            // A primary that restarts without its data waits for its replica.
            ("cluster-empty-primary-wait", "10000".into()),
            ("appendonly", "yes".into()),
            ("save", String::new()),
            ("io-threads", limits.workers_max.to_string()),
            ("io-threads-min", limits.workers_min.to_string()),
            ("maxmemory", limits.memory_max.0.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        for (name, value) in &self.config.server {
            directives.retain(|(known, _)| known != name);
            directives.push((name.clone(), value.0.clone()));
        }
        if let Some(password) = &self.config.password {
            directives
                .extend([("requirepass", password), ("primaryauth", password)].map(|(n, v)| (n.into(), v.clone())));
        }
        let output = || File::options().create(true).append(true).open(directory.join("output"));
        let child = Command::new(self.program())
            .args(directives.into_iter().flat_map(|(name, value)| [format!("--{name}"), value]))
            .stdin(Stdio::null())
            .stdout(output()?)
            .stderr(output()?)
            .process_group(0)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.program().display())))?;
        record.pid = child.id() as i32;
        self.children.insert(record.name.clone(), child);
        self.save(record)
    }

    fn end(&mut self, record: &Record) {
        let Some(pid) = Pid::from_raw(record.pid).filter(|_| self.is_running(record)) else { return };
        // It may end by itself meanwhile.
        let _ = kill_process(pid, Signal::TERM);
        let began = Instant::now();
        while self.is_running(record) {
            if began.elapsed() > END_LIMIT {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends all processes. Their data stays.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn stop_all(&mut self) -> io::Result<usize> {
        let mut stopped = 0;
        for record in self.records()? {
            if self.is_running(&record) {
                self.end(&record);
                stopped += 1;
            }
        }
        Ok(stopped)
    }
}

impl Backend for Local {
    fn list(&mut self) -> io::Result<Vec<Member>> {
        let records = self.records()?;
        let member = |record: Record| Member {
            is_running: self.is_running(&record),
            name: record.name,
            shard: ShardId(record.shard),
            host: record.host,
            port: record.port,
            bus_port: record.port + BUS_OFFSET,
            is_leaving: record.is_leaving,
            ..Member::default()
        };
        Ok(records.into_iter().map(member).collect())
    }

    fn new_shard(&mut self) -> io::Result<ShardId> {
        Ok(ShardId(self.change_numbers(|numbers| numbers.shards += 1)?.shards))
    }

    fn start(&mut self, shard: ShardId) -> io::Result<Member> {
        let records = self.records()?;
        let number = self.change_numbers(|numbers| numbers.nodes += 1)?.nodes;
        let mut record = Record {
            name: format!("node-{number}"),
            shard: shard.0,
            host: self.config.address.clone(),
            port: self.free_port(&records)?,
            is_leaving: false,
            pid: 0,
        };
        fs::create_dir_all(self.directory_of(&record.name))?;
        if let Err(error) = self.spawn(&mut record) {
            // Nothing of it exists yet but an empty directory.
            fs::remove_dir_all(self.directory_of(&record.name))?;
            return Err(error);
        }
        let Record { name, host, port, .. } = record;
        Ok(Member { name, shard, host, port, bus_port: port + BUS_OFFSET, is_running: true, ..Member::default() })
    }

    fn restart(&mut self, name: &str) -> io::Result<()> {
        let mut record = self.record(name)?;
        if self.is_running(&record) { Ok(()) } else { self.spawn(&mut record) }
    }

    fn replace(&mut self, name: &str) -> io::Result<()> {
        let mut record = self.record(name)?;
        self.end(&record);
        self.spawn(&mut record)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let record = self.record(name)?;
        self.end(&record);
        // Without the record the directory is not a node any more, even if the rest cannot be deleted.
        fs::remove_file(self.directory_of(name).join(RECORD))?;
        fs::remove_dir_all(self.directory_of(name))
    }

    fn set_leaving(&mut self, shard: ShardId, is_leaving: bool) -> io::Result<()> {
        for mut record in self.records()? {
            if record.shard == shard.0 && record.is_leaving != is_leaving {
                record.is_leaving = is_leaving;
                self.save(&record)?;
            }
        }
        Ok(())
    }
}

/// The number in a name, so that `node-10` follows `node-9`.
fn number_of(name: &str) -> u32 {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

/// Whether the process of a node that another operator has started runs. Its number may belong to another process now,
/// so its command line must name the port or the directory.
fn is_alive(record: &Record) -> bool {
    let Some(pid) = Pid::from_raw(record.pid) else { return false };
    if test_kill_process(pid).is_err() {
        return false;
    }
    let process = Path::new("/proc").join(record.pid.to_string());
    let Ok(command) = fs::read(process.join("cmdline")) else { return true };
    // The state is the first field behind the name, which is in parentheses.
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    let is_zombie = stat.rsplit(')').next().is_some_and(|fields| fields.trim_start().starts_with('Z'));
    let command = String::from_utf8_lossy(&command);
    !is_zombie && (command.contains(&format!(":{}", record.port)) || command.contains(&record.port.to_string()))
}

/// Replaces a file as a whole.
fn replace(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let next = path.with_extension("next");
    fs::write(&next, serde_json::to_vec_pretty(value).map_err(io::Error::other)?)?;
    fs::rename(next, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_testing::Deadline;

    #[test]
    fn records_survive_and_a_second_operator_is_kept_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = Config { directory: dir.path().into(), program: "/bin/false".into(), ..Config::default() };
        let mut local = Local::open(config.clone()).expect("a backend");
        assert!(Local::open(config.clone()).is_err());
        let shard = local.new_shard().expect("a number");
        let member = local.start(shard).expect("a node");
        local.set_leaving(shard, true).expect("a change");
        let deadline = Deadline::of("the process ends");
        while local.list().expect("nodes")[0].is_running {
            deadline.check();
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(local);
        let mut local = Local::open(config).expect("a backend");
        let members = local.list().expect("nodes");
        assert_eq!(members, [Member { is_leaving: true, is_running: false, ..member.clone() }]);
        assert_eq!(local.new_shard().expect("a number"), ShardId(2));
        local.remove(&member.name).expect("no node");
        assert_eq!(local.list().expect("nodes"), []);
    }
}
