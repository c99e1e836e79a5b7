//! Constants of the format: versions, opcodes, types of values.

/// The version that Valkey 9 writes.
pub const VERSION: u16 = 80;
/// The version that Redis 7.2 and Valkey 7.2 to 8.1 read and write: without expiry of hash fields.
pub const VERSION_REDIS: u16 = 11;
/// The version that Redis 7.4 writes: with its own format for expiry of hash fields.
pub(crate) const VERSION_REDIS_7_4: u32 = 12;
/// Versions of Redis after the fork of Valkey.
const FOREIGN_VERSIONS: std::ops::RangeInclusive<u32> = 12..=79;
/// Types and opcodes that other servers may define differently.
pub(crate) const FOREIGN_BYTES: std::ops::RangeInclusive<u8> = 22..=243;

/// Whether newer versions, or those of another project, are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VersionCheck {
    /// They are rejected (`rdb-version-check strict`).
    #[default]
    Strict,
    /// They are accepted if all types in them are known.
    Relaxed,
}

impl VersionCheck {
    /// Whether files of a version are accepted.
    pub(crate) fn accepts(self, version: u32) -> bool {
        version >= 1 && (self == VersionCheck::Relaxed || !(version > u32::from(VERSION) || is_foreign(version)))
    }
}

/// True for versions of Redis after the fork of Valkey.
pub fn is_foreign(version: u32) -> bool {
    FOREIGN_VERSIONS.contains(&version)
}

/// True for versions whose files begin with VALKEY instead of REDIS.
pub(crate) fn has_valkey_magic(version: u32) -> bool {
    version > *FOREIGN_VERSIONS.end()
}

/// Bytes before a type, or in place of one.
pub(crate) mod opcode {
    pub const SLOT_IMPORT: u8 = 243;
    pub const SLOT_INFO: u8 = 244;
    pub const FUNCTION: u8 = 245;
    pub const FUNCTION_PRE_RELEASE: u8 = 246;
    pub const MODULE_AUX: u8 = 247;
    pub const IDLE: u8 = 248;
    pub const FREQUENCY: u8 = 249;
    pub const AUX: u8 = 250;
    pub const RESIZE_DB: u8 = 251;
    pub const EXPIRY_MS: u8 = 252;
    pub const EXPIRY_SECONDS: u8 = 253;
    pub const SELECT_DB: u8 = 254;
    pub const EOF: u8 = 255;
}

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $byte:literal, $text:literal;)*) => {
        /// The format of a value. The numbers of Redis 7.4's own types, which overlap with Valkey's, are above 255.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Type {
            $($(#[$doc])* $name = $byte,)*
        }

        impl Type {
            const ALL: &[Type] = &[$(Type::$name,)*];

            /// A short name, as printed by valkey-check-rdb.
            pub fn name(self) -> &'static str {
                match self {
                    $(Type::$name => $text,)*
                }
            }
        }
    };
}

types! {
    /// A string.
    String = 0, "string";
    /// Elements.
    List = 1, "list-linked";
    /// Members.
    Set = 2, "set-hashtable";
    /// Members with scores in decimal.
    SortedSet = 3, "zset-v1";
    /// Fields with values.
    Hash = 4, "hash-hashtable";
    /// Members with scores in binary.
    SortedSet2 = 5, "zset-v2";
    /// Written only by release candidates of Redis 4.0.
    ModulePreRelease = 6, "module-pre-release";
    /// Data of a module, marked so that it can be skipped.
    Module = 7, "module-value";
    /// Small hashes of Redis 2.4.
    HashZipmap = 9, "hash-zipmap";
    /// A ziplist.
    ListZiplist = 10, "list-ziplist";
    /// Sorted integers of one width.
    SetIntset = 11, "set-intset";
    /// A ziplist of members and scores.
    SortedSetZiplist = 12, "zset-ziplist";
    /// A ziplist of fields and values.
    HashZiplist = 13, "hash-ziplist";
    /// Ziplists.
    ListQuicklist = 14, "quicklist";
    /// Streams of Redis 5.
    Stream = 15, "stream";
    /// A listpack of fields and values.
    HashListpack = 16, "hash-listpack";
    /// A listpack of members and scores.
    SortedSetListpack = 17, "zset-listpack";
    /// Listpacks, and large elements separately.
    ListQuicklist2 = 18, "quicklist-v2";
    /// Streams of Redis 7.0: with first and deleted IDs, and counters.
    Stream2 = 19, "stream-v2";
    /// A listpack of members.
    SetListpack = 20, "set-listpack";
    /// Streams of Redis 7.2: with the time at which consumers were active.
    Stream3 = 21, "stream-v3";
    /// Valkey 9: fields with values and expiry.
    HashExpiry = 22, "hash-volatile-items";
    /// Redis 7.4 release candidates: expiry, field, value.
    RedisHashPreRelease = 0x116, "hash-metadata-pre-release";
    /// Redis 7.4 release candidates: a listpack of fields, values and expiries.
    RedisHashListpackPreRelease = 0x117, "hash-listpack-ex-pre-release";
    /// Redis 7.4: the earliest expiry; then expiry relative to it, field, value.
    RedisHash = 0x118, "hash-metadata";
    /// Redis 7.4: the earliest expiry; then a listpack of fields, values and expiries.
    RedisHashListpack = 0x119, "hash-listpack-ex";
}

impl Type {
    /// The type of a byte in a dump of this version.
    pub(crate) fn from_byte(byte: u8, version: u32) -> Option<Type> {
        let code = match byte {
            0x16..=0x19 if version == VERSION_REDIS_7_4 => 0x100 + u16::from(byte),
            22.. if is_foreign(version) => return None,
            _ => u16::from(byte),
        };
        Type::ALL.iter().copied().find(|known| *known as u16 == code)
    }

    /// The byte of a type.
    pub fn byte(self) -> u8 {
        self as u16 as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_accepted_by_the_version_check() {
        for (version, strict, relaxed) in [
            (0, false, false),
            (1, true, true),
            (11, true, true),
            (12, false, true),
            (80, true, true),
            (81, false, true),
        ] {
            assert_eq!(VersionCheck::Strict.accepts(version), strict, "{version}");
            assert_eq!(VersionCheck::Relaxed.accepts(version), relaxed, "{version}");
        }
    }

    #[test]
    fn type_byte_22_depends_on_the_version() {
        assert_eq!(Type::from_byte(22, 80), Some(Type::HashExpiry));
        assert_eq!(Type::from_byte(22, 12), Some(Type::RedisHashPreRelease));
        assert_eq!(Type::from_byte(25, 12), Some(Type::RedisHashListpack));
        assert_eq!(Type::from_byte(22, 13), None);
        assert_eq!(Type::from_byte(25, 80), None);
        assert_eq!(Type::from_byte(8, 80), None);
        assert_eq!(Type::RedisHashListpack.byte(), 25);
    }
}
