//! The client filters of CLIENT LIST and CLIENT KILL.
//!
//! A filter is a list of conditions that must all hold. Most conditions can be negated with the prefix `NOT-`. If a
//! condition is given twice, the last one counts, except that `ID` and `NOT-ID` accumulate numbers.

use kvick_acl::Acl;
use kvick_commands::context::Error;
use kvick_core::clients::line::{capa_letters, flag_letters};
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_engine::services::Services;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// All flag letters of the reference, including those that never occur here, and those of this server.
const FLAG_LETTERS: &[u8] = b"OSMPxbtRBdcuAUreTIiEfN";
/// Letters of capabilities.
const CAPA_LETTERS: &[u8] = b"rd";

/// See the module's documentation.
#[derive(Default)]
pub struct Filter<'a> {
    included: Conditions<'a>,
    excluded: Conditions<'a>,
    /// Minimum seconds since the client connected.
    age_min: Option<i64>,
    /// Minimum seconds since its last request.
    idle_min: Option<i64>,
    /// Whether to exclude the calling client.
    skip_me: bool,
}

/// The values that a filter may use.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// The number of databases.
    pub databases: usize,
    /// The users.
    pub acl: &'a Acl,
}

/// Conditions that may be negated. `None` means no condition.
#[derive(Default)]
struct Conditions<'a> {
    ids: Option<BTreeSet<u64>>,
    kind: Option<Kind>,
    addr: Option<&'a [u8]>,
    laddr: Option<&'a [u8]>,
    ip: Option<&'a [u8]>,
    user: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
    lib_name: Option<&'a [u8]>,
    lib_ver: Option<&'a [u8]>,
    flags: Option<&'a [u8]>,
    capa: Option<&'a [u8]>,
    db: Option<usize>,
}

/// The client types of `TYPE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Normal,
    Replica,
    PubSub,
    Primary,
}

impl Kind {
    fn of(flags: ClientFlags) -> Kind {
        if flags.contains(ClientFlags::PRIMARY) {
            Kind::Primary
        } else if flags.contains(ClientFlags::REPLICA) {
            Kind::Replica
        } else if flags.contains(ClientFlags::PUBSUB) {
            Kind::PubSub
        } else {
            Kind::Normal
        }
    }

    fn parse(word: &[u8]) -> Option<Kind> {
        let kinds = [
            ("normal", Kind::Normal),
            ("slave", Kind::Replica),
            ("replica", Kind::Replica),
            ("pubsub", Kind::PubSub),
            ("master", Kind::Primary),
            ("primary", Kind::Primary),
        ];
        kinds.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes())).map(|(_, kind)| kind)
    }
}

/// The values that a filter may use on this server.
pub fn known(server: &Services) -> Known<'_> {
    Known { databases: server.keyspace.databases(), acl: &server.acl }
}

impl<'a> Filter<'a> {
    /// Matches the client with this address, including the calling one.
    pub fn by_address(address: &'a [u8]) -> Self {
        Filter { included: Conditions { addr: Some(address), ..Default::default() }, ..Default::default() }
    }

    /// Parses options; `skip_me` is the default.
    pub fn parse(args: Args<'a>, skip_me: bool, known: Known<'_>) -> Result<Self, Error> {
        let mut filter = Filter { skip_me, ..Default::default() };
        let mut at = 0;
        while let Some(option) = args.get(at) {
            let option = option.to_ascii_lowercase();
            let (name, negated) = match option.strip_prefix(b"not-") {
                Some(name) => (name, true),
                None => (&option[..], false),
            };
            if name == b"id" {
                let ids = filter.conditions(negated).ids.get_or_insert_default();
                at += 1 + read_ids(args.slice_from(at + 1), ids)?;
                continue;
            }
            let value = args.get(at + 1).ok_or(Error::SYNTAX)?;
            if negated || !filter.read_plain(name, value)? {
                let prefix = if negated { "NOT-" } else { "" };
                filter.conditions(negated).read(name, value, prefix, known)?;
            }
            at += 2;
        }
        Ok(filter)
    }

