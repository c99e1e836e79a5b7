//! Applies changed settings to the running server. Settings not named here are read on use, through
//! [`RuntimeConfig`](kvick_core::runtime_config::RuntimeConfig) or from the configuration itself.

use crate::server::Server;
use kvick_config::tables::{
    logging, memory, metrics, network, persistence, process, replication, security, tls, tracing,
};
use kvick_config::{Id, Refusal, Values};
use kvick_core::eviction;
use kvick_core::oom_score;
use kvick_net::listen::Transport;
use kvick_process::{limits, title};
use kvick_runtime::affinity;

/// Settings of the log.
const LOG: [Id; 3] = [logging::LOGLEVEL.id(), logging::LOG_FORMAT.id(), logging::LOG_TIMESTAMP_FORMAT.id()];

/// Settings of the process's score for the kernel's out-of-memory killer.
const OOM_SCORE: [Id; 2] = [process::OOM_SCORE_ADJ.id(), process::OOM_SCORE_ADJ_VALUES.id()];

/// TLS settings, except the port.
const TLS: [Id; 19] = [
    tls::TLS_REPLICATION.id(),
    tls::TLS_CLUSTER.id(),
    tls::TLS_CERT_FILE.id(),
    tls::TLS_KEY_FILE.id(),
    tls::TLS_KEY_FILE_PASS.id(),
    tls::TLS_CLIENT_CERT_FILE.id(),
    tls::TLS_CLIENT_KEY_FILE.id(),
    tls::TLS_CLIENT_KEY_FILE_PASS.id(),
    tls::TLS_CA_CERT_FILE.id(),
    tls::TLS_CA_CERT_DIR.id(),
    tls::TLS_CRL_FILE.id(),
    tls::TLS_AUTH_CLIENTS.id(),
    tls::TLS_PROTOCOLS.id(),
    tls::TLS_CIPHERS.id(),
    tls::TLS_CIPHERSUITES.id(),
    tls::TLS_PREFER_SERVER_CIPHERS.id(),
    tls::TLS_SESSION_CACHING.id(),
    tls::TLS_SESSION_CACHE_SIZE.id(),
    tls::TLS_SESSION_CACHE_TIMEOUT.id(),
];

/// Settings of the sockets of the HTTP endpoint with metrics.
const ENDPOINT: [Id; 3] = [metrics::METRICS_PORT.id(), metrics::METRICS_BIND.id(), metrics::METRICS_TLS.id()];

/// Settings of the export of traces, except those that are read with each span.
const TRACING: [Id; 4] = [
    tracing::TRACING_ENDPOINT.id(),
    tracing::TRACING_HEADERS.id(),
    tracing::TRACING_CA_CERT_FILE.id(),
    tracing::TRACING_SERVICE_NAME.id(),
];

/// Settings of the number of replicas that writes require.
const REPLICAS: [Id; 2] = [replication::MIN_REPLICAS_TO_WRITE.id(), replication::MIN_REPLICAS_MAX_LAG.id()];

