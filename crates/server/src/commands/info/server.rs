//! The sections on the program, the machine and TLS.

use super::Context;
use super::page::Page;
use crate::process::version as build;
use crate::server::Server;
use kvick_config::Values;
use kvick_config::tables::{cluster, network, process};
use kvick_metrics::{Exposition, Metric, fields};
use kvick_net::listen::Transport;
use kvick_net::supervise;
use kvick_net::tls::Materials;
use kvick_net::tls::certificate::Summary;
use kvick_runtime::clock;
use kvick_runtime::version;
use std::sync::{Arc, OnceLock};

const RELEASE_STAGE: &str = "ga";
const SECONDS_PER_DAY: u64 = 24 * 3600;
/// INFO shows the low 24 bits of the access clock.
const LRU_CLOCK_MASK: i64 = 0xff_ffff;

/// The server and its settings.
pub struct Facts {
    server: &'static Server,
    values: Arc<Values>,
    now_ms: i64,
    uptime_s: u64,
}

fields! {
    /// Versions.
    pub static VERSIONS: Facts;
    redis_version: info = |_facts| version::REDIS;
    server_name: info = |_facts| "valkey";
    valkey_version: info = |_facts| version::VALKEY;
    valkey_release_stage: info = |_facts| RELEASE_STAGE;
    kvick_version: info = |_facts| version::KVICK;
    redis_git_sha1: info = |_facts| build::GIT_SHA;
    redis_git_dirty: info = |_facts| build::GIT_DIRTY;
    redis_build_id: info = |_facts| build::BUILD_ID;
}

fields! {
    /// The process, after its mode, whose field has a name that depends on a setting.
    pub static PROCESS: Facts;
    os: info = |_facts| operating_system();
    arch_bits: info = |_facts| usize::BITS;
    monotonic_clock: info = |_facts| clock::description();
    multiplexing_api: info = |_facts| if cfg!(target_os = "linux") { "epoll" } else { "kqueue" };
    gcc_version: info = |_facts| "0.0.0";
    process_id: gauge redis_process_id "ID of the process." = |_facts| std::process::id();
    process_supervised: info = |_facts| supervise::name();
    run_id: info = |facts| facts.server.run_id.as_str();
    tcp_port: info = |facts| facts.port();
    server_time_usec: info = |_facts| clock::unix_us();
    uptime_in_seconds: gauge redis_uptime_in_seconds "Seconds since the start." = |facts| facts.uptime_s;
    _: gauge redis_start_time_seconds "Unix time of the start." = |facts| facts.server.started_ms / 1000;
    uptime_in_days: info = |facts| facts.uptime_s / SECONDS_PER_DAY;
    hz: gauge redis_hz "Background passes per second." = |facts| facts.values.read(process::HZ);
    configured_hz: gauge redis_configured_hz "The setting hz." = |facts| facts.values.read(process::HZ);
    clients_hz: info = |facts| facts.values.read(process::HZ);
    shutdown_in_milliseconds: info = |facts| facts.server.shutdown.left_ms();
    lru_clock: info = |facts| (facts.now_ms / 1000) & LRU_CLOCK_MASK;
    executable: info = |facts| facts.server.executable.display().to_string();
    config_file: info
        = |facts| facts.server.config_file.as_deref().unwrap_or("".as_ref()).display().to_string();
    io_threads_active: gauge redis_io_threads_active "1 if several workers are in use."
        = |facts| facts.server.rates.lock().busy_workers() > 1;
    availability_zone: info
        = |facts| String::from_utf8_lossy(&facts.values.read(cluster::AVAILABILITY_ZONE)).into_owned();
}

/// The metric whose labels are the texts that identify a server.
pub static INSTANCE: Metric = Metric::gauge("redis_instance_info", "Always 1, with what identifies the server.")
    .labels(&[
        "role",
        "redis_version",
        "redis_build_id",
        "redis_mode",
        "os",
        "maxmemory_policy",
        "tcp_port",
        "run_id",
        "process_id",
        "master_replid",
        "valkey_version",
        "valkey_release_stage",
    ]);

