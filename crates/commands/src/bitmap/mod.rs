//! Bitmaps: strings as sequences of bits.
//!
//! Handlers parse arguments, access keys and reply. The operations on bits are in [`bits`] (single bits, counting,
//! searching), [`combine`] (BITOP) and [`field`] (the integers of BITFIELD), which work on slices.

use kvick_resp::format::parse_i64;
use kvick_store::{Db, EventClass, Expiry, Key};

use crate::context::{Args, Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

mod bitfield;
pub mod bits;
pub mod combine;
pub mod field;
#[cfg(test)]
mod tests;

use bits::clamp_range;
use combine::{Accumulator, Operation};

/// The commands of this family.
pub static COMMANDS: &[Command<Handler>] =
    &[SETBIT, GETBIT, BITCOUNT, BITPOS, BITOP, bitfield::BITFIELD, bitfield::BITFIELD_RO];

const BAD_OFFSET: Error = Error::text("ERR bit offset is not an integer or out of range");

/// SETBIT key offset value
pub const SETBIT: Command<Handler> = Command::new(
    Spec::new("setbit", 4)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::BITMAP])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE])])
        .doc(Group::Bitmap, "2.2.0", "O(1)", "Sets or clears one bit of a string, which is created or grows as needed.")
        .args(&[Arg::key("key"), Arg::integer("offset"), Arg::integer("value")]),
    setbit,
);

fn setbit(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const BAD_BIT: Error = Error::text("ERR bit is not an integer or out of range");
    let offset = parse_i64(&args[2]).ok_or(BAD_OFFSET)?;
    let offset = checked_offset(cx, offset)?;
    let on = match parse_i64(&args[3]) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(BAD_BIT),
    };
    let key = cx.key(args, 1);
    let (string, grown) = with_room(&mut cx.db, key, offset)?;
    let before = bits::get_bit(string, offset);
    if grown || before != on {
        bits::set_bit(string, offset, on);
        changed(&mut cx.db, key, 1);
    }
    cx.reply.int(before.into());
    Ok(())
}

/// GETBIT key offset
pub const GETBIT: Command<Handler> = Command::new(
    Spec::new("getbit", 3)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::BITMAP])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(Group::Bitmap, "2.2.0", "O(1)", "Returns one bit of a string.")
        .args(&[Arg::key("key"), Arg::integer("offset")]),
    getbit,
);

fn getbit(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let offset = parse_i64(&args[2]).ok_or(BAD_OFFSET)?;
    let offset = checked_offset(cx, offset)?;
    let key = cx.key(args, 1);
    let bit = read(&mut cx.db, key, |string| bits::get_bit(string, offset))?;
    cx.reply.int(bit.unwrap_or(false).into());
    Ok(())
}

/// The optional arguments `start [end [BYTE | BIT]]` of BITCOUNT and BITPOS.
const RANGE: Arg = Arg::block(
    "range",
    &[
        Arg::integer("start"),
        Arg::block(
            "end-unit-block",
            &[
                Arg::integer("end"),
                Arg::one_of("unit", &[Arg::word("byte", "BYTE"), Arg::word("bit", "BIT")]).optional().since("7.0.0"),
            ],
        )
        .optional(),
    ],
)
.optional();

/// A range as given: both ends inclusive, negative numbers count from the end of the string.
struct Bounds {
    start: i64,
    end: Option<i64>,
    in_bits: bool,
}

impl Bounds {
    /// Parses the range at argument `from`; `None` if it is absent.
    fn parse(args: Args<'_>, from: usize) -> Result<Option<Bounds>, Error> {
        let int = |arg: &[u8]| parse_i64(arg).ok_or(Error::NOT_INTEGER);
        if args.len() > from + 3 {
            return Err(Error::SYNTAX);
        }
        let Some(start) = args.get(from) else { return Ok(None) };
        let start = int(start)?;
        let in_bits = match args.get(from + 2) {
            None => false,
            Some(unit) if unit.eq_ignore_ascii_case(b"bit") => true,
            Some(unit) if unit.eq_ignore_ascii_case(b"byte") => false,
            Some(_) => return Err(Error::SYNTAX),
        };
        let end = args.get(from + 1).map(int).transpose()?;
        Ok(Some(Bounds { start, end, in_bits }))
    }

    /// The bits of `string` in the range.
    fn bits(&self, string: &[u8]) -> std::ops::Range<u64> {
        let unit = if self.in_bits { 1 } else { 8 };
        let range = clamp_range(self.start, self.end.unwrap_or(-1), string.len() as u64 * 8 / unit);
        range.start * unit..range.end * unit
    }

    /// Whether both ends count from the end and are in the wrong order, regardless of the length of the string.
    fn is_reversed(&self) -> bool {
        self.start < 0 && self.end.is_some_and(|end| end < 0 && self.start > end)
    }
}

/// BITCOUNT key [start [end [BYTE | BIT]]]
pub const BITCOUNT: Command<Handler> = Command::new(
    Spec::new("bitcount", -2)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::BITMAP])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(Group::Bitmap, "2.6.0", "O(N)", "Counts the bits that are set in a string or in a part of it.")
        .args(&[Arg::key("key"), RANGE])
        .history(&[
            ("7.0.0", "The unit can be given as `BYTE` or `BIT`."),
            ("8.0.0", "`end` is optional and defaults to the last byte."),
        ]),
    bitcount,
);

