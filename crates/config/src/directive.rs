//! What a directive is: its name, the shape of its values, its default, and how it may be changed.
//!
//! The tables under [`tables`](super::tables) are lists of these, one line or few per directive,
//! written with the builders below: `integer("port", 0, 65535, 6379).works()`. A builder yields a
//! [`Typed`] directive whose type parameter is what reading the setting gives (`u16`, `bool`,
//! `LogLevel`, ...); the table macro [`theme!`] turns each line into a [`Key`] of that type, so
//! that a misspelt name or a wrong type does not compile.
//!
//! A directive starts out as [`Effect::Kept`]: accepted, kept, shown and rewritten, but without
//! effect. The word `.works()` declares that the server acts on it.

use std::marker::PhantomData;

use super::value::{Refusal, Setting, Value};
use super::values::Values;

bitflags::bitflags! {
    /// How a directive may be changed and shown.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// Only the configuration file and the command line set it.
        const IMMUTABLE = 1 << 0;
        /// Its value is a secret and must not reach any log.
        const SENSITIVE = 1 << 1;
        /// Patterns of CONFIG GET pass it over; its exact name finds it.
        const HIDDEN = 1 << 2;
        /// CONFIG SET needs `enable-protected-configs`.
        const PROTECTED = 1 << 3;
        /// It takes several arguments.
        const MULTI_ARG = 1 << 4;
        /// CONFIG SET refuses it while a data set is loaded.
        const DENY_LOADING = 1 << 5;
        /// Its value refers to something that may change without it (a file, an address), so
        /// setting it again applies it again.
        const VOLATILE = 1 << 6;
    }
}

/// Whether the server acts on a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The server acts on it.
    Works,
    /// The value is accepted and kept, and nothing else happens.
    Kept,
}

/// The words of a setting and the number each stands for, in the order in which error texts list
/// them.
pub type Words = &'static [(&'static str, u8)];

/// The shape of a directive's values.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `yes` or `no`.
    Bool,
    /// A whole number within bounds.
    Integer {
        /// The least value; `-100` for [`Form::MemoryOrPercent`] is 100 percent.
        min: i128,
        /// The greatest value.
        max: i128,
        /// How it is spelt.
        form: Form,
    },
    /// One word of several.
    Word(Words),
    /// Any of several words, each of which is a bit.
    WordSet(Words),
    /// Any bytes.
    Text {
        /// Empty means that there is no value.
        empty_is_unset: bool,
    },
    /// A shape of its own.
    Special(Special),
}

/// How an integer is spelt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Decimal digits.
    Plain,
    /// Octal digits.
    Octal,
    /// Bytes, with an optional unit.
    Memory,
    /// Bytes, with an optional unit, or a percentage, which is kept as a negative number.
    MemoryOrPercent,
    /// Bytes, with an optional unit, or a plain negative number with a meaning of its own.
    SignedMemory,
}

/// Shapes that only one or two directives have.
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

/// The value that a directive has before anything sets it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Initial {
    Bool(bool),
    Integer(i128),
    /// The cores that the process may use, within the directive's bounds.
    Cores,
    Word(u8),
    Text(Option<&'static str>),
    Special,
}

/// Checks, and may adjust, a value that has the right shape; sees the other settings as they are.
pub(super) type Check = fn(&mut Value, &Values) -> Result<(), Refusal>;

/// One directive of the configuration.
#[derive(Debug)]
pub struct Directive {
    /// The name by which it is rewritten.
    pub name: &'static str,
    /// Another name that is as good.
    pub alias: Option<&'static str>,
    /// The shape of its values.
    pub kind: Kind,
    /// How it may be changed and shown.
    pub flags: Flags,
    /// Whether the server acts on it.
    pub effect: Effect,
    pub(super) initial: Initial,
    pub(super) check: Option<Check>,
    /// Why CONFIG SET cannot change it, although a configuration file may.
    pub(super) refused_at_runtime: Option<&'static str>,
}

