//! Values of settings: parsing from arguments, and formatting for CONFIG GET and CONFIG REWRITE.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::directive::{Form, Kind, Special, Words};
use super::numbers;
use super::quoting::push_quoted;
use super::shapes::{Addresses, Directory, KeyspaceEvents, OomScores, OutputLimits, Percentiles, Primary, SavePoints};

/// The reason why a value or a change is refused, as text for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(Cow<'static, str>);

impl Refusal {
    /// A refusal with this text.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

impl From<std::io::Error> for Refusal {
    /// The operating system's error text without Rust's suffix with the error number.
    fn from(error: std::io::Error) -> Self {
        let text = error.to_string();
        Self::new(text.find(" (os error ").map_or(text.as_str(), |end| &text[..end]).to_owned())
    }
}

/// A setting of any bytes. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Text(Arc<[u8]>);

impl Text {
    /// The text as a file path.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        text.as_bytes().into()
    }
}

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// An amount of memory, absolute or relative to `maxmemory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOrPercent {
    /// Bytes.
    Bytes(u64),
    /// Percent of `maxmemory`.
    Percent(u8),
}

/// The value of a setting, as required by the [`Kind`] of its directive.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// For [`Kind::Bool`].
    Bool(bool),
    /// For [`Kind::Integer`].
    Integer(i128),
    /// For [`Kind::Word`] and [`Kind::WordSet`].
    Word(u8),
    /// For [`Kind::Text`].
    Text(Option<Text>),
    /// For [`Special::Directory`].
    Directory(Directory),
    /// For [`Special::SavePoints`].
    SavePoints(SavePoints),
    /// For [`Special::OutputLimits`].
    OutputLimits(OutputLimits),
    /// For [`Special::OomScores`].
    OomScores(OomScores),
    /// For [`Special::KeyspaceEvents`].
    KeyspaceEvents(KeyspaceEvents),
    /// For [`Special::Addresses`].
    Addresses(Addresses),
    /// For [`Special::Percentiles`].
    Percentiles(Percentiles),
    /// For [`Special::Primary`].
    Primary(Option<Primary>),
}

impl Value {
    /// Parses a value of this kind. `current` is the current value: some kinds change only a part of it.
    pub(super) fn parse(kind: &Kind, args: &[&[u8]], current: &Value) -> Result<Self, Refusal> {
        match *kind {
            Kind::Bool => parse_bool(only(args)?).map(Self::Bool),
            Kind::Integer { min, max, form } => parse_integer(only(args)?, min, max, form).map(Self::Integer),
            Kind::Word(words) => parse_words(words, args, false).map(Self::Word),
            Kind::WordSet(words) => parse_words(words, args, true).map(Self::Word),
            Kind::Text { empty_is_unset } => {
                let text = only(args)?;
                Ok(Self::Text((!(empty_is_unset && text.is_empty())).then(|| text.into())))
            }
            Kind::Special(Special::Directory) => match current {
                Self::Directory(from) => from.enter(only(args)?).map(Self::Directory),
                _ => Err(Refusal::new("the current directory is unknown")),
            },
            Kind::Special(Special::OutputLimits) => match current {
                Self::OutputLimits(limits) => limits.changed(args).map(Self::OutputLimits),
                _ => OutputLimits::default().changed(args).map(Self::OutputLimits),
            },
            Kind::Special(Special::SavePoints) => SavePoints::parse(args).map(Self::SavePoints),
            Kind::Special(Special::OomScores) => OomScores::parse(args).map(Self::OomScores),
            Kind::Special(Special::KeyspaceEvents) => KeyspaceEvents::parse(only(args)?).map(Self::KeyspaceEvents),
            Kind::Special(Special::Addresses) => Addresses::parse(args).map(Self::Addresses),
            Kind::Special(Special::Percentiles) => Percentiles::parse(args).map(Self::Percentiles),
            Kind::Special(Special::Primary) => Primary::parse(args).map(Self::Primary),
        }
    }

