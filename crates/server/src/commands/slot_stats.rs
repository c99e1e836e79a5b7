//! CLUSTER SLOT-STATS: what the slots of this node's shard use.

use kvick_commands::context::Error;
use kvick_commands::scan_options::parse_slot;
use kvick_core::routing::slot_stats::SlotUsage;
use kvick_core::routing::{Routing, SlotMap};
use kvick_engine::session::Session;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::slot::SLOTS;
use std::ops::RangeInclusive;

/// Parses the arguments after SLOTSRANGE.
pub fn parse_slot_range(first: &[u8], last: &[u8]) -> Result<RangeInclusive<u16>, Error> {
    let (first, last) = (parse_slot(first)?, parse_slot(last)?);
    if first > last {
        return Err(Error::new(format!("ERR Start slot number {first} is greater than end slot number {last}")));
    }
    Ok(first..=last)
}

/// What slots are ordered by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Metric {
    KeyCount,
    CpuUs,
    BytesIn,
    BytesOut,
}

impl Metric {
    /// The metric with this name. Only the number of keys is known while the others are not counted.
    fn named(name: &[u8], is_counting: bool) -> Option<Metric> {
        const ALL: [(&str, Metric); 4] = [
            ("key-count", Metric::KeyCount),
            ("cpu-usec", Metric::CpuUs),
            ("network-bytes-in", Metric::BytesIn),
            ("network-bytes-out", Metric::BytesOut),
        ];
        let found = ALL.into_iter().find(|(other, _)| name.eq_ignore_ascii_case(other.as_bytes()));
        found.map(|(_, metric)| metric).filter(|metric| is_counting || *metric == Metric::KeyCount)
    }

    fn of(self, keys: usize, usage: &SlotUsage) -> u64 {
        match self {
            Metric::KeyCount => keys as u64,
            Metric::CpuUs => usage.cpu_us,
            Metric::BytesIn => usage.bytes_in,
            Metric::BytesOut => usage.bytes_out,
        }
    }
}

/// The arguments after ORDERBY.
#[derive(PartialEq, Eq, Debug)]
struct Order {
    metric: Metric,
    limit: usize,
    descending: bool,
}

impl Order {
    fn parse(words: Args<'_>, is_counting: bool) -> Result<Order, Error> {
        const REPEATED: Error = Error::text("ERR Multiple filters of the same type are disallowed.");
        const LIMIT: Error = Error::text("ERR Limit has to lie in between 1 and 16384 (maximum number of slots).");
        let mut words = words.iter();
        let metric = words.next().and_then(|name| Metric::named(name, is_counting));
        let metric = metric.ok_or(Error::text("ERR Unrecognized sort metric for ORDERBY."))?;
        let (mut limit, mut descending) = (None, None);
        while let Some(word) = words.next() {
            if word.eq_ignore_ascii_case(b"limit") && words.len() > 0 {
                let number = words.next().and_then(parse_i64).and_then(|number| usize::try_from(number).ok());
                let number = number.filter(|number| (1..=usize::from(SLOTS)).contains(number)).ok_or(LIMIT)?;
                if limit.replace(number).is_some() {
                    return Err(REPEATED);
                }
            } else if word.eq_ignore_ascii_case(b"asc") || word.eq_ignore_ascii_case(b"desc") {
                if descending.replace(word.eq_ignore_ascii_case(b"desc")).is_some() {
                    return Err(REPEATED);
                }
            } else {
                return Err(Error::SYNTAX);
            }
        }
        Ok(Order { metric, limit: limit.unwrap_or(SLOTS.into()), descending: descending.unwrap_or(true) })
    }
}

/// `CLUSTER SLOT-STATS SLOTSRANGE start-slot end-slot` and
/// `CLUSTER SLOT-STATS ORDERBY metric [LIMIT limit] [ASC | DESC]`
pub fn slot_stats(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let Some(routing) = &cx.server.routing else {
        return Err(Error::text("ERR This instance has cluster support disabled"));
    };
    let map = routing.current();
    let form = args.get(2).unwrap_or_default();
    let slots = if args.len() == 5 && form.eq_ignore_ascii_case(b"slotsrange") {
        parse_slot_range(&args[3], &args[4])?.filter(|slot| map.is_mine(*slot)).collect()
    } else if args.len() >= 4 && form.eq_ignore_ascii_case(b"orderby") {
        let order = Order::parse(args.slice_from(3), routing.slot_stats.is_enabled())?;
        ordered(cx, routing, &map, &order)
    } else {
        return Err(Error::bad_subcommand("CLUSTER", &args[1]));
    };
    reply(cx, routing, &slots);
    Ok(())
}

/// The slots of this node's shard in an order; slots with equal values in that of their numbers.
fn ordered(cx: &Session<'_>, routing: &Routing, map: &SlotMap, order: &Order) -> Vec<u16> {
    let value = |slot: u16| {
        let value = order.metric.of(cx.server.keyspace.slot_len_total(slot), &routing.slot_stats.of(slot));
        (if order.descending { u64::MAX - value } else { value }, slot)
    };
    let mut slots: Vec<(u64, u16)> = (0..SLOTS).filter(|slot| map.is_mine(*slot)).map(value).collect();
    slots.sort_unstable();
    slots.truncate(order.limit);
    slots.into_iter().map(|(_, slot)| slot).collect()
}

fn reply(cx: &mut Session<'_>, routing: &Routing, slots: &[u16]) {
    let is_counting = routing.slot_stats.is_enabled();
    let reply = &mut cx.reply;
    reply.array(slots.len());
    for slot in slots {
        let usage = routing.slot_stats.of(*slot);
        reply.array(2);
        reply.uint(u64::from(*slot));
        reply.map(if is_counting { 4 } else { 1 });
        reply.bulk(b"key-count");
        reply.uint(cx.server.keyspace.slot_len_total(*slot) as u64);
        if is_counting {
            for (name, value) in [
                ("cpu-usec", usage.cpu_us),
                ("network-bytes-in", usage.bytes_in),
                ("network-bytes-out", usage.bytes_out),
            ] {
                reply.bulk(name.as_bytes());
                reply.uint(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_resp::OwnedArgs;

    fn parse(line: &str, is_counting: bool) -> Result<Order, String> {
        let words = OwnedArgs::new(line.split_whitespace());
        Order::parse(words.args(), is_counting).map_err(|error| error.to_string())
    }

    #[test]
    fn orders_have_a_metric_and_at_most_one_limit_and_direction() {
        let order = |metric, limit, descending| Ok(Order { metric, limit, descending });
        assert_eq!(parse("KEY-COUNT", false), order(Metric::KeyCount, 16384, true));
        assert_eq!(parse("cpu-usec asc LIMIT 1", true), order(Metric::CpuUs, 1, false));
        assert_eq!(parse("network-bytes-out limit 16384 DESC", true), order(Metric::BytesOut, 16384, true));
        let refused = |line: &str| parse(line, true).expect_err(line);
        assert!(parse("cpu-usec", false).is_err() && refused("memory").starts_with("ERR Unrecognized"));
        for line in ["key-count limit 0", "key-count limit 16385", "key-count limit x"] {
            assert!(refused(line).starts_with("ERR Limit has to lie"), "{line}");
        }
        for line in ["key-count asc desc", "key-count limit 1 limit 2"] {
            assert!(refused(line).starts_with("ERR Multiple filters"), "{line}");
        }
        for line in ["key-count limit", "key-count other"] {
            assert_eq!(refused(line), "ERR syntax error");
        }
    }
}
