//! Runs scripts and functions.
//!
//! The stack of the main thread has a permanent base, from [`HANDLER`] to [`BASE`], with the values that each call
//! needs.

use kvick_resp::{Reply, Version};

use crate::convert::{self, FIELD_NAMES, FIELDS, returned_failure};
use crate::debugger::session::Debugger;
use crate::lua::reference::Ref;
use crate::lua::{Failed, Lua, Raise, Results, Type, c_text};
use crate::sandbox::protect;
use crate::settings::Settings;
use crate::{Failure, Host};

/// Stack index of the error handler function.
pub(crate) const HANDLER: i32 = 1;
/// Stack index of the writable table of all globals.
pub(crate) const ALL_GLOBALS: i32 = 2;
/// Stack index of the string `KEYS`.
const KEYS: i32 = 3;
/// Stack index of the string `ARGV`.
const ARGV: i32 = 4;
/// Number of values on the stack between calls.
const BASE: i32 = FIELD_NAMES + FIELDS.len() as i32 - 1;
const _: () = assert!(FIELD_NAMES == ARGV + 1);

/// Buffers that exceed this size are freed after the call.
const BUFFER_KEPT_MAX: usize = 1 << 16;

/// Creates the base of the stack. The table of all globals must be on the top.
pub(crate) fn init_stack_base(lua: Lua<'_>) {
    lua.push_function(handler);
    lua.insert(HANDLER);
    for name in ["KEYS", "ARGV"].into_iter().chain(FIELDS) {
        lua.push_bytes(name);
    }
    debug_assert_eq!(lua.top(), BASE);
}

/// Compiles code and stores the function in the registry; on failure returns the text of the error.
pub(crate) fn compile(lua: Lua<'_>, code: &[u8], name: &str, settings: &Settings) -> Result<Ref, Vec<u8>> {
    reset_globals(lua, settings);
    lua.push_bytes(name);
    let compiled = protected(lua, settings, |lua| lua.compile(code));
    let outcome = match compiled {
        Ok(()) => Ok(lua.keep()),
        Err(Failed) => Err(c_text(lua.bytes(-1).unwrap_or_default()).to_vec()),
    };
    clear(lua);
    outcome
}

/// Runs a script, in a debugger session if one is given.
#[expect(clippy::too_many_arguments, reason = "they are all different things")]
pub(crate) fn script<'k>(
    lua: Lua<'_>,
    script: Ref,
    keys: impl ExactSizeIterator<Item = &'k [u8]>,
    arguments: impl ExactSizeIterator<Item = &'k [u8]>,
    host: &mut dyn Host,
    reply: &mut Reply<'_>,
    settings: &Settings,
    debugger: Option<&mut Debugger>,
) -> Result<(), Failure> {
    lua.push_value(KEYS);
    push_list(lua, keys);
    lua.raw_set(ALL_GLOBALS);
    lua.push_value(ARGV);
    push_list(lua, arguments);
    lua.raw_set(ALL_GLOBALS);
    lua.push_ref(script);
    let is_debugged = debugger.is_some();
    if let Some(debugger) = debugger {
        lua.state().set_debugger(debugger);
        lua.watch_lines();
    }
    let outcome = call(lua, 0, host, reply, settings);
    if is_debugged {
        lua.watch();
    }
    outcome
}

/// Runs a function.
pub(crate) fn function<'k>(
    lua: Lua<'_>,
    function: Ref,
    keys: impl ExactSizeIterator<Item = &'k [u8]>,
    arguments: impl ExactSizeIterator<Item = &'k [u8]>,
    host: &mut dyn Host,
    reply: &mut Reply<'_>,
    settings: &Settings,
) -> Result<(), Failure> {
    lua.push_ref(function);
    push_list(lua, keys);
    push_list(lua, arguments);
    call(lua, 2, host, reply, settings)
}

