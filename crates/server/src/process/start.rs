//! The steps of startup and exit, in the required order.

use super::{banner, shutdown, version};
use crate::server::Server;
use crate::{cluster, crash, http, metrics, signals};
use kvick_acl::file::{self as acl_file, UserLine};
use kvick_acl::rules::Reader;
use kvick_commands::table::CommandTable;
use kvick_config::arguments::Sources;
use kvick_config::load::{Entry, Loaded, load};
use kvick_config::process_settings;
use kvick_config::tables;
use kvick_config::tables::cluster::CLUSTER_ENABLED;
use kvick_config::tables::memory::MAXMEMORY;
use kvick_config::tables::network::{IO_THREADS, MAXCLIENTS, UNIXSOCKET};
use kvick_config::tables::persistence::APPENDONLY;
use kvick_config::tables::process::{DIR, LOCALE_COLLATE, SUPERVISED};
use kvick_config::tables::replication::REPLICAOF;
use kvick_config::{Effect, Id, Refusal, Values};
use kvick_core::admission::Reasons;
use kvick_core::message::Message;
use kvick_core::oom_score;
use kvick_durability::aof;
use kvick_durability::persistence::load::{self as dump, LoadError};
use kvick_durability::persistence::snapshots::{self, Job};
use kvick_engine::handlers::Handler;
use kvick_net::listen::{Listeners, Transport};
use kvick_net::supervise;
use kvick_process::daemon::PidFile;
use kvick_process::{daemon, limits, system, title};
use kvick_replication as replication;
use kvick_replication::migration;
use kvick_replication::upstream::Target;
use kvick_runtime::affinity;
use kvick_runtime::clock;
use kvick_runtime::locale::Collation;
use kvick_runtime::logging;
use kvick_runtime::version::{KVICK, VALKEY};
use kvick_worker::Worker;
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// A smaller `maxmemory` is probably a mistake.
const MAXMEMORY_PLAUSIBLE: u64 = 1 << 20;