    /// The value in the form of CONFIG GET.
    pub fn show(&self, kind: &Kind) -> Vec<u8> {
        match self {
            Self::Bool(on) => yes_or_no(*on).into(),
            Self::Integer(number) => show_integer(*number, kind).into_bytes(),
            Self::Word(bits) => show_words(*bits, kind).into_bytes(),
            Self::Text(text) => text.as_deref().unwrap_or_default().to_vec(),
            Self::Directory(directory) => directory.path().as_os_str().as_bytes().to_vec(),
            Self::SavePoints(points) => points.to_string().into_bytes(),
            Self::OutputLimits(limits) => limits.to_string().into_bytes(),
            Self::OomScores(scores) => scores.to_string().into_bytes(),
            Self::KeyspaceEvents(events) => events.show().into_bytes(),
            Self::Addresses(addresses) => addresses.join(),
            Self::Percentiles(percentiles) => percentiles.to_string().into_bytes(),
            Self::Primary(primary) => primary.as_ref().map(Primary::show).unwrap_or_default(),
        }
    }

    /// Reports a bug: a table pairs a directive of this value with a type that does not fit.
    #[cold]
    pub(super) fn not_of_type(&self, name: &str) -> ! {
        unreachable!("{self:?} read as {name}")
    }

    /// The value as arguments on a line of a configuration file, or `None` if the setting has this value only if the
    /// line is absent.
    pub(super) fn rewrite(&self, kind: &Kind) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        match self {
            Self::Text(None) | Self::Primary(None) => return None,
            Self::Text(Some(text)) => push_quoted(&mut line, text),
            Self::Directory(directory) => push_quoted(&mut line, directory.path().as_os_str().as_bytes()),
            Self::KeyspaceEvents(events) => push_quoted(&mut line, events.classes().as_bytes()),
            Self::Integer(number) if *number >= 0 && is_memory(kind) => {
                line = u64::try_from(*number).map_or_else(|_| number.to_string(), numbers::memory_with_unit).into();
            }
            _ => line = self.show(kind),
        }
        if line.is_empty() {
            line.extend(b"\"\"");
        }
        Some(line)
    }
}

/// The argument of a directive that takes exactly one.
fn only<'a>(args: &[&'a [u8]]) -> Result<&'a [u8], Refusal> {
    match args {
        [arg] => Ok(arg),
        _ => Err(Refusal::new("wrong number of arguments")),
    }
}

fn parse_bool(arg: &[u8]) -> Result<bool, Refusal> {
    if arg.eq_ignore_ascii_case(b"yes") {
        Ok(true)
    } else if arg.eq_ignore_ascii_case(b"no") {
        Ok(false)
    } else {
        Err(Refusal::new("argument must be 'yes' or 'no'"))
    }
}

fn yes_or_no(on: bool) -> &'static str {
    if on { "yes" } else { "no" }
}

fn parse_integer(arg: &[u8], min: i128, max: i128, form: Form) -> Result<i128, Refusal> {
    let memory = || numbers::memory(arg).map(i128::from);
    let percent = || {
        let number = numbers::integer(arg.strip_suffix(b"%")?)?;
        (number >= 0).then_some(-i128::from(number))
    };
    let plain = || numbers::integer(arg).map(i128::from);
    let number = match form {
        Form::Plain => plain().ok_or("argument couldn't be parsed into an integer"),
        Form::Octal => numbers::octal(arg).map(i128::from).ok_or("argument couldn't be parsed as an octal number"),
        Form::Memory => memory().ok_or("argument must be a memory value"),
        Form::SignedMemory => memory().or_else(plain).ok_or("argument must be a memory value"),
        Form::MemoryOrPercent => memory().or_else(percent).ok_or("argument must be a memory or percent value"),
    }
    .map_err(Refusal::new)?;

    if (min..=max).contains(&number) {
        return Ok(number);
    }
    Err(Refusal::new(match form {
        Form::MemoryOrPercent if number < 0 => {
            format!("percentage argument must be less or equal to {}", -min)
        }
        Form::Octal => format!("argument must be between {min:o} and {max:o} inclusive"),
        _ => format!("argument must be between {min} and {max} inclusive"),
    }))
}

fn is_memory(kind: &Kind) -> bool {
    matches!(kind, Kind::Integer { form: Form::Memory | Form::MemoryOrPercent | Form::SignedMemory, .. })
}

