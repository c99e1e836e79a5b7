//! The process: startup, operating system settings, and shutdown.

use super::*;
use crate::checks;
use crate::directive::{
    Directive, Key, Special, Typed, boolean, integer, optional, special, text, theme, word, word_set,
};
use crate::shapes::{Directory, OomScores};
use crate::value::Text;
use crate::words::{OomScoreAdj, PropagationError, ShutdownFlags, Supervised};

theme! {
    after network::END;
    DAEMONIZE: bool = boolean("daemonize", false).immutable().works();
    SUPERVISED: Supervised = word("supervised", Supervised::No as u8).immutable().works();
    PIDFILE: Option<Text> = optional("pidfile").immutable().works();
    DIR: Directory = special("dir", Special::Directory).protected().deny_loading().works();
    DATABASES: u32 = integer("databases", 1, I32_MAX, 16).immutable().works();
    HZ: u32 = integer("hz", 0, I32_MAX, 10).checked(checks::hz).works();
    ALWAYS_SHOW_LOGO: bool = boolean("always-show-logo", false).immutable().works();
    SET_PROC_TITLE: bool = boolean("set-proc-title", true).immutable().works();
    PROC_TITLE_TEMPLATE: Text =
        text("proc-title-template", "{title} {listen-addr} {server-mode}").checked(checks::proc_title_template).works();
    EXTENDED_REDIS_COMPATIBILITY: bool = boolean("extended-redis-compatibility", false).works();
    LOCALE_COLLATE: Text = text("locale-collate", "").checked(checks::locale).works();
    IGNORE_WARNINGS: Text = text("ignore-warnings", "");
    HASH_SEED: Option<Text> = optional("hash-seed").immutable().checked(checks::hash_seed).works();

    SHUTDOWN_TIMEOUT: u32 = integer("shutdown-timeout", 0, I32_MAX, 10).works();
    SHUTDOWN_ON_SIGINT: ShutdownFlags = word_set("shutdown-on-sigint").checked(checks::shutdown_flags).works();
    SHUTDOWN_ON_SIGTERM: ShutdownFlags = word_set("shutdown-on-sigterm").checked(checks::shutdown_flags).works();

    SERVER_CPULIST: Option<Text> = optional("server-cpulist").alias("server_cpulist").immutable().works();
    BIO_CPULIST: Option<Text> = optional("bio-cpulist").alias("bio_cpulist").immutable().works();
    AOF_REWRITE_CPULIST: Option<Text> = optional("aof-rewrite-cpulist").alias("aof_rewrite_cpulist").immutable();
    BGSAVE_CPULIST: Option<Text> = optional("bgsave-cpulist").alias("bgsave_cpulist").immutable().works();
    DISABLE_THP: bool = boolean("disable-thp", true).immutable().works();
    OOM_SCORE_ADJ: OomScoreAdj = word("oom-score-adj", OomScoreAdj::No as u8).works();
    OOM_SCORE_ADJ_VALUES: OomScores = special("oom-score-adj-values", Special::OomScores).multi_arg().works();

    USE_EXIT_ON_PANIC: bool = boolean("use-exit-on-panic", false).hidden();
    ENABLE_DEBUG_ASSERT: bool = boolean("enable-debug-assert", false).immutable().hidden();
    DEBUG_CONTEXT: Text = text("debug-context", "").hidden();
    WATCHDOG_PERIOD: u32 = integer("watchdog-period", 0, I32_MAX, 0).hidden().works();
    PROPAGATION_ERROR_BEHAVIOR: PropagationError =
        word("propagation-error-behavior", PropagationError::Ignore as u8).works();
}
