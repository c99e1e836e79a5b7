//! The options of SET, GETEX, MSETEX, HSETEX and HGETEX, and the notation of expiry times.
//!
//! The commands share one grammar, of which each accepts a part ([`Syntax`]). Options may be in any order and case. At
//! most one condition and one kind of expiry may be given; the same one may be repeated where Valkey allows it. Numbers
//! are checked after all options have been parsed, so a syntax error takes precedence.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;

use crate::context::Error;

/// The command whose options are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// NX, XX, IFEQ, GET, KEEPTTL and times.
    Set,
    /// PERSIST and times.
    GetEx,
    /// NX, XX, KEEPTTL and times.
    MSetEx,
    /// NX, XX, FNX, FXX, KEEPTTL and times.
    HSetEx,
    /// PERSIST and times.
    HGetEx,
}

/// The options of one request.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The condition for setting the value.
    pub condition: Condition<'a>,
    /// FNX and FXX: the condition for the fields of a hash.
    pub field_condition: Condition<'a>,
    /// Whether to reply with the old value.
    pub get: bool,
    /// The change of the key's expiry.
    pub expiration: Expiration<'a>,
}

/// A condition for setting a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Condition<'a> {
    /// No condition.
    Always,
    /// NX: the key does not exist.
    Absent,
    /// XX: the key exists.
    Present,
    /// IFEQ: the key exists and holds this string.
    Equal(&'a [u8]),
}

impl<'a> Condition<'a> {
    /// Appends the words of the option.
    pub fn append_to(self, words: &mut impl Extend<&'a [u8]>) {
        match self {
            Condition::Always => {}
            Condition::Absent => words.extend([&b"NX"[..]]),
            Condition::Present => words.extend([&b"XX"[..]]),
            Condition::Equal(text) => words.extend([b"IFEQ", text]),
        }
    }
}

/// A change of a key's expiry.
#[derive(Clone, Copy)]
pub enum Expiration<'a> {
    /// No option was given.
    Unsaid,
    /// KEEPTTL.
    Keep,
    /// PERSIST.
    Persist,
    /// EX, PX, EXAT or PXAT.
    At(Deadline<'a>),
}

/// An expiry time as given.
#[derive(Clone, Copy)]
pub struct Deadline<'a> {
    /// The unit and origin of the number.
    pub form: TimeForm,
    /// The number.
    pub text: &'a [u8],
}

/// The unit and origin of an expiry time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TimeForm {
    /// EX: seconds from now.
    Seconds,
    /// PX: milliseconds from now.
    Milliseconds,
    /// EXAT: seconds since the Unix epoch.
    UnixSeconds,
    /// PXAT: milliseconds since the Unix epoch.
    UnixMilliseconds,
}

impl TimeForm {
    /// Whether the time is absolute, and therefore may be in the past.
    pub fn is_absolute(self) -> bool {
        matches!(self, TimeForm::UnixSeconds | TimeForm::UnixMilliseconds)
    }
}

impl Deadline<'_> {
    /// The Unix time in milliseconds. Returns the error `invalid`, which names the command, if the number is not
    /// positive or the time exceeds 64 bits.
    pub fn resolve(self, now_ms: i64, invalid: Error) -> Result<i64, Error> {
        self.resolve_from(1, now_ms, invalid)
    }

    /// Like [`resolve`](Self::resolve), but accepts numbers from `least` on.
    pub fn resolve_from(self, least: i64, now_ms: i64, invalid: Error) -> Result<i64, Error> {
        let number = parse_i64(self.text).ok_or(Error::NOT_INTEGER)?;
        let time = match self.form {
            _ if number < least => None,
            TimeForm::Seconds => number.checked_mul(1000).and_then(|ms| ms.checked_add(now_ms)),
            TimeForm::Milliseconds => number.checked_add(now_ms),
            TimeForm::UnixSeconds => number.checked_mul(1000),
            TimeForm::UnixMilliseconds => Some(number),
        };
        time.ok_or(invalid)
    }
}

