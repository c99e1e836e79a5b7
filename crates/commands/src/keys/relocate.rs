//! Moving values to another key or database: RENAME, RENAMENX, COPY, MOVE.
//!
//! A value keeps its expiry, and the value of the target is deleted first. The access time of the key is reset.

use kvick_resp::Args;
use kvick_store::EventClass;

use super::database_number;
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, LockRule, Spec, is_database};
use smallvec::{SmallVec, smallvec};

const SAME_OBJECT: Error = Error::text("ERR source and destination objects are the same");
const RENAMED_KEY: KeySpec = KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE]);
const NAMES: &[Arg] = &[Arg::key("key"), Arg::key("newkey").key_spec(1)];

/// RENAME key newkey
pub const RENAME: Command<Handler> = Command::new(
    Spec::new("rename", 3)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::KEYSPACE])
        .keys(&[RENAMED_KEY, KeySpec::at(2, &[KeyFlags::OW, KeyFlags::UPDATE])])
        .doc(Group::Generic, "1.0.0", "O(1)", "Gives a key another name, in place of whatever had that.")
        .args(NAMES),
    rename,
);

fn rename(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    rename_key(cx, args, true)?;
    cx.reply.ok();
    Ok(())
}

/// RENAMENX key newkey
pub const RENAMENX: Command<Handler> = Command::new(
    Spec::new("renamenx", 3)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::KEYSPACE])
        .keys(&[RENAMED_KEY, KeySpec::at(2, &[KeyFlags::OW, KeyFlags::INSERT])])
        .doc(Group::Generic, "1.0.0", "O(1)", "Gives a key another name, only if no key has that yet.")
        .history(&[("3.2.0", "Equal names are no longer an error.")])
        .args(NAMES),
    renamenx,
);

fn renamenx(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let renamed = rename_key(cx, args, false)?;
    cx.reply.int(renamed as i64);
    Ok(())
}

/// Renames the key at argument 1 to argument 2; overwrites an existing key only if `replace` is set. Returns whether
/// the key was renamed.
fn rename_key(cx: &mut Context<'_>, args: Args<'_>, replace: bool) -> Result<bool, Error> {
    let (key, new_key) = (cx.key(args, 1), cx.key(args, 2));
    if cx.db.get_for_write(key).is_none() {
        return Err(Error::NO_KEY);
    }
    if key.bytes == new_key.bytes {
        return Ok(false);
    }
    if cx.db.get_for_write(new_key).is_some() {
        if !replace {
            return Ok(false);
        }
        cx.db.remove(new_key, cx.settings.lazy_server_del);
    }
    let Some((value, expiry)) = cx.db.take(key) else { return Err(Error::NO_KEY) };
    cx.db.put(new_key, value, expiry);
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::GENERIC, "rename_from", key.bytes);
    effects.notify(EventClass::GENERIC, "rename_to", new_key.bytes);
    Ok(true)
}

/// `COPY source destination [DB destination-db] [REPLACE]`
pub const COPY: Command<Handler> = Command::new(
    Spec::new("copy", -3)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::KEYSPACE])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS]), KeySpec::at(2, &[KeyFlags::OW, KeyFlags::UPDATE])])
        .databases(named_databases)
        .lock(LockRule::GlobalIf(names_database))
        .doc(
            Group::Generic,
            "6.2.0",
            "O(1) for strings, O(N) for collections, N being the number of nested items.",
            "Copies a key's value to another key.",
        )
        .args(&[
            Arg::key("source"),
            Arg::key("destination").key_spec(1),
            Arg::integer("destination-db").token("DB").optional(),
            Arg::word("replace", "REPLACE").optional(),
        ]),
    copy,
);

/// Whether a COPY has the DB option, and may access another database.
fn names_database(args: Args<'_>) -> bool {
    args.slice_from(3).iter().any(|word| word.eq_ignore_ascii_case(b"db"))
}

/// The arguments after each DB option: the last one takes effect, but all are checked.
fn named_databases(args: Args<'_>, count: usize) -> Option<SmallVec<[usize; 2]>> {
    let (mut found, mut at) = (SmallVec::new(), 3);
    while let Some(word) = args.get(at) {
        if word.eq_ignore_ascii_case(b"db") {
            args.get(at + 1).filter(|number| is_database(number, count))?;
            found.push(at + 1);
            at += 1;
        } else if !word.eq_ignore_ascii_case(b"replace") {
            return None;
        }
        at += 1;
    }
    Some(found)
}