    fn conditions(&mut self, negated: bool) -> &mut Conditions<'a> {
        if negated { &mut self.excluded } else { &mut self.included }
    }

    /// Parses an option that cannot be negated; false if it is unknown.
    fn read_plain(&mut self, name: &[u8], value: &[u8]) -> Result<bool, Error> {
        match name {
            b"maxage" => self.age_min = Some(positive(value, "maxage")?),
            b"idle" => self.idle_min = Some(positive(value, "idle")?),
            b"skipme" if value.eq_ignore_ascii_case(b"yes") => self.skip_me = true,
            b"skipme" if value.eq_ignore_ascii_case(b"no") => self.skip_me = false,
            b"skipme" => return Err(Error::SYNTAX),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether a client matches. `me` is the calling client, `now_ms` the time.
    pub fn matches(&self, client: &ClientInfo, me: u64, now_ms: i64) -> bool {
        let seconds_since = |then_ms: i64| now_ms / 1000 - then_ms / 1000;
        let old_enough = |min: i64| seconds_since(client.connected_ms) >= min;
        let idle_enough = |min: i64| seconds_since(client.active_ms.load(Ordering::Relaxed)) >= min;
        !(self.skip_me && client.id == me)
            && self.age_min.is_none_or(old_enough)
            && self.idle_min.is_none_or(idle_enough)
            && self.included.evaluate(client).all(|holds| holds)
            && !self.excluded.evaluate(client).any(|holds| holds)
    }
}

impl<'a> Conditions<'a> {
    fn read(&mut self, name: &[u8], value: &'a [u8], prefix: &str, known: Known<'_>) -> Result<(), Error> {
        match name {
            b"type" => {
                let kind = Kind::parse(value);
                self.kind = Some(kind.ok_or_else(|| Error::quoting(&[b"ERR Unknown client type '", value, b"'"]))?);
            }
            b"addr" => self.addr = Some(value),
            b"laddr" => self.laddr = Some(value),
            b"ip" => self.ip = Some(value),
            b"user" if known.acl.find(value).is_none() => {
                return Err(Error::quoting(&[b"ERR No such user '", value, b"'"]));
            }
            b"user" => self.user = Some(value),
            b"name" => self.name = Some(value),
            b"lib-name" => self.lib_name = Some(value),
            b"lib-ver" => self.lib_ver = Some(value),
            b"flags" => self.flags = Some(letters(value, FLAG_LETTERS, "flags", prefix)?),
            b"capa" => self.capa = Some(letters(value, CAPA_LETTERS, "capa", prefix)?),
            b"db" => self.db = Some(database(value, prefix, known.databases)?),
            _ => return Err(Error::SYNTAX),
        }
        Ok(())
    }

    /// Whether each of the given conditions holds.
    fn evaluate(&self, client: &ClientInfo) -> impl Iterator<Item = bool> {
        let flags = client.shown_flags();
        let names = client.names.lock();
        // An unset name equals nothing.
        let named = |name: &[u8], included: &[u8]| !name.is_empty() && name == included;
        [
            self.ids.as_ref().map(|ids| ids.contains(&client.id)),
            self.kind.map(|kind| kind == Kind::of(flags)),
            self.addr.map(|addr| addr == client.peer.as_bytes()),
            self.laddr.map(|addr| addr == client.local.as_bytes()),
            self.ip.map(|ip| has_ip(client.peer.as_bytes(), ip)),
            self.user.map(|user| user == &*names.user),
            self.name.map(|name| named(&names.name, name)),
            self.lib_name.map(|name| named(&names.lib_name, name)),
            self.lib_ver.map(|version| named(&names.lib_ver, version)),
            self.flags.map(|letters| letters.iter().all(|letter| flag_letters(flags).any(|own| own == *letter))),
            self.capa.map(|letters| letters.iter().all(|letter| capa_letters(flags).any(|own| own == *letter))),
            self.db.map(|db| db == client.db.load(Ordering::Relaxed)),
        ]
        .into_iter()
        .flatten()
    }
}

/// Adds the numbers at the start of `args`. Returns their count.
fn read_ids(args: Args<'_>, ids: &mut BTreeSet<u64>) -> Result<usize, Error> {
    let mut count = 0;
    for number in args.iter().map_while(parse_i64) {
        match u64::try_from(number) {
            Ok(id) if id > 0 => ids.insert(id),
            _ => return Err(Error::text("ERR client-id should be greater than 0")),
        };
        count += 1;
    }
    Ok(count)
}

fn positive(value: &[u8], what: &str) -> Result<i64, Error> {
    match parse_i64(value) {
        None => Err(Error::new(format!("ERR {what} is not an integer or out of range"))),
        Some(number) if number <= 0 => Err(Error::new(format!("ERR {what} should be greater than 0"))),
        Some(number) => Ok(number),
    }
}

fn database(value: &[u8], prefix: &str, databases: usize) -> Result<usize, Error> {
    let number = parse_i64(value).and_then(|number| i32::try_from(number).ok());
    let number = number.ok_or_else(|| Error::new(format!("ERR {prefix}DB is not an integer or out of range")))?;
    usize::try_from(number).ok().filter(|number| *number < databases).ok_or_else(|| {
        Error::new(format!("ERR {prefix}DB number should be between 0 and {}", databases.saturating_sub(1)))
    })
}

fn letters<'a>(value: &'a [u8], known: &[u8], what: &str, prefix: &str) -> Result<&'a [u8], Error> {
    if value.iter().all(|letter| known.contains(letter)) {
        return Ok(value);
    }
    let filter = if prefix.is_empty() { "provided".to_string() } else { format!("{prefix}{}", what.to_uppercase()) };
    Err(Error::quoting(&[format!("ERR Unknown {what} found in the {filter} filter: ").as_bytes(), value]))
}

