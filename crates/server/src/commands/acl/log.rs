//! ACL LOG.

use super::wrong_number;
use kvick_commands::context::Error;
use kvick_engine::session::Session;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;

/// Default number of entries.
const COUNT_DEFAULT: usize = 10;
const FIELDS: usize = 10;

/// ACL LOG [count | RESET]
pub(super) fn log(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let log = &cx.server.acl.log;
    let count = match args.len() {
        2 => COUNT_DEFAULT,
        3 if args[2].eq_ignore_ascii_case(b"reset") => {
            log.clear();
            cx.reply.ok();
            return Ok(());
        }
        3 => usize::try_from(parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?).unwrap_or_default(),
        _ => return Err(wrong_number(args)),
    };
    let entries = log.latest(count);
    let reply = &mut cx.reply;
    reply.array(entries.len());
    for entry in entries {
        reply.map(FIELDS);
        reply.bulk(b"count");
        reply.uint(entry.count);
        let words: [(&[u8], &[u8]); 4] = [
            (b"reason", entry.cause.name().as_bytes()),
            (b"context", entry.context.name().as_bytes()),
            (b"object", &entry.object),
            (b"username", &entry.user),
        ];
        for (name, value) in words {
            reply.bulk(name);
            reply.bulk(value);
        }
        reply.bulk(b"age-seconds");
        reply.double((cx.now_ms - entry.updated_ms) as f64 / 1000.0);
        reply.bulk(b"client-info");
        reply.bulk(&entry.client);
        reply.bulk(b"entry-id");
        reply.uint(entry.id);
        for (name, ms) in [("timestamp-created", entry.created_ms), ("timestamp-last-updated", entry.updated_ms)] {
            reply.bulk(name.as_bytes());
            reply.int(ms);
        }
    }
    Ok(())
}
