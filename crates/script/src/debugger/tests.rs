//! Tests of debugger sessions, from console input to output.

use std::collections::VecDeque;

use kvick_resp::{Reply, Version};

use crate::debugger::console::{Console, Received};
use crate::debugger::session::{Debugger, SHOWN_MAX};
use crate::testing::{DIGEST, FakeHost, machine, shown};
use crate::{Kind, Settings};

/// A console that sends these commands, each after the previous reply, and then disconnects.
#[derive(Default)]
pub(crate) struct Script {
    commands: VecDeque<Vec<u8>>,
    received: Vec<u8>,
}

impl Console for Script {
    fn send(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Received {
        match self.commands.pop_front() {
            Some(command) => {
                into.extend_from_slice(&command);
                Received::Input
            }
            None => Received::Disconnected,
        }
    }
}

fn request(command: &str) -> Vec<u8> {
    let words: Vec<&str> = command.split(' ').collect();
    let lines = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), lines.collect::<String>()).into_bytes()
}

/// The output of a session: a line per message, and the reply of the script.
fn session_of(script: &str, commands: impl IntoIterator<Item = Vec<u8>>) -> Vec<String> {
    let mut vm = machine(Kind::Scripts, Settings::default());
    let console = Script { commands: commands.into_iter().collect(), received: Vec::new() };
    let mut host = FakeHost { console: Some(console), ..FakeHost::default() };
    let mut debugger = Debugger::new(script.as_bytes());
    let mut out = Vec::new();
    vm.compile_script(DIGEST, script.as_bytes()).expect("a script");
    let keys = [&b"key"[..]].into_iter();
    let arguments = [&b"argument"[..]].into_iter();
    let reply = &mut Reply::new(&mut out, Version::Resp2);
    let outcome = vm.debug_script(DIGEST, keys, arguments, &mut host, reply, &mut debugger);
    let mut console = host.console.take().expect("it is there");
    debugger.end(&mut console);
    let received = String::from_utf8_lossy(&console.received).into_owned();
    let told = received.lines().filter_map(|line| line.strip_prefix('+').map(str::to_string));
    let told = told.chain([shown(outcome, out).trim_end().to_string()]).collect();
    assert_eq!(crate::testing::run(&mut vm, &mut host, "local a\na = 1\nreturn a", &[], &[]), ":1\r\n");
    told
}

fn session(script: &str, commands: &[&str]) -> Vec<String> {
    session_of(script, commands.iter().map(|command| request(command)))
}

/// The reply to one command at the first line.
fn answer(script: &str, command: &str) -> Vec<String> {
    let told = session(script, &[command, "abort"]);
    assert!(told.ends_with(&["<endsession>".into(), ABORTED.into()]), "{told:?}");
    told[2..told.len() - 2].to_vec()
}

const ABORTED: &str = "-ERR script aborted for user request script: on @user_script:1.";

#[test]
fn session_steps_line_by_line() {
    let told = session("local a = 1\nlocal b = 2\nreturn a + b", &["s", "print a", "next", "p", "continue"]);
    let expected = [
        "* Stopped at 1, stop reason = step over",
        "-> 1   local a = 1",
        "* Stopped at 2, stop reason = step over",
        "-> 2   local b = 2",
        "<value> 1",
        "* Stopped at 3, stop reason = step over",
        "-> 3   return a + b",
        "<value> a = 1",
        "<value> b = 2",
        "<endsession>",
        ":3",
    ];
    assert_eq!(told, expected);
}

#[test]
fn scripts_stop_at_breakpoints_and_redis_breakpoint() {
    let script = "local function f(x)\n  return x\nend\nredis.breakpoint()\nredis.debug('d', {1, {k = 2}})\n\
        local r = f(7)\nreturn r";
    let told = session(script, &["break 2", "c", "c", "trace", "p x", "b 0", "c"]);
    let expected = [
        "* Stopped at 3, stop reason = step over",
        "-> 3   end",
        "   1   local function f(x)",
        "  #2     return x",
        "-> 3   end",
        "* Stopped at 5, stop reason = server.breakpoint() called",
        "-> 5   redis.debug('d', {1, {k = 2}})",
        "<debug> line 5: d, {1; {[k]=2; }; }",
        "* Stopped at 2, stop reason = break point",
        "->#2     return x",
        "In f:",
        "->#2     return x",
        "From top level:",
        "   6   local r = f(7)",
        "<value> 7",
        "All breakpoints removed.",
        "<endsession>",
        ":7",
    ];
    // The line of a function definition is that of its `end`.
    assert_eq!(told[0].replace("at 1", "at 3"), expected[0]);
    assert_eq!(told[5..], expected[5..]);
}