/// A directive whose setting reads as a `T`.
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

    /// The same without its type, for the table.
    pub const fn untyped(self) -> Directive {
        self.directive
    }

    /// The server acts on it.
    pub const fn works(mut self) -> Self {
        self.directive.effect = Effect::Works;
        self
    }

    /// Another name that is as good.
    pub const fn alias(mut self, alias: &'static str) -> Self {
        self.directive.alias = Some(alias);
        self
    }

    const fn with(mut self, flags: Flags) -> Self {
        self.directive.flags = self.directive.flags.union(flags);
        self
    }

    /// Only the configuration file and the command line set it.
    pub const fn immutable(self) -> Self {
        self.with(Flags::IMMUTABLE)
    }

    /// Its value is a secret.
    pub const fn sensitive(self) -> Self {
        self.with(Flags::SENSITIVE)
    }

    /// Patterns of CONFIG GET pass it over.
    pub const fn hidden(self) -> Self {
        self.with(Flags::HIDDEN)
    }

    /// CONFIG SET needs `enable-protected-configs`.
    pub const fn protected(self) -> Self {
        self.with(Flags::PROTECTED)
    }

    /// It takes several arguments.
    pub const fn multi_arg(self) -> Self {
        self.with(Flags::MULTI_ARG)
    }

    /// CONFIG SET refuses it while a data set is loaded.
    pub const fn deny_loading(self) -> Self {
        self.with(Flags::DENY_LOADING)
    }

    /// Setting it again applies it again.
    pub const fn volatile(self) -> Self {
        self.with(Flags::VOLATILE)
    }

    /// A further condition on its values.
    pub const fn checked(mut self, check: Check) -> Self {
        self.directive.check = Some(check);
        self
    }

    /// CONFIG SET cannot change it, for this reason.
    pub const fn refused_at_runtime(mut self, why: &'static str) -> Self {
        self.directive.refused_at_runtime = Some(why);
        self
    }
}

/// `yes` or `no`.
pub(super) const fn boolean(name: &'static str, default: bool) -> Typed<bool> {
    Typed::new(name, Kind::Bool, Initial::Bool(default))
}

/// A plain number from `min` to `max`; `T` must hold both.
pub(super) const fn integer<T>(name: &'static str, min: i128, max: i128, default: i128) -> Typed<T> {
    number(name, min, max, default, Form::Plain)
}

/// A number from `min` to `max` in a given spelling; `T` must hold both.
pub(super) const fn number<T>(name: &'static str, min: i128, max: i128, default: i128, form: Form) -> Typed<T> {
    Typed::new(name, Kind::Integer { min, max, form }, Initial::Integer(default))
}

/// An amount of memory in bytes from `min` to `max`; `T` must hold both.
pub(super) const fn memory<T>(name: &'static str, min: i128, max: i128, default: i128) -> Typed<T> {
    number(name, min, max, default, Form::Memory)
}

/// A number from 1 to `max` whose default is the number of cores that the process may use.
pub(super) const fn cores<T>(name: &'static str, max: i128) -> Typed<T> {
    Typed::new(name, Kind::Integer { min: 1, max, form: Form::Plain }, Initial::Cores)
}

/// A setting that is made of words.
pub(super) trait Worded {
    const WORDS: Words;
}

/// One word of several.
pub(super) const fn word<T: Worded>(name: &'static str, default: u8) -> Typed<T> {
    Typed::new(name, Kind::Word(T::WORDS), Initial::Word(default))
}

/// Any of several words; without any bit it shows the word for 0.
pub(super) const fn word_set<T: Worded>(name: &'static str) -> Typed<T> {
    Typed::new(name, Kind::WordSet(T::WORDS), Initial::Word(0)).multi_arg()
}

/// Any bytes, also none.
pub(super) const fn text(name: &'static str, default: &'static str) -> Typed<super::value::Text> {
    Typed::new(name, Kind::Text { empty_is_unset: false }, Initial::Text(Some(default)))
}

/// Any bytes, where none means that there is no value, which is the default.
pub(super) const fn optional(name: &'static str) -> Typed<Option<super::value::Text>> {
    Typed::new(name, Kind::Text { empty_is_unset: true }, Initial::Text(None))
}

/// A shape of its own.
pub(super) const fn special<T>(name: &'static str, shape: Special) -> Typed<T> {
    Typed::new(name, Kind::Special(shape), Initial::Special)
}

/// Which directive: a cheap number, to be compared with that of a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub(super) u16);

impl Id {
    /// The directive itself.
    pub fn directive(self) -> &'static Directive {
        super::tables::directive(self)
    }
}

/// A directive whose setting reads as a `T`.
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

    /// Which directive this is; a constant of it serves as a pattern in a `match`.
    pub const fn id(self) -> Id {
        self.id
    }
}

/// Declares the directives of one theme: a [`Key`] for each, and their `TABLE`.
///
/// `after` is the number of directives in the themes before, so that every directive has a number
/// of its own; `END` is that of the theme after.
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

        /// Every setting of this theme, read in its own type and turned into a value again.
        #[cfg(test)]
        pub(super) fn read_all(values: &crate::Values) -> Vec<crate::value::Value> {
            use crate::value::Setting;
            vec![$(values.read($id).into_value(),)+]
        }
    };
}
pub(super) use theme;
