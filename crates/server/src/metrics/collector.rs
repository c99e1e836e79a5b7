//! Scrapes: collects all metrics, at most once at a time and for several requests together.

use super::catalogue;
use crate::commands::info::{Context, Visitor};
use crate::server::Server;
use kvick_http::Bytes;
use kvick_metrics::{Exposition, Metric};
use kvick_runtime::clock;
use kvick_store::global_lock::Participant;
use parking_lot::Mutex;
use std::io;
use std::time::{Duration, Instant};

/// Requests within this time get the same page.
const SHARED_FOR: Duration = Duration::from_millis(100);

/// How long a collection waits for the global lock and for locks of partitions, in total.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// The metrics of the scrape itself. Dashboards for redis_exporter use them.
pub static METRICS: [Metric; 7] = [
    Metric::counter("redis_exporter_scrapes_total", "Collections of metrics."),
    Metric::summary("redis_exporter_scrape_duration_seconds", "Time that collections took."),
    Metric::gauge("redis_exporter_last_scrape_duration_seconds", "Time that this collection took."),
    Metric::gauge("redis_exporter_last_scrape_connect_time_seconds", "Always 0: there is no connection to a server."),
    Metric::gauge("redis_exporter_last_scrape_error", "Always 0: the server has answered.").labels(&["err"]),
    Metric::counter("redis_target_scrape_request_errors_total", "Always 0: there are no other targets."),
    Metric::gauge("redis_last_key_groups_scrape_duration_milliseconds", "Always 0: there are no groups of keys."),
];

/// See the module's documentation.
pub struct Collector {
    server: &'static Server,
    participant: Participant,
    latest: Mutex<Latest>,
}

#[derive(Default)]
struct Latest {
    page: Bytes,
    collected: Option<Instant>,
    count: u64,
    /// Time of all earlier collections.
    duration: Duration,
}

impl Collector {
    /// A collector. There should be only one, since it remains a participant of the global lock.
    ///
    /// # Errors
    /// If there are too many participants.
    pub fn new(server: &'static Server) -> io::Result<Collector> {
        let participant = server.keyspace.global_lock.join().ok_or_else(|| io::Error::other("too many workers"))?;
        Ok(Collector { server, participant, latest: Mutex::default() })
    }

    /// The page with all metrics, collected now or a moment ago.
    pub fn page(&self) -> Bytes {
        self.page_within(SHARED_FOR)
    }

    /// The page with all metrics, collected now unless the latest one is younger than this.
    pub fn page_within(&self, age: Duration) -> Bytes {
        let mut latest = self.latest.lock();
        if latest.collected.is_none_or(|collected| collected.elapsed() >= age) {
            let began = Instant::now();
            latest.count += 1;
            latest.page = self.collect(&latest).into();
            latest.duration += began.elapsed();
            latest.collected = Some(Instant::now());
        }
        latest.page.clone()
    }

    fn collect(&self, Latest { count, duration: before, .. }: &Latest) -> String {
        let began = Instant::now();
        let mut out = Exposition::default();
        let visitor = Visitor { participant: self.participant, deadline: began + WAIT_MAX };
        let context = Context::new(self.server, clock::unix_ms(), Some(visitor));
        catalogue::write(&context, &mut out);
        let [scrapes, durations, duration, connect, error, target_errors, key_groups] = &METRICS;
        out.family(scrapes).sample(&[], *count);
        out.family(error).sample(&[""], false);
        for zero in [connect, target_errors, key_groups] {
            out.family(zero).sample(&[], 0u64);
        }
        let taken = began.elapsed();
        out.family(duration).sample(&[], taken.as_secs_f64());
        out.family(durations).summary(&[], std::iter::empty(), (*before + taken).as_secs_f64(), *count);
        out.into_text()
    }
}
