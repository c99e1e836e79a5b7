//! How much of the keyspace a script or function uses, and so with what it may run at the same time.
//!
//! A script that wrote and then needs a lock that it does not hold can neither release its locks, because others would
//! see a part of its effects, nor wait for the lock, because its holder may wait for the script. So a script that may
//! get there runs [alone](Conduct::Alone): then it may wait. Confined are only
//!
//! - scripts whose [code](kvick_script::CallSite) shows that they access nothing but declared keys, whatever happens,
//! - and scripts that only read. They are given up and run alone if they turn out to do more.

use kvick_commands::spec::{Begin, Find, Flags, KeyFlags, KeySpec, LockRule};
use kvick_commands::table::{Catalogue, Class, Resolved};
use kvick_resp::OwnedArgs;
use kvick_script::{CallSite, Rest, Word};
use std::sync::atomic::{AtomicU8, Ordering};

/// What is known about a script.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conduct {
    /// Nothing: it runs alone once, and is watched.
    Unknown,
    /// Its code accesses only declared keys.
    Confined,
    /// So far it has only read declared keys.
    Reads,
    /// It runs alone.
    Alone,
}

/// What is known about a script, which may change while it runs.
#[derive(Debug)]
pub struct Known(AtomicU8);

impl Known {
    /// From the calls that its code makes, if they are known.
    pub fn of_code(catalogue: &Catalogue, calls: Option<&[CallSite]>) -> Known {
        let is_confined = calls.is_some_and(|calls| calls.iter().all(|call| is_confined(catalogue, call)));
        Known::from(if is_confined { Conduct::Confined } else { Conduct::Unknown })
    }

    /// What is known now.
    #[inline]
    pub fn get(&self) -> Conduct {
        match self.0.load(Ordering::Relaxed) {
            0 => Conduct::Unknown,
            1 => Conduct::Confined,
            2 => Conduct::Reads,
            _ => Conduct::Alone,
        }
    }

    /// The script must run alone from now on.
    pub fn set_alone(&self) {
        self.0.store(Conduct::Alone as u8, Ordering::Relaxed);
    }

    /// An unknown script has run, and has only read declared keys or not.
    pub fn observe(&self, only_read: bool) {
        if self.get() == Conduct::Unknown {
            self.0.store(if only_read { Conduct::Reads } else { Conduct::Alone } as u8, Ordering::Relaxed);
        }
    }
}

impl From<Conduct> for Known {
    fn from(conduct: Conduct) -> Self {
        Known(AtomicU8::new(conduct as u8))
    }
}

/// Session commands that access no keys and affect no other worker's batch.
const SESSION_COMMANDS: [&str; 3] = ["publish", "spublish", "time"];

/// Whether a call runs under the locks of declared keys, whatever the values that are not known.
fn is_confined(catalogue: &Catalogue, call: &CallSite) -> bool {
    let words = call.words.iter().map(|word| match word {
        Word::Text(text) => text,
        Word::Key | Word::Other => &b""[..],
    });
    let args = OwnedArgs::new(words);
    let Some(Word::Text(_)) = call.words.first() else { return false };
    let Resolved::Command(command) = catalogue.resolve(args.args()) else { return false };
    if command.container.is_some() && !matches!(call.words.get(1), Some(Word::Text(_))) {
        return false;
    }
    let spec = command.spec;
    let is_known = command.class == Class::Data && command.data.is_some()
        || command.class == Class::Session && SESSION_COMMANDS.contains(&&*command.full_name);
    is_known
        && matches!(spec.lock, LockRule::Keys)
        && spec.databases.is_none()
        && !spec.flags.intersects(Flags::TOUCHES_ARBITRARY_KEYS | Flags::SELECTS | Flags::FLUSHES | Flags::ALL_DBS)
        && (spec.find_keys.is_none() || !spec.keys.is_empty())
        && spec.keys.iter().all(|keys| keys.flags.contains(KeyFlags::NOT_KEY) || names_declared(keys, call))
}