/// Calls the function below its arguments, and writes its result.
fn call(
    lua: Lua<'_>,
    arguments: i32,
    host: &mut dyn Host,
    reply: &mut Reply<'_>,
    settings: &Settings,
) -> Result<(), Failure> {
    debug_assert_eq!(lua.top(), BASE + 1 + arguments);
    let state = lua.state();
    state.set_host(host);
    state.version = Version::Resp2;
    let ended = protected(lua, settings, |lua| lua.call_protected(arguments, Some(1), Some(HANDLER)));
    let state = lua.state();
    state.clear_host();
    if state.reply.capacity() > BUFFER_KEPT_MAX || state.text.capacity() > BUFFER_KEPT_MAX {
        state.reply.shrink_to(BUFFER_KEPT_MAX);
        state.text.shrink_to(BUFFER_KEPT_MAX);
    }
    if state.ending.take().is_some() {
        lua.watch();
    }
    let outcome = match ended {
        Ok(()) => convert::write_result(lua, reply)
            .map(|errors| errors.iter().for_each(|error| host.note_returned_error(error.text()))),
        Err(Failed) => Err(failure(lua)),
    };
    clear(lua);
    reset_globals(lua, settings);
    outcome
}

/// Removes the values of a call from the stack of the main thread.
pub(crate) fn clear(lua: Lua<'_>) {
    lua.set_top(BASE);
}

/// Runs a closure with the memory limit of scripts: allocations beyond it fail instead of ending the process.
pub(crate) fn protected<T>(lua: Lua<'_>, settings: &Settings, run: impl FnOnce(Lua<'_>) -> T) -> T {
    let limit = settings.memory_max.unwrap_or(isize::MAX as usize);
    if lua.heap().used() > limit / 4 * 3 {
        // Lua does not collect garbage when memory runs out.
        lua.collect();
    }
    lua.heap().set_limit(limit);
    let outcome = run(lua);
    lua.heap().set_limit(usize::MAX);
    outcome
}

/// Restores the globals of the thread, which `setfenv` may have replaced.
fn reset_globals(lua: Lua<'_>, settings: &Settings) {
    if settings.insecure_api {
        lua.raw_get_field(ALL_GLOBALS, "_G");
        lua.replace(crate::lua::GLOBALS);
    }
}

fn push_list<'k>(lua: Lua<'_>, items: impl ExactSizeIterator<Item = &'k [u8]>) {
    lua.create_table(items.len(), 0);
    for (n, item) in (1..).zip(items) {
        lua.push_bytes(item);
        lua.raw_set_item(-2, n);
    }
}

/// The failure for the error on the top of the stack.
pub(crate) fn failure(lua: Lua<'_>) -> Failure {
    if lua.kind(-1) != Type::Table {
        let text = c_text(lua.bytes(-1).unwrap_or(b"execution failure"));
        return Failure::new([b"ERR Error running script, ", &text[..text.len().min(100)]].concat());
    }
    let failure = returned_failure(lua);
    let error = lua.top();
    let text = |name| {
        lua.raw_get_field(error, name);
        lua.bytes(-1).map(c_text)
    };
    let place = match (text("source"), text("line")) {
        (Some(source), Some(line)) => [b" script: on ", source, b":", line, b"."].concat(),
        _ => Vec::new(),
    };
    Failure::new([failure.text(), &*place].concat()).with_counted(failure.is_counted())
}

/// The error handler: converts each error into a table with the text and the source position.
///
/// If a native function failed, the position is that of its caller.
pub(crate) fn handler(lua: Lua<'_>) -> Results {
    lua.set_top(1);
    let place = lua.place(1).and_then(|place| if place.native { lua.place(2) } else { Some(place) });
    if lua.kind(1) != Type::Table {
        lua.create_table(0, 3);
        push_shown(lua, 1)?;
        lua.raw_set_field(-2, "err");
        lua.replace(1);
    }
    if let Some(place) = place
        && !protect::is_protected(lua, 1)
    {
        lua.push_bytes(place.source);
        lua.raw_set_field(1, "source");
        lua.push_number(f64::from(place.line));
        lua.raw_set_field(1, "line");
    }
    Ok(1)
}

/// Pushes `ERR ` and the value at `index` as text.
fn push_shown(lua: Lua<'_>, index: i32) -> Result<(), Raise> {
    lua.push_bytes("ERR ");
    match lua.kind(index) {
        Type::Nil => lua.push_bytes("nil"),
        Type::Boolean => lua.push_bytes(if lua.boolean(index) { "true" } else { "false" }),
        Type::String | Type::Number => lua.push_value(index),
        _ => lua.push_text(format_args!("{}: {:p}", lua.type_name(index), lua.address(index))),
    }
    lua.concat(2);
    Ok(())
}

