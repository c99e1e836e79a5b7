//! Command definitions of EVAL, EVALSHA, FCALL and their read-only variants. The engine executes them itself, since
//! they call other commands (see [`crate::script_call`]).

use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};
use kvick_scripting::script_call::{ScriptCall, Source};

/// All commands of this family.
pub static COMMANDS: &[Command<ScriptCall>] = &[EVAL, EVAL_RO, EVALSHA, EVALSHA_RO, FCALL, FCALL_RO];

const COMPLEXITY: &str = "Depends on the script that is executed.";
const FUNCTION_COMPLEXITY: &str = "Depends on the function that is executed.";

const KEYS: &[KeySpec] = &[KeySpec::counted(2, 1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE])];
const KEYS_NOTED: &[KeySpec] = &[KeySpec::counted(2, 1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE])
    .notes("What becomes of the keys is not known, so the worst is assumed: RW and UPDATE")];
const KEYS_RO: &[KeySpec] = &[KeySpec::counted(2, 1, &[KeyFlags::RO, KeyFlags::ACCESS])];
const KEYS_RO_NOTED: &[KeySpec] = &[KeySpec::counted(2, 1, &[KeyFlags::RO, KeyFlags::ACCESS])
    .notes("What becomes of the keys is not known, so the worst is assumed: RO and ACCESS")];

const fn arguments(what: &'static str) -> [Arg; 4] {
    [
        Arg::string(what),
        Arg::integer("numkeys"),
        Arg::key("key").optional().multiple(),
        Arg::string("arg").optional().multiple(),
    ]
}

const fn spec(name: &'static str, read_only: bool, keys: &'static [KeySpec], args: &'static [Arg]) -> Spec {
    let kind = if read_only { Flags::READONLY } else { Flags::MAY_REPLICATE };
    Spec::new(name, -3)
        .flags(&[Flags::NOSCRIPT, Flags::SKIP_MONITOR, Flags::NO_MANDATORY_KEYS, Flags::STALE, kind])
        .acl(&[Categories::SCRIPTING])
        .keys(keys)
        .args(args)
}

const fn script_call(source: Source, read_only: bool) -> ScriptCall {
    ScriptCall { source, read_only }
}

/// EVAL script numkeys [key [key ...]] [arg [arg ...]]
pub const EVAL: Command<ScriptCall> = Command::new(
    spec("eval", false, KEYS_NOTED, &arguments("script")).doc(Group::Scripting, "2.6.0", COMPLEXITY, "Runs a script."),
    script_call(Source::Script, false),
);

/// EVAL_RO script numkeys [key [key ...]] [arg [arg ...]]
pub const EVAL_RO: Command<ScriptCall> = Command::new(
    spec("eval_ro", true, KEYS_RO_NOTED, &arguments("script")).doc(
        Group::Scripting,
        "7.0.0",
        COMPLEXITY,
        "Runs a script that writes nothing.",
    ),
    script_call(Source::Script, true),
);

/// EVALSHA sha1 numkeys [key [key ...]] [arg [arg ...]]
pub const EVALSHA: Command<ScriptCall> = Command::new(
    spec("evalsha", false, KEYS, &arguments("sha1")).doc(
        Group::Scripting,
        "2.6.0",
        COMPLEXITY,
        "Runs a script that is known, by its SHA1 sum.",
    ),
    script_call(Source::Sum, false),
);

/// EVALSHA_RO sha1 numkeys [key [key ...]] [arg [arg ...]]
pub const EVALSHA_RO: Command<ScriptCall> = Command::new(
    spec("evalsha_ro", true, KEYS_RO, &arguments("sha1")).doc(
        Group::Scripting,
        "7.0.0",
        COMPLEXITY,
        "Runs a script that is known and writes nothing, by its SHA1 sum.",
    ),
    script_call(Source::Sum, true),
);

/// FCALL function numkeys [key [key ...]] [arg [arg ...]]
pub const FCALL: Command<ScriptCall> = Command::new(
    spec("fcall", false, KEYS_NOTED, &arguments("function")).doc(
        Group::Scripting,
        "7.0.0",
        FUNCTION_COMPLEXITY,
        "Runs a function of a library.",
    ),
    script_call(Source::Function, false),
);

/// FCALL_RO function numkeys [key [key ...]] [arg [arg ...]]
pub const FCALL_RO: Command<ScriptCall> = Command::new(
    spec("fcall_ro", true, KEYS_RO_NOTED, &arguments("function")).doc(
        Group::Scripting,
        "7.0.0",
        FUNCTION_COMPLEXITY,
        "Runs a function of a library that writes nothing.",
    ),
    script_call(Source::Function, true),
);
