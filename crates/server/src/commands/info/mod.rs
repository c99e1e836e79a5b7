//! INFO: the server's state, in sections of `name:value` lines.
//!
//! A section collects its facts, and writes tables of [fields](kvick_metrics::Field) that compute their values from
//! them; the [metrics](crate::metrics) are written from the same facts and tables.
//!
//! Names, order and formats are the reference's, for the tools that parse them. A field about something that does not
//! exist here has the value that the reference shows when the feature is not in use.

pub mod clients;
pub mod commands;
pub mod hot_keys;
pub mod keyspace;
pub mod memory;
mod page;
pub mod persistence;
pub mod replication;
pub mod resources;
pub mod server;
pub mod stats;

use crate::server::HasServer;
use crate::server::Server;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_store::global_lock::Participant;
use page::Page;
use std::cell::OnceCell;
use std::time::Instant;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[INFO];

/// INFO [section ...]
pub const INFO: Command<SessionHandler> = Command::new(
    Spec::new("info", -1)
        .flags(&[Flags::LOADING, Flags::STALE])
        .acl(&[Categories::DANGEROUS])
        .doc(Group::Server, "1.0.0", "O(1)", "Returns information and statistics about the server.")
        .history(&[("7.0.0", "Added support for several sections.")])
        .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
        .args(&[Arg::string("section").multiple().optional()]),
    info,
);

/// When a section is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Also when no section is named.
    ByDefault,
    /// With "all" and "everything".
    WithAll,
    /// Only if named.
    WhenNamed,
}

/// A section of the reply.
struct Section {
    /// The names that select it.
    names: &'static [&'static str],
    shown: Shown,
    write: fn(&Context, &mut Page),
}

/// The data for the sections.
pub struct Context {
    /// The server.
    pub server: &'static Server,
    /// Unix time in milliseconds.
    pub now_ms: i64,
    /// How to look into partitions, unless this thread is in a batch already.
    pub visitor: Option<Visitor>,
    /// Figures on all clients, once they were collected.
    clients: OnceCell<clients::Facts>,
}

/// A thread that is not in a batch: it enters one for each look into partitions.
pub struct Visitor {
    /// Its place among the participants of the global lock.
    pub participant: Participant,
    /// Until when it waits for locks.
    pub deadline: Instant,
}

impl Context {
    /// Nothing is collected yet. `visitor` is how to look into partitions, unless this thread is in a batch already.
    pub fn new(server: &'static Server, now_ms: i64, visitor: Option<Visitor>) -> Self {
        Context { server, now_ms, visitor, clients: OnceCell::new() }
    }

    /// Whether to wait for a lock.
    pub fn may_wait(&self) -> bool {
        self.visitor.as_ref().is_none_or(|visitor| Instant::now() < visitor.deadline)
    }

    /// Looks into partitions, within a batch. `None` if another thread holds the global lock for long.
    pub fn in_batch<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        let Some(Visitor { participant, .. }) = &self.visitor else { return Some(look()) };
        let global_lock = &self.server.keyspace.global_lock;
        if !global_lock.enter_while(*participant, || self.may_wait()) {
            return None;
        }
        let found = look();
        global_lock.leave(*participant);
        Some(found)
    }
}

const SECTIONS: [Section; 18] = [
    Section { names: &["server"], shown: Shown::ByDefault, write: server::write },
    Section { names: &["tls"], shown: Shown::WithAll, write: server::write_tls },
    Section { names: &["clients"], shown: Shown::ByDefault, write: clients::write },
    Section { names: &["memory"], shown: Shown::ByDefault, write: memory::write },
    Section { names: &["persistence"], shown: Shown::ByDefault, write: persistence::write },
    Section { names: &["stats"], shown: Shown::ByDefault, write: stats::write },
    Section { names: &["replication"], shown: Shown::ByDefault, write: replication::write },
    Section { names: &["cpu"], shown: Shown::ByDefault, write: resources::write },
    Section { names: &["module_list", "modules"], shown: Shown::ByDefault, write: |_, page| page.section("Modules") },
    Section { names: &["commandstats"], shown: Shown::WithAll, write: commands::write_calls },
    Section { names: &["errorstats"], shown: Shown::ByDefault, write: commands::write_errors },
    Section { names: &["latencystats"], shown: Shown::WithAll, write: commands::write_latencies },
    Section { names: &["cluster"], shown: Shown::ByDefault, write: replication::write_cluster },
    Section { names: &["cluster_info"], shown: Shown::WithAll, write: replication::write_cluster_info },
    Section { names: &["scriptingengines"], shown: Shown::WithAll, write: memory::write_engines },
    Section { names: &["keyspace"], shown: Shown::ByDefault, write: keyspace::write },
    Section { names: &["hotkeys"], shown: Shown::WithAll, write: hot_keys::write },
    Section { names: &["debug"], shown: Shown::WhenNamed, write: stats::write_debug },
];

fn info(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let names: Vec<&[u8]> = args.slice_from(1).iter().collect();
    let context = Context::new(cx.server(), cx.now_ms, None);
    let mut page = Page::default();
    for section in SECTIONS.iter().filter(|section| is_requested(section, &names)) {
        (section.write)(&context, &mut page);
    }
    cx.reply.verbatim(page.text().as_bytes(), "txt");
    Ok(())
}

fn is_requested(section: &Section, names: &[&[u8]]) -> bool {
    let is_named = |wanted: &str| names.iter().any(|name| name.eq_ignore_ascii_case(wanted.as_bytes()));
    let by_default = section.shown == Shown::ByDefault && (names.is_empty() || is_named("default"));
    let with_all = section.shown != Shown::WhenNamed && (is_named("all") || is_named("everything"));
    by_default || with_all || section.names.iter().any(|name| is_named(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(names: &[&str]) -> Vec<&'static str> {
        let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        SECTIONS.iter().filter(|section| is_requested(section, &names)).map(|section| section.names[0]).collect()
    }

    #[test]
    fn sections_are_shown_on_request() {
        assert_eq!(requested(&["CPU", "nosuch"]), ["cpu"]);
        assert_eq!(requested(&["modules"]), ["module_list"]);
        assert_eq!(requested(&[]), requested(&["default"]));
        assert!(!requested(&[]).contains(&"commandstats"));
        assert_eq!(requested(&["everything"]).len(), SECTIONS.len() - 1);
        assert_eq!(requested(&["cpu", "all"]), requested(&["all"]));
        assert_eq!(requested(&["debug", "keyspace"]), ["keyspace", "debug"]);
    }
}
