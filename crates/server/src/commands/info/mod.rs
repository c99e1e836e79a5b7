//! INFO: the server's state, in sections of `name:value` lines.
//!
//! Names, order and formats are the reference's, for the tools that parse them. A field about something that does not
//! exist here has the value that the reference shows while it is unused.

mod clients;
mod commands;
mod keyspace;
mod memory;
mod page;
mod persistence;
mod replication;
mod resources;
mod server;
mod stats;

use crate::server::Server;
use crate::server::Serving;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use page::Page;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[INFO];

/// INFO [section ...]
pub const INFO: Command<SessionHandler> = Command::new(
    Spec::new("info", -1)
        .flags(&[Flags::LOADING, Flags::STALE])
        .acl(&[Categories::DANGEROUS])
        .doc(Group::Server, "1.0.0", "O(1)", "Returns what the server tells of itself.")
        .history(&[("7.0.0", "Several sections can be asked for.")])
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
    write: fn(&Subject, &mut Page),
}

/// The data for the sections.
struct Subject {
    server: &'static Server,
    now_ms: i64,
}

const SECTIONS: [Section; 16] = [
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
    Section { names: &["scriptingengines"], shown: Shown::WithAll, write: memory::write_engines },
    Section { names: &["keyspace"], shown: Shown::ByDefault, write: keyspace::write },
    Section { names: &["debug"], shown: Shown::WhenNamed, write: stats::write_debug },
];

fn info(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let names: Vec<&[u8]> = args.slice_from(1).iter().collect();
    let subject = Subject { server: cx.server(), now_ms: cx.now_ms };
    let mut page = Page::default();
    for section in SECTIONS.iter().filter(|section| is_asked_for(section, &names)) {
        (section.write)(&subject, &mut page);
    }
    cx.reply.verbatim(page.text().as_bytes(), "txt");
    Ok(())
}

fn is_asked_for(section: &Section, names: &[&[u8]]) -> bool {
    let named = |wanted: &str| names.iter().any(|name| name.eq_ignore_ascii_case(wanted.as_bytes()));
    let by_default = section.shown == Shown::ByDefault && (names.is_empty() || named("default"));
    let with_all = section.shown != Shown::WhenNamed && (named("all") || named("everything"));
    by_default || with_all || section.names.iter().any(|name| named(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_for(names: &[&str]) -> Vec<&'static str> {
        let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        SECTIONS.iter().filter(|section| is_asked_for(section, &names)).map(|section| section.names[0]).collect()
    }

    #[test]
    fn sections_are_shown_on_request() {
        assert_eq!(asked_for(&["CPU", "nosuch"]), ["cpu"]);
        assert_eq!(asked_for(&["modules"]), ["module_list"]);
        assert_eq!(asked_for(&[]), asked_for(&["default"]));
        assert!(!asked_for(&[]).contains(&"commandstats"));
        assert_eq!(asked_for(&["everything"]).len(), SECTIONS.len() - 1);
        assert_eq!(asked_for(&["cpu", "all"]), asked_for(&["all"]));
        assert_eq!(asked_for(&["debug", "keyspace"]), ["keyspace", "debug"]);
    }
}