impl<'a> Options<'a> {
    /// Parses the options from argument `start` to the end.
    pub fn parse(args: Args<'a>, start: usize, syntax: Syntax) -> Result<Options<'a>, Error> {
        Self::parse_words(args.slice_from(start).iter(), syntax)
    }

    /// Parses options from `words`.
    pub fn parse_words(mut words: impl Iterator<Item = &'a [u8]>, syntax: Syntax) -> Result<Options<'a>, Error> {
        let mut options = Options {
            condition: Condition::Always,
            field_condition: Condition::Always,
            get: false,
            expiration: Expiration::Unsaid,
        };
        while let Some(word) = words.next() {
            options.take(word, &mut words, syntax).ok_or(Error::SYNTAX)?;
        }
        Ok(options)
    }

    /// Processes one option, with its argument from `rest`; `None` if it is unknown, incomplete or in conflict.
    fn take(&mut self, word: &[u8], rest: &mut impl Iterator<Item = &'a [u8]>, syntax: Syntax) -> Option<()> {
        const WORD_LEN_MAX: usize = "keepttl".len();
        let mut lower = [0; WORD_LEN_MAX];
        let lower = lower.get_mut(..word.len())?;
        lower.copy_from_slice(word);
        lower.make_ascii_lowercase();

        let reads = matches!(syntax, Syntax::GetEx | Syntax::HGetEx);
        let conditional = !reads;
        match &*lower {
            b"ex" => self.expire(TimeForm::Seconds, rest.next()?),
            b"px" => self.expire(TimeForm::Milliseconds, rest.next()?),
            b"exat" => self.expire(TimeForm::UnixSeconds, rest.next()?),
            b"pxat" => self.expire(TimeForm::UnixMilliseconds, rest.next()?),
            b"nx" if conditional => set_condition(&mut self.condition, Condition::Absent),
            b"xx" if conditional => set_condition(&mut self.condition, Condition::Present),
            b"fnx" if syntax == Syntax::HSetEx => set_condition(&mut self.field_condition, Condition::Absent),
            b"fxx" if syntax == Syntax::HSetEx => set_condition(&mut self.field_condition, Condition::Present),
            b"ifeq" if syntax == Syntax::Set && self.condition == Condition::Always => {
                set_condition(&mut self.condition, Condition::Equal(rest.next()?))
            }
            b"get" if syntax == Syntax::Set => {
                self.get = true;
                Some(())
            }
            b"keepttl" if conditional => match self.expiration {
                Expiration::Unsaid | Expiration::Keep => {
                    self.expiration = Expiration::Keep;
                    Some(())
                }
                _ => None,
            },
            b"persist" if reads => match self.expiration {
                Expiration::Unsaid | Expiration::Persist => {
                    self.expiration = Expiration::Persist;
                    Some(())
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn expire(&mut self, form: TimeForm, text: &'a [u8]) -> Option<()> {
        let fits = match self.expiration {
            Expiration::Unsaid => true,
            Expiration::At(earlier) => earlier.form == form,
            Expiration::Keep | Expiration::Persist => false,
        };
        self.expiration = Expiration::At(Deadline { form, text });
        fits.then_some(())
    }
}

/// Sets a condition, unless a different one is set already.
fn set_condition<'a>(present: &mut Condition<'a>, condition: Condition<'a>) -> Option<()> {
    let fits = *present == Condition::Always || *present == condition;
    *present = condition;
    fits.then_some(())
}

#[cfg(test)]
mod tests {
    use kvick_resp::OwnedArgs;

    use super::*;

    fn accepts(line: &str, syntax: Syntax) -> bool {
        let words = OwnedArgs::new(line.split_whitespace());
        Options::parse(words.args(), 0, syntax).is_ok()
    }

    #[test]
    fn each_command_has_its_own_options() {
        let words = [
            ("nx", [true, false, true]),
            ("XX", [true, false, true]),
            ("ifeq nx", [true, false, false]),
            ("Get", [true, false, false]),
            ("keepttl", [true, false, true]),
            ("PERSIST", [false, true, false]),
            ("ex 1 ", [true, true, true]),
            ("pxat 1", [true, true, true]),
            ("persistent", [false, false, false]),
        ];
        for (line, expected) in words {
            let syntaxes = [Syntax::Set, Syntax::GetEx, Syntax::MSetEx];
            assert_eq!(syntaxes.map(|syntax| accepts(line, syntax)), expected, "{line}");
        }
    }

    #[test]
    fn conflicting_and_missing_arguments_are_rejected() {
        let refused = [
            "nx xx",
            "xx nx",
            "nx ifeq a",
            "ifeq a xx",
            "ifeq a ifeq a",
            "ifeq",
            "ex",
            "get px",
            "ex 1 px 1",
            "ex 1 exat 1",
            "px 1 pxat 1",
            "ex 1 keepttl",
            "keepttl pxat 1",
        ];
        for line in refused {
            assert!(!accepts(line, Syntax::Set), "{line}");
        }
        for line in ["persist ex 1", "px 1 persist"] {
            assert!(!accepts(line, Syntax::GetEx), "{line}");
        }
        for line in ["nx nx", "get get", "keepttl keepttl", "ex 1 ex 2", "get xx px 5", "keepttl ifeq a get"] {
            assert!(accepts(line, Syntax::Set), "{line}");
        }
    }

    #[test]
    fn deadlines_are_positive_and_fit_64_bits() {
        const INVALID: Error = Error::text("ERR invalid");
        let resolve = |form, text: &str| Deadline { form, text: text.as_bytes() }.resolve(1_000, INVALID);
        assert_eq!(resolve(TimeForm::Seconds, "2"), Ok(3_000));
        assert_eq!(resolve(TimeForm::Milliseconds, "2"), Ok(1_002));
        assert_eq!(resolve(TimeForm::UnixSeconds, "2"), Ok(2_000));
        assert_eq!(resolve(TimeForm::UnixMilliseconds, "2"), Ok(2));
        for text in ["0", "-1", "9223372036854775807"] {
            assert_eq!(resolve(TimeForm::Seconds, text), Err(INVALID));
        }
        // The product fits, but the sum does not.
        assert_eq!(resolve(TimeForm::Seconds, "9223372036854775"), Err(INVALID));
        assert_eq!(resolve(TimeForm::UnixSeconds, "9223372036854775"), Ok(9_223_372_036_854_775_000));
        assert_eq!(resolve(TimeForm::Milliseconds, "9223372036854775807"), Err(INVALID));
        for text in ["", "1.5", "+1", "x"] {
            assert_eq!(resolve(TimeForm::Milliseconds, text), Err(Error::NOT_INTEGER));
        }
    }
}
