//! The sections on the program, the machine and TLS.

use super::Context;
use super::page::Page;
use crate::process::version as build;
use kvick_config::Values;
use kvick_config::tables::{cluster, network, process};
use kvick_net::listen::Transport;
use kvick_net::supervise;
use kvick_net::tls::Materials;
use kvick_net::tls::certificate::Summary;
use kvick_runtime::clock;
use kvick_runtime::version;
use std::sync::OnceLock;

const SECONDS_PER_DAY: u64 = 24 * 3600;
/// INFO shows the low 24 bits of the access clock.
const LRU_CLOCK_MASK: i64 = 0xff_ffff;

pub fn write(context: &Context, page: &mut Page) {
    let (server, values) = (context.server, context.server.config.values());
    page.section("Server");
    page.fields([
        ("redis_version", version::REDIS),
        ("server_name", "valkey"),
        ("valkey_version", version::VALKEY),
        ("valkey_release_stage", "ga"),
        ("kvick_version", version::KVICK),
        ("redis_git_sha1", build::GIT_SHA),
        ("redis_git_dirty", build::GIT_DIRTY),
    ]);
    page.field("redis_build_id", build::BUILD_ID);
    let compatible = values.read(process::EXTENDED_REDIS_COMPATIBILITY);
    let mode = if server.routing.is_some() { "cluster" } else { "standalone" };
    page.field(if compatible { "redis_mode" } else { "server_mode" }, mode);
    page.field("os", operating_system());
    page.field("arch_bits", usize::BITS);
    page.field("monotonic_clock", clock::description());
    page.field("multiplexing_api", if cfg!(target_os = "linux") { "epoll" } else { "kqueue" });
    page.field("gcc_version", "0.0.0");
    page.field("process_id", std::process::id());
    page.field("process_supervised", supervise::name());
    page.field("run_id", &server.run_id);
    let ports = Transport::ALL.map(|transport| transport.port(&values));
    page.field("tcp_port", if ports[0] != 0 { ports[0] } else { ports[1] });
    let uptime = server.started.elapsed().as_secs();
    page.field("server_time_usec", clock::unix_us());
    page.field("uptime_in_seconds", uptime);
    page.field("uptime_in_days", uptime / SECONDS_PER_DAY);
    let hz = values.read(process::HZ);
    page.fields([("hz", hz), ("configured_hz", hz), ("clients_hz", hz)]);
    if let Some(left_ms) = server.shutdown.left_ms() {
        page.field("shutdown_in_milliseconds", left_ms);
    }
    page.field("lru_clock", (context.now_ms / 1000) & LRU_CLOCK_MASK);
    page.field("executable", server.executable.display());
    page.field("config_file", server.config_file.as_deref().unwrap_or("".as_ref()).display());
    page.field("io_threads_active", u8::from(server.rates.lock().busy_workers() > 1));
    page.field("availability_zone", String::from_utf8_lossy(&values.read(cluster::AVAILABILITY_ZONE)));
    write_listeners(&values, page);
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
    for (number, listener) in [port(Transport::Plain), socket, port(Transport::Tls)].into_iter().enumerate() {
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
