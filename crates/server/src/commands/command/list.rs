//! COMMAND LIST.
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, Spec};
use kvick_commands::table::CommandInfo;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_resp::glob;

/// COMMAND LIST [FILTERBY MODULE module-name | ACLCAT category | PATTERN pattern]
pub const LIST: Command<SessionHandler> = Command::new(
    Spec::new("list", -2)
        .flags(&[Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Server, "7.0.0", "O(N), N being the commands", "Returns the names of commands.")
        .tips(&["nondeterministic_output_order"])
        .args(&[Arg::one_of(
            "filterby",
            &[
                Arg::string("module-name").token("MODULE"),
                Arg::string("category").token("ACLCAT"),
                Arg::pattern("pattern").token("PATTERN"),
            ],
        )
        .token("FILTERBY")
        .optional()]),
    list,
);

/// Filters of command names.
enum Filter<'a> {
    All,
    /// Commands of a module. There are none.
    Module,
    Category(&'a [u8]),
    Pattern(&'a [u8]),
}

impl<'a> Filter<'a> {
    fn parse(args: Args<'a>) -> Result<Self, Error> {
        let words: [Option<&[u8]>; 3] = [0, 1, 2].map(|index| args.get(index));
        match words {
            [None, ..] => Ok(Filter::All),
            [Some(word), Some(kind), Some(value)] if args.len() == 3 && word.eq_ignore_ascii_case(b"filterby") => {
                match &kind.to_ascii_lowercase()[..] {
                    b"module" => Ok(Filter::Module),
                    b"aclcat" => Ok(Filter::Category(value)),
                    b"pattern" => Ok(Filter::Pattern(value)),
                    _ => Err(Error::SYNTAX),
                }
            }
            _ => Err(Error::SYNTAX),
        }
    }

    fn admits(&self, command: &CommandInfo) -> bool {
        match self {
            Filter::All => true,
            Filter::Module => false,
            Filter::Category(wanted) => {
                command.spec.categories().names().any(|name| wanted.eq_ignore_ascii_case(name.as_bytes()))
            }
            Filter::Pattern(pattern) => glob::matches(pattern, command.full_name.as_bytes(), true),
        }
    }
}

fn list(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let filter = Filter::parse(args.slice_from(2))?;
    let table = &cx.server.catalogue;
    let mark = cx.reply.deferred();
    let mut count = 0;
    for (_, command) in table.top_level() {
        let subcommands = command.subcommands.iter().filter_map(|id| table.get(*id));
        for command in std::iter::once(command).chain(subcommands).filter(|command| filter.admits(command)) {
            cx.reply.bulk(command.full_name.as_bytes());
            count += 1;
        }
    }
    cx.reply.set_array_len(mark, count);
    Ok(())
}
