//! How keys are stored, and many of them at once.

use crate::config::tables::persistence::RDBCOMPRESSION;
use crate::session::Session;
use kvick_commands::context::Error;
use kvick_rdb::WriteOptions;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::{Collection, Expiry, Kind, List, Str};

/// DEBUG OBJECT key [fast]
pub fn object(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let fast = args.get(3).is_some_and(|word| word.eq_ignore_ascii_case(b"fast"));
    let (number, access) = (cx.client.db, cx.access);
    let options = WriteOptions { compress: cx.server.config.read(RDBCOMPRESSION), ..WriteOptions::default() };
    let mut db = cx.db(number);
    let entry = db.peek(db.key(&args[2])).ok_or(Error::NO_KEY)?;
    let mut text = format!("Value at:{:#x} refcount:1 encoding:{}", entry.address(), entry.encoding());
    if !fast {
        let bytes = kvick_rdb::value_len(entry.into(), &options).map_err(|error| Error::new(format!("ERR {error}")))?;
        text += &format!(" serializedlength:{bytes}");
    }
    let clock = entry.clock();
    text += &if access.lfu {
        format!(" lfu_freq:{} lfu_access_time_minutes:{}", access.frequency(clock), clock >> 8)
    } else {
        format!(" lru:{clock} lru_seconds_idle:{}", access.idle_seconds(clock))
    };
    if entry.kind() == Kind::List {
        text += &entry.collection().and_then(|list| blocks(list, fast)).unwrap_or_default();
    }
    cx.reply.simple(text);
    Ok(())
}

/// What is told of a list in blocks.
fn blocks(list: &List, fast: bool) -> Option<String> {
    let (blocks, limits) = list.blocks()?;
    let (count, compressed) = (blocks.len(), u8::from(limits.compress_depth > 0));
    let (average, most) = (list.len() as f64 / count as f64, limits.max_listpack_size);
    let mut text =
        format!(" ql_nodes:{count} ql_avg_node:{average:.2} ql_listpack_max:{most} ql_compressed:{compressed}");
    if !fast {
        let bytes: usize = blocks.map(|block| block.bytes()).sum();
        text += &format!(" ql_uncompressed_size:{bytes}");
    }
    Some(text)
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