/// Runs a server from its configuration to its exit.
pub fn serve(program: &OsStr, sources: &Sources) -> ExitCode {
    let mut table = crate::commands::table();
    let mut users = Vec::new();
    let loaded = match load(sources, &mut std::io::stdin(), &mut |entry| accept(&mut table, &mut users, entry)) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = run(program, loaded, table, &users, sources == &Sources::default());
    if let Err(error) = &outcome {
        logging::warning(format_args!("{error}"));
        if error.is::<LoadError>() {
            logging::warning(format_args!("Fatal error loading the DB, check server logs. Exiting."));
        }
    }
    logging::stop();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Applies the lines of the configuration that are not settings. Lines about modules are refused: without the commands
/// of the module the server would be unusable.
fn accept(table: &mut CommandTable<Handler>, users: &mut Vec<UserLine>, entry: Entry) -> Result<(), Refusal> {
    match entry {
        Entry::RenameCommand { from, to } => {
            let (from, to) = (String::from_utf8_lossy(&from), String::from_utf8_lossy(&to));
            if table.catalogue().find(from.as_bytes()).is_none() {
                return Err(Refusal::new("No such command in rename-command"));
            }
            let renamed = table.rename(&from, &to);
            renamed.then_some(()).ok_or(Refusal::new("Target command name already exists"))
        }
        Entry::User(words) => {
            let line = UserLine::read(&words, users, Reader { table: table.catalogue(), all_channels: false })?;
            users.push(line);
            Ok(())
        }
        Entry::LoadModule(_) | Entry::ModuleSetting { .. } => {
            Err(Refusal::new("Modules are not supported. Remove this line."))
        }
    }
}

/// Warns about settings that have no effect.
fn check(values: &Values) -> Result<(), Failure> {
    let defaults = Values::defaults()?;
    let is_idle = |id: &Id| id.directive().effect == Effect::Kept && values.value(*id) != defaults.value(*id);
    let idle: Vec<&str> = tables::ids().filter(is_idle).map(|id| id.directive().name).collect();
    if values.read(LOCALE_COLLATE).is_empty() && Collation::of(b"").is_err() {
        logging::warning(format_args!(
            "Warning: Failed to configure LOCALE derived from the environment variables, using the default locale 'C'."
        ));
    }
    if !idle.is_empty() {
        logging::warning(format_args!("These directives have no effect in Kvick: {}", idle.join(", ")));
    }
    Ok(())
}

type Failure = Box<dyn std::error::Error>;

fn run(
    program: &OsStr,
    Loaded { values, file }: Loaded,
    table: CommandTable<Handler>,
    users: &[UserLine],
    only_defaults: bool,
) -> Result<(), Failure> {
    std::env::set_current_dir(values.read(DIR).path())?;
    let executable = std::env::current_exe().unwrap_or_default();
    logging::open(&process_settings::log(&values));
    title::prepare(program, file.as_deref());
    system::warn();
    system::turn_off_huge_pages(&values);
    let supervised = supervise::announce(values.read(SUPERVISED));
    let in_background = daemon::is_enabled(&values) && !supervised;
    if in_background {
        daemon::fork_to_background()?;
    }
    // Threads may start after this.
    signals::block();
    crash::watch(&values);
    kvick_runtime::memory::register_thread();
    affinity::begin(process_settings::cpu_lists(&values), values.read(IO_THREADS) as usize);
    logging::start()?;
    clock::calibrate();
    log_startup(program, only_defaults);
    check(&values)?;
    let clients =
        limits::allow_clients(values.read(MAXCLIENTS), values.read(IO_THREADS) as usize, http::descriptors(&values))?;
    let listeners = Listeners::open(&values)?;
    if listeners.describe().is_empty() {
        return Err("Configured to not listen anywhere, exiting.".into());
    }
    let end = End {
        pid_file: PidFile::write(&values, in_background),
        socket: values.read(UNIXSOCKET).map(|name| values.read(DIR).resolve(&name)),
    };
    let server = Server::leak(values, file, executable, table);
    if clients < server.config.read(MAXCLIENTS) {
        server.config.put(MAXCLIENTS, clients);
    }
    acl_file::load_at_start(server, &server.acl, users)?;
    crash::attach(server);
    server.watchdog.configure(server, &server.config.values())?;
    crate::memory::configure_purging(&server.config.values());
    signals::listen(server)?;
    let outcome = work(server, listeners);
    server.tracing.finish();
    server.scripting.sessions.end_all();
    server.persistence.abandon();
    end.clean_up(outcome.is_ok());
    outcome
}

/// The first lines of the log. Tools wait for the first one.
fn log_startup(program: &OsStr, only_defaults: bool) {
    logging::notice(format_args!("oO0OoO0OoO0Oo Valkey is starting oO0OoO0OoO0Oo"));
    logging::notice(format_args!(
        "Kvick version={}, compatible with Valkey {VALKEY}, bits={}, commit={}, modified={}, pid={}, just started",
        KVICK,
        usize::BITS,
        version::GIT_SHA,
        version::GIT_DIRTY,
        std::process::id()
    ));
    if only_defaults {
        logging::warning(format_args!(
            "Warning: No config file specified, using the default config. In order to specify a config file use {} \
             /path/to/kvick.conf",
            program.display()
        ));
    } else {
        logging::notice(format_args!("Configuration loaded"));
    }
    logging::notice(format_args!("monotonic clock: {}", clock::description()));
}

/// Starts the workers and waits until they end.
fn work(server: &'static Server, listeners: Listeners) -> Result<(), Failure> {
    let values = server.config.values();
    server.tls.configure(&values).map_err(|_| "Failed to configure TLS. Check logs for more info.")?;
    server.set_listeners(listeners.clone());
    title::apply(&values);
    // Errors are logged, and the score stays unchanged.
    let _ = oom_score::apply(&values);
    banner::show(&values, &server.listening.read());
    system::warn_of_backlog(&values);
    let mut listeners = Some(listeners);
    let mut workers = Vec::new();
    for number in 0..server.active_workers() {
        let worker = Worker::new(server, number, listeners.take().unwrap_or_default())?;
        server.set_mailbox(number, worker.mailbox());
        workers.push(worker);
    }
    server.memory.record_startup();
    snapshots::start(server)?;
    aof::start(server)?;
    migration::start(server)?;
    replication::link::start(server)?;
    if values.read(CLUSTER_ENABLED) {
        server.set_cluster(cluster::start(server)?);
    }
    metrics::start(server, &values)?;
    server.tracing.configure(server, &values)?;
    logging::notice(format_args!("Server initialized"));
    // If a data set exists, workers answer from their first request on that it is being loaded.
    let keeps_files = values.read(APPENDONLY);
    let to_load = keeps_files || dump::dump_exists(&values);
    server.admission.set(Reasons::LOADING, to_load);
    let threads: &'static WorkerThreads = Box::leak(Box::default());
    for (number, worker) in workers.into_iter().enumerate() {
        threads.start(number, worker)?;
    }
    server.set_start_worker(move |number| {
        let worker = Worker::new(server, number, Listeners::default())?;
        server.set_mailbox(number, worker.mailbox());
        threads.start(number, worker)
    });
    let loaded = load_data(server, to_load, keeps_files);
    match &loaded {
        Ok(()) if !server.is_shutting_down() => {
            if let Some(cluster) = server.cluster() {
                cluster.data_loaded();
            }
            follow_primary(server);
            tell_ready(&values);
        }
        Ok(()) => {}
        Err(_) => server.end(),
    }
    threads.join();
    loaded
}

/// The threads of the workers that have been started.
#[derive(Default)]
struct WorkerThreads(Mutex<Vec<JoinHandle<()>>>);

impl WorkerThreads {
    fn start(&self, number: usize, worker: Worker) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(format!("worker-{number}"));
        self.0.lock().push(thread.spawn(move || worker.run())?);
        Ok(())
    }

    /// Waits until all have ended. Workers only start others while they run.
    fn join(&self) {
        while let Some(thread) = { self.0.lock().pop() } {
            // A panic of a worker ends the process.
            let _ = thread.join();
        }
    }
}

