//! XADD.

use kvick_store::collections::stream::{AppendError, Id, IdBuf, NewId};
use kvick_store::{EventClass, Stream};

use super::trim::{self, Trimming};
use super::{UPDATE, words};
use crate::context::{Args, Context, Error, Handler, Settings};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeySpec, Spec};

/// XADD key \[NOMKSTREAM] \[MAXLEN | MINID \[= | ~] threshold \[LIMIT count]] * | id field value \[field value ...]
pub const XADD: Command<Handler> = Command::new(
    Spec::new("xadd", -5)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST])
        .acl(&[Categories::STREAM])
        .keys(&[KeySpec::at(1, UPDATE).notes("UPDATE, not INSERT: it may also trim")])
        .doc(
            Group::Stream,
            "5.0.0",
            "O(1) to add an entry, and O(N) to trim N entries.",
            "Adds an entry to a stream, which is created if there is none.",
        )
        .args(&[
            Arg::key("key"),
            Arg::word("nomkstream", "NOMKSTREAM").optional().since("6.2.0"),
            Arg::block("trim", trim::ARGS).optional(),
            Arg::one_of("id-selector", &[Arg::word("auto-id", "*"), Arg::string("id")]),
            Arg::block("data", &[Arg::string("field"), Arg::string("value")]).multiple(),
        ])
        .history(&[("6.2.0", "Added `NOMKSTREAM`, `MINID` and `LIMIT`."), ("7.0.0", "Added IDs of the form `<ms>-*`.")])
        .tips(&["nondeterministic_output"]),
    xadd,
);

const NOT_POSITIVE: Error = Error::text("ERR The ID specified in XADD must be greater than 0-0");
const EXHAUSTED: Error = Error::text("ERR The stream has exhausted the last possible ID, unable to add more items");
const NOT_BEYOND: Error =
    Error::text("ERR The ID specified in XADD is equal or smaller than the target stream top item");
const TOO_LARGE: Error = Error::text("ERR Elements are too large to be stored");

impl From<AppendError> for Error {
    fn from(error: AppendError) -> Error {
        match error {
            AppendError::NotBeyond => NOT_BEYOND,
            AppendError::TooLarge => TOO_LARGE,
        }
    }
}

/// The options before the fields.
struct Options {
    create: bool,
    trimming: Option<Trimming>,
    id: NewId,
    /// The argument index of the ID.
    id_at: usize,
}

impl Options {
    fn parse(args: Args<'_>, settings: &Settings, from_log: bool) -> Result<Options, Error> {
        let mut options = Options { create: true, trimming: None, id: NewId::Auto, id_at: args.len() };
        let mut given = trim::Given::default();
        let mut at = 2;
        while let Some(word) = args.get(at) {
            if word != b"*" {
                if let Some(next) = given.take(args, at)? {
                    at = next;
                    continue;
                }
                if words::is(word, "NOMKSTREAM") {
                    options.create = false;
                    at += 1;
                    continue;
                }
            }
            options.id = words::new_id(word)?;
            options.id_at = at;
            break;
        }
        options.trimming = given.finish(settings, from_log)?;
        Ok(options)
    }
}

fn xadd(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let options = Options::parse(args, cx.settings, cx.from_log)?;
    let fields = args.slice_from(options.id_at + 1);
    if fields.is_empty() || !fields.len().is_multiple_of(2) {
        return Err(Error::text("ERR wrong number of arguments for 'xadd' command"));
    }
    if options.id == NewId::Exact(Id::MIN) {
        return Err(NOT_POSITIVE);
    }
    let (key, now_ms) = (cx.key(args, 1), cx.db.now_ms());
    let stream = if options.create {
        cx.db.write_or_create::<Stream>(key)?.0
    } else {
        match cx.db.write::<Stream>(key)? {
            Some(stream) => stream,
            None => {
                cx.reply.null();
                return Ok(());
            }
        }
    };
    let log = stream.log_mut();
    if log.last_id() == Id::MAX {
        return Err(EXHAUSTED);
    }
    let id = log.new_id(options.id, now_ms)?;
    let limits = cx.settings.encoding.stream;
    log.append(id, fields.iter(), limits)?;
    let trimmed = options.trimming.as_ref().map(|trimming| trimming.run(log));
    let threshold = options.trimming.as_ref().and_then(|trimming| trimming.outcome(log));
    cx.db.signal_ready(key);
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::STREAM, "xadd", key.bytes);
    if trimmed.is_some_and(|removed| removed > 0) {
        effects.notify(EventClass::STREAM, "xtrim", key.bytes);
    }
    let mut buffer: IdBuf = [0; 41];
    let text = id.text(&mut buffer);
    if effects.has_readers() && (threshold.is_some() || !matches!(options.id, NewId::Exact(_))) {
        let mut request = trim::resolved(args, options.trimming.as_ref(), threshold.as_deref(), options.id_at);
        request.push(text);
        request.extend(fields.iter());
        effects.propagate(&request);
    }
    cx.reply.bulk(text);
    Ok(())
}
