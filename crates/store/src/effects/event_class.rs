//! The classes of keyspace events.

use bitflags::bitflags;

bitflags! {
    /// Classes of keyspace notifications, each known by a letter in `notify-keyspace-events`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct EventClass: u32 {
        /// `g`: commands that are not specific to a type.
        const GENERIC = 1 << 0;
        /// `$`: strings.
        const STRING = 1 << 1;
        /// `x`: a key expired.
        const EXPIRED = 1 << 2;
        /// `n`: a key was created.
        const NEW = 1 << 3;
        /// `m`: a key was looked up and not found.
        const KEY_MISS = 1 << 4;
        /// `l`: lists.
        const LIST = 1 << 5;
        /// `s`: sets.
        const SET = 1 << 6;
        /// `h`: hashes.
        const HASH = 1 << 7;
        /// `z`: sorted sets.
        const SORTED_SET = 1 << 8;
        /// `t`: streams.
        const STREAM = 1 << 9;
        /// `e`: a key was evicted.
        const EVICTED = 1 << 10;
        /// Not a class of notifications: any change of a key, for client-side
        /// caching in broadcast mode (see [`tracking`](crate::tracking)).
        const CHANGE = 1 << 31;
    }
}
