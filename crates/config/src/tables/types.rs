//! The sizes above which collections change from a compact to a general encoding.

use super::*;
use crate::directive::{Directive, Key, Typed, integer, memory, theme};
use kvick_store::EncodingLimits;

const I32_MIN: i128 = i32::MIN as i128;
const DEFAULT: EncodingLimits = EncodingLimits::DEFAULT;

theme! {
    after memory::END;
    HASH_MAX_LISTPACK_ENTRIES: u64 =
        integer("hash-max-listpack-entries", 0, I64_MAX, DEFAULT.hash.fields as i128)
            .alias("hash-max-ziplist-entries").works();
    HASH_MAX_LISTPACK_VALUE: u64 =
        memory("hash-max-listpack-value", 0, I64_MAX, DEFAULT.hash.bytes as i128)
            .alias("hash-max-ziplist-value").works();
    LIST_MAX_LISTPACK_SIZE: i32 =
        integer("list-max-listpack-size", I32_MIN, I32_MAX, DEFAULT.list.max_listpack_size as i128)
            .alias("list-max-ziplist-size").works();
    LIST_COMPRESS_DEPTH: u32 = integer("list-compress-depth", 0, I32_MAX, DEFAULT.list.compress_depth as i128).works();
    SET_MAX_INTSET_ENTRIES: u64 =
        integer("set-max-intset-entries", 0, I64_MAX, DEFAULT.set.intset_entries as i128).works();
    SET_MAX_LISTPACK_ENTRIES: u64 =
        integer("set-max-listpack-entries", 0, I64_MAX, DEFAULT.set.listpack_entries as i128).works();
    SET_MAX_LISTPACK_VALUE: u64 =
        integer("set-max-listpack-value", 0, I64_MAX, DEFAULT.set.listpack_value as i128).works();
    ZSET_MAX_LISTPACK_ENTRIES: u64 =
        integer("zset-max-listpack-entries", 0, I64_MAX, DEFAULT.sorted_set.entries as i128)
            .alias("zset-max-ziplist-entries").works();
    ZSET_MAX_LISTPACK_VALUE: u64 =
        memory("zset-max-listpack-value", 0, I64_MAX, DEFAULT.sorted_set.value as i128)
            .alias("zset-max-ziplist-value").works();
    HLL_SPARSE_MAX_BYTES: u64 = memory("hll-sparse-max-bytes", 0, I64_MAX, 3000).works();
    STREAM_NODE_MAX_BYTES: u64 = memory("stream-node-max-bytes", 0, I64_MAX, DEFAULT.stream.bytes as i128).works();
    STREAM_NODE_MAX_ENTRIES: u64 =
        integer("stream-node-max-entries", 0, I64_MAX, DEFAULT.stream.entries as i128).works();
}
