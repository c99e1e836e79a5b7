//! OBJECT: metadata of a value: its encoding and access statistics.

use kvick_resp::Args;

use crate::context::{Context, Error, Handler};
use crate::help;
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// OBJECT subcommand [argument ...]
pub const OBJECT: Command<Handler> = Command::container(
    Spec::new("object", -2).doc(
        Group::Generic,
        "2.2.3",
        "Depends on subcommand.",
        "Tells about the values that keys hold.",
    ),
    &[ENCODING, FREQ, IDLETIME, REFCOUNT, HELP],
);

const LOOKED_AT_KEY: &[KeySpec] = &[KeySpec::at(2, &[KeyFlags::RO])];
const KEY: &[Arg] = &[Arg::key("key")];

/// The common parts of the subcommands about a key.
const fn about_key(name: &'static str, since: &'static str, summary: &'static str) -> Spec {
    Spec::new(name, 3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::KEYSPACE])
        .tips(&["nondeterministic_output"])
        .keys(LOOKED_AT_KEY)
        .doc(Group::Generic, since, "O(1)", summary)
        .args(KEY)
}

/// OBJECT ENCODING key
pub const ENCODING: Command<Handler> =
    Command::new(about_key("encoding", "2.2.3", "Names the way in which a key's value is encoded."), encoding);

fn encoding(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 2);
    match cx.db.inspect(key) {
        None => cx.reply.null(),
        Some(entry) => cx.reply.bulk(entry.encoding().as_bytes()),
    }
    Ok(())
}

/// OBJECT FREQ key
pub const FREQ: Command<Handler> =
    Command::new(about_key("freq", "4.0.0", "Tells how often a key is used, on a logarithmic scale."), freq);

fn freq(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const NOT_TRACKED: Error = Error::text(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
         between policies at runtime LRU and LFU data will take some time to adjust.",
    );
    let key = cx.key(args, 2);
    let Some(clock) = cx.db.inspect(key).map(|entry| entry.clock()) else {
        cx.reply.null();
        return Ok(());
    };
    if !cx.settings.lfu {
        return Err(NOT_TRACKED);
    }
    cx.reply.uint(cx.db.access().frequency(clock).into());
    Ok(())
}

/// OBJECT IDLETIME key
pub const IDLETIME: Command<Handler> =
    Command::new(about_key("idletime", "2.2.3", "Tells for how many seconds a key has not been used."), idletime);

fn idletime(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const NOT_TRACKED: Error = Error::text(
        "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between \
         policies at runtime LRU and LFU data will take some time to adjust.",
    );
    let key = cx.key(args, 2);
    let Some(clock) = cx.db.inspect(key).map(|entry| entry.clock()) else {
        cx.reply.null();
        return Ok(());
    };
    if cx.settings.lfu {
        return Err(NOT_TRACKED);
    }
    cx.reply.uint(cx.db.access().idle_seconds(clock));
    Ok(())
}

/// OBJECT REFCOUNT key
pub const REFCOUNT: Command<Handler> =
    Command::new(about_key("refcount", "2.2.3", "Tells how many keys share a key's value: just the one."), refcount);

fn refcount(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 2);
    match cx.db.inspect(key) {
        None => cx.reply.null(),
        // Values are not shared between keys.
        Some(_) => cx.reply.int(1),
    }
    Ok(())
}

/// OBJECT HELP
pub const HELP: Command<Handler> = Command::new(
    Spec::new("help", 2).flags(&[Flags::LOADING, Flags::STALE]).acl(&[Categories::KEYSPACE]).doc(
        Group::Generic,
        "6.2.0",
        "O(1)",
        "Lists the subcommands.",
    ),
    object_help,
);

fn object_help(cx: &mut Context<'_>, _args: Args<'_>) -> Result<(), Error> {
    help::reply(
        &mut cx.reply,
        "object",
        &[
            "ENCODING <key>",
            "    Name the way in which the key's value is encoded.",
            "FREQ <key>",
            "    Show how often the key is used, on a logarithmic scale (LFU policies only).",
            "IDLETIME <key>",
            "    Show for how many seconds the key has not been used (not under LFU policies).",
            "REFCOUNT <key>",
            "    Show how many keys share the key's value.",
        ],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use crate::{keys, string};
    use kvick_store::EventClass;

    fn bench() -> Bench {
        Bench::new(&[keys::COMMANDS, string::COMMANDS])
    }

    #[test]
    fn object_encoding_reports_known_names() {
        let mut bench = bench();
        let long = "x".repeat(200);
        for (value, name) in [("12", "$3 int"), ("text", "$6 embstr"), (long.as_str(), "$3 raw")] {
            bench.run(&format!("SET k {value}"));
            assert_eq!(bench.run("OBJECT ENCODING k"), name);
            assert_eq!(bench.run("OBJECT REFCOUNT k"), ":1");
        }
        for subcommand in ["ENCODING", "FREQ", "IDLETIME", "REFCOUNT"] {
            assert_eq!(bench.run(&format!("OBJECT {subcommand} n")), "$-1");
        }
    }

    #[test]
    fn object_idletime_and_freq_follow_the_policy() {
        let mut bench = bench();
        bench.run("SET k v");
        bench.now_ms += 3999;
        assert_eq!(bench.run("OBJECT IDLETIME k"), ":3");
        assert!(bench.run("OBJECT FREQ k").starts_with("-ERR An LFU maxmemory policy is not selected,"));
        bench.settings.lfu = true;
        bench.run("SET f v");
        assert_eq!(bench.run("OBJECT FREQ f"), ":5");
        bench.run("GET f");
        assert_eq!(bench.run("OBJECT FREQ f"), ":6");
        assert!(bench.run("OBJECT IDLETIME f").starts_with("-ERR An LFU maxmemory policy is selected,"));
    }

    #[test]
    fn lookup_counts_a_hit_but_a_miss_fires_no_event() {
        let mut bench = bench();
        bench.event_mask = EventClass::KEY_MISS;
        bench.run("SET k v");
        bench.run("OBJECT ENCODING k");
        bench.run("OBJECT ENCODING n");
        assert!(bench.events().is_empty());
        assert_eq!((bench.counters.hits.get(), bench.counters.misses.get()), (1, 1));
    }

    #[test]
    fn help_lists_the_subcommands() {
        let reply = bench().run("OBJECT HELP");
        assert!(reply.starts_with("*11 +OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are: +ENCODING"));
    }
}
