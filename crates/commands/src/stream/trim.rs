//! XTRIM and the trimming options of XADD, XDEL, and XSETID.

use kvick_store::collections::stream::{Id, Log, Trim};
use kvick_store::{EventClass, Stream};
use smallvec::SmallVec;

use super::{DELETE, UPDATE, words};
use crate::context::{Args, Context, Error, Handler, Settings};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeySpec, Spec};

/// The trimming options in COMMAND DOCS.
pub const ARGS: &[Arg] = &[
    Arg::one_of("strategy", &[Arg::word("maxlen", "MAXLEN"), Arg::word("minid", "MINID").since("6.2.0")]),
    Arg::one_of("operator", &[Arg::word("equal", "="), Arg::word("approximately", "~")]).optional(),
    Arg::string("threshold"),
    Arg::integer("count").token("LIMIT").optional().since("6.2.0"),
];

/// The trimming options parsed so far.
#[derive(Default)]
pub struct Given {
    to: Option<Trim>,
    approximate: bool,
    /// The argument index of the threshold.
    threshold_at: usize,
    limit: Option<u64>,
    /// The argument indices of LIMIT; the last one takes effect.
    limits_at: SmallVec<[usize; 2]>,
}

impl Given {
    /// Processes the trimming option at argument `at`, if there is one; returns the index of the next argument.
    pub fn take(&mut self, args: Args<'_>, at: usize) -> Result<Option<usize>, Error> {
        let (Some(word), Some(next)) = (args.get(at), args.get(at + 1)) else { return Ok(None) };
        if words::is(word, "LIMIT") {
            let limit = words::integer(next)?;
            self.limit = Some(u64::try_from(limit).map_err(|_| Error::text("ERR The LIMIT argument must be >= 0."))?);
            self.limits_at.push(at);
            return Ok(Some(at + 2));
        }
        let by_len = words::is(word, "MAXLEN");
        if !by_len && !words::is(word, "MINID") {
            return Ok(None);
        }
        if self.to.is_some() {
            return Err(Error::text("ERR syntax error, MAXLEN and MINID options at the same time are not compatible"));
        }
        let operator = matches!(next, b"~" | b"=") && args.len() > at + 2;
        self.approximate = operator && next == b"~";
        self.threshold_at = if operator { at + 2 } else { at + 1 };
        let threshold = args.get(self.threshold_at).unwrap_or_default();
        self.to = Some(if by_len {
            let len = words::integer(threshold)?;
            Trim::Len(u64::try_from(len).map_err(|_| Error::text("ERR The MAXLEN argument must be >= 0."))?)
        } else {
            Trim::From(words::id(threshold, 0)?)
        });
        Ok(Some(self.threshold_at + 1))
    }

    /// The trimming to perform, if any.
    ///
    /// Logs contain exact trims; those of older servers may still contain `LIMIT`.
    pub fn finish(self, settings: &Settings, from_log: bool) -> Result<Option<Trimming>, Error> {
        if self.to.is_none() && self.limit.is_some_and(|limit| limit > 0) {
            return Err(Error::text("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"));
        }
        if self.limit.is_some() && !self.approximate && !from_log {
            return Err(Error::text("ERR syntax error, LIMIT cannot be used without the special ~ option"));
        }
        let Given { to, approximate, threshold_at, limit, limits_at } = self;
        let limit = if approximate { limit.unwrap_or_else(|| default_limit(settings)) } else { 0 };
        Ok(to.map(|to| Trimming { to, approximate, limit, threshold_at, limits_at }))
    }
}

/// Maximum number of entries that an approximate trim removes: one hundred full blocks.
fn default_limit(settings: &Settings) -> u64 {
    match settings.encoding.stream.entries as u64 {
        0 => 10_000,
        entries => entries.saturating_mul(100).min(1_000_000),
    }
}

/// A trimming to perform.
pub struct Trimming {
    to: Trim,
    approximate: bool,
    limit: u64,
    threshold_at: usize,
    limits_at: SmallVec<[usize; 2]>,
}

impl Trimming {
    /// Trims the log; returns the number of removed entries.
    pub fn run(&self, log: &mut Log) -> u64 {
        log.trim(self.to, self.approximate, self.limit)
    }

    /// The threshold of an exact trim with the same result as an approximate one, since the blocks of replicas may
    /// differ.
    pub fn outcome(&self, log: &Log) -> Option<Box<[u8]>> {
        self.approximate.then(|| match self.to {
            Trim::Len(_) => log.len().to_string().into_bytes().into(),
            Trim::From(_) => log.first_stored_id().unwrap_or(Id::MAX).to_string().into_bytes().into(),
        })
    }
}

/// The arguments before index `end`, with an approximate trim replaced by an exact one with threshold `threshold`.
/// LIMIT is omitted, since it is invalid for exact trims.
pub fn resolved<'a>(
    args: Args<'a>,
    trimming: Option<&Trimming>,
    threshold: Option<&'a [u8]>,
    end: usize,
) -> SmallVec<[&'a [u8]; 16]> {
    let (threshold_at, limits_at) = match trimming {
        Some(trimming) if threshold.is_some() => (trimming.threshold_at, &trimming.limits_at[..]),
        _ => (0, &[][..]),
    };
    let mut request: SmallVec<[&[u8]; 16]> = SmallVec::new();
    for (at, word) in args.iter().enumerate().take(end) {
        if limits_at.iter().any(|limit_at| at == *limit_at || at == limit_at + 1) {
            continue;
        }
        request.push(match threshold {
            Some(threshold) if at == threshold_at => threshold,
            Some(_) if at + 1 == threshold_at => b"=",
            _ => word,
        });
    }
    request
}

