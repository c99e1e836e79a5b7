//! Memory: its limit and eviction, expiry, freeing, defragmentation and big keys.

use super::*;
use crate::directive::{Directive, Form, Key, Typed, boolean, integer, memory, number, theme, word};
use crate::value::MemoryOrPercent;
use crate::words::EvictionPolicy;

theme! {
    after logging::END;
    MAXMEMORY: u64 = memory("maxmemory", 0, U64_MAX, 0).works();
    MAXMEMORY_POLICY: EvictionPolicy = word("maxmemory-policy", EvictionPolicy::NoEviction as u8).works();
    MAXMEMORY_SAMPLES: u32 = integer("maxmemory-samples", 1, 64, 5).works();
    MAXMEMORY_EVICTION_TENACITY: u32 = integer("maxmemory-eviction-tenacity", 0, 100, 10).works();
    MAXMEMORY_CLIENTS: MemoryOrPercent = number("maxmemory-clients", -100, I64_MAX, 0, Form::MemoryOrPercent).works();
    LFU_LOG_FACTOR: u32 = integer("lfu-log-factor", 0, I32_MAX, 10).works();
    LFU_DECAY_TIME: u32 = integer("lfu-decay-time", 0, I32_MAX, 1).works();
    ACTIVE_EXPIRE_EFFORT: u32 = integer("active-expire-effort", 1, 10, 1).works();

    LAZYFREE_LAZY_EVICTION: bool = boolean("lazyfree-lazy-eviction", true).works();
    LAZYFREE_LAZY_EXPIRE: bool = boolean("lazyfree-lazy-expire", true).works();
    LAZYFREE_LAZY_SERVER_DEL: bool = boolean("lazyfree-lazy-server-del", true).works();
    LAZYFREE_LAZY_USER_DEL: bool = boolean("lazyfree-lazy-user-del", true).works();
    LAZYFREE_LAZY_USER_FLUSH: bool = boolean("lazyfree-lazy-user-flush", true).works();

    ACTIVEREHASHING: bool = boolean("activerehashing", true);
    ACTIVEDEFRAG: bool = boolean("activedefrag", false).works();
    ACTIVE_DEFRAG_IGNORE_BYTES: u64 = memory("active-defrag-ignore-bytes", 1, I64_MAX, 100 * MB).works();
    ACTIVE_DEFRAG_THRESHOLD_LOWER: u32 = integer("active-defrag-threshold-lower", 0, 1000, 10).works();
    ACTIVE_DEFRAG_THRESHOLD_UPPER: u32 = integer("active-defrag-threshold-upper", 0, 1000, 100).works();
    ACTIVE_DEFRAG_CYCLE_MIN: u32 = integer("active-defrag-cycle-min", 1, 99, 1).works();
    ACTIVE_DEFRAG_CYCLE_MAX: u32 = integer("active-defrag-cycle-max", 1, 99, 25).works();
    ACTIVE_DEFRAG_CYCLE_US: u32 = integer("active-defrag-cycle-us", 0, 100_000, 500).works();
    ACTIVE_DEFRAG_MAX_SCAN_FIELDS: u64 = integer("active-defrag-max-scan-fields", 1, I64_MAX, 1000).works();
    BIGKEYS_SCAN: bool = boolean("bigkeys-scan", true).works();
    BIGKEYS_SCAN_PAUSE_SECONDS: u32 = integer("bigkeys-scan-pause-seconds", 0, 86_400, 10).works();
    JEMALLOC_BG_THREAD: bool = boolean("jemalloc-bg-thread", true).works();
}
