//! Metrics of COMMANDLOG, SLOWLOG and LATENCY.

use crate::server::Server;
use kvick_core::commandlog::{Kind, Thresholds};
use kvick_metrics::{Exposition, Metric};

/// See the module's documentation.
pub static METRICS: [Metric; 14] = [
    Metric::gauge("redis_slowlog_length", "Entries in SLOWLOG."),
    Metric::gauge("redis_slowlog_last_id", "ID of the latest entry in SLOWLOG; 0 if it is empty."),
    Metric::gauge("redis_last_slow_execution_duration_seconds", "Duration of the latest entry in SLOWLOG."),
    Metric::gauge("redis_commandlog_slow_length", "Entries in COMMANDLOG of slow commands."),
    Metric::gauge("redis_commandlog_large_request_length", "Entries in COMMANDLOG of large requests."),
    Metric::gauge("redis_commandlog_large_reply_length", "Entries in COMMANDLOG of large replies."),
    Metric::gauge("redis_commandlog_execution_slower_than", "Least duration of slow commands, in microseconds."),
    Metric::gauge("redis_commandlog_slow_execution_max_len", "Limit of entries of slow commands."),
    Metric::gauge("redis_commandlog_request_larger_than", "Least size of large requests, in bytes."),
    Metric::gauge("redis_commandlog_large_request_max_len", "Limit of entries of large requests."),
    Metric::gauge("redis_commandlog_reply_larger_than", "Least size of large replies, in bytes."),
    Metric::gauge("redis_commandlog_large_reply_max_len", "Limit of entries of large replies."),
    Metric::gauge("redis_latency_spike_last", "Unix time of an event's latest sample in LATENCY.")
        .labels(&["event_name"]),
    Metric::gauge("redis_latency_spike_duration_seconds", "Duration of an event's latest sample in LATENCY.")
        .labels(&["event_name"]),
];

/// Writes them.
pub fn write(server: &Server, out: &mut Exposition) {
    let [length, last_id, last_duration, others @ ..] = &METRICS;
    let log = &server.commandlog;
    let slowest = log.latest(Kind::Slow, 1).into_iter().next();
    out.family(length).sample(&[], log.len(Kind::Slow));
    out.family(last_id).sample(&[], slowest.as_ref().map_or(0, |entry| entry.id));
    out.family(last_duration).sample(&[], slowest.map_or(0.0, |entry| entry.value as f64 / 1e6));
    let [slow, requests, replies, thresholds @ .., spike, spike_duration] = others;
    for (metric, kind) in [(slow, Kind::Slow), (requests, Kind::LargeRequest), (replies, Kind::LargeReply)] {
        out.family(metric).sample(&[], log.len(kind));
    }
    let limits = Thresholds::read(&server.config.values());
    let numbers = [
        limits.slow_us,
        limits.slow_max as i64,
        limits.request_bytes,
        limits.request_max as i64,
        limits.reply_bytes,
        limits.reply_max as i64,
    ];
    for (metric, number) in thresholds.iter().zip(numbers) {
        out.family(metric).sample(&[], number);
    }
    let events = server.latency.all();
    let samples = || events.iter().filter_map(|(event, series)| Some((*event, series.samples.back()?)));
    let mut family = out.family(spike);
    samples().for_each(|(event, sample)| family.sample(&[event], sample.time));
    let mut family = out.family(spike_duration);
    samples().for_each(|(event, sample)| family.sample(&[event], sample.ms as f64 / 1e3));
}