/// Applies one setting, as [`Apply`](kvick_config::Apply) specifies.
pub fn apply(server: &'static Server, id: Id, values: &Values) -> Result<(), Refusal> {
    if id == process::DIR.id() {
        return Ok(std::env::set_current_dir(values.read(process::DIR).path())?);
    }
    if id == network::PORT.id() {
        return listen(server, values, &[Transport::Plain], NO_PORT);
    }
    if id == tls::TLS_PORT.id() {
        server.tls.configure(values).map_err(|_| Refusal::new(NO_TLS))?;
        return listen(server, values, &[Transport::Tls], NO_PORT);
    }
    if id == network::BIND.id() {
        listen(server, values, &Transport::ALL, "Failed to bind to specified addresses.")?;
        return listen_for_metrics(server, values);
    }
    if ENDPOINT.contains(&id) {
        server.tls.configure(values).map_err(|_| Refusal::new(NO_TLS))?;
        return listen_for_metrics(server, values);
    }
    if TRACING.contains(&id) {
        return server.tracing.configure(server, values).map_err(|error| Refusal::new(error.to_string()));
    }
    if TLS.contains(&id) {
        return server.tls.configure(values).map_err(|_| Refusal::new(NO_TLS));
    }
    if id == network::IO_THREADS.id() || id == network::IO_THREADS_MIN.id() {
        return scale_workers(server, values);
    }
    if id == network::MAXCLIENTS.id() {
        return allow_clients(server, values.read(network::MAXCLIENTS));
    }
    if id == security::REQUIREPASS.id() {
        let password = values.read(security::REQUIREPASS);
        server.acl.set_default_password(&server.admission, password.as_deref());
        return Ok(());
    }
    if OOM_SCORE.contains(&id) {
        return oom_score::apply(values);
    }
    if id == memory::MAXMEMORY.id() {
        warn_of_eviction(server, values.read(memory::MAXMEMORY));
    } else if REPLICAS.contains(&id) {
        server.update_good_replicas(values);
    } else if id == replication::REPLICA_READ_ONLY.id() {
        server.update_writable_replica_keys(!values.read(replication::REPLICA_READ_ONLY));
    } else if id == replication::REPL_BACKLOG_SIZE.id() {
        server.resize_backlog(values.read(replication::REPL_BACKLOG_SIZE));
    } else if LOG.contains(&id) {
        kvick_runtime::logging::configure(&kvick_config::process_settings::log(values));
    } else if id == logging::CRASH_LOG_ENABLED.id() {
        crate::crash::configure(values);
    } else if id == persistence::APPENDFSYNC.id() || id == persistence::AOF_JOURNAL.id() {
        server.aof.set_policy(values.read(persistence::APPENDFSYNC));
    } else if id == process::WATCHDOG_PERIOD.id() || id == process::HZ.id() {
        server.watchdog.configure(server, values)?;
    } else if id == process::PROC_TITLE_TEMPLATE.id() {
        title::apply(values);
    } else if id == memory::JEMALLOC_BG_THREAD.id() {
        crate::memory::configure_purging(values);
    }
    Ok(())
}

/// Warns if the new limit is below the memory in use, since keys will be evicted or writes fail.
fn warn_of_eviction(server: &'static Server, limit: u64) {
    let excess = eviction::excess(server, limit);
    if limit > 0 && excess > 0 {
        kvick_runtime::logging::warning(format_args!(
            "WARNING: the new maxmemory value set via CONFIG SET ({limit}) is smaller than the current memory usage \
             ({}). This will result in key eviction and/or the inability to accept new write commands depending on the \
             maxmemory-policy.",
            limit.saturating_add_signed(excess)
        ));
    }
}

fn allow_clients(server: &'static Server, requested: u32) -> Result<(), Refusal> {
    let endpoint = crate::http::descriptors(&server.config.values());
    match limits::allow_clients(requested, server.workers_max(), endpoint) {
        Ok(allowed) if allowed == requested => Ok(()),
        Ok(allowed) => Err(Refusal::new(format!(
            "The operating system is not able to handle the specified number of clients, try with {allowed}"
        ))),
        Err(error) => Err(Refusal::new(error.to_string())),
    }
}

/// Makes the number of active workers conform to the settings.
fn scale_workers(server: &'static Server, values: &Values) -> Result<(), Refusal> {
    let max = server.workers_max();
    if values.read(network::IO_THREADS) as usize > max {
        return Err(Refusal::new(format!("This server can have at most {max} workers until it is started again")));
    }
    affinity::adapt(values.read(network::IO_THREADS) as usize);
    Ok(server.conform_workers(values)?)
}

fn listen_for_metrics(server: &'static Server, values: &Values) -> Result<(), Refusal> {
    server.endpoint.configure(values, server.workers_max()).map_err(|error| {
        kvick_runtime::logging::warning(format_args!("{error}"));
        Refusal::new(NO_PORT)
    })
}

const NO_PORT: &str = "Unable to listen on this port. Check server logs.";
const NO_TLS: &str = "Unable to update TLS configuration. Check server logs.";

fn listen(
    server: &'static Server,
    values: &Values,
    transports: &[Transport],
    refusal: &'static str,
) -> Result<(), Refusal> {
    for transport in transports {
        server.relisten(values, *transport).map_err(|error| {
            kvick_runtime::logging::warning(format_args!("{error}"));
            Refusal::new(refusal)
        })?;
    }
    title::apply(values);
    Ok(())
}
