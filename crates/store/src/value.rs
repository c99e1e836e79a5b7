//! Values as commands see them: kinds, strings, and what a change does to an expiry.

/// Strings up to this many bytes are stored inline in their entry, longer ones in a separate buffer. That buffer is
/// shared with the argument that set the string, and with replies.
pub const INLINE_MAX: usize = kvick_resp::SHARED_MIN - 1;

/// The kinds of values, numbered as in entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A string, bitmap or HyperLogLog.
    String = 0,
    /// A list.
    List = 1,
    /// A set.
    Set = 2,
    /// A sorted set.
    SortedSet = 3,
    /// A hash.
    Hash = 4,
    /// A stream.
    Stream = 5,
}

impl Kind {
    /// All kinds with their names in TYPE and SCAN.
    pub const NAMES: [(Kind, &'static str); 6] = [
        (Kind::String, "string"),
        (Kind::List, "list"),
        (Kind::Set, "set"),
        (Kind::SortedSet, "zset"),
        (Kind::Hash, "hash"),
        (Kind::Stream, "stream"),
    ];

    /// The name in TYPE.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// The kind with this name, in any case.
    pub fn from_name(name: &[u8]) -> Option<Kind> {
        Self::NAMES.iter().find(|(_, n)| n.as_bytes().eq_ignore_ascii_case(name)).map(|(kind, _)| *kind)
    }

    pub(crate) fn from_bits(bits: u8) -> Kind {
        Self::NAMES[(bits as usize).min(Self::NAMES.len() - 1)].0
    }
}

/// What happens to a key's expiry when its value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The key has no expiry afterwards.
    None,
    /// The key keeps its expiry.
    Keep,
    /// The new expiry: Unix time in milliseconds.
    At(i64),
}

/// Buffer for printing an integer.
pub type IntBuf = [u8; 20];

/// A string as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Str<'a> {
    /// An integer that prints as the string.
    Int(i64),
    /// The bytes.
    Bytes(&'a [u8]),
}

impl<'a> Str<'a> {
    /// Length in bytes.
    pub fn len(self) -> usize {
        match self {
            Str::Int(number) => itoa::Buffer::new().format(number).len(),
            Str::Bytes(bytes) => bytes.len(),
        }
    }

    /// True for the empty string.
    pub fn is_empty(self) -> bool {
        matches!(self, Str::Bytes([]))
    }

    /// The bytes, printed into `buffer` if it is an integer.
    pub fn bytes<'b>(self, buffer: &'b mut IntBuf) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Str::Bytes(bytes) => bytes,
            Str::Int(number) => {
                let mut printer = itoa::Buffer::new();
                let text = printer.format(number).as_bytes();
                let target = &mut buffer[..text.len()];
                target.copy_from_slice(text);
                target
            }
        }
    }

    /// Whether two strings are equal, in either representation.
    #[inline]
    pub fn is_same(self, other: Str<'_>) -> bool {
        match (self, other) {
            (Str::Bytes(a), Str::Bytes(b)) => a == b,
            (Str::Int(a), Str::Int(b)) => a == b,
            (Str::Bytes(bytes), int) | (int, Str::Bytes(bytes)) => bytes == int.bytes(&mut IntBuf::default()),
        }
    }

    /// The value as an integer, parsed strictly if it is stored as bytes.
    pub fn as_int(self) -> Option<i64> {
        match self {
            Str::Int(number) => Some(number),
            Str::Bytes(bytes) => kvick_resp::format::parse_i64(bytes),
        }
    }
}
