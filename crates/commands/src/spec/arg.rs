//! The arguments of a command as COMMAND DOCS documents them.
//!
//! They have no effect on execution: handlers parse their arguments themselves.

/// A documented argument.
pub struct Arg {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: ArgKind,
    /// The keyword before it (or the keyword that it is).
    pub token: Option<&'static str>,
    /// The key specification that it belongs to.
    pub key_spec: Option<u8>,
    /// Whether it is optional.
    pub optional: bool,
    /// Whether it may be repeated.
    pub multiple: bool,
    /// Whether the token is repeated with it.
    pub multiple_token: bool,
    /// The first version that had it; empty if it is as old as the command.
    pub since: &'static str,
    /// The version in which it was deprecated; empty if it is not.
    pub deprecated_since: &'static str,
    /// Text to show instead of the name; may be empty.
    pub display: &'static str,
    /// A sentence about it; may be empty.
    pub summary: &'static str,
    /// The parts of a block or the choices of a one-of.
    pub args: &'static [Arg],
}

/// Types of documented arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ArgKind {
    String,
    Integer,
    Double,
    Key,
    Pattern,
    UnixTime,
    PureToken,
    OneOf,
    Block,
}

impl ArgKind {
    /// The name in COMMAND DOCS.
    pub const fn name(self) -> &'static str {
        match self {
            ArgKind::String => "string",
            ArgKind::Integer => "integer",
            ArgKind::Double => "double",
            ArgKind::Key => "key",
            ArgKind::Pattern => "pattern",
            ArgKind::UnixTime => "unix-time",
            ArgKind::PureToken => "pure-token",
            ArgKind::OneOf => "oneof",
            ArgKind::Block => "block",
        }
    }
}

impl Arg {
    const fn plain(name: &'static str, kind: ArgKind) -> Self {
        Arg {
            name,
            kind,
            token: None,
            key_spec: None,
            optional: false,
            multiple: false,
            multiple_token: false,
            since: "",
            deprecated_since: "",
            display: "",
            summary: "",
            args: &[],
        }
    }

    /// A key of the first key specification.
    pub const fn key(name: &'static str) -> Self {
        let mut arg = Self::plain(name, ArgKind::Key);
        arg.key_spec = Some(0);
        arg
    }

    /// A string.
    pub const fn string(name: &'static str) -> Self {
        Self::plain(name, ArgKind::String)
    }

    /// An integer.
    pub const fn integer(name: &'static str) -> Self {
        Self::plain(name, ArgKind::Integer)
    }

    /// A floating-point number.
    pub const fn double(name: &'static str) -> Self {
        Self::plain(name, ArgKind::Double)
    }

    /// A glob-style pattern.
    pub const fn pattern(name: &'static str) -> Self {
        Self::plain(name, ArgKind::Pattern)
    }

    /// A time since the Unix epoch.
    pub const fn unix_time(name: &'static str) -> Self {
        Self::plain(name, ArgKind::UnixTime)
    }

    /// A single keyword.
    pub const fn word(name: &'static str, token: &'static str) -> Self {
        let mut arg = Self::plain(name, ArgKind::PureToken);
        arg.token = Some(token);
        arg
    }

    /// One of several alternatives.
    pub const fn one_of(name: &'static str, args: &'static [Arg]) -> Self {
        let mut arg = Self::plain(name, ArgKind::OneOf);
        arg.args = args;
        arg
    }

    /// Several arguments in order.
    pub const fn block(name: &'static str, args: &'static [Arg]) -> Self {
        let mut arg = Self::plain(name, ArgKind::Block);
        arg.args = args;
        arg
    }

    /// Adds a keyword before it.
    pub const fn token(mut self, token: &'static str) -> Self {
        self.token = Some(token);
        self
    }

    /// Assigns it to another key specification than the first.
    pub const fn key_spec(mut self, index: u8) -> Self {
        self.key_spec = Some(index);
        self
    }

    /// Marks it as optional.
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Marks it as repeatable.
    pub const fn multiple(mut self) -> Self {
        self.multiple = true;
        self
    }

    /// Marks it as repeatable together with its keyword.
    pub const fn multiple_token(mut self) -> Self {
        self.multiple = true;
        self.multiple_token = true;
        self
    }

    /// Sets the first version that had it.
    pub const fn since(mut self, version: &'static str) -> Self {
        self.since = version;
        self
    }

    /// Sets the version in which it was deprecated.
    pub const fn deprecated_since(mut self, version: &'static str) -> Self {
        self.deprecated_since = version;
        self
    }

    /// Sets the text to show instead of the name.
    pub const fn display(mut self, text: &'static str) -> Self {
        self.display = text;
        self
    }

    /// Sets the sentence about it.
    pub const fn summary(mut self, text: &'static str) -> Self {
        self.summary = text;
        self
    }
}
