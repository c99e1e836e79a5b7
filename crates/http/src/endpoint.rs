//! The thread that serves connections.

use crate::connection;
use crate::limits::Limits;
use crate::router::Router;
use kvick_runtime::affinity::{self, Role};
use kvick_runtime::logging;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, JoinSet, LocalSet, spawn_local};

/// How long to wait after a failed accept, for example because no file descriptor is left.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Returns the TLS configuration for a new connection; `None` if TLS is not set up.
pub type TlsSource = Arc<dyn Fn() -> Option<Arc<rustls::ServerConfig>> + Send + Sync>;

/// New listeners, and whom to tell that the previous ones and their connections are closed.
struct Change {
    listeners: Vec<std::net::TcpListener>,
    tls: Option<TlsSource>,
    done: blocking::Sender<()>,
}

/// The thread. It runs until the process ends; without listeners it does nothing.
pub struct Endpoint {
    changes: UnboundedSender<Change>,
}

impl Endpoint {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread or its event loop cannot be created.
    pub fn start(router: Router, limits: Limits) -> io::Result<Endpoint> {
        let (changes, receiver) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        std::thread::Builder::new().name("http".into()).spawn(move || {
            kvick_runtime::memory::register_thread();
            affinity::set(Role::Background);
            let shared = Rc::new(Shared {
                router: Arc::new(router),
                limits,
                connections: RefCell::default(),
                accept_errors: Streak::default(),
                handshake_errors: Streak::default(),
            });
            LocalSet::new().block_on(&runtime, run(receiver, shared));
        })?;
        Ok(Endpoint { changes })
    }

    /// Replaces the listeners, which must be non-blocking, and closes all connections. Returns when the previous ones
    /// are closed. With `tls`, connections are encrypted.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn listen(&self, listeners: Vec<std::net::TcpListener>, tls: Option<TlsSource>) -> io::Result<()> {
        let (done, closed) = blocking::channel();
        let has_ended = || io::Error::other("the HTTP thread has ended");
        self.changes.send(Change { listeners, tls, done }).map_err(|_| has_ended())?;
        closed.recv().map_err(|_| has_ended())
    }
}

/// What the tasks of the thread share.
struct Shared {
    router: Arc<Router>,
    limits: Limits,
    /// The open connections, oldest first.
    connections: RefCell<VecDeque<AbortHandle>>,
    accept_errors: Streak,
    handshake_errors: Streak,
}

/// Errors in a row, of which only the first is logged.
#[derive(Default)]
struct Streak(Cell<bool>);

impl Streak {
    fn end(&self) {
        self.0.set(false);
    }

    /// Counts an error; true for the first in a row.
    fn begin(&self) -> bool {
        !self.0.replace(true)
    }
}

async fn run(mut changes: UnboundedReceiver<Change>, shared: Rc<Shared>) {
    let mut acceptors = JoinSet::new();
    while let Some(Change { listeners, tls, done }) = changes.recv().await {
        acceptors.shutdown().await;
        shared.connections.borrow_mut().drain(..).for_each(|connection| connection.abort());
        // Nobody waits if the caller has given up.
        let _ = done.send(());
        for listener in listeners {
            match TcpListener::from_std(listener) {
                Ok(listener) => {
                    acceptors.spawn_local(accept(listener, tls.clone(), shared.clone()));
                }
                Err(error) => logging::warning(format_args!("HTTP: a listener cannot be used: {error}")),
            }
        }
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsSource>, shared: Rc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                shared.accept_errors.end();
                admit(stream, peer, tls.as_ref(), &shared);
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if shared.accept_errors.begin() {
                    logging::warning(format_args!("HTTP: cannot accept connections, will retry: {error}"));
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Starts serving a connection, in place of the oldest one if there are too many.
fn admit(stream: TcpStream, peer: SocketAddr, tls: Option<&TlsSource>, shared: &Rc<Shared>) {
    let config = match tls {
        None => None,
        Some(source) => match source() {
            Some(config) => Some(config),
            None => {
                if shared.handshake_errors.begin() {
                    logging::warning(format_args!("HTTP: connections are refused because TLS is not set up"));
                }
                return;
            }
        },
    };
    let mut connections = shared.connections.borrow_mut();
    connections.retain(|connection| !connection.is_finished());
    while connections.len() >= shared.limits.connections_max {
        if let Some(oldest) = connections.pop_front() {
            oldest.abort();
        }
    }
    // Without this option replies are only slower.
    let _ = stream.set_nodelay(true);
    let task_shared = shared.clone();
    let task = spawn_local(async move {
        let (router, limits) = (task_shared.router.clone(), task_shared.limits);
        match connection::serve(stream, peer, config, router, limits).await {
            Ok(()) => task_shared.handshake_errors.end(),
            Err(error) if task_shared.handshake_errors.begin() => {
                logging::notice(format_args!("HTTP: TLS handshake with {peer} failed: {error}"));
            }
            Err(_) => {}
        }
    });
    connections.push_back(task.abort_handle());
}