fn bitcount(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let bounds = Bounds::parse(args, 2)?;
    let key = cx.key(args, 1);
    let count = read(&mut cx.db, key, |string| match &bounds {
        None => bits::count_all(string),
        Some(bounds) if bounds.is_reversed() => 0,
        Some(bounds) => bits::count(string, bounds.bits(string)),
    })?;
    cx.reply.uint(count.unwrap_or(0));
    Ok(())
}

/// BITPOS key bit [start [end [BYTE | BIT]]]
pub const BITPOS: Command<Handler> = Command::new(
    Spec::new("bitpos", -3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::BITMAP])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::Bitmap,
            "2.8.7",
            "O(N)",
            "Finds the first set or the first clear bit in a string or in a part of it.",
        )
        .args(&[Arg::key("key"), Arg::integer("bit"), RANGE])
        .history(&[("7.0.0", "The unit can be given as `BYTE` or `BIT`.")]),
    bitpos,
);

fn bitpos(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const BAD_BIT: Error = Error::text("ERR The bit argument must be 1 or 0.");
    let bit = match parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)? {
        0 => false,
        1 => true,
        _ => return Err(BAD_BIT),
    };
    let bounds = Bounds::parse(args, 3)?.unwrap_or(Bounds { start: 0, end: None, in_bits: false });
    let key = cx.key(args, 1);
    let position = read(&mut cx.db, key, |string| {
        let range = bounds.bits(string);
        // Without an end, the string is treated as followed by clear bits.
        let after = (!bit && bounds.end.is_none() && !range.is_empty()).then_some(range.end);
        bits::find(string, range, bit).or(after).map_or(-1, |position| position as i64)
    })?;
    cx.reply.int(position.unwrap_or(if bit { -1 } else { 0 }));
    Ok(())
}

/// BITOP AND | OR | XOR | NOT destkey key [key ...]
pub const BITOP: Command<Handler> = Command::new(
    Spec::new("bitop", -4)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::BITMAP])
        .keys(&[
            KeySpec::at(2, &[KeyFlags::OW, KeyFlags::UPDATE]),
            KeySpec::range(3, -1, 1, &[KeyFlags::RO, KeyFlags::ACCESS]),
        ])
        .doc(Group::Bitmap, "2.6.0", "O(N)", "Combines strings bit by bit and stores the result.")
        .args(&[
            Arg::one_of(
                "operation",
                &[Arg::word("and", "AND"), Arg::word("or", "OR"), Arg::word("xor", "XOR"), Arg::word("not", "NOT")],
            ),
            Arg::key("destkey"),
            Arg::key("key").key_spec(1).multiple(),
        ]),
    bitop,
);

fn bitop(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const ONE_SOURCE: Error = Error::text("ERR BITOP NOT must be called with a single source key.");
    let operation = Operation::parse(&args[1]).ok_or(Error::SYNTAX)?;
    if operation == Operation::Not && args.len() != 4 {
        return Err(ONE_SOURCE);
    }
    let mut accumulator = Accumulator::new(operation);
    for index in 3..args.len() {
        let source = cx.key(args, index);
        if read(&mut cx.db, source, |string| accumulator.take(string))?.is_none() {
            accumulator.take(&[]);
        }
    }
    let result = accumulator.finish();
    let len = result.len();
    let target = cx.key(args, 2);
    if len > 0 {
        cx.db.set_owned(target, result, Expiry::None);
        // A bitmap is stored as a raw string, even if its bytes represent a number.
        cx.db.string_mut(target, 0);
        cx.db.effects().changed(1);
        cx.db.effects().notify(EventClass::STRING, "set", target.bytes);
    } else if cx.db.remove(target, false) {
        cx.db.effects().changed(1);
        cx.db.effects().notify(EventClass::GENERIC, "del", target.bytes);
    }
    cx.reply.uint(len as u64);
    Ok(())
}

/// Checks that the bit at `offset` may exist.
fn checked_offset(cx: &Context<'_>, offset: i64) -> Result<u64, Error> {
    let offset = u64::try_from(offset).map_err(|_| BAD_OFFSET)?;
    if offset >> 3 >= cx.settings.proto_max_bulk_len { Err(BAD_OFFSET) } else { Ok(offset) }
}

/// Applies `f` to the string at `key`; `None` if the key does not exist.
fn read<T>(db: &mut Db<'_>, key: Key<'_>, f: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Error> {
    let Some(entry) = db.get(key) else { return Ok(None) };
    let string = entry.str().ok_or(Error::WRONG_TYPE)?;
    Ok(Some(f(string.bytes(&mut Default::default()))))
}

/// The string at `key`, mutable, created or padded with zero bytes so that it includes the bit `last`; also returns
/// whether it was created or padded.
fn with_room<'d>(db: &'d mut Db<'_>, key: Key<'_>, last: u64) -> Result<(&'d mut [u8], bool), Error> {
    let len_min = (last >> 3) as usize + 1;
    let grown = match db.get_for_write(key) {
        None => true,
        Some(entry) => entry.str().ok_or(Error::WRONG_TYPE)?.len() < len_min,
    };
    Ok((db.string_mut(key, len_min), grown))
}

/// Records `count` changes to the bits of `key`.
fn changed(db: &mut Db<'_>, key: Key<'_>, count: u64) {
    db.effects().changed(count);
    db.effects().notify(EventClass::STRING, "setbit", key.bytes);
}
