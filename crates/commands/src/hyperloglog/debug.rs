//! PFDEBUG: inspects a sketch.

use std::fmt::Write;

use super::dense::REGISTERS;
use super::sparse::{self, Run};
use super::value::Registers;
use super::{store, view};
use crate::context::{Args, Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};
use crate::wide;

/// PFDEBUG GETREG | DECODE | ENCODING | TODENSE key, PFDEBUG SIMD ON | OFF
pub const PFDEBUG: Command<Handler> = Command::new(
    Spec::new("pfdebug", 3)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::ADMIN])
        .acl(&[Categories::HYPERLOGLOG])
        .keys(&[KeySpec::at(2, &[KeyFlags::RW, KeyFlags::ACCESS])])
        .doc(Group::HyperLogLog, "2.8.9", "N/A", "Looks into a HyperLogLog; for tests.")
        .internal()
        .args(&[Arg::string("subcommand"), Arg::key("key")]),
    pfdebug,
);

fn pfdebug(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const NO_KEY: Error = Error::text("ERR The specified key does not exist");
    const NOT_SPARSE: Error = Error::text("ERR HLL encoding is not sparse");
    let is = |name: &str| args[1].eq_ignore_ascii_case(name.as_bytes());
    if is("simd") {
        return simd(cx, &args[2]);
    }
    let key = cx.key(args, 2);
    let registers = view(cx.db.get_for_write(key).ok_or(NO_KEY)?)?.registers();
    if is("getreg") {
        make_dense(cx, args)?;
        get_registers(cx, args)?;
    } else if is("decode") {
        let Registers::Sparse(code) = registers else { return Err(NOT_SPARSE) };
        cx.reply.bulk(decode(code).as_bytes());
    } else if is("encoding") {
        cx.reply.simple(match registers {
            Registers::Dense(_) => "dense",
            Registers::Sparse(_) => "sparse",
        });
    } else if is("todense") {
        let converted = make_dense(cx, args)?;
        cx.reply.int(converted.into());
    } else {
        return Err(Error::quoting(&[b"ERR Unknown PFDEBUG subcommand '", &args[1], b"'"]));
    }
    Ok(())
}

/// Allows or forbids the code for wide vector registers, and replies whether it is in use.
fn simd(cx: &mut Context<'_>, switch: &[u8]) -> Result<(), Error> {
    if switch.eq_ignore_ascii_case(b"on") {
        wide::allow(true);
    } else if switch.eq_ignore_ascii_case(b"off") {
        wide::allow(false);
    } else {
        return Err(Error::text("ERR Argument must be ON or OFF"));
    }
    cx.reply.simple(if wide::enabled() { "enabled" } else { "disabled" });
    Ok(())
}

/// Converts the sketch to dense; returns false if it is dense already.
fn make_dense(cx: &mut Context<'_>, args: Args<'_>) -> Result<bool, Error> {
    let key = cx.key(args, 2);
    let Some(view) = cx.db.get_for_write(key).map(view).transpose()? else { return Ok(false) };
    if let Registers::Dense(_) = view.registers() {
        return Ok(false);
    }
    let dense = view.to_dense()?;
    store(&mut cx.db, key, &dense);
    cx.db.effects().changed(1);
    Ok(true)
}

/// Replies with the values of all registers of a dense sketch.
fn get_registers(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 2);
    let Some(view) = cx.db.get_for_write(key).map(view).transpose()? else { return Err(Error::NO_KEY) };
    let mut raw = [0; REGISTERS];
    view.unite_into(&mut raw)?;
    cx.reply.array(raw.len());
    raw.iter().for_each(|value| cx.reply.int(i64::from(*value)));
    Ok(())
}

/// Formats the opcodes as text: `z:` and `Z:` are runs of zeros in one and two bytes, `v:` is value and length.
fn decode(code: &[u8]) -> String {
    let mut text = String::new();
    for run in sparse::opcodes(code) {
        let separator = if text.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = match run {
            Run::Zeros(len) => write!(text, "{separator}z:{len}"),
            Run::ManyZeros(len) => write!(text, "{separator}Z:{len}"),
            Run::Values { value, len } => write!(text, "{separator}v:{value},{len}"),
        };
    }
    text
}
