//! The pages of the HTTP endpoint.

use super::collector::Collector;
use super::health;
use crate::cluster::turns::Turns;
use crate::http::Source;
use crate::page::PageHost;
use crate::server::Server;
use kvick_config::Values;
use kvick_config::tables::metrics::{METRICS_PORT, METRICS_TOKEN};
use kvick_config::tables::network::PROTECTED_MODE;
use kvick_http::router::{full, reply, text};
use kvick_http::{Access, Guard, Reply, Request, Router, StatusCode};
use kvick_metrics::exposition::CONTENT_TYPE;
use kvick_runtime::logging;
use std::io;
use std::sync::Arc;

const INDEX: &str = "/metrics  metrics for Prometheus\n/healthz  whether the server is alive\n\
                     /readyz   whether it should get requests\n/ui       page for browsers, \
                     if it is enabled\n";

/// Gives the endpoint its pages, and opens its sockets.
///
/// # Errors
/// If that is not possible; the cause is logged.
pub fn start(server: &'static Server, values: &Values) -> io::Result<()> {
    let tls = move || server.tls.materials().map(|materials| materials.acceptor.clone());
    server.endpoint.set_source(Source { pages: Box::new(move || pages(server)), tls: Arc::new(tls) });
    server.endpoint.configure(values, server.workers_max()).map_err(|error| {
        logging::warning(format_args!("Warning: {error}"));
        let port = values.read(METRICS_PORT);
        io::Error::new(error.kind(), format!("Failed listening on port {port} (metrics), aborting."))
    })
}

/// The pages.
fn pages(server: &'static Server) -> io::Result<Router> {
    let access = move || {
        let values = server.config.values();
        let token = values.read(METRICS_TOKEN).map(|token| token.to_vec());
        Access { token, protected_mode: values.read(PROTECTED_MODE) }
    };
    let collector = Collector::new(server)?;
    let turns = Turns::new(server.workers_max());
    let router = Router::new(access)
        .get("/", Guard::Open, |_| text(StatusCode::OK, INDEX))
        .get("/metrics", Guard::Protected, move |_| metrics(&collector))
        .get("/healthz", Guard::Open, move |_| healthz(server, &turns))
        .get("/readyz", Guard::Open, move |_: &Request| readyz(server));
    Ok(kvick_page::add_routes(router, Arc::new(PageHost::new(server))))
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