impl Facts {
    /// Collects them.
    pub fn of(context: &Context) -> Facts {
        let server = context.server;
        let uptime_s = server.started.elapsed().as_secs();
        Facts { server, values: server.config.values(), now_ms: context.now_ms, uptime_s }
    }

    /// The name of the field with the mode, and the mode.
    fn mode(&self) -> (&'static str, &'static str) {
        let is_compatible = self.values.read(process::EXTENDED_REDIS_COMPATIBILITY);
        let mode = if self.server.routing.is_some() { "cluster" } else { "standalone" };
        (if is_compatible { "redis_mode" } else { "server_mode" }, mode)
    }

    fn port(&self) -> u16 {
        let [plain, tls] = [Transport::Plain, Transport::Tls].map(|transport| transport.port(&self.values));
        if plain != 0 { plain } else { tls }
    }
}

/// Writes the section.
pub fn write(context: &Context, page: &mut Page) {
    let facts = Facts::of(context);
    page.section("Server");
    page.write(VERSIONS, &facts);
    let (name, mode) = facts.mode();
    page.field(name, mode);
    page.write(PROCESS, &facts);
    write_listeners(&facts.values, page);
}

/// Writes the metric that identifies the server.
pub fn export_instance(facts: &Facts, replication: &super::replication::Facts, out: &mut Exposition) {
    let mode = match facts.mode() {
        ("redis_mode", mode) => mode,
        // Without the field of that name redis_exporter finds no mode.
        _ => "",
    };
    let labels = [
        replication.role(),
        version::REDIS,
        build::BUILD_ID,
        mode,
        operating_system(),
        &super::memory::policy(facts.server),
        &facts.port().to_string(),
        &facts.server.run_id,
        &std::process::id().to_string(),
        replication.id(),
        version::VALKEY,
        RELEASE_STAGE,
    ];
    out.family(&INSTANCE).sample(&labels, true);
}

/// The listening sockets, in the reference's format.
fn write_listeners(values: &Values, page: &mut Page) {
    let bind = values.read(network::BIND);
    let addresses: String =
        bind.list().iter().map(|address| format!(",bind={}", String::from_utf8_lossy(address))).collect();
    let port = |transport: Transport| {
        let (name, port) = (transport.name(), transport.port(values));
        (port != 0).then(|| format!("name={name}{addresses},port={port}"))
    };
    let socket = values.read(network::UNIXSOCKET).map(|path| format!("name=unix,bind={}", path.as_path().display()));
    for (number, listener) in
        [port(Transport::Plain), socket, port(Transport::Tls), port(Transport::Forward), port(Transport::ForwardTls)]
            .into_iter()
            .enumerate()
    {
        if let Some(listener) = listener {
            page.field(format_args!("listener{number}"), listener);
        }
    }
}

/// Certificates in use.
pub fn write_tls(context: &Context, page: &mut Page) {
    let materials = context.server.tls.materials();
    let summary = |of: fn(&Materials) -> &Option<Summary>| materials.as_ref().and_then(|all| of(all).as_ref());
    page.section("TLS");
    let certificates = [
        ("server_cert", summary(|all| &all.server)),
        ("client_cert", summary(|all| &all.client)),
        ("ca_cert", summary(|all| &all.authorities)),
    ];
    for (name, summary) in certificates {
        let left = summary.map_or(0, |summary| (summary.expires - context.now_ms / 1000).max(0));
        page.field(format_args!("tls_{name}_serial"), summary.map_or("none", |summary| &summary.serial));
        page.field(format_args!("tls_{name}_expires_in_seconds"), left);
    }
}

/// The system's name, release and architecture.
fn operating_system() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        format!("{} {} {}", read("ostype").trim(), read("osrelease").trim(), std::env::consts::ARCH)
    })
}
