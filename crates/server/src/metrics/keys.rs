//! Metrics of single keys, for `metrics-keys-max` hot keys by each metric and as many big keys.

use crate::commands::big_keys::KINDS;
use crate::commands::hot_keys::{last_window, shown};
use crate::commands::info::Context;
use kvick_config::tables::metrics::METRICS_KEYS_MAX;
use kvick_core::hot_keys::summary::Metric as UsageMetric;
use kvick_metrics::{Exposition, Metric, Number};
use kvick_store::big_keys::Order;

const HOT: &[&str] = &["db", "key"];
const BIG: &[&str] = &["db", "key", "type"];

/// See the module's documentation.
pub static METRICS: [Metric; 5] = [
    Metric::gauge("kvick_hot_key_accesses_per_second", "Estimated accesses of a hot key per second.").labels(HOT),
    Metric::gauge("kvick_hot_key_cpu_ratio", "Estimated execution time of a hot key per second.").labels(HOT),
    Metric::gauge("kvick_hot_key_bytes_per_second", "Estimated bytes of requests and replies of a hot key per second.")
        .labels(HOT),
    Metric::gauge("kvick_big_key_bytes", "Memory of a big key.").labels(BIG),
    Metric::gauge("kvick_big_key_elements", "Elements of a big key.").labels(BIG),
];

/// Writes them.
pub fn write(context: &Context, out: &mut Exposition) {
    let keys_max = context.server.config.read(METRICS_KEYS_MAX) as usize;
    if keys_max == 0 {
        return;
    }
    let [hot @ .., bytes, elements] = &METRICS;
    if let Some(report) = last_window(context.server) {
        for (metric, by) in hot.iter().zip(UsageMetric::ALL) {
            let mut family = out.family(metric);
            for shown in shown(context.server, &report, by).take(keys_max) {
                let number = match by {
                    UsageMetric::Accesses => Number::from(shown.rates.accesses),
                    UsageMetric::Cpu => Number::from(shown.rates.cpu_us as f64 / 1e6),
                    UsageMetric::Bytes => Number::from(shown.rates.bytes),
                };
                let (db, key) = (shown.hot.home.db.to_string(), String::from_utf8_lossy(&shown.hot.key));
                family.sample(&[&db, &key], number);
            }
        }
    }
    for (metric, order) in [(bytes, Order::Bytes), (elements, Order::Elements)] {
        let largest = || {
            let core = context.server;
            core.big_keys.largest(core.keyspace, context.now_ms, &KINDS, order, keys_max)
        };
        let Some(keys) = context.in_batch(largest) else { return };
        let mut family = out.family(metric);
        for key in keys {
            let (db, name) = (key.db.to_string(), String::from_utf8_lossy(&key.name));
            family.sample(&[&db, &name, key.size.kind.name()], key.size.by(order));
        }
    }
}