fn show_integer(number: i128, kind: &Kind) -> String {
    match kind {
        Kind::Integer { form: Form::Octal, .. } => format!("{number:o}"),
        Kind::Integer { form: Form::MemoryOrPercent, .. } if number < 0 => format!("{}%", -number),
        _ => number.to_string(),
    }
}

fn parse_words(words: Words, args: &[&[u8]], several: bool) -> Result<u8, Refusal> {
    let bits_of = |arg: &[u8]| {
        let (_, bits) = words.iter().find(|(word, _)| arg.eq_ignore_ascii_case(word.as_bytes()))?;
        Some(*bits)
    };
    let all = || args.iter().try_fold(0, |bits, arg| Some(bits | bits_of(arg)?));
    let count_fits = if several { !args.is_empty() } else { args.len() == 1 };
    count_fits.then(all).flatten().ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        Refusal::new(format!("argument(s) must be one of the following: {}", words.join(", ")))
    })
}

/// The word for the whole value if there is one, otherwise a word for each bit.
fn show_words(bits: u8, kind: &Kind) -> String {
    let (Kind::Word(words) | Kind::WordSet(words)) = kind else {
        return bits.to_string();
    };
    if let Some((word, _)) = words.iter().find(|(_, all)| *all == bits) {
        return (*word).to_owned();
    }
    let set: Vec<&str> = words.iter().filter(|(_, bit)| bits & bit != 0).map(|(word, _)| *word).collect();
    set.join(" ")
}

/// A type of settings.
///
/// The tables pair every directive with a type that fits its kind, so the conversions cannot fail. They panic on a
/// pairing that does not fit, which no external input can cause.
pub trait Setting: Sized {
    /// Converts a value to this type.
    fn of(value: &Value) -> Self;
    /// Converts this type to a value.
    fn into_value(self) -> Value;
}

macro_rules! setting {
    ($($variant:ident($shape:ty)),+ $(,)?) => {$(
        impl Setting for $shape {
            fn of(value: &Value) -> Self {
                match value {
                    Value::$variant(value) => value.clone(),
                    other => other.not_of_type(stringify!($shape)),
                }
            }

            fn into_value(self) -> Value {
                Value::$variant(self)
            }
        }
    )+};
}

setting!(
    Bool(bool),
    Text(Option<Text>),
    Directory(Directory),
    SavePoints(SavePoints),
    OutputLimits(OutputLimits),
    OomScores(OomScores),
    KeyspaceEvents(KeyspaceEvents),
    Addresses(Addresses),
    Percentiles(Percentiles),
    Primary(Option<Primary>),
);

impl Setting for Text {
    fn of(value: &Value) -> Self {
        Option::<Text>::of(value).unwrap_or_else(|| "".into())
    }

    fn into_value(self) -> Value {
        Value::Text(Some(self))
    }
}

macro_rules! integer_setting {
    ($($integer:ty),+) => {$(
        impl Setting for $integer {
            fn of(value: &Value) -> Self {
                match value {
                    Value::Integer(number) => (*number).clamp(Self::MIN.into(), Self::MAX.into()) as Self,
                    other => other.not_of_type(stringify!($integer)),
                }
            }

            fn into_value(self) -> Value {
                Value::Integer(self.into())
            }
        }
    )+};
}

integer_setting!(u8, u16, u32, u64, i32, i64);

impl Setting for MemoryOrPercent {
    fn of(value: &Value) -> Self {
        match i64::of(value) {
            percent @ ..0 => Self::Percent(percent.unsigned_abs().min(100) as u8),
            _ => Self::Bytes(u64::of(value)),
        }
    }

