//! COMMAND DOCS.

use super::{reply_field, reply_words};
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, ArgKind, Categories, Command, Deprecation, Flags, Group, Spec};
use kvick_commands::table::{Catalogue, CommandInfo};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::{Args, Reply};

/// COMMAND DOCS [command-name [command-name ...]]
pub const DOCS: Command<SessionHandler> = Command::new(
    Spec::new("docs", -2)
        .flags(&[Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Server, "7.0.0", "O(N), N being the requested commands", "Returns documentation of commands.")
        .tips(&["nondeterministic_output_order"])
        .args(&[Arg::string("command-name").optional().multiple()]),
    docs,
);

/// Unknown names are left out.
fn docs(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let table = &cx.server.catalogue;
    let commands: Vec<&CommandInfo> = match args.len() {
        2 => table.top_level().map(|(_, command)| command).collect(),
        _ => args.iter().skip(2).filter_map(|name| table.by_full_name(name)).collect(),
    };
    reply_all(&mut cx.reply, table, &commands);
    Ok(())
}

fn reply_all(reply: &mut Reply<'_>, table: &Catalogue, commands: &[&CommandInfo]) {
    reply.map(commands.len());
    for command in commands {
        reply.bulk(command.full_name.as_bytes());
        reply_docs(reply, table, command);
    }
}

fn reply_docs(reply: &mut Reply<'_>, table: &Catalogue, command: &CommandInfo) {
    let spec = command.spec;
    let mark = reply.deferred();
    let mut fields = 3;
    reply_field(reply, "summary", spec.summary);
    reply_field(reply, "since", spec.since);
    reply_field(reply, "group", spec.group.name());
    if !spec.complexity.is_empty() {
        reply_field(reply, "complexity", spec.complexity);
        fields += 1;
    }
    if spec.deprecated.is_some() || spec.internal {
        let flags = [("deprecated", spec.deprecated.is_some()), ("syscmd", spec.internal)];
        reply.bulk(b"doc_flags");
        reply_words(reply, flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| name));
        fields += 1;
    }
    if let Some(Deprecation { since, instead }) = spec.deprecated {
        reply_field(reply, "deprecated_since", since);
        fields += 1;
        if !instead.is_empty() {
            reply_field(reply, "replaced_by", instead);
            fields += 1;
        }
    }
    if !spec.history.is_empty() {
        reply.bulk(b"history");
        reply_history(reply, spec);
        fields += 1;
    }
    if !spec.args.is_empty() {
        reply.bulk(b"arguments");
        reply_arguments(reply, spec.args);
        fields += 1;
    }
    if !command.subcommands.is_empty() {
        let subcommands: Vec<_> = command.subcommands.iter().filter_map(|id| table.get(*id)).collect();
        reply.bulk(b"subcommands");
        reply_all(reply, table, &subcommands);
        fields += 1;
    }
    reply.set_map_len(mark, fields);
}

fn reply_history(reply: &mut Reply<'_>, spec: &Spec) {
    reply.set(spec.history.len());
    for (version, change) in spec.history {
        reply.array(2);
        reply.bulk(version.as_bytes());
        reply.bulk(change.as_bytes());
    }
}

fn reply_arguments(reply: &mut Reply<'_>, args: &[Arg]) {
    reply.array(args.len());
    args.iter().for_each(|arg| reply_argument(reply, arg));
}

fn reply_argument(reply: &mut Reply<'_>, arg: &Arg) {
    let mark = reply.deferred();
    let mut fields = 2;
    reply_field(reply, "name", arg.name);
    reply_field(reply, "type", arg.kind.name());
    let compound = matches!(arg.kind, ArgKind::OneOf | ArgKind::Block);
    if !compound {
        reply_field(reply, "display_text", if arg.display.is_empty() { arg.name } else { arg.display });
        fields += 1;
    }
    if let Some(index) = arg.key_spec {
        reply.bulk(b"key_spec_index");
        reply.int(index.into());
        fields += 1;
    }
    let given = |text: &'static str| (!text.is_empty()).then_some(text);
    let texts = [
        ("token", arg.token),
        ("summary", given(arg.summary)),
        ("since", given(arg.since)),
        ("deprecated_since", given(arg.deprecated_since)),
    ];
    for (name, text) in texts.into_iter().filter_map(|(name, text)| Some((name, text?))) {
        reply_field(reply, name, text);
        fields += 1;
    }
    let flags = [("optional", arg.optional), ("multiple", arg.multiple), ("multiple_token", arg.multiple_token)];
    if flags.iter().any(|(_, set)| *set) {
        reply.bulk(b"flags");
        reply_words(reply, flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| name));
        fields += 1;
    }
    if compound {
        reply.bulk(b"arguments");
        reply_arguments(reply, arg.args);
        fields += 1;
    }
    reply.set_map_len(mark, fields);
}
