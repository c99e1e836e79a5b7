//! Metrics of settings that dashboards compare with what is in use.

use crate::server::Server;
use kvick_config::tables::memory::MAXMEMORY;
use kvick_config::tables::network::{CLIENT_OUTPUT_BUFFER_LIMIT, IO_THREADS, MAXCLIENTS};
use kvick_config::tables::replication::REPL_BACKLOG_SIZE;
use kvick_metrics::{Exposition, Metric};

/// See the module's documentation.
pub static METRICS: [Metric; 6] = [
    Metric::gauge("redis_config_maxclients", "The setting maxclients."),
    Metric::gauge("redis_config_maxmemory", "The setting maxmemory, in bytes."),
    Metric::gauge("redis_config_io_threads", "The setting io-threads: the number of workers."),
    Metric::gauge("redis_config_repl_backlog_size", "The setting repl-backlog-size, in bytes."),
    Metric::gauge("redis_config_client_output_buffer_limit_bytes", "Limits of pending output by class of client.")
        .labels(&["class", "limit"]),
    Metric::gauge("redis_config_client_output_buffer_limit_overcome_seconds", "Time above the soft limit of output.")
        .labels(&["class", "limit"]),
];

/// Writes them.
pub fn write(server: &Server, out: &mut Exposition) {
    let [maxclients, maxmemory, workers, backlog, bytes, seconds] = &METRICS;
    let values = server.config.values();
    out.family(maxclients).sample(&[], values.read(MAXCLIENTS));
    out.family(maxmemory).sample(&[], values.read(MAXMEMORY));
    out.family(workers).sample(&[], values.read(IO_THREADS));
    out.family(backlog).sample(&[], values.read(REPL_BACKLOG_SIZE));
    let limits = values.read(CLIENT_OUTPUT_BUFFER_LIMIT);
    let classes = [("normal", limits.normal), ("slave", limits.replica), ("pubsub", limits.pubsub)];
    let mut family = out.family(bytes);
    for (class, limit) in &classes {
        family.sample(&[class, "hard"], limit.hard_bytes);
        family.sample(&[class, "soft"], limit.soft_bytes);
    }
    let mut family = out.family(seconds);
    for (class, limit) in &classes {
        family.sample(&[class, "soft"], i64::from(limit.soft_seconds));
    }
}