/// Whether the address `ip:port` or `[ip]:port` has this IP. Addresses of Unix sockets have port 0 and no IP.
fn has_ip(address: &[u8], ip: &[u8]) -> bool {
    let address = address.strip_prefix(b"[").unwrap_or(address);
    let Some(rest) = address.strip_prefix(ip) else { return false };
    let rest = rest.strip_prefix(b"]").unwrap_or(rest);
    matches!(rest, [b':', port, ..] if *port != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_resp::OwnedArgs;

    fn client(id: u64, peer: &str) -> ClientInfo {
        let client = ClientInfo::new(id, 0, 7, peer.to_string(), "127.0.0.1:6379".to_string(), true, 10_000);
        client.names.lock().name = b"worker"[..].into();
        client
    }

    fn matches(words: &[&str], client: &ClientInfo) -> Result<bool, String> {
        let owned = OwnedArgs::new(words.iter().map(|word| word.as_bytes()));
        let filter = Filter::parse(owned.args(), true, Known { databases: 16, acl: &Acl::default() })
            .map_err(|error| error.to_string())?;
        Ok(filter.matches(client, 1, 15_500))
    }

    #[test]
    fn all_conditions_must_match_and_no_negated_one() {
        let client = client(5, "127.0.0.1:4000");
        client.set_flags(ClientFlags::NO_TOUCH | ClientFlags::CAPA_REDIRECT, true);
        let holding: [&[&str]; 13] = [
            &[],
            &["ID", "4", "5", "TYPE", "normal"],
            &["addr", "127.0.0.1:4000", "laddr", "127.0.0.1:6379"],
            &["ip", "127.0.0.1", "NAME", "worker"],
            &["maxage", "5", "idle", "5"],
            &["FLAGS", "T", "capa", "r", "DB", "0"],
            &["USER", "default"],
            &["skipme", "yes"],
            &["not-id", "4", "6", "NOT-TYPE", "pubsub"],
            &["not-addr", "127.0.0.1:1", "not-laddr", "x", "not-ip", "127.0.0.2"],
            &["not-name", "x", "not-lib-name", "", "not-lib-ver", "1"],
            &["NOT-FLAGS", "N", "not-db", "3"],
            &["not-flags", "TA"],
        ];
        for words in holding {
            assert_eq!(matches(words, &client), Ok(true), "{words:?}");
        }
        let failing: [&[&str]; 13] = [
            &["ID", "4"],
            &["TYPE", "replica"],
            &["ip", "127.0.0"],
            &["name", "Worker"],
            &["lib-name", ""],
            &["maxage", "6"],
            &["flags", "TA"],
            &["NOT-ID", "5"],
            &["not-type", "normal"],
            &["not-user", "default"],
            &["not-flags", "T"],
            &["id", "5", "not-capa", "r"],
            &["capa", "rd"],
        ];
        for words in failing {
            assert_eq!(matches(words, &client), Ok(false), "{words:?}");
        }
    }

    #[test]
    fn skipme_excludes_the_calling_client() {
        let me = client(1, "[::1]:4000");
        assert_eq!(matches(&[], &me), Ok(false));
        assert_eq!(matches(&["skipme", "no", "ip", "::1", "flags", "N"], &me), Ok(true));
    }

    #[test]
    fn invalid_options_are_refused_with_valkeys_texts() {
        let client = client(5, "path:0");
        let cases: [(&[&str], &str); 15] = [
            (&["id", "0"], "ERR client-id should be greater than 0"),
            (&["id", "x"], "ERR syntax error"),
            (&["addr"], "ERR syntax error"),
            (&["not-maxage", "1"], "ERR syntax error"),
            (&["skipme", "maybe"], "ERR syntax error"),
            (&["type", "x"], "ERR Unknown client type 'x'"),
            (&["user", "x"], "ERR No such user 'x'"),
            (&["maxage", "x"], "ERR maxage is not an integer or out of range"),
            (&["idle", "0"], "ERR idle should be greater than 0"),
            (&["flags", "Tz"], "ERR Unknown flags found in the provided filter: Tz"),
            (&["not-flags", "z"], "ERR Unknown flags found in the NOT-FLAGS filter: z"),
            (&["not-capa", "z"], "ERR Unknown capa found in the NOT-CAPA filter: z"),
            (&["db", "x"], "ERR DB is not an integer or out of range"),
            (&["db", "16"], "ERR DB number should be between 0 and 15"),
            (&["not-db", "-1"], "ERR NOT-DB number should be between 0 and 15"),
        ];
        for (words, error) in cases {
            assert_eq!(matches(words, &client), Err(error.to_string()), "{words:?}");
        }
        assert_eq!(matches(&["ip", "path"], &client), Ok(false));
    }
}
