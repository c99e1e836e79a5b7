//! A command catalogue for tests: the data commands, and a few of the commands that work on connections and the server.

use kvick_commands::spec::{Categories, Command, Flags, Spec};
use kvick_commands::table::{Catalogue, Class, CommandTable};
use std::sync::LazyLock;

const ADMIN: &[Flags] = &[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE];

const fn sub(name: &'static str, arity: i16) -> Command<()> {
    Command::new(Spec::new(name, arity).flags(ADMIN), ())
}

static FAMILY: &[Command<()>] = &[
    Command::container(Spec::new("config", -2), &[sub("get", -3), sub("set", -4), sub("rewrite", 2)]),
    Command::new(Spec::new("select", 2).flags(&[Flags::FAST]).acl(&[Categories::CONNECTION]), ()),
];

pub fn catalogue() -> &'static Catalogue {
    static TABLE: LazyLock<CommandTable<()>> = LazyLock::new(|| {
        let mut table = CommandTable::new();
        table.add_family(Class::Session, FAMILY, |()| ());
        table
    });
    TABLE.catalogue()
}
