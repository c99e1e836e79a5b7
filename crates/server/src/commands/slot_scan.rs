//! CLUSTERSCAN: iterates over the keys of a cluster, slot by slot.
//!
//! A cursor is `fingerprint-{tag}-position`. The tag is a hash tag of the slot to continue in, so that clients send the
//! cursor to the node that owns the slot, as they would a key. The position is a cursor of SCAN and depends on the
//! node's hash function, which the fingerprint identifies: another node begins the slot again.

use kvick_commands::context::Error;
use kvick_commands::scan_options::{self, Listing, ScanOptions, Scanned};
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_store::hash::slot_of;
use kvick_store::slot::{SLOTS, slot, tag};
use kvick_store::{Entry, Keyspace};

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[CLUSTERSCAN];

/// `CLUSTERSCAN cursor [MATCH match-pattern] [COUNT count] [TYPE type] [SLOT slot]`
pub const CLUSTERSCAN: Command<SessionHandler> = Command::new(
    Spec::new("clusterscan", -2)
        .flags(&[Flags::READONLY, Flags::TOUCHES_ARBITRARY_KEYS])
        .acl(&[Categories::KEYSPACE])
        .keys(&[KeySpec::at(1, &[KeyFlags::NOT_KEY])])
        .doc(Group::Cluster, "9.1.0", "O(N), N being the keys returned", "Iterates over the keys of the cluster.")
        .tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"])
        .args(&[
            Arg::string("cursor"),
            Arg::pattern("match-pattern").token("MATCH").optional(),
            Arg::integer("count").token("COUNT").optional(),
            Arg::string("type").token("TYPE").optional(),
            Arg::integer("slot").token("SLOT").optional(),
        ]),
    scan,
);

/// A fingerprint that no node has: the slot is scanned from its beginning.
const ANY_NODE: &str = "0";

/// The end of a scan.
const END: &str = "0";

/// The cursor at the beginning of a slot.
fn beginning(slot: u16) -> String {
    format!("{ANY_NODE}-{{{}}}-0", tag(slot))
}

/// Six characters that identify the hash function of this node.
fn fingerprint(keyspace: &Keyspace) -> String {
    // The high half of a hash does not depend on the slot. No node has fingerprint 0.
    let number = (keyspace.key(b"fingerprint").hash >> 32).max(1);
    (0..6).rev().map(|digit| char::from(b'0' + (number >> (6 * digit) & 63) as u8)).collect()
}

/// A parsed cursor.
struct Cursor {
    slot: u16,
    position: u64,
}

impl Cursor {
    /// Parses a cursor other than 0.
    fn parse(text: &[u8], fingerprint: &str) -> Result<Cursor, Error> {
        let mut parts = text.splitn(3, |byte| *byte == b'-');
        let (Some(origin), Some(tag), Some(position)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(INVALID_CURSOR);
        };
        let position = scan_options::parse_cursor(position).map_err(|_| INVALID_CURSOR)?;
        let is_own = origin == fingerprint.as_bytes();
        Ok(Cursor { slot: slot(tag), position: if is_own { position } else { 0 } })
    }
}

const INVALID_CURSOR: Error = Error::text("ERR Invalid cursor");

fn scan(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let Some(routing) = &cx.server.routing else {
        return Err(Error::text("ERR This instance has cluster support disabled"));
    };
    let options = ScanOptions::parse(args.slice_from(2), Scanned::Slots)?;
    let matched = options.names.slot();
    let is_contradictory = matches!((options.slot, matched), (Some(slot), Some(matched)) if slot != matched);
    let nothing = |cx: &mut Session<'_>, next: &str| {
        Listing::new(&cx.reply).reply_with(&mut cx.reply, next.as_bytes());
        Ok(())
    };
    if &args[1] == b"0" {
        let first = options.slot.or(matched).unwrap_or(0);
        return nothing(cx, &if is_contradictory { END.to_owned() } else { beginning(first) });
    }
    let fingerprint = fingerprint(cx.server.keyspace);
    let cursor = Cursor::parse(&args[1], &fingerprint)?;
    if options.slot.is_some_and(|slot| slot != cursor.slot) {
        return Err(Error::text("ERR Cursor slot mismatch with SLOT argument"));
    }
    if let Some(matched) = matched.filter(|matched| *matched != cursor.slot) {
        // The scan never goes back.
        let ahead = !is_contradictory && matched > cursor.slot;
        return nothing(cx, &if ahead { beginning(matched) } else { END.to_owned() });
    }
    let is_one_slot = options.slot.is_some() || matched.is_some();
    let last = if is_one_slot {
        cursor.slot
    } else {
        // All slots up to the next of another node.
        let map = routing.current();
        let owner = map.owner(cursor.slot);
        (cursor.slot..SLOTS).take_while(|slot| map.owner(*slot) == owner).last().unwrap_or(cursor.slot)
    };
    let wanted =
        |entry: &Entry<'_>| options.kind.is_none_or(|kind| entry.kind() == kind) && options.names.include(entry.key());
    let mut listing = Listing::new(&cx.reply);
    let number = cx.client.db;
    // The position may be from an invalid cursor.
    let position = if slot_of(cursor.position) == cursor.slot { cursor.position } else { u64::from(cursor.slot) };
    let next =
        cx.db(number).scan_slots(position, cursor.slot..=last, options.count, wanted, |entry| listing.add(entry.key()));
    let next = match next {
        0 if !is_one_slot && last + 1 < SLOTS => beginning(last + 1),
        0 => END.to_owned(),
        next => format!("{fingerprint}-{{{}}}-{next}", tag(slot_of(next))),
    };
    listing.reply_with(&mut cx.reply, next.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_store::hash::KeyHasher;

    #[test]
    fn fingerprints_identify_the_hash_function() {
        let of = |seed| fingerprint(Keyspace::leak(1, 1, KeyHasher::with_secret(seed, 0)));
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert!(of(1).len() == 6 && of(1).bytes().all(|byte| (b'0'..b'0' + 64).contains(&byte)));
    }

    #[test]
    fn cursors_of_other_nodes_begin_their_slot_again() {
        let parse = |text: &str| Cursor::parse(text.as_bytes(), "abcdef").map(|cursor| (cursor.slot, cursor.position));
        assert_eq!(parse("abcdef-{06S}-16384"), Ok((0, 16384)));
        assert_eq!(parse("abcdeg-{06S}-16384"), Ok((0, 0)));
        assert_eq!(parse("0-{Qi}-09"), Ok((1, 0)));
        assert_eq!(parse(&beginning(16383)), Ok((16383, 0)));
        for text in ["invalid", "abc-def-ghi", "0-", "0-{0}", "0-{0}-", "--"] {
            assert_eq!(parse(text), Err(INVALID_CURSOR), "{text}");
        }
    }
}