#[test]
fn script_commands_are_shown_while_stepping() {
    let script = "redis.call('echo', 'a')\nredis.pcall('fail', 'WRONG kind')\nreturn 1";
    let told = session(script, &["s", "s", "c"]);
    let expected = [
        "<command> echo a",
        "<reply> \"a\"",
        "<command> fail WRONG kind",
        "<reply> \"-WRONG kind\"",
        "<error> WRONG kind",
    ];
    let about_calls: Vec<_> =
        told.iter().filter(|line| ["<co", "<re", "<er"].iter().any(|start| line.starts_with(start))).collect();
    assert_eq!(about_calls, expected);
    assert!(session(script, &["c"]).iter().all(|line| !line.starts_with("<command>")));
}

#[test]
fn console_can_run_commands_and_code() {
    let line = "return 1";
    assert_eq!(answer(line, "redis echo hello"), ["<command> echo hello", "<reply> \"hello\""]);
    assert_eq!(
        answer(line, &format!("server{}", " x".repeat(13))),
        [
            "<command> x x x x x x x x x x ... (3 more)",
            "<reply> \"-ERR Unknown command called from script\"",
            "<error> Unknown command called from script"
        ]
    );
    assert_eq!(answer(line, "eval 1 + 1"), ["<retval> 2"]);
    assert_eq!(answer(line, "eval if true then return 'x' end"), ["<retval> x"]);
    assert_eq!(answer(line, "e redis.call('echo', KEYS[1])"), ["<retval> key"]);
    assert_eq!(answer(line, "e error('boo')"), ["<error> ldb_eval:1: boo"]);
    assert_eq!(answer(line, "e redis.call('nope')"), ["<error> ERR Unknown command called from script"]);
    assert_eq!(answer(line, "e x=="), ["Error compiling code: ldb_eval:1: '=' expected near '=='"]);
    assert_eq!(answer(line, "e a=1"), ["<error> ldb_eval:1: Attempt to modify a readonly table"]);
    assert_eq!(answer(line, "e coroutine.yield(1)"), ["<error> attempt to yield across metamethod/C-call boundary"]);
    assert_eq!(answer(line, "print ARGV"), ["<value> {argument; }"]);
    assert_eq!(answer(line, "print nothing"), ["No such variable."]);
    assert_eq!(answer(line, "e 1e20, 2"), ["<retval> 1e+20"]);
    assert_eq!(answer(line, "e {1.5, true, {}, 'a'}"), ["<retval> {1.5; true; {}; a; }"]);
}

#[test]
fn unknown_command_gets_an_error_reply() {
    for command in ["foo", "step 1", "eval", "print a b", "m", "v", "serve ping", "hello\0world"] {
        let expected = ["<error> Unknown debugger command or wrong number of arguments."];
        assert_eq!(answer("return 1", command), expected, "{command}");
    }
}

