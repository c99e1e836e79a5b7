//! Directives: name, kind of values, default, and how each may be changed.
//!
//! The tables under [`tables`](super::tables) are lists of directives, one or a few lines each, written with the
//! builders below: `integer("port", 0, 65535, 6379).works()`. A builder returns a [`Typed`] directive whose type
//! parameter is the type of the setting (`u16`, `bool`, `LogLevel`, ...). The table macro [`theme!`] turns each line
//! into a [`Key`] of that type, so a misspelled name or a wrong type does not compile.
//!
//! A directive starts as [`Effect::Kept`]: the server accepts, stores, shows and rewrites it, but it has no effect.
//! `.works()` declares that the server implements it.

use std::marker::PhantomData;

use super::value::{Refusal, Setting, Value};
use super::values::Values;

bitflags::bitflags! {
    /// How a directive may be changed and shown.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// Can be set only in the configuration file and on the command line.
        const IMMUTABLE = 1 << 0;
        /// Its value is a secret and must not reach any log.
        const SENSITIVE = 1 << 1;
        /// CONFIG GET lists it only by its exact name, not by a pattern.
        const HIDDEN = 1 << 2;
        /// CONFIG SET needs `enable-protected-configs`.
        const PROTECTED = 1 << 3;
        /// Takes several arguments.
        const MULTI_ARG = 1 << 4;
        /// CONFIG SET refuses it while a data set is being loaded.
        const DENY_LOADING = 1 << 5;
        /// Its value refers to something that can change independently (a file, an address), so setting the same value
        /// applies it again.
        const VOLATILE = 1 << 6;
    }
}

/// Whether the server acts on a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The server implements it.
    Works,
    /// The value is accepted and stored but has no effect.
    Kept,
}

/// The words of a setting with their numbers, in the order in which error texts list them.
pub type Words = &'static [(&'static str, u8)];

/// The kind of a directive's values.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `yes` or `no`.
    Bool,
    /// An integer within bounds.
    Integer {
        /// The least value; `-100` for [`Form::MemoryOrPercent`] is 100 percent.
        min: i128,
        /// The greatest value.
        max: i128,
        /// Its notation.
        form: Form,
    },
    /// One word of several.
    Word(Words),
    /// Any of several words, each of which stands for a bit.
    WordSet(Words),
    /// Any bytes.
    Text {
        /// Whether an empty value means that the setting is unset.
        empty_is_unset: bool,
    },
    /// A format used by one or two directives.
    Special(Special),
}

/// The notation of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Decimal digits.
    Plain,
    /// Octal digits.
    Octal,
    /// Bytes, with an optional unit.
    Memory,
    /// Bytes with an optional unit, or a percentage, which is stored as a negative number.
    MemoryOrPercent,
    /// Bytes with an optional unit, or a plain negative number with a special meaning.
    SignedMemory,
}

/// Value formats that only one or two directives use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// The working directory.
    Directory,
    /// Pairs of seconds and changes.
    SavePoints,
    /// Limits for each class of client.
    OutputLimits,
    /// Three scores for the kernel's out-of-memory killer.
    OomScores,
    /// Classes of keyspace events.
    KeyspaceEvents,
    /// Addresses to listen on.
    Addresses,
    /// Percentiles of latency.
    Percentiles,
    /// Host and port of a primary.
    Primary,
}

/// The default of a directive.
#[derive(Clone, Copy, Debug)]
pub(super) enum Initial {
    Bool(bool),
    Integer(i128),
    /// The number of cores available to the process, within the bounds of the directive.
    Cores,
    Word(u8),
    Text(Option<&'static str>),
    Special,
}

/// Checks a value of the right kind, and may adjust it. The second argument contains the current settings.
pub(super) type Check = fn(&mut Value, &Values) -> Result<(), Refusal>;

/// One directive of the configuration.
#[derive(Debug)]
pub struct Directive {
    /// The name under which CONFIG REWRITE writes it.
    pub name: &'static str,
    /// Another name for it.
    pub alias: Option<&'static str>,
    /// The kind of its values.
    pub kind: Kind,
    /// How it may be changed and shown.
    pub flags: Flags,
    /// Whether the server implements it.
    pub effect: Effect,
    pub(super) initial: Initial,
    pub(super) check: Option<Check>,
    /// If CONFIG SET cannot change it, although a configuration file can: the reason.
    pub(super) refused_at_runtime: Option<&'static str>,
}

/// A directive whose setting has the type `T`.
pub(super) struct Typed<T> {
    directive: Directive,
    reads_as: PhantomData<fn() -> T>,
}

impl<T> Typed<T> {
    const fn new(name: &'static str, kind: Kind, initial: Initial) -> Self {
        let directive = Directive {
            name,
            alias: None,
            kind,
            flags: Flags::empty(),
            effect: Effect::Kept,
            initial,
            check: None,
            refused_at_runtime: None,
        };
        Self { directive, reads_as: PhantomData }
    }

    /// The directive without its type, for the table.
    pub const fn untyped(self) -> Directive {
        self.directive
    }

    /// Declares that the server implements it.
    pub const fn works(mut self) -> Self {
        self.directive.effect = Effect::Works;
        self
    }

    /// Adds another name.
    pub const fn alias(mut self, alias: &'static str) -> Self {
        self.directive.alias = Some(alias);
        self
    }

    const fn with(mut self, flags: Flags) -> Self {
        self.directive.flags = self.directive.flags.union(flags);
        self
    }

    /// Can be set only in the configuration file and on the command line.
    pub const fn immutable(self) -> Self {
        self.with(Flags::IMMUTABLE)
    }

