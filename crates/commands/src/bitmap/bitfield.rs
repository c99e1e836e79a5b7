//! BITFIELD and BITFIELD_RO: a list of operations on integers within one string.
//!
//! The whole list is parsed first, so an error in any operation leaves the key unchanged.

use kvick_resp::format::parse_i64;
use smallvec::{SmallVec, smallvec};

use super::field::{IntType, Overflow};
use super::{BAD_OFFSET, changed, checked_offset, read, with_room};
use crate::context::{Args, Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeyPosition, KeyPositions, KeySpec, Spec};

const BAD_TYPE: Error =
    Error::text("ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.");
const BAD_OVERFLOW: Error = Error::text("ERR Invalid OVERFLOW type specified");
const READ_ONLY: Error = Error::text("ERR BITFIELD_RO only supports the GET subcommand");

/// BITFIELD key [GET type offset | [OVERFLOW WRAP | SAT | FAIL] SET type offset value | INCRBY type offset increment
/// ...]
pub const BITFIELD: Command<Handler> = Command::new(
    Spec::new("bitfield", -2)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::BITMAP])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::UPDATE, KeyFlags::ACCESS, KeyFlags::VARIABLE_FLAGS])
            .notes("Subcommands decide whether the key is read only or changed as well.")])
        .find_keys(find_keys)
        .doc(
            Group::Bitmap,
            "3.2.0",
            "O(1) for each subcommand",
            "Reads, writes and increments integers of any width within a string.",
        )
        .args(&[
            Arg::key("key"),
            Arg::one_of("operation", &[GET_ARG, Arg::block("write", &[OVERFLOW_ARG, WRITE_ARG])]).optional().multiple(),
        ]),
    bitfield,
);

const GET_ARG: Arg = Arg::block("get-block", &[Arg::string("encoding"), Arg::integer("offset")]).token("GET");

const OVERFLOW_ARG: Arg =
    Arg::one_of("overflow-block", &[Arg::word("wrap", "WRAP"), Arg::word("sat", "SAT"), Arg::word("fail", "FAIL")])
        .token("OVERFLOW")
        .optional();

const WRITE_ARG: Arg = Arg::one_of(
    "write-operation",
    &[
        Arg::block("set-block", &[Arg::string("encoding"), Arg::integer("offset"), Arg::integer("value")]).token("SET"),
        Arg::block("incrby-block", &[Arg::string("encoding"), Arg::integer("offset"), Arg::integer("increment")])
            .token("INCRBY"),
    ],
);

fn bitfield(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let operations = parse(cx, args)?;
    match operations.iter().filter_map(Operation::last_bit_written).max() {
        None => read_all(cx, args, &operations),
        Some(last) => run(cx, args, &operations, last),
    }
}

/// BITFIELD_RO key [GET type offset ...]
pub const BITFIELD_RO: Command<Handler> = Command::new(
    Spec::new("bitfield_ro", -2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::BITMAP])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(Group::Bitmap, "6.0.0", "O(1) for each subcommand", "Reads integers of any width within a string.")
        .args(&[Arg::key("key"), GET_ARG.optional().multiple_token()]),
    bitfield_ro,
);

fn bitfield_ro(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let operations = parse(cx, args)?;
    if operations.iter().any(|operation| operation.last_bit_written().is_some()) {
        return Err(READ_ONLY);
    }
    read_all(cx, args, &operations)
}

/// The key is only read if all subcommands are well-formed GETs.
fn find_keys(args: Args<'_>) -> Option<KeyPositions> {
    let flags = if only_reads(args) {
        KeyFlags::RO.union(KeyFlags::ACCESS)
    } else {
        KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE)
    };
    Some(smallvec![KeyPosition { index: 1, flags }])
}

fn only_reads(args: Args<'_>) -> bool {
    let mut index = 2;
    while let Some(word) = args.get(index) {
        let remaining = args.len() - index - 1;
        if word.eq_ignore_ascii_case(b"get") && remaining >= 2 {
            index += 3;
        } else if word.eq_ignore_ascii_case(b"overflow") && remaining >= 1 {
            index += 2;
        } else {
            return false;
        }
    }
    true
}

type Operations = SmallVec<[Operation; 4]>;

/// One subcommand.
struct Operation {
    kind: IntType,
    offset: u64,
    action: Action,
}

enum Action {
    Get,
    Set(i64, Overflow),
    IncrBy(i64, Overflow),
}

