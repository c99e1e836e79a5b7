//! The section on databases.

use super::Context;
use super::page::Page;
use kvick_metrics::{Exposition, Metric};

/// Keys sampled for the average TTL.
const TTL_SAMPLES: usize = 100;

/// Figures on one database.
struct Database {
    number: usize,
    keys: usize,
    volatile: usize,
    volatile_hashes: usize,
    /// `None` if it could not be determined.
    ttl_ms: Option<u64>,
}

/// The metrics of databases. INFO shows them in one field of each database with keys.
pub static METRICS: [Metric; 4] = [
    Metric::gauge("redis_db_keys", "Keys of a database.").labels(&["db"]),
    Metric::gauge("redis_db_keys_expiring", "Keys of a database that have an expiry.").labels(&["db"]),
    Metric::gauge("redis_db_avg_ttl_seconds", "Mean time to live of keys with an expiry, from a sample.")
        .labels(&["db"]),
    Metric::gauge("redis_db_keys_cached", "Hashes with expiring fields. The name is that of redis_exporter.")
        .labels(&["db"]),
];

impl Database {
    fn of(context: &Context, number: usize) -> Database {
        let keyspace = context.server.keyspace;
        Database {
            number,
            keys: keyspace.len(number),
            volatile: keyspace.volatile(number),
            volatile_hashes: keyspace.volatile_hashes(number),
            ttl_ms: context.in_batch(|| keyspace.average_ttl_ms(number, context.now_ms, TTL_SAMPLES)),
        }
    }
}

/// Writes the section.
pub fn write(context: &Context, page: &mut Page) {
    let keyspace = context.server.keyspace;
    page.section("Keyspace");
    for number in (0..keyspace.databases()).filter(|number| !keyspace.is_empty(*number)) {
        let Database { number, keys, volatile, volatile_hashes, ttl_ms } = Database::of(context, number);
        let ttl_ms = ttl_ms.unwrap_or(0);
        page.field(
            format_args!("db{number}"),
            format_args!("keys={keys},expires={volatile},avg_ttl={ttl_ms},keys_with_volatile_items={volatile_hashes}"),
        );
    }
}

/// Writes the metrics of databases. Empty databases have samples of their keys.
pub fn export(context: &Context, out: &mut Exposition) {
    let [keys, volatile, ttl, volatile_hashes] = &METRICS;
    let keyspace = context.server.keyspace;
    let databases = (0..keyspace.databases()).map(|number| match keyspace.is_empty(number) {
        true => Database { number, keys: 0, volatile: 0, volatile_hashes: 0, ttl_ms: None },
        false => Database::of(context, number),
    });
    let databases: Vec<(String, Database)> = databases.map(|one| (format!("db{}", one.number), one)).collect();
    let mut write = |metric, value: fn(&Database) -> Option<f64>| {
        let mut family = out.family(metric);
        for (name, database) in &databases {
            if let Some(value) = value(database) {
                family.sample(&[name], value);
            }
        }
    };
    write(keys, |database| Some(database.keys as f64));
    write(volatile, |database| Some(database.volatile as f64));
    write(ttl, |database| database.ttl_ms.map(|ms| ms as f64 / 1000.0));
    write(volatile_hashes, |database| (database.keys > 0).then_some(database.volatile_hashes as f64));
}
