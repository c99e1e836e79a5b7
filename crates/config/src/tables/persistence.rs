//! Dumps and the append-only file.

use super::*;
use crate::checks;
use crate::directive::{Directive, Key, Special, Typed, boolean, integer, memory, special, text, theme, word};
use crate::shapes::SavePoints;
use crate::value::Text;
use crate::words::{AppendFsync, RdbSaveVersion, RdbVersionCheck};

const I32_MIN: i128 = i32::MIN as i128;

theme! {
    after types::END;
    SAVE: SavePoints = special("save", Special::SavePoints).multi_arg().works();
    DBFILENAME: Text = text("dbfilename", "dump.rdb").protected().checked(checks::dbfilename).works();
    RDBCOMPRESSION: bool = boolean("rdbcompression", true).works();
    RDBCHECKSUM: bool = boolean("rdbchecksum", true).immutable().works();
    RDB_VERSION_CHECK: RdbVersionCheck = word("rdb-version-check", RdbVersionCheck::Strict as u8).works();
    RDB_SAVE_VERSION: RdbSaveVersion = word("rdb-save-version", RdbSaveVersion::Valkey9 as u8).works();
    RDB_DEL_SYNC_FILES: bool = boolean("rdb-del-sync-files", false).works();
    RDB_SAVE_INCREMENTAL_FSYNC: bool = boolean("rdb-save-incremental-fsync", true).works();
    STOP_WRITES_ON_BGSAVE_ERROR: bool = boolean("stop-writes-on-bgsave-error", true).works();

    APPENDONLY: bool = boolean("appendonly", false).deny_loading().works();
    APPENDFILENAME: Text = text("appendfilename", "appendonly.aof").immutable().checked(checks::appendfilename).works();
    APPENDDIRNAME: Text = text("appenddirname", "appendonlydir").immutable().checked(checks::appenddirname).works();
    APPENDFSYNC: AppendFsync = word("appendfsync", AppendFsync::Everysec as u8).works();
    AOF_JOURNAL: bool = boolean("aof-journal", true).works();
    NO_APPENDFSYNC_ON_REWRITE: bool = boolean("no-appendfsync-on-rewrite", false).works();
    AUTO_AOF_REWRITE_PERCENTAGE: u32 = integer("auto-aof-rewrite-percentage", 0, I32_MAX, 100).works();
    AUTO_AOF_REWRITE_MIN_SIZE: u64 = memory("auto-aof-rewrite-min-size", 0, I64_MAX, 64 * MB).works();
    AOF_LOAD_TRUNCATED: bool = boolean("aof-load-truncated", true).works();
    AOF_USE_RDB_PREAMBLE: bool = boolean("aof-use-rdb-preamble", true).works();
    AOF_TIMESTAMP_ENABLED: bool = boolean("aof-timestamp-enabled", false).works();
    AOF_REWRITE_INCREMENTAL_FSYNC: bool = boolean("aof-rewrite-incremental-fsync", true).works();
    AOF_DISABLE_AUTO_GC: bool = boolean("aof-disable-auto-gc", false).hidden().works();

    RDB_KEY_SAVE_DELAY: i32 = integer("rdb-key-save-delay", I32_MIN, I32_MAX, 0).hidden().works();
    KEY_LOAD_DELAY: i32 = integer("key-load-delay", I32_MIN, I32_MAX, 0).hidden().works();
    LOADING_PROCESS_EVENTS_INTERVAL_BYTES: u64 =
        integer("loading-process-events-interval-bytes", KB, I32_MAX, 2 * MB).hidden().works();
}
