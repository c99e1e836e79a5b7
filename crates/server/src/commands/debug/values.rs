//! DEBUG subcommands about the encoding of one key's value.

use kvick_commands::context::Error;
use kvick_config::numbers;
use kvick_config::tables::persistence::RDBCOMPRESSION;
use kvick_engine::session::Session;
use kvick_rdb::{ValueRef, WriteOptions, value_len};
use kvick_resp::Args;
use kvick_store::encodings::listpack::View;
use kvick_store::{Collection, Inside, IntBuf, List, Str};
use kvick_store::{
    WhenExpired,
    collections::list::{BlockView, set_packed_threshold},
};
use std::io::Write;

/// `DEBUG OBJECT key [fast]`
pub fn object(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let fast = args.get(3).is_some_and(|word| word.eq_ignore_ascii_case(b"fast"));
    let (number, access) = (cx.client.db, cx.access);
    let options = WriteOptions { compress: cx.server.config.values().read(RDBCOMPRESSION), ..WriteOptions::default() };
    // An expired key is visible until it is deleted.
    cx.when_expired = WhenExpired::ImportSource;
    let mut db = cx.db(number);
    let entry = db.peek(db.key(&args[2])).ok_or(Error::NO_KEY)?;
    let mut text = format!("Value at:{:#x} refcount:1 encoding:{}", entry.address(), entry.encoding());
    if !fast {
        text += &format!(" serializedlength:{}", value_len(ValueRef::from(entry), &options).unwrap_or(0));
    }
    let clock = entry.clock();
    text += &if access.lfu {
        format!(" lfu_freq:{} lfu_access_time_minutes:{}", access.frequency(clock), clock >> 8)
    } else {
        format!(" lru:{clock} lru_seconds_idle:{}", access.idle_seconds(clock))
    };
    if let Some(blocks) = entry.collection().and_then(|list| describe_blocks(list, fast)) {
        text += &blocks;
    }
    cx.reply.simple(text);
    Ok(())
}

/// Describes a list of several blocks, with their size in bytes unless `fast`.
fn describe_blocks(list: &List, fast: bool) -> Option<String> {
    let (blocks, limits) = list.blocks()?;
    let count = blocks.len();
    let mut text = format!(
        " ql_nodes:{count} ql_avg_node:{:.2} ql_listpack_max:{} ql_compressed:{}",
        list.len() as f64 / count.max(1) as f64,
        limits.max_listpack_size,
        u8::from(limits.compress_depth != 0)
    );
    if !fast {
        text += &format!(" ql_uncompressed_size:{}", blocks.map(BlockView::bytes).sum::<usize>());
    }
    Some(text)
}

/// DEBUG LISTPACK key
pub fn listpack(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let number = cx.client.db;
    let mut db = cx.db(number);
    let entry = db.peek(db.key(&args[2])).ok_or(Error::NO_KEY)?;
    let text = match entry.inside() {
        Inside::Listpack(listpack) => describe_listpack(listpack),
        Inside::Pairs(pairs) => describe_listpack(pairs.to_listpack().view()),
        _ => return Err(Error::text("ERR Not a listpack encoded object.")),
    };
    // Standard output may be closed.
    _ = std::io::stdout().lock().write_all(text.as_bytes());
    cx.reply.simple("Listpack structure printed on stdout");
    Ok(())
}

fn describe_listpack(listpack: View<'_>) -> String {
    let mut text = format!("listpack of {} elements, {} bytes\n", listpack.len(), listpack.bytes().len());
    for (index, element) in listpack.iter().enumerate() {
        let form = if matches!(element, Str::Int(_)) { "integer" } else { "string" };
        text += &format!("{index:6} {form:7} {}\n", element.bytes(&mut IntBuf::default()).escape_ascii());
    }
    text
}

/// `DEBUG HTSTATS-KEY key [full]`
pub fn table(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let number = cx.client.db;
    let mut db = cx.db(number);
    let entry = db.peek(db.key(&args[2])).ok_or(Error::NO_KEY)?;
    let Inside::Table(table) = entry.inside() else {
        return Err(Error::text("ERR The value stored at the specified key is not represented using an hash table"));
    };
    let (slots, elements) = (table.capacity(), table.len());
    let text = format!(
        "Hash table 0 stats (main hash table):\n table size: {slots}\n number of elements: {elements}\n \
         elements with expiry: {}\n segments: {}\n fill: {:.2}%\n bytes: {}\n",
        table.flagged(),
        table.segment_count(),
        100.0 * elements as f64 / slots.max(1) as f64,
        table.memory()
    );
    cx.reply.verbatim(text.as_bytes(), "txt");
    Ok(())
}

/// DEBUG QUICKLIST-PACKED-THRESHOLD size
pub fn packed_threshold(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    if !numbers::memory(&args[2]).is_some_and(set_packed_threshold) {
        return Err(Error::text("ERR argument must be a memory value bigger than 1 and smaller than 4gb"));
    }
    cx.reply.ok();
    Ok(())
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
