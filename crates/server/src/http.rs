//! The HTTP endpoint (`metrics-port`): its thread and sockets. What it serves is decided elsewhere.

use kvick_config::Values;
use kvick_config::tables::metrics::{METRICS_PORT, METRICS_TLS};
use kvick_config::tables::network::MAXCLIENTS;
use kvick_http::{Endpoint, Limits, Router, TlsSource};
use kvick_net::listen;
use kvick_page::sessions::SESSIONS_MAX;
use kvick_process::limits;
use kvick_runtime::logging;
use parking_lot::Mutex;
use std::io;
use std::sync::OnceLock;

/// Descriptors of the endpoint, if it is on: its connections, listeners and poll, and its ends of the page's client
/// connections.
pub fn descriptors(values: &Values) -> u64 {
    if values.read(METRICS_PORT) == 0 { 0 } else { 80 + 2 * SESSIONS_MAX as u64 }
}

/// What the endpoint serves.
pub struct Source {
    /// Creates the pages, when the endpoint is on for the first time.
    pub pages: Box<dyn Fn() -> io::Result<Router> + Send + Sync>,
    /// The TLS configuration of new connections.
    pub tls: TlsSource,
}

/// The endpoint, which is off while its port is 0.
#[derive(Default)]
pub struct HttpEndpoint {
    source: OnceLock<Source>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The thread, from the first time that the endpoint is on.
    thread: Option<Endpoint>,
    /// The port that it listens on; 0 if none.
    port: u16,
}

impl HttpEndpoint {
    /// Sets what it serves. Later calls have no effect.
    pub fn set_source(&self, source: Source) {
        // Only a bug in the startup code calls this twice; the first value stays.
        let _ = self.source.set(source);
    }

    /// Opens the sockets that the settings require, in place of those that are open. After an error none may be open.
    ///
    /// # Errors
    /// The address and the cause.
    pub fn configure(&self, values: &Values, workers: usize) -> io::Result<()> {
        let mut state = self.state.lock();
        let port = values.read(METRICS_PORT);
        let Some(source) = self.source.get().filter(|_| port != 0) else { return state.close() };
        let sockets = match listen::open_metrics(values) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && state.port == port => {
                state.close()?;
                listen::open_metrics(values)?
            }
            result => result?,
        };
        if state.port == 0 {
            // Raises the limit of open files; the result only concerns the number of clients.
            let _ = limits::allow_clients(values.read(MAXCLIENTS), workers, descriptors(values));
        }
        let thread = match &mut state.thread {
            Some(thread) => thread,
            none => none.insert(Endpoint::start((source.pages)()?, Limits::default())?),
        };
        let tls = values.read(METRICS_TLS).then(|| source.tls.clone());
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