/// Called periodically by the hook: whether the script may continue.
pub(crate) fn check_interrupt(lua: Lua<'_>) -> Result<(), Raise> {
    let state = lua.state();
    if let Some(loading) = &state.loading {
        if loading.is_past_deadline() {
            convert::push_error(lua, b"ERR FUNCTION LOAD timeout");
            return Err(Raise);
        }
        return Ok(());
    }
    if state.ending.is_none() {
        state.ending = state.host().and_then(|host| host.interrupted());
    }
    match &state.ending {
        Some(text) => {
            convert::push_error(lua, text.as_bytes());
            Err(Raise)
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{FakeHost, eval, machine, run};
    use crate::{Kind, Settings};

    #[test]
    fn scripts_have_keys_and_arguments() {
        let mut vm = machine(Kind::Scripts, Settings::default());
        let host = &mut FakeHost::default();
        let script = "return {KEYS[1], ARGV[1], #KEYS, #ARGV, redis.call('echo', KEYS[1])}";
        let reply = run(&mut vm, host, script, &["key"], &["a", "b"]);
        assert_eq!(reply, "*5\r\n$3\r\nkey\r\n$1\r\na\r\n:1\r\n:2\r\n$3\r\nkey\r\n");
        assert_eq!(host.commands, ["echo key"]);
        assert_eq!(run(&mut vm, host, "return #KEYS + #ARGV", &[], &[]), ":0\r\n");
    }

    #[test]
    fn errors_include_their_location() {
        let at = |script| eval(script).trim_end().to_string();
        assert_eq!(at("error('x')"), "-ERR user_script:1: x script: on @user_script:1.");
        assert_eq!(
            at("\nreturn foo"),
            "-ERR user_script:2: Script attempted to access nonexistent global variable 'foo' script: on \
             @user_script:2."
        );
        assert_eq!(at("redis.call('nope')"), "-ERR Unknown command called from script script: on @user_script:1.");
        assert_eq!(
            at("redis.call = 1"),
            "-ERR user_script:1: Attempt to modify a readonly table script: on @user_script:1."
        );
        assert_eq!(at("rawset(_G, 'a', 1)"), "-ERR Attempt to modify a readonly table script: on @user_script:1.");
        assert_eq!(at("error({})"), "-ERR unknown error script: on @user_script:1.");
        assert_eq!(at("error({err='My err'})"), "-My err script: on @user_script:1.");
        assert_eq!(at("return {err='My err'}"), "-My err");
        assert_eq!(at("return redis.error_reply('Myerr')"), "-ERR Myerr");
        assert_eq!(at("foo bar"), "-ERR Error compiling script (new function): user_script:1: '=' expected near 'bar'");
        assert_eq!(at("error()"), "-ERR nil script: on @user_script:1.");
        assert_eq!(at("error(true)"), "-ERR true script: on @user_script:1.");
        assert_eq!(at("redis.sha1hex()"), "-ERR wrong number of arguments script: on @user_script:1.");
    }

    #[test]
    fn runaway_scripts_are_stopped() {
        for script in [
            "while true do end",
            "while true do pcall(function() while true do end end) end",
            "while true do local co = coroutine.wrap(function() while true do end end) pcall(co) end",
            "repeat until false",
        ] {
            let mut vm = machine(Kind::Scripts, Settings::default());
            let host = &mut FakeHost { checks_left: Some(3), ..FakeHost::default() };
            let reply = run(&mut vm, host, script, &[], &[]);
            assert!(reply.starts_with("-ERR Script killed by user with SCRIPT KILL."), "{reply}");
            host.checks_left = None;
            assert_eq!(run(&mut vm, host, "for i = 1, 1000000 do end return 1", &[], &[]), ":1\r\n");
        }
    }

    #[test]
    fn random_numbers_match_valkey() {
        let script = "return {math.random(1000000), math.random(1000000), math.random(1000000)}";
        assert_eq!(eval(script), "*3\r\n:396465\r\n:840486\r\n:353337\r\n");
    }
}