impl Operation {
    /// The last bit that it may write; `None` for a GET.
    fn last_bit_written(&self) -> Option<u64> {
        match self.action {
            Action::Get => None,
            _ => Some(self.offset + u64::from(self.kind.bits()) - 1),
        }
    }

    /// The new value of the field, given the old one; `None` if it stays unchanged because of an overflow.
    fn new_value(&self, old: i64) -> Option<i64> {
        match self.action {
            Action::Get => Some(old),
            Action::Set(value, overflow) => self.kind.fit(self.kind.exact(value), overflow),
            Action::IncrBy(by, overflow) => self.kind.fit(i128::from(old) + i128::from(by), overflow),
        }
    }

    /// The reply for a change of the field from `old` to `new`.
    fn answer(&self, old: i64, new: i64) -> i64 {
        if matches!(self.action, Action::IncrBy(..)) { new } else { old }
    }
}

/// Parses the subcommands.
fn parse(cx: &Context<'_>, args: Args<'_>) -> Result<Operations, Error> {
    let mut operations = Operations::new();
    let mut overflow = Overflow::Wrap;
    let mut index = 2;
    while let Some(word) = args.get(index) {
        let remaining = args.len() - index - 1;
        let is = |name: &[u8], operands| word.eq_ignore_ascii_case(name) && remaining >= operands;
        if is(b"overflow", 1) {
            overflow = Overflow::parse(&args[index + 1]).ok_or(BAD_OVERFLOW)?;
            index += 2;
            continue;
        }
        let make: Option<fn(i64, Overflow) -> Action> = if is(b"get", 2) {
            None
        } else if is(b"set", 3) {
            Some(Action::Set)
        } else if is(b"incrby", 3) {
            Some(Action::IncrBy)
        } else {
            return Err(Error::SYNTAX);
        };
        let kind = parse_type(&args[index + 1])?;
        let offset = parse_offset(cx, &args[index + 2], kind)?;
        let action = match make {
            None => Action::Get,
            Some(make) => make(parse_i64(&args[index + 3]).ok_or(Error::NOT_INTEGER)?, overflow),
        };
        index += if make.is_some() { 4 } else { 3 };
        operations.push(Operation { kind, offset, action });
    }
    Ok(operations)
}

/// Parses a type: `i` or `u` and the width.
fn parse_type(text: &[u8]) -> Result<IntType, Error> {
    let (signed, width) = match text {
        [b'i', width @ ..] => (true, width),
        [b'u', width @ ..] => (false, width),
        _ => return Err(BAD_TYPE),
    };
    parse_i64(width).and_then(|bits| IntType::new(signed, bits)).ok_or(BAD_TYPE)
}

/// Parses an offset: a bit offset, or `#` and an index in units of the type.
fn parse_offset(cx: &Context<'_>, text: &[u8], kind: IntType) -> Result<u64, Error> {
    let offset = match text {
        [b'#', index @ ..] => parse_i64(index).and_then(|index| index.checked_mul(kind.bits().into())),
        _ => parse_i64(text),
    };
    checked_offset(cx, offset.ok_or(BAD_OFFSET)?)
}

/// Executes a list of GETs. A missing key reads as zeros.
fn read_all(cx: &mut Context<'_>, args: Args<'_>, operations: &[Operation]) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let reply = &mut cx.reply;
    let mut answer = |string: &[u8]| {
        reply.array(operations.len());
        operations.iter().for_each(|operation| reply.int(operation.kind.read(string, operation.offset)));
    };
    if read(&mut cx.db, key, &mut answer)?.is_none() {
        answer(&[]);
    }
    Ok(())
}

/// Executes a list that may write bits up to `last`.
fn run(cx: &mut Context<'_>, args: Args<'_>, operations: &[Operation], last: u64) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let (string, grown) = with_room(&mut cx.db, key, last)?;
    cx.reply.array(operations.len());
    let mut changes = 0;
    for operation in operations {
        let old = operation.kind.read(string, operation.offset);
        let Some(new) = operation.new_value(old) else {
            cx.reply.null();
            continue;
        };
        cx.reply.int(operation.answer(old, new));
        if operation.last_bit_written().is_some() && (grown || new != old) {
            operation.kind.write(string, operation.offset, new);
            changes += 1;
        }
    }
    if changes > 0 {
        changed(&mut cx.db, key, changes);
    } else if grown {
        // Every write overflowed, but the key was created or padded, which must be replicated.
        cx.db.effects().changed(1);
    }
    Ok(())
}
