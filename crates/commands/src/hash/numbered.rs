//! The arguments `FIELDS numfields field ...` at the end of a request.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;

use crate::context::Error;
use crate::spec::Arg;

/// The error if the number differs from the number of fields.
pub const MISMATCH: Error =
    Error::text("ERR numfields should be greater than 0 and match the provided number of fields");

/// The arguments in COMMAND DOCS.
pub const FIELDS: Arg =
    Arg::block("fields", &[Arg::integer("numfields").key_spec(0), Arg::string("field").multiple()]).token("FIELDS");

/// The index of the word FIELDS, which must be followed by at least one argument, searched from argument `from`.
pub fn find(args: Args<'_>, from: usize) -> Option<usize> {
    (from..args.len().saturating_sub(1)).find(|index| args[*index].eq_ignore_ascii_case(b"fields"))
}

/// The arguments after the number at `index`. There must be `each` arguments per field.
pub fn parse(args: Args<'_>, index: usize, each: usize, mismatch: Error) -> Result<Args<'_>, Error> {
    let count = parse_i64(&args[index]).ok_or(Error::NOT_INTEGER)?;
    let fields = args.slice_from(index + 1);
    let wanted = usize::try_from(count).ok().and_then(|count| count.checked_mul(each));
    if count > 0 && wanted == Some(fields.len()) { Ok(fields) } else { Err(mismatch) }
}

/// Like [`parse`], for commands whose argument 2 must be FIELDS.
pub fn parse_second(args: Args<'_>, mismatch: Error) -> Result<Args<'_>, Error> {
    if !args[2].eq_ignore_ascii_case(b"fields") {
        return Err(Error::SYNTAX);
    }
    parse(args, 3, 1, mismatch)
}
