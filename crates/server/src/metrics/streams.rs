//! Metrics of the streams that `metrics-streams` names, with their groups and consumers.

use crate::commands::info::Context;
use kvick_config::metrics_streams::{self, StreamName};
use kvick_config::tables::metrics::METRICS_STREAMS;
use kvick_metrics::{Exposition, Metric, Number};
use kvick_store::collections::stream::Id;
use kvick_store::{Access, Counters, Db, Effects, Env, Stream};

/// Groups of a stream, and consumers of a group, that have metrics.
const GROUPS_MAX: usize = 100;
const CONSUMERS_MAX: usize = 100;

const STREAM: &[&str] = &["db", "stream"];
const GROUP: &[&str] = &["db", "stream", "group"];
const CONSUMER: &[&str] = &["db", "stream", "group", "consumer"];

/// See the module's documentation.
pub static METRICS: [Metric; 16] = [
    Metric::gauge("redis_stream_length", "Entries of a stream.").labels(STREAM),
    Metric::gauge("redis_stream_radix_tree_keys", "Blocks of entries of a stream.").labels(STREAM),
    Metric::gauge("redis_stream_radix_tree_nodes", "Nodes of a stream's index of blocks.").labels(STREAM),
    Metric::gauge("redis_stream_last_generated_id", "Time in the last ID of a stream, in ms.").labels(STREAM),
    Metric::gauge("redis_stream_groups", "Consumer groups of a stream.").labels(STREAM),
    Metric::gauge("redis_stream_max_deleted_entry_id", "Time in the greatest deleted ID of a stream, in ms.")
        .labels(STREAM),
    Metric::gauge("redis_stream_first_entry_id", "Time in the ID of a stream's first entry, in ms.").labels(STREAM),
    Metric::gauge("redis_stream_last_entry_id", "Time in the ID of a stream's last entry, in ms.").labels(STREAM),
    Metric::counter("redis_stream_entries_added_total", "Entries ever added to a stream.").labels(STREAM),
    Metric::gauge("redis_stream_group_consumers", "Consumers of a group.").labels(GROUP),
    Metric::gauge("redis_stream_group_messages_pending", "Delivered entries of a group without acknowledgement.")
        .labels(GROUP),
    Metric::gauge("redis_stream_group_last_delivered_id", "Time in the last delivered ID of a group, in ms.")
        .labels(GROUP),
    Metric::gauge("redis_stream_group_entries_read", "Entries that a group has read; 0 if unknown.").labels(GROUP),
    Metric::gauge("redis_stream_group_lag", "Entries that a group has yet to read; 0 if unknown.").labels(GROUP),
    Metric::gauge("redis_stream_group_consumer_messages_pending", "Pending entries of a consumer.").labels(CONSUMER),
    Metric::gauge("redis_stream_group_consumer_idle_seconds", "Time since a consumer asked for something.")
        .labels(CONSUMER),
];

/// What the metrics show of a stream.
struct StreamFacts {
    db: String,
    name: String,
    numbers: [u64; 9],
    groups: Vec<GroupFacts>,
}

struct GroupFacts {
    name: String,
    numbers: [u64; 5],
    /// Name, pending entries and idle milliseconds.
    consumers: Vec<(String, usize, i64)>,
}

impl StreamFacts {
    /// Reads them, if the key is a stream and its partition is not locked for long.
    fn read(context: &Context, StreamName { db, key }: &StreamName) -> Option<StreamFacts> {
        let keyspace = context.server.keyspace;
        if *db >= keyspace.databases() {
            return None;
        }
        let key = keyspace.key(key);
        let read = || {
            let address = keyspace.address(*db, key);
            let mut locked = keyspace.lock_one_while(address, || context.may_wait())?;
            // A view changes nothing, so these are not used.
            let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
            let env = Env::command(context.now_ms, &access, &counters, &mut effects);
            let database = Db::new(&mut locked, *db, env);
            let stream = database.view::<Stream>(key)?;
            Some(StreamFacts::of(stream, *db, key.bytes, context.now_ms))
        };
        context.in_batch(read).flatten()
    }

    fn of(stream: &Stream, db: usize, key: &[u8], now_ms: i64) -> StreamFacts {
        let (log, history) = (stream.log(), stream.log().history());
        let first = log.range(Id::MIN, Id::MAX).next().map_or(0, |entry| entry.id.ms);
        let groups = stream.groups().iter().take(GROUPS_MAX).map(|group| GroupFacts {
            name: lossy(group.name()),
            numbers: [
                group.consumers().len() as u64,
                group.pending().len() as u64,
                group.last_id.ms,
                group.entries_read.unwrap_or(0),
                log.lag(group).unwrap_or(0).max(0) as u64,
            ],
            consumers: group
                .consumers()
                .take(CONSUMERS_MAX)
                .map(|one| (lossy(one.name()), one.pending_len(), now_ms.saturating_sub(one.seen_ms()).max(0)))
                .collect(),
        });
        StreamFacts {
            db: format!("db{db}"),
            name: lossy(key),
            groups: groups.collect(),
            numbers: [
                log.len(),
                log.blocks_len() as u64,
                stream.radix_nodes() as u64,
                log.last_id().ms,
                stream.groups().len() as u64,
                history.max_deleted_id.ms,
                first,
                log.last_entry_id().map_or(0, |id| id.ms),
                history.entries_added,
            ],
        }
    }
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Writes them.
pub fn write(context: &Context, out: &mut Exposition) {
    let Some(text) = context.server.config.read(METRICS_STREAMS) else { return };
    // The setting has been checked.
    let names = metrics_streams::parse(&text).unwrap_or_default();
    let streams: Vec<StreamFacts> = names.iter().filter_map(|name| StreamFacts::read(context, name)).collect();
    let (of_stream, others) = METRICS.split_at(9);
    let (of_group, of_consumer) = others.split_at(5);
    for (number, metric) in of_stream.iter().enumerate() {
        let mut family = out.family(metric);
        streams.iter().for_each(|stream| family.sample(&[&stream.db, &stream.name], stream.numbers[number]));
    }
    let groups = || streams.iter().flat_map(|stream| stream.groups.iter().map(move |group| (stream, group)));
    for (number, metric) in of_group.iter().enumerate() {
        let mut family = out.family(metric);
        groups().for_each(|(stream, group)| {
            family.sample(&[&stream.db, &stream.name, &group.name], group.numbers[number]);
        });
    }
    let values: [fn(usize, i64) -> Number; 2] =
        [|pending, _| pending.into(), |_, idle_ms| Number::Float(idle_ms as f64 / 1000.0)];
    for (metric, value) in of_consumer.iter().zip(values) {
        let mut family = out.family(metric);
        for (stream, group) in groups() {
            for (name, pending, idle_ms) in &group.consumers {
                family.sample(&[&stream.db, &stream.name, &group.name, name], value(*pending, *idle_ms));
            }
        }
    }
}