fn copy(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (mut replace, mut database) = (false, cx.db.number());
    let mut words = args.slice_from(3).iter();
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case(b"replace") {
            replace = true;
        } else if word.eq_ignore_ascii_case(b"db") {
            database = database_number(&cx.db, words.next().ok_or(Error::SYNTAX)?)?;
        } else {
            return Err(Error::SYNTAX);
        }
    }
    let (source, destination) = (cx.key(args, 1), cx.key(args, 2));
    if database == cx.db.number() && source.bytes == destination.bytes {
        return Err(SAME_OBJECT);
    }

    let lazy = cx.settings.lazy_server_del;
    let found = cx.db.get(source).is_some();
    let copied = found && {
        let taken = cx.db.with_database(database, |db| db.get_for_write(destination).is_some());
        !taken || replace
    };
    cx.reply.int(copied as i64);
    if !copied {
        return Ok(());
    }
    let Some((value, expiry)) = cx.db.copy_out(source) else { return Ok(()) };
    cx.db.with_database(database, |db| {
        db.remove(destination, lazy);
        db.put(destination, value, expiry);
        db.effects().notify(EventClass::GENERIC, "copy_to", destination.bytes);
    });
    cx.db.effects().changed(1);
    Ok(())
}

/// MOVE key db
pub const MOVE: Command<Handler> = Command::new(
    Spec::new("move", 3)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::KEYSPACE])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE])])
        .databases(|args, count| is_database(args.get(2)?, count).then(|| smallvec![2]))
        .lock(LockRule::Global)
        .doc(Group::Generic, "1.0.0", "O(1)", "Moves a key to another database, unless that has such a key already.")
        .args(&[Arg::key("key"), Arg::integer("db")]),
    move_key,
);