    /// Its value is a secret.
    pub const fn sensitive(self) -> Self {
        self.with(Flags::SENSITIVE)
    }

    /// CONFIG GET lists it only by its exact name, not by a pattern.
    pub const fn hidden(self) -> Self {
        self.with(Flags::HIDDEN)
    }

    /// CONFIG SET needs `enable-protected-configs`.
    pub const fn protected(self) -> Self {
        self.with(Flags::PROTECTED)
    }

    /// Takes several arguments.
    pub const fn multi_arg(self) -> Self {
        self.with(Flags::MULTI_ARG)
    }

    /// CONFIG SET refuses it while a data set is being loaded.
    pub const fn deny_loading(self) -> Self {
        self.with(Flags::DENY_LOADING)
    }

    /// Setting the same value applies it again.
    pub const fn volatile(self) -> Self {
        self.with(Flags::VOLATILE)
    }

    /// Adds a check of its values.
    pub const fn checked(mut self, check: Check) -> Self {
        self.directive.check = Some(check);
        self
    }

    /// CONFIG SET refuses it for this reason.
    pub const fn refused_at_runtime(mut self, why: &'static str) -> Self {
        self.directive.refused_at_runtime = Some(why);
        self
    }
}

/// `yes` or `no`.
pub(super) const fn boolean(name: &'static str, default: bool) -> Typed<bool> {
    Typed::new(name, Kind::Bool, Initial::Bool(default))
}

/// An integer from `min` to `max`; `T` must be able to represent both.
pub(super) const fn integer<T>(name: &'static str, min: i128, max: i128, default: i128) -> Typed<T> {
    number(name, min, max, default, Form::Plain)
}

/// An integer from `min` to `max` in the given notation; `T` must be able to represent both.
pub(super) const fn number<T>(name: &'static str, min: i128, max: i128, default: i128, form: Form) -> Typed<T> {
    Typed::new(name, Kind::Integer { min, max, form }, Initial::Integer(default))
}

/// An amount of memory in bytes from `min` to `max`; `T` must be able to represent both.
pub(super) const fn memory<T>(name: &'static str, min: i128, max: i128, default: i128) -> Typed<T> {
    number(name, min, max, default, Form::Memory)
}

/// An integer from 1 to `max` whose default is the number of cores available to the process.
pub(super) const fn cores<T>(name: &'static str, max: i128) -> Typed<T> {
    Typed::new(name, Kind::Integer { min: 1, max, form: Form::Plain }, Initial::Cores)
}

/// A setting whose values are words.
pub(super) trait Worded {
    const WORDS: Words;
}

/// One word of several.
pub(super) const fn word<T: Worded>(name: &'static str, default: u8) -> Typed<T> {
    Typed::new(name, Kind::Word(T::WORDS), Initial::Word(default))
}

/// Any of several words; the word for 0 is shown if no bit is set.
pub(super) const fn word_set<T: Worded>(name: &'static str) -> Typed<T> {
    Typed::new(name, Kind::WordSet(T::WORDS), Initial::Word(0)).multi_arg()
}

/// Any bytes, including an empty value.
pub(super) const fn text(name: &'static str, default: &'static str) -> Typed<super::value::Text> {
    Typed::new(name, Kind::Text { empty_is_unset: false }, Initial::Text(Some(default)))
}

/// Any bytes; an empty value means unset, which is the default.
pub(super) const fn optional(name: &'static str) -> Typed<Option<super::value::Text>> {
    Typed::new(name, Kind::Text { empty_is_unset: true }, Initial::Text(None))
}

/// A setting with a special format.
pub(super) const fn special<T>(name: &'static str, shape: Special) -> Typed<T> {
    Typed::new(name, Kind::Special(shape), Initial::Special)
}

/// The number of a directive, for comparisons with that of a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub(super) u16);

impl Id {
    /// The directive with this number.
    pub fn directive(self) -> &'static Directive {
        super::tables::directive(self)
    }
}

/// A directive whose setting has the type `T`.
pub struct Key<T> {
    id: Id,
    reads_as: PhantomData<fn() -> T>,
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T: Setting> Key<T> {
    pub(super) const fn at(position: u16) -> Self {
        Self { id: Id(position), reads_as: PhantomData }
    }

    /// The number of the directive; a constant that can serve as a pattern in a `match`.
    pub const fn id(self) -> Id {
        self.id
    }
}

/// Declares the directives of one theme: a [`Key`] for each, and their `TABLE`.
///
/// `after` is the number of directives in the previous themes, so that every directive gets a unique number; `END` is
/// the value of `after` for the next theme.
macro_rules! theme {
    (after $first:expr; $($id:ident: $shape:ty = $directive:expr;)+) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Position { $($id,)+ END }

        /// The number of directives up to the end of this theme.
        pub(super) const END: u16 = $first + Position::END as u16;

        $(
            #[doc = concat!("The directive that the table declares as `", stringify!($directive), "`.")]
            pub const $id: Key<$shape> = Key::at($first + Position::$id as u16);
        )+

        /// The directives of this theme, in the order of their numbers.
        pub(super) const TABLE: &[Directive] = &[$({
            let typed: Typed<$shape> = $directive;
            typed.untyped()
        },)+];

        /// Reads every setting of this theme as its type and converts it back into a value.
        #[cfg(test)]
        pub(super) fn read_all(values: &crate::Values) -> Vec<crate::value::Value> {
            use crate::value::Setting;
            vec![$(values.read($id).into_value(),)+]
        }
    };
}
pub(super) use theme;