/// Whether all keys that a specification may find in a call are declared ones.
fn names_declared(keys: &KeySpec, call: &CallSite) -> bool {
    let (Begin::Index(first), Find::Range { last, step, .. }) = (keys.begin, keys.find) else { return false };
    if keys.flags.contains(KeyFlags::INCOMPLETE) || step == 0 {
        return false;
    }
    // A range that is counted from the end ends no later than the last argument.
    let end = if last < 0 { usize::MAX } else { first.saturating_add(last as usize) };
    let fixed = call.words.iter().enumerate().skip(first).step_by(step).take_while(|(index, _)| *index <= end);
    let rest = match call.rest {
        None | Some(Rest::Keys) => true,
        Some(Rest::Other) => end < call.words.len(),
    };
    rest && fixed.into_iter().all(|(_, word)| *word == Word::Key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_commands::table::CommandTable;

    /// A call as text: `K` is a declared key, `?` anything, `K*` and `?*` stand for the rest.
    fn call(text: &str) -> CallSite {
        let (mut words, mut rest) = (Vec::new(), None);
        for word in text.split(' ') {
            match word {
                "K" => words.push(Word::Key),
                "?" => words.push(Word::Other),
                "K*" => rest = Some(Rest::Keys),
                "?*" => rest = Some(Rest::Other),
                word => words.push(Word::Text(word.as_bytes().into())),
            }
        }
        CallSite { words, rest }
    }

    fn conduct(text: &str) -> Conduct {
        let table = CommandTable::<()>::new();
        Known::of_code(table.catalogue(), Some(&[call(text)])).get()
    }

    #[test]
    fn calls_with_declared_keys_are_confined() {
        for text in [
            "get K",
            "SET K ? EX ?",
            "hset K ?*",
            "hgetall K",
            "mget K K",
            "mget K*",
            "del K*",
            "mset K ? K ?",
            "rename K K",
            "object encoding K",
            "lpush K ?*",
            "zadd K ? ?",
            "zrange K 0 -1",
            "xadd K * f ?",
            "expire K ?",
            "incrbyfloat K ?",
            "lmove K K LEFT RIGHT",
            "smove K K ?",
            "echo ?",
            "type K",
        ] {
            assert_eq!(conduct(text), Conduct::Confined, "{text}");
        }
    }

    #[test]
    fn calls_that_may_access_more_are_not() {
        for text in [
            "get ?",
            "get x",
            "? K",
            "nope K",
            "mget K ?",
            "mget ?*",
            "mget K ?*",
            "mset K*",
            "mset ? K",
            "rename K ?",
            "object ? K",
            "sort K",
            "sort K BY ?",
            "keys *",
            "scan 0",
            "randomkey",
            "flushall",
            "flushdb",
            "swapdb 0 1",
            "move K 1",
            "copy K K",
            "zunionstore K 1 ?",
            "georadius K 0 0 1 m STORE ?",
            "eval x 1 K",
        ] {
            // All keys of MSET with a list of keys are keys.
            let expected = if text == "mset K*" { Conduct::Confined } else { Conduct::Unknown };
            assert_eq!(conduct(text), expected, "{text}");
        }
    }

    #[test]
    fn unknown_scripts_are_watched_once() {
        let known = Known::from(Conduct::Unknown);
        known.observe(true);
        assert_eq!(known.get(), Conduct::Reads);
        known.observe(false);
        assert_eq!(known.get(), Conduct::Reads);
        known.set_alone();
        assert_eq!(known.get(), Conduct::Alone);
        let table = CommandTable::<()>::new();
        assert_eq!(Known::of_code(table.catalogue(), None).get(), Conduct::Unknown);
        let known = Known::from(Conduct::Unknown);
        known.observe(false);
        assert_eq!(known.get(), Conduct::Alone);
    }
}