/// The data is loaded: enables commands, and the deletion of expired keys.
fn end_loading(server: &Server) {
    server.admission.set(Reasons::LOADING, false);
    server.send_all(|| Message::Loaded);
}

/// Loads the data set, from the append-only file or else from the dump; then workers serve it. After an error they must
/// not, since the data is incomplete.
fn load_data(server: &'static Server, to_load: bool, keeps_files: bool) -> Result<(), Failure> {
    if keeps_files {
        let opened = aof::load(server).and_then(|()| aof::open(server));
        if opened.is_err() && server.is_shutting_down() {
            return Ok(());
        }
        opened?;
        end_loading(server);
        return Ok(());
    }
    aof::read_manifest(server)?;
    if !to_load {
        return Ok(());
    }
    let (sender, outcome) = mpsc::channel();
    server.persistence.send_job(Job::Load(sender));
    match outcome.recv()? {
        Ok(_) => {
            end_loading(server);
            Ok(())
        }
        Err(error) if error.is_cancelled() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Follows the configured primary, if any.
fn follow_primary(server: &'static Server) {
    if let Some(primary) = server.config.read(REPLICAOF) {
        let target = Target::at(String::from_utf8_lossy(&primary.host), primary.port);
        let mut global = server.keyspace.lock_global();
        server.become_replica(target, &mut global, &server.stats[0]);
    }
}

fn tell_ready(values: &Values) {
    let is_open = |transport: Transport| transport.port(values) != 0;
    let names = [
        is_open(Transport::Plain).then_some("tcp"),
        values.read(UNIXSOCKET).map(|_| "unix"),
        is_open(Transport::Tls).then_some("tls"),
        is_open(Transport::Forward).then_some("tcp (forwarding)"),
        is_open(Transport::ForwardTls).then_some("tls (forwarding)"),
    ];
    for name in names.into_iter().flatten() {
        logging::notice(format_args!("Ready to accept connections {name}"));
    }
    supervise::notify("STATUS=Ready to accept connections\n");
    supervise::notify("READY=1\n");
    let maxmemory = values.read(MAXMEMORY);
    if (1..MAXMEMORY_PLAUSIBLE).contains(&maxmemory) {
        logging::warning(format_args!(
            "WARNING: You specified a maxmemory value that is less than 1MB (current value is {maxmemory} bytes). Are \
             you sure this is what you really want?"
        ));
    }
}

/// Files to clean up at exit.
struct End {
    pid_file: Option<PidFile>,
    socket: Option<PathBuf>,
}

impl End {
    /// `is_clean`: whether the server exits on request.
    fn clean_up(self, is_clean: bool) {
        if let Some(file) = self.pid_file {
            file.remove();
        }
        if let Some(path) = self.socket {
            logging::notice(format_args!("Removing the unix socket file."));
            // It may be gone already.
            let _ = std::fs::remove_file(path);
        }
        if is_clean {
            shutdown::log_exit();
        }
    }
}
