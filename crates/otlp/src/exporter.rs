//! The thread that sends spans.

use crate::client;
use crate::delivery::{Delivery, Outcome};
use crate::settings::Settings;
use crate::span::{Resource, Span};
use crate::wire;
use kvick_runtime::affinity::{self, Role};
use kvick_runtime::logging;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;
use tokio::time::timeout;

/// How often the thread asks for new spans.
const INTERVAL: Duration = Duration::from_secs(1);

/// Returns the spans since the last call.
pub type Source = Box<dyn FnMut() -> Vec<Span> + Send>;

/// How many spans were sent or not, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Spans that a collector has accepted.
    pub exported: u64,
    /// Spans that a collector has rejected.
    pub rejected: u64,
    /// Spans given up because no collector could be reached for too long, or because too many waited.
    pub dropped: u64,
}

enum Order {
    /// Where to send from now on, with what attributes; `None` stops.
    Use(Option<(Arc<Settings>, Resource)>),
    /// Send what there is and tell when that is done.
    Flush(blocking::Sender<()>),
}

/// The thread. It runs until the process ends; without settings it only waits for them.
pub struct Exporter {
    orders: UnboundedSender<Order>,
    counts: Arc<Mutex<Counts>>,
}

impl Exporter {
    /// Starts the thread. `version` is the version of the program.
    ///
    /// # Errors
    /// If the thread or its event loop cannot be created.
    pub fn start(source: Source, version: &'static str) -> io::Result<Exporter> {
        let (orders, receiver) = unbounded_channel();
        let counts = Arc::new(Mutex::new(Counts::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let sending = Sending {
            source,
            version,
            delivery: Delivery::default(),
            target: None,
            is_failing: false,
            began: Instant::now(),
            counts: counts.clone(),
        };
        std::thread::Builder::new().name("otlp".into()).spawn(move || {
            kvick_runtime::memory::register_thread();
            affinity::set(Role::Background);
            LocalSet::new().block_on(&runtime, sending.run(receiver));
        })?;
        Ok(Exporter { orders, counts })
    }

    /// Sends spans to this collector from now on, or to none.
    pub fn configure(&self, target: Option<(Settings, Resource)>) {
        let target = target.map(|(settings, resource)| (Arc::new(settings), resource));
        // The thread ends only with the process.
        let _ = self.orders.send(Order::Use(target));
    }

    /// Sends what there is, once, and waits for that at most this long.
    pub fn flush(&self, wait: Duration) {
        let (done, sent) = blocking::channel();
        if self.orders.send(Order::Flush(done)).is_ok() {
            // If it takes longer, the rest is lost with the process.
            let _ = sent.recv_timeout(wait);
        }
    }

    /// How many spans were sent.
    pub fn counts(&self) -> Counts {
        *self.counts.lock()
    }
}

/// The state of the thread.
struct Sending {
    source: Source,
    version: &'static str,
    delivery: Delivery,
    target: Option<(Arc<Settings>, Resource)>,
    /// Whether the latest request failed. Only the first failure in a row is logged.
    is_failing: bool,
    began: Instant,
    counts: Arc<Mutex<Counts>>,
}

impl Sending {
    async fn run(mut self, mut orders: UnboundedReceiver<Order>) {
        loop {
            let order = match self.target {
                None => orders.recv().await,
                Some(_) => match timeout(INTERVAL, orders.recv()).await {
                    Ok(order) => order,
                    Err(_) => {
                        self.export().await;
                        continue;
                    }
                },
            };
            match order {
                None => return,
                Some(Order::Use(target)) => {
                    self.export().await;
                    if target.is_none() {
                        self.delivery.clear();
                    }
                    self.target = target;
                    self.is_failing = false;
                }
                Some(Order::Flush(done)) => {
                    self.export().await;
                    // Nobody waits if the caller has given up.
                    let _ = done.send(());
                }
            }
            self.publish();
        }
    }

    /// Sends all batches that are due.
    async fn export(&mut self) {
        let Some((settings, resource)) = self.target.clone() else { return };
        self.delivery.add((self.source)());
        loop {
            let count = self.delivery.due(self.began.elapsed());
            if count == 0 {
                break;
            }
            let (outcome, remark) = match wire::encode(&resource, self.version, self.delivery.batch(count)) {
                Ok(body) => client::send(&settings, body).await,
                Err(error) => (Outcome::Refused, Some(error.to_string())),
            };
            self.delivery.done(count, &outcome, self.began.elapsed());
            self.log(&settings, &outcome, remark.as_deref().unwrap_or("no reason given"));
            self.publish();
        }
        self.publish();
    }

    fn publish(&self) {
        let Delivery { exported, rejected, dropped, .. } = self.delivery;
        *self.counts.lock() = Counts { exported, rejected, dropped };
    }

    fn log(&mut self, settings: &Settings, outcome: &Outcome, remark: &str) {
        let is_failing = *outcome != Outcome::Accepted { rejected: 0 };
        match outcome {
            _ if is_failing == self.is_failing => {}
            Outcome::Later(_) => {
                logging::warning(format_args!("Traces cannot be sent to {}, will retry: {remark}", settings.url()))
            }
            Outcome::Refused => {
                logging::warning(format_args!("Traces are refused by {}: {remark}", settings.url()));
            }
            Outcome::Accepted { rejected: 0 } => {
                logging::notice(format_args!("Traces are accepted by {} again", settings.url()));
            }
            Outcome::Accepted { rejected } => {
                logging::warning(format_args!("{rejected} traces were rejected by {}: {remark}", settings.url()));
            }
        }
        self.is_failing = is_failing;
    }
}