    fn into_value(self) -> Value {
        Value::Integer(match self {
            Self::Bytes(bytes) => bytes.into(),
            Self::Percent(percent) => -i128::from(percent),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: Kind = Kind::Integer { min: 0, max: 10, form: Form::Plain };
    const SHARE: Kind = Kind::Integer { min: -100, max: i64::MAX as i128, form: Form::MemoryOrPercent };
    const LIMIT: Kind = Kind::Integer { min: -1, max: i64::MAX as i128, form: Form::SignedMemory };
    const MODE: Kind = Kind::Integer { min: 0, max: 0o777, form: Form::Octal };
    const SIZE: Kind = Kind::Integer { min: 0, max: u64::MAX as i128, form: Form::Memory };
    const SET: Kind = Kind::WordSet(&[("none", 0), ("one", 1), ("two", 2), ("four", 4)]);

    fn parse(kind: &Kind, args: &[&str]) -> Result<Value, String> {
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        Value::parse(kind, &args, &Value::Bool(false)).map_err(|why| why.to_string())
    }

    fn shown(kind: &Kind, args: &[&str]) -> String {
        String::from_utf8(parse(kind, args).unwrap().show(kind)).unwrap()
    }

    fn rewritten(kind: &Kind, args: &[&str]) -> String {
        String::from_utf8(parse(kind, args).unwrap().rewrite(kind).unwrap()).unwrap()
    }

    #[test]
    fn booleans_are_yes_or_no_in_any_case() {
        assert_eq!(shown(&Kind::Bool, &["YES"]), "yes");
        assert_eq!(parse(&Kind::Bool, &["1"]).unwrap_err(), "argument must be 'yes' or 'no'");
    }

    #[test]
    fn integer_errors_name_the_bounds() {
        assert_eq!(parse(&COUNT, &["11"]).unwrap_err(), "argument must be between 0 and 10 inclusive");
        assert_eq!(parse(&COUNT, &["x"]).unwrap_err(), "argument couldn't be parsed into an integer");
        assert_eq!(parse(&COUNT, &["1", "2"]).unwrap_err(), "wrong number of arguments");
        assert_eq!(parse(&MODE, &["1000"]).unwrap_err(), "argument must be between 0 and 777 inclusive");
        assert_eq!(parse(&MODE, &["9"]).unwrap_err(), "argument couldn't be parsed as an octal number");
        assert_eq!(parse(&SIZE, &["-1"]).unwrap_err(), "argument must be a memory value");
        assert_eq!(parse(&SHARE, &["x"]).unwrap_err(), "argument must be a memory or percent value");
        assert_eq!(parse(&SHARE, &["200%"]).unwrap_err(), "percentage argument must be less or equal to 100");
        assert!(parse(&LIMIT, &["-2"]).unwrap_err().starts_with("argument must be between -1 and "));
    }

    #[test]
    fn integers_keep_their_form() {
        assert_eq!((shown(&MODE, &["0700"]), rewritten(&MODE, &["700"])), ("700".into(), "700".into()));
        assert_eq!((shown(&SIZE, &["2mb"]), rewritten(&SIZE, &["2mb"])), ("2097152".into(), "2mb".into()));
        assert_eq!(shown(&SIZE, &["18446744073709551615"]), "18446744073709551615");
        assert_eq!((shown(&SHARE, &["5%"]), rewritten(&SHARE, &["5%"])), ("5%".into(), "5%".into()));
        assert_eq!((shown(&LIMIT, &["-1"]), rewritten(&LIMIT, &["-1"])), ("-1".into(), "-1".into()));
        assert_eq!(rewritten(&LIMIT, &["1kb"]), "1kb");
    }

    #[test]
    fn word_sets_are_shown_word_by_word() {
        assert_eq!(shown(&SET, &["FOUR", "one"]), "one four");
        assert_eq!(shown(&SET, &["none"]), "none");
        let texts = [parse(&SET, &[]), parse(&SET, &["one", "x"])].map(Result::unwrap_err);
        assert_eq!(texts, ["argument(s) must be one of the following: none, one, two, four"; 2]);
    }

    #[test]
    fn an_unset_string_is_shown_empty_and_not_rewritten() {
        let optional = Kind::Text { empty_is_unset: true };
        assert_eq!(shown(&optional, &[""]), "");
        assert_eq!(parse(&optional, &[""]).unwrap().rewrite(&optional), None);
        assert_eq!(rewritten(&Kind::Text { empty_is_unset: false }, &[""]), "\"\"");
        assert_eq!(rewritten(&optional, &["a \"b"]), r#""a \"b""#);
    }

    #[test]
    fn system_errors_have_the_text_of_the_system() {
        let error = std::io::Error::from_raw_os_error(2);
        assert_eq!(Refusal::from(error).to_string(), "No such file or directory");
    }
}
