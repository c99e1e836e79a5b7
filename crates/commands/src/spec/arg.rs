//! The documented arguments of a command: what COMMAND DOCS tells of them.
//!
//! They describe and decide nothing: handlers read their arguments themselves.

/// A documented argument.
pub struct Arg {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: ArgKind,
    /// The literal word before it (or that it is).
    pub token: Option<&'static str>,
    /// Which key specification it belongs to.
    pub key_spec: Option<u8>,
    /// Whether it may be left out.
    pub optional: bool,
    /// Whether it may be repeated.
    pub multiple: bool,
    /// Whether the token is repeated with it.
    pub multiple_token: bool,
    /// First version that had it; empty when as old as the command.
    pub since: &'static str,
    /// Version it was deprecated in, or empty.
    pub deprecated_since: &'static str,
    /// Text to show instead of the name, or empty.
    pub display: &'static str,
    /// A sentence about it, or empty.
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

    /// A literal word alone.
    pub const fn word(name: &'static str, token: &'static str) -> Self {
        let mut arg = Self::plain(name, ArgKind::PureToken);
        arg.token = Some(token);
        arg
    }

    /// One of several.
    pub const fn one_of(name: &'static str, args: &'static [Arg]) -> Self {
        let mut arg = Self::plain(name, ArgKind::OneOf);
        arg.args = args;
        arg
    }

    /// Several, in order.
    pub const fn block(name: &'static str, args: &'static [Arg]) -> Self {
        let mut arg = Self::plain(name, ArgKind::Block);
        arg.args = args;
        arg
    }

    /// Puts a literal word before it.
    pub const fn token(mut self, token: &'static str) -> Self {
        self.token = Some(token);
        self
    }

    /// Names another key specification than the first.
    pub const fn key_spec(mut self, index: u8) -> Self {
        self.key_spec = Some(index);
        self
    }

    /// May be left out.
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// May be repeated.
    pub const fn multiple(mut self) -> Self {
        self.multiple = true;
        self
    }

    /// May be repeated together with its token.
    pub const fn multiple_token(mut self) -> Self {
        self.multiple = true;
        self.multiple_token = true;
        self
    }

    /// First version that had it.
    pub const fn since(mut self, version: &'static str) -> Self {
        self.since = version;
        self
    }

    /// Version it was deprecated in.
    pub const fn deprecated_since(mut self, version: &'static str) -> Self {
        self.deprecated_since = version;
        self
    }

    /// Text to show instead of the name.
    pub const fn display(mut self, text: &'static str) -> Self {
        self.display = text;
        self
    }

    /// A sentence about it.
    pub const fn summary(mut self, text: &'static str) -> Self {
        self.summary = text;
        self
    }
}