fn move_key(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let database = database_number(&cx.db, &args[2])?;
    if database == cx.db.number() {
        return Err(SAME_OBJECT);
    }
    let key = cx.key(args, 1);
    let free =
        cx.db.get_for_write(key).is_some() && cx.db.with_database(database, |db| db.get_for_write(key).is_none());
    let moved = if free { cx.db.take(key) } else { None };
    cx.reply.int(moved.is_some() as i64);
    if let Some((value, expiry)) = moved {
        cx.db.with_database(database, |db| db.put(key, value, expiry));
        let effects = cx.db.effects();
        effects.changed(1);
        effects.notify(EventClass::GENERIC, "move_from", key.bytes);
        cx.db.with_database(database, |db| db.effects().notify(EventClass::GENERIC, "move_to", key.bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use crate::{keys, string};

    fn bench() -> Bench {
        Bench::new(&[keys::COMMANDS, string::COMMANDS])
    }

    #[test]
    fn rename_keeps_value_and_expiry() {
        let mut bench = bench();
        bench.run("SET a v PX 10");
        bench.run("SET b w");
        assert_eq!(bench.run("RENAME a b"), "+OK");
        assert_eq!(bench.events(), ["new", "rename_from", "rename_to"]);
        assert_eq!(bench.run("GET b"), "$1 v");
        assert_eq!(bench.run("PTTL b"), ":10");
        assert_eq!(bench.run("SET c w"), "+OK");
        assert_eq!(bench.run("RENAME c b"), "+OK");
        assert_eq!(bench.run("TTL b"), ":-1");
        assert_eq!(bench.run("EXISTS a b c"), ":1");
        assert_eq!(bench.propagated()[2..], ["RENAME a b", "SET c w", "RENAME c b"]);
    }

    #[test]
    fn rename_to_itself_or_of_a_missing_key_changes_nothing() {
        let mut bench = bench();
        bench.run("MSET a 1 b 2");
        assert_eq!(bench.run("RENAME n a"), "-ERR no such key");
        assert_eq!(bench.run("RENAMENX n n"), "-ERR no such key");
        assert_eq!(bench.run("RENAME a a"), "+OK");
        assert_eq!(bench.run("RENAMENX a a"), ":0");
        assert_eq!(bench.run("RENAMENX a b"), ":0");
        assert!(bench.events().is_empty());
        assert_eq!(bench.run("MGET a b"), "*2 $1 1 $1 2");
        assert_eq!(bench.run("RENAMENX a c"), ":1");
        assert_eq!(bench.propagated(), ["MSET a 1 b 2", "RENAMENX a c"]);
    }

    #[test]
    fn expired_key_does_not_block_creation() {
        let mut bench = bench();
        bench.run("MSET a 1 s 2");
        bench.run("SET b v PX 1");
        bench.now_ms += 2;
        bench.propagated();
        assert_eq!(bench.run("RENAMENX b c"), "-ERR no such key");
        bench.run("SET b v PX 1");
        bench.now_ms += 2;
        bench.propagated();
        assert_eq!(bench.run("RENAMENX a b"), ":1");
        assert_eq!(bench.propagated(), ["MULTI", "UNLINK b", "RENAMENX a b", "EXEC"]);
    }

    #[test]
    fn values_keep_their_encoding_when_moved() {
        let mut bench = bench();
        bench.run("SET int 12");
        bench.run("SET raw 1");
        bench.run("APPEND raw 2");
        bench.run_words(&[b"SET", b"large", &[b'x'; 50_000]]);
        for (key, encoding) in [("int", "$3 int"), ("raw", "$3 raw"), ("large", "$3 raw")] {
            let value = bench.run(&format!("GET {key}"));
            bench.run(&format!("COPY {key} copy REPLACE"));
            bench.run(&format!("RENAME {key} renamed"));
            for key in ["copy", "renamed"] {
                assert_eq!(bench.run(&format!("OBJECT ENCODING {key}")), encoding);
                assert_eq!(bench.run(&format!("GET {key}")), value);
            }
        }
    }

    #[test]
    fn copy_is_independent() {
        let mut bench = bench();
        bench.run("SET a v PX 10");
        assert_eq!(bench.run("COPY a b"), ":1");
        assert_eq!(bench.events(), ["new", "copy_to"]);
        assert_eq!(bench.run("PTTL b"), ":10");
        bench.run("SET a w");
        assert_eq!(bench.run("GET b"), "$1 v");
        assert_eq!(bench.run("COPY a b"), ":0");
        assert!(bench.events().is_empty());
        assert_eq!(bench.run("COPY a b replace"), ":1");
        assert_eq!(bench.run("GET b"), "$1 w");
        assert_eq!(bench.run("TTL b"), ":-1");
        assert_eq!(bench.run("COPY n b REPLACE"), ":0");
        assert_eq!(bench.run("GET b"), "$1 w");
        assert_eq!(bench.propagated()[1..], ["COPY a b", "SET a w", "COPY a b replace"]);
        assert_eq!((bench.counters.hits.get(), bench.counters.misses.get()), (8, 1));
    }

    #[test]
    fn copy_to_another_database() {
        let mut bench = bench();
        bench.run("SET a v");
        assert_eq!(bench.run("COPY a a DB 3"), ":1");
        assert_eq!(bench.event_databases(), [3, 3]);
        assert_eq!(bench.run("COPY a a REPLACE db 3"), ":1");
        assert_eq!(bench.run("COPY a b DB 5 DB 0"), ":1");
        bench.database = 3;
        assert_eq!(bench.run("GET a"), "$1 v");
        assert_eq!(bench.run("DBSIZE"), ":1");
    }

    #[test]
    fn copy_validates_arguments() {
        let mut bench = bench();
        assert_eq!(bench.run("COPY a a"), "-ERR source and destination objects are the same");
        assert_eq!(bench.run("COPY a a DB 0"), "-ERR source and destination objects are the same");
        assert_eq!(bench.run("COPY a b DB"), "-ERR syntax error");
        assert_eq!(bench.run("COPY a b OVER"), "-ERR syntax error");
        assert_eq!(bench.run("COPY a b DB x"), "-ERR value is not an integer or out of range");
        let range = "-ERR value is out of range, value must between -2147483648 and 2147483647";
        assert_eq!(bench.run("COPY a b DB 2147483648"), range);
        for number in ["16", "-1"] {
            assert_eq!(bench.run(&format!("COPY a b DB {number}")), "-ERR DB index is out of range");
        }
    }

    #[test]
    fn move_transfers_the_key_to_the_other_database() {
        let mut bench = bench();
        bench.run("SET a v PX 10");
        assert_eq!(bench.run("MOVE a 1"), ":1");
        assert_eq!(bench.events(), ["new", "move_from", "move_to"]);
        assert_eq!(bench.event_databases(), [1, 0, 1]);
        assert_eq!(bench.run("MOVE a 1"), ":0");
        bench.run("SET a w");
        assert_eq!(bench.run("MOVE a 1"), ":0");
        assert_eq!(bench.run("GET a"), "$1 w");
        assert_eq!(bench.propagated(), ["SET a v PX 10", "MOVE a 1", "SET a w"].map(propagated_form));
        bench.database = 1;
        assert_eq!(bench.run("PTTL a"), ":10");
        assert_eq!(bench.run("MOVE a 1"), "-ERR source and destination objects are the same");
        assert_eq!(bench.run("MOVE a 16"), "-ERR DB index is out of range");
        assert_eq!(bench.run("MOVE a x"), "-ERR value is not an integer or out of range");
    }

    fn propagated_form(request: &str) -> String {
        request.replace("PX 10", "PXAT 1700000000010")
    }

    #[test]
    fn key_expired_in_another_database_is_deleted_there() {
        let mut bench = bench();
        bench.run("SET a v");
        bench.database = 1;
        bench.run("SET a old PX 1");
        bench.now_ms += 2;
        bench.database = 0;
        bench.propagated_with_databases();
        assert_eq!(bench.run("MOVE a 1"), ":1");
        let expected = ["MULTI", "SELECT 0", "SELECT 1", "UNLINK a", "SELECT 0", "MOVE a 1", "EXEC"];
        assert_eq!(bench.propagated_with_databases(), expected);
        assert_eq!(bench.event_databases(), [1, 1, 0, 1]);
    }
}
