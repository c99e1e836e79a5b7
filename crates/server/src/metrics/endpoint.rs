//! The HTTP endpoint: its pages, and the settings of its sockets.

use super::collector::Collector;
use super::health;
use crate::cluster::turns::Turns;
use crate::process::limits;
use crate::server::Server;
use kvick_config::Values;
use kvick_config::tables::metrics::{METRICS_PORT, METRICS_TLS, METRICS_TOKEN};
use kvick_config::tables::network::{MAXCLIENTS, PROTECTED_MODE};
use kvick_http::router::{full, reply, text};
use kvick_http::{Access, Endpoint, Guard, Limits, Reply, Request, Router, StatusCode, TlsSource};
use kvick_metrics::exposition::CONTENT_TYPE;
use kvick_net::listen;
use kvick_runtime::logging;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

const INDEX: &str = "/metrics  metrics for Prometheus\n/healthz  whether the server is alive\n\
                     /readyz   whether it should get requests\n";

/// The endpoint, which is off while its port is 0.
#[derive(Default)]
pub struct MetricsEndpoint {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The thread, from the first time that the endpoint is on.
    thread: Option<Endpoint>,
    /// The port that it listens on; 0 if none.
    port: u16,
}

impl MetricsEndpoint {
    /// Opens the sockets at startup.
    ///
    /// # Errors
    /// If that is not possible; the cause is logged.
    pub fn start(&self, server: &'static Server, values: &Values) -> io::Result<()> {
        self.configure(server, values).map_err(|error| {
            logging::warning(format_args!("Warning: {error}"));
            let port = values.read(METRICS_PORT);
            io::Error::new(error.kind(), format!("Failed listening on port {port} (metrics), aborting."))
        })
    }

    /// Opens the sockets that the settings require, in place of those that are open. After an error none may be open.
    ///
    /// # Errors
    /// The address and the cause.
    pub fn configure(&self, server: &'static Server, values: &Values) -> io::Result<()> {
        let mut state = self.state.lock();
        let port = values.read(METRICS_PORT);
        if port == 0 {
            return state.close();
        }
        let sockets = match listen::open_metrics(values) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && state.port == port => {
                state.close()?;
                listen::open_metrics(values)?
            }
            result => result?,
        };
        if state.port == 0 {
            // Raises the limit of open files; the result only concerns the number of clients.
            let _ = limits::allow_clients(values.read(MAXCLIENTS), server.workers(), true);
        }
        let thread = match &mut state.thread {
            Some(thread) => thread,
            none => none.insert(Endpoint::start(pages(server)?, Limits::default())?),
        };
        let tls: Option<TlsSource> = values.read(METRICS_TLS).then(|| {
            let source = || server.tls.materials().map(|materials| materials.acceptor.clone());
            Arc::new(source) as TlsSource
        });
        let name = if tls.is_some() { "metrics, tls" } else { "metrics" };
        thread.listen(sockets, tls)?;
        if state.port != port {
            logging::notice(format_args!("Serving HTTP on port {port} ({name})"));
        }
        state.port = port;
        Ok(())
    }
}

impl State {
    fn close(&mut self) -> io::Result<()> {
        self.port = 0;
        self.thread.as_ref().map_or(Ok(()), |thread| thread.listen(Vec::new(), None))
    }
}

/// The pages.
fn pages(server: &'static Server) -> io::Result<Router> {
    let access = move || {
        let values = server.config.values();
        let token = values.read(METRICS_TOKEN).map(|token| token.to_vec());
        Access { token, protected_mode: values.read(PROTECTED_MODE) }
    };
    let collector = Collector::new(server)?;
    let turns = Turns::new(server.workers());
    let router = Router::new(access)
        .get("/", Guard::Open, |_| text(StatusCode::OK, INDEX))
        .get("/metrics", Guard::Protected, move |_| metrics(&collector))
        .get("/healthz", Guard::Open, move |_| healthz(server, &turns))
        .get("/readyz", Guard::Open, move |_: &Request| readyz(server));
    Ok(router)
}

fn metrics(collector: &Collector) -> Reply {
    reply(StatusCode::OK, CONTENT_TYPE, full(collector.page()))
}

fn healthz(server: &Server, turns: &Turns) -> Reply {
    match health::is_alive(server, turns) {
        true => text(StatusCode::OK, "ok\n"),
        false => text(StatusCode::SERVICE_UNAVAILABLE, "a worker hangs\n"),
    }
}

fn readyz(server: &Server) -> Reply {
    let obstacles = health::obstacles(server);
    match obstacles.is_empty() {
        true => text(StatusCode::OK, "ok\n"),
        false => text(StatusCode::SERVICE_UNAVAILABLE, obstacles.join("\n") + "\n"),
    }
}