/// XTRIM key MAXLEN | MINID \[= | ~] threshold \[LIMIT count]
pub const XTRIM: Command<Handler> = Command::new(
    Spec::new("xtrim", -4)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::STREAM])
        .keys(&[KeySpec::at(1, DELETE)])
        .doc(
            Group::Stream,
            "5.0.0",
            "O(N), N being the number of entries removed. Little for each, as whole blocks are freed at once.",
            "Removes entries from the beginning of a stream.",
        )
        .args(&[Arg::key("key"), Arg::block("trim", ARGS)])
        .history(&[("6.2.0", "Added `MINID` and `LIMIT`.")])
        .tips(&["nondeterministic_output"]),
    xtrim,
);

fn xtrim(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (mut given, mut at) = (Given::default(), 2);
    while at < args.len() {
        at = given.take(args, at)?.ok_or(Error::SYNTAX)?;
    }
    if given.to.is_none() && given.limit.is_none_or(|limit| limit == 0) {
        return Err(Error::text("ERR syntax error, XTRIM must be called with a trimming strategy"));
    }
    let Some(trimming) = given.finish(cx.settings, cx.from_log)? else { return Err(Error::SYNTAX) };
    let key = cx.key(args, 1);
    let (stream, effects) = cx.db.write_with_effects::<Stream>(key)?;
    let Some(stream) = stream else {
        cx.reply.int(0);
        return Ok(());
    };
    let removed = trimming.run(stream.log_mut());
    if removed > 0 {
        effects.changed(removed);
        effects.notify(EventClass::STREAM, "xtrim", key.bytes);
        if effects.has_readers()
            && let Some(threshold) = trimming.outcome(stream.log())
        {
            effects.propagate(&resolved(args, Some(&trimming), Some(&threshold), args.len()));
        }
    }
    cx.reply.uint(removed);
    Ok(())
}

/// XDEL key id \[id ...]
pub const XDEL: Command<Handler> = Command::new(
    Spec::new("xdel", -3)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::STREAM])
        .keys(&[KeySpec::at(1, DELETE)])
        .doc(
            Group::Stream,
            "5.0.0",
            "O(1) for each entry, however long the stream is.",
            "Deletes entries of a stream and tells how many there were.",
        )
        .args(&[Arg::key("key"), Arg::string("id").multiple()]),
    xdel,
);

fn xdel(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let (stream, effects) = cx.db.write_with_effects::<Stream>(key)?;
    let Some(stream) = stream else {
        cx.reply.int(0);
        return Ok(());
    };
    let log = stream.log_mut();
    let deleted = words::ids(args, 2)?.iter().filter(|id| log.delete(**id)).count() as u64;
    if deleted > 0 {
        effects.changed(deleted);
        effects.notify(EventClass::STREAM, "xdel", key.bytes);
    }
    cx.reply.uint(deleted);
    Ok(())
}

/// XSETID key last-id \[ENTRIESADDED entries-added] \[MAXDELETEDID max-deleted-id]
pub const XSETID: Command<Handler> = Command::new(
    Spec::new("xsetid", -3)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST])
        .acl(&[Categories::STREAM])
        .keys(&[KeySpec::at(1, UPDATE)])
        .doc(Group::Stream, "5.0.0", "O(1)", "Sets what a stream remembers of its IDs, for replication.")
        .args(&[
            Arg::key("key"),
            Arg::string("last-id"),
            Arg::integer("entries-added").token("ENTRIESADDED").optional().since("7.0.0"),
            Arg::string("max-deleted-id").token("MAXDELETEDID").optional().since("7.0.0"),
        ])
        .history(&[("7.0.0", "Added `ENTRIESADDED` and `MAXDELETEDID`.")]),
    xsetid,
);

fn xsetid(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let last_id = words::id(&args[2], 0)?;
    let (mut added, mut max_deleted) = (None, None);
    let mut at = 3;
    while let (Some(word), next) = (args.get(at), args.get(at + 1)) {
        match next {
            Some(next) if words::is(word, "ENTRIESADDED") => {
                let number = u64::try_from(words::integer(next)?);
                added = Some(number.map_err(|_| Error::text("ERR entries_added must be positive"))?);
            }
            Some(next) if words::is(word, "MAXDELETEDID") => {
                let id = words::id(next, 0)?;
                if last_id < id {
                    return Err(Error::text(
                        "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                    ));
                }
                max_deleted = Some(id);
            }
            _ => return Err(Error::SYNTAX),
        }
        at += 2;
    }
    let key = cx.key(args, 1);
    let (stream, effects) = cx.db.write_with_effects::<Stream>(key)?;
    let log = stream.ok_or(Error::NO_KEY)?.log_mut();
    check_last_id(log, last_id, added)?;
    log.set_last_id(last_id, added, max_deleted.filter(|id| *id != Id::MIN));
    effects.forget_noted_changes();
    effects.changed(1);
    effects.notify(EventClass::STREAM, "xsetid", key.bytes);
    cx.reply.ok();
    Ok(())
}

fn check_last_id(log: &Log, last_id: Id, added: Option<u64>) -> Result<(), Error> {
    if last_id < log.history().max_deleted_id {
        return Err(Error::text("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"));
    }
    if log.last_entry_id().is_some_and(|top| last_id < top) {
        return Err(Error::text("ERR The ID specified in XSETID is smaller than the target stream top item"));
    }
    if added.is_some_and(|added| !log.is_empty() && log.len() > added) {
        return Err(Error::text("ERR The entries_added specified in XSETID is smaller than the target stream length"));
    }
    Ok(())
}
