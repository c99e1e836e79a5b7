//! DEBUG HTSTATS and POPULATE: hash table statistics and test keys.

use kvick_commands::context::Error;
use kvick_engine::session::Session;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::Expiry;

/// `DEBUG HTSTATS database [full]`
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
    let number = parse_i64(text).and_then(|number| usize::try_from(number).ok());
    number.ok_or(Error::text("ERR value is out of range, must be positive"))
}
