//! The section on databases.

use super::Context;
use super::page::Page;

/// Keys sampled for the average TTL.
const TTL_SAMPLES: usize = 100;

pub fn write(context: &Context, page: &mut Page) {
    let keyspace = context.server.keyspace;
    page.section("Keyspace");
    for number in (0..keyspace.databases()).filter(|number| !keyspace.is_empty(*number)) {
        let (keys, volatile) = (keyspace.len(number), keyspace.volatile(number));
        let hashes = keyspace.volatile_hashes(number);
        let ttl_ms = keyspace.average_ttl_ms(number, context.now_ms, TTL_SAMPLES);
        page.field(
            format_args!("db{number}"),
            format_args!("keys={keys},expires={volatile},avg_ttl={ttl_ms},keys_with_volatile_items={hashes}"),
        );
    }
}
