//! How keys are stored, and many of them at once.

use crate::session::Session;
use kvick_commands::context::Error;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::{Entry, Expiry, Str};

/// A string of this many digits at most is dumped as an integer.
const DIGITS_MAX: usize = 11;

/// DEBUG OBJECT key [fast]
pub fn object(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let fast = args.get(3).is_some_and(|word| word.eq_ignore_ascii_case(b"fast"));
    let (number, access) = (cx.client.db, cx.access);
    let mut db = cx.db(number);
    let entry = db.peek(db.key(&args[2])).ok_or(Error::NO_KEY)?;
    let mut text = format!("Value at:{:#x} refcount:1 encoding:{}", entry.address(), entry.encoding());
    if !fast {
        text += &format!(" serializedlength:{}", dumped_len(&entry));
    }
    let clock = entry.clock();
    text += &if access.lfu {
        format!(" lfu_freq:{} lfu_access_time_minutes:{}", access.frequency(clock), clock >> 8)
    } else {
        format!(" lru:{clock} lru_seconds_idle:{}", access.idle_seconds(clock))
    };
    cx.reply.simple(text);
    Ok(())
}

/// Bytes of a string in a dump that does not compress.
fn dumped_len(entry: &Entry<'_>) -> usize {
    match entry.str() {
        Some(Str::Int(number)) => dumped_int_len(number).unwrap_or_else(|| 1 + number.to_string().len()),
        Some(Str::Bytes(bytes)) => {
            let number = Some(bytes).filter(|bytes| bytes.len() <= DIGITS_MAX).and_then(parse_i64);
            number.and_then(dumped_int_len).unwrap_or_else(|| {
                let prefix = match bytes.len() {
                    ..64 => 1,
                    64..16384 => 2,
                    _ => 5,
                };
                prefix + bytes.len()
            })
        }
        None => 0,
    }
}

/// Bytes of an integer in a dump: a mark, and one, two or four bytes; larger ones are dumped as text.
fn dumped_int_len(number: i64) -> Option<usize> {
    let bytes = if i8::try_from(number).is_ok() {
        1
    } else if i16::try_from(number).is_ok() {
        2
    } else {
        i32::try_from(number).ok().map(|_| 4)?
    };
    Some(1 + bytes)
}

/// DEBUG SDSLEN key
pub fn lengths(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let number = cx.client.db;
    let mut db = cx.db(number);
    let entry = db.peek(db.key(&args[2])).ok_or(Error::NO_KEY)?;
    let Some(Str::Bytes(value)) = entry.str() else {
        return Err(Error::text("ERR Not an sds encoded string."));
    };
    let (key_len, value_len) = (entry.key().len(), value.len());
    let (inside, outside) = (entry.memory(0) - entry.external_memory(0), entry.external_memory(0));
    let spare = outside.saturating_sub(size_of::<Vec<u8>>() + value_len);
    cx.reply.simple(format!(
        "key_sds_len:{key_len} key_sds_avail:0 obj_alloc:{inside} \
         val_sds_len:{value_len} val_sds_avail:{spare} val_alloc:{outside}"
    ));
    Ok(())
}

/// DEBUG HTSTATS database [full]
pub fn tables(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let keyspace = cx.server.keyspace;
    let number = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    let number = usize::try_from(number).ok().filter(|number| *number < keyspace.databases());
    let usage = keyspace.usage(number.ok_or(Error::text("ERR Out of range database"))?);
    let percent = 100.0 * usage.keys as f64 / usage.slots.max(1) as f64;
    let text = format!(
        "[Dictionary HT]\nHash table 0 stats (main hash table):\n table size: {}\n number of elements: {}\n \
         partitions: {}, {} in use\n elements with expiry: {}\n segments: {}\n fill: {percent:.2}%\n bytes: {}\n",
        usage.slots,
        usage.keys,
        keyspace.partitions(),
        usage.partitions,
        usage.volatile,
        usage.segments,
        usage.table_bytes
    );
    cx.reply.verbatim(text.as_bytes(), "txt");
    Ok(())
}

/// DEBUG POPULATE count [prefix [size]]
pub fn populate(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let count = size(&args[2])?;
    let prefix = args.get(3).unwrap_or(b"key");
    let len = args.get(4).map_or(Ok(0), size)?;
    if len as u64 > cx.settings.proto_max_bulk_len {
        return Err(Error::text("ERR string exceeds maximum allowed size (proto-max-bulk-len)"));
    }
    let number = cx.client.db;
    let mut db = cx.db(number);
    let (mut name, mut value) = (prefix.to_vec(), Vec::new());
    name.push(b':');
    for n in 0..count {
        name.truncate(prefix.len() + 1);
        name.extend_from_slice(n.to_string().as_bytes());
        let key = db.key(&name);
        if db.peek(key).is_some() {
            continue;
        }
        value.clear();
        value.extend_from_slice(format!("value:{n}").as_bytes());
        if len > 0 {
            value.resize(len, 0);
        }
        db.set_bytes(key, &value, Expiry::None);
    }
    cx.reply.ok();
    Ok(())
}

fn size(text: &[u8]) -> Result<usize, Error> {
    let number = parse_i64(text).ok_or(Error::NOT_INTEGER)?;
    usize::try_from(number).map_err(|_| Error::text("ERR value is out of range, must be positive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_dumped_in_as_few_bytes_as_they_need() {
        let known = [(0, Some(2)), (-128, Some(2)), (128, Some(3)), (32768, Some(5)), (i64::MAX, None)];
        known.into_iter().for_each(|(number, len)| assert_eq!(dumped_int_len(number), len, "{number}"));
    }
}