#[test]
fn breakpoints_must_be_on_existing_lines() {
    assert_eq!(answer("return 1", "b"), ["No breakpoints set. Use 'b <line>' to add one."]);
    for line in ["2", "9999999999", "9223372036854775807"] {
        assert_eq!(answer("return 1", &format!("b {line}")), ["Wrong line number."]);
    }
    assert_eq!(answer("return 1", "b x"), ["Invalid argument:'x'"]);
    assert_eq!(answer("return 1", "b -1"), ["No breakpoint in the specified line."]);
    let lines = "local a = 1\n".repeat(70);
    let commands: Vec<String> = (1..=65).map(|line| format!("break {line}")).collect();
    let told = session(&lines, &commands.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(told.contains(&"Too many breakpoints set.".to_string()));
}

#[test]
fn long_values_are_truncated_with_one_hint() {
    let script = "local s = string.rep('x', 300)\nreturn 1";
    let told = session(script, &["s", "p s", "p s", "maxlen 10", "p s", "maxlen", "maxlen 0", "p", "maxlen x"]);
    let cut = |len: usize| format!("<value> {} ...", "x".repeat(len - "<value> ".len()));
    let expected = [
        cut(256),
        "<hint> The above reply was trimmed. Use 'maxlen 0' to disable trimming.".into(),
        cut(256),
        "<value> replies are truncated at 60 bytes.".into(),
        cut(60),
        "Current maxlen is 60".into(),
        "<value> replies are not truncated.".into(),
        format!("<value> s = {}", "x".repeat(300)),
        "<error> Invalid maxlen value.".into(),
    ];
    assert_eq!(told[4..13], expected);
}

#[test]
fn shown_tables_are_bounded() {
    let loops = answer("return 1", "e (function() local t = {} t[1] = t return t end)()");
    assert_eq!(
        loops,
        [format!("<retval> {}<max recursion level reached! Nested table?>{}", "{".repeat(10), "; }".repeat(10))]
    );
    let wide = "e (function() local t = {} for i = 1, 100 do t[i] = t end return t end)()";
    assert!(answer("return 1", wide)[0].len() < 300);
    let told = session("return 1", &["maxlen 0", wide, "abort"]);
    assert!(told[3].len() > SHOWN_MAX && told[3].len() < SHOWN_MAX + 10_000);
}

#[test]
fn script_continues_without_a_console() {
    let script = "local n = 0\nfor i = 1, 3 do\nredis.breakpoint()\nn = n + i\nend\nreturn n";
    assert_eq!(session(script, &["b 4"]).last().map(String::as_str), Some(":6"));
}

#[test]
fn protocol_error_aborts_the_script() {
    for broken in [&b"PING\r\n"[..], b"*1\r\n$0\r\n\r\n", b"*1\r\n$1025\r\n", b"*-5x\r\n", b"*1\r\n:1\r\n"] {
        let told = session_of("return 1", [broken.to_vec()]);
        assert_eq!(told[2..], ["<endsession>", "-ERR protocol error script: on @user_script:1."], "{broken:?}");
    }
    let told = session_of("return 1", [b"*1025\r\n".iter().chain(&b"$1\r\nx\r\n".repeat(1025)).copied().collect()]);
    assert_eq!(told[3], "-ERR protocol error script: on @user_script:1.");
}

#[test]
fn console_commands_may_be_split_or_pipelined() {
    let bytes = [request("print a"), request("s"), request("c")].concat();
    let whole = session_of("local a = 5\nreturn a", [bytes.clone()]);
    let pieces = session_of("local a = 5\nreturn a", bytes.iter().map(|byte| vec![*byte]));
    assert_eq!(whole, pieces);
    assert_eq!(whole.last().map(String::as_str), Some(":5"));
}

#[test]
fn abort_cannot_be_caught_even_in_console_code() {
    let told = session("pcall(function()\nlocal a\na = 1\nend)\nreturn 1", &["s", "abort"]);
    assert!(told.last().is_some_and(|reply| reply.starts_with("-ERR script aborted for user request")), "{told:?}");

    let mut vm = machine(Kind::Scripts, Settings::default());
    let console = Script { commands: [request("e (function() while true do end end)()")].into(), received: Vec::new() };
    let mut host = FakeHost { console: Some(console), checks_left: Some(3), ..FakeHost::default() };
    vm.compile_script(DIGEST, b"return 1").expect("a script");
    let (mut out, mut debugger) = (Vec::new(), Debugger::new(b"return 1"));
    let reply = &mut Reply::new(&mut out, Version::Resp2);
    let none = || std::iter::empty::<&[u8]>().collect::<Vec<_>>().into_iter();
    let ended = vm.debug_script(DIGEST, none(), none(), &mut host, reply, &mut debugger);
    assert!(ended.expect_err("it ends").to_string().contains("Script killed by user with SCRIPT KILL."));
}

#[test]
fn help_lists_all_commands_within_the_line_width() {
    let help = answer("return 1", "h");
    for name in ["[h]elp", "[max]len [len]", "[s]tep", "[l]ist [line] [ctx]", "[v]alkey <cmd>", "[a]bort"] {
        assert!(help.iter().any(|line| line.starts_with(name)), "{name}");
    }
    assert!(help.iter().all(|line| line.len() <= 70 && line == line.trim_end()), "{help:#?}");
}
