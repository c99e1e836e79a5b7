//! The sizes above which collections change from a compact to a general encoding.

use super::*;
use crate::directive::{Directive, Key, Typed, integer, memory, theme};
use kvick_store::EncodingLimits;
use kvick_store::collections::list::Limits;

const I32_MIN: i128 = i32::MIN as i128;
const DEFAULT: EncodingLimits = EncodingLimits::DEFAULT;
const LIST: Limits = DEFAULT.list;

/// A number of elements or bytes, with its default.
const fn count(name: &'static str, default: usize) -> Typed<u64> {
    integer(name, 0, I64_MAX, default as i128)
}

/// An amount of memory, with its default.
const fn size(name: &'static str, default: usize) -> Typed<u64> {
    memory(name, 0, I64_MAX, default as i128)
}

theme! {
    after memory::END;
    HASH_MAX_LISTPACK_ENTRIES: u64 =
        count("hash-max-listpack-entries", DEFAULT.hash.fields).alias("hash-max-ziplist-entries").works();
    HASH_MAX_LISTPACK_VALUE: u64 =
        size("hash-max-listpack-value", DEFAULT.hash.bytes).alias("hash-max-ziplist-value").works();
    LIST_MAX_LISTPACK_SIZE: i32 =
        integer("list-max-listpack-size", I32_MIN, I32_MAX, LIST.max_listpack_size as i128)
            .alias("list-max-ziplist-size")
            .works();
    LIST_COMPRESS_DEPTH: u32 = integer("list-compress-depth", 0, I32_MAX, LIST.compress_depth as i128).works();
    SET_MAX_INTSET_ENTRIES: u64 = count("set-max-intset-entries", DEFAULT.set.intset_entries).works();
    SET_MAX_LISTPACK_ENTRIES: u64 = count("set-max-listpack-entries", DEFAULT.set.listpack_entries).works();
    SET_MAX_LISTPACK_VALUE: u64 = count("set-max-listpack-value", DEFAULT.set.listpack_value).works();
    ZSET_MAX_LISTPACK_ENTRIES: u64 =
        count("zset-max-listpack-entries", DEFAULT.sorted_set.entries).alias("zset-max-ziplist-entries").works();
    ZSET_MAX_LISTPACK_VALUE: u64 =
        size("zset-max-listpack-value", DEFAULT.sorted_set.value).alias("zset-max-ziplist-value").works();
    HLL_SPARSE_MAX_BYTES: u64 = memory("hll-sparse-max-bytes", 0, I64_MAX, 3000).works();
    STREAM_NODE_MAX_BYTES: u64 = size("stream-node-max-bytes", DEFAULT.stream.bytes).works();
    STREAM_NODE_MAX_ENTRIES: u64 = count("stream-node-max-entries", DEFAULT.stream.entries).works();
}
