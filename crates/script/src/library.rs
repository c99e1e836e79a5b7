//! Libraries: code that runs once, with only `server.register_function` and a few other fields available, to register
//! functions.

pub(crate) mod spec;

use std::time::{Duration, Instant};

use crate::convert::{push_error, returned_failure};
use crate::lua::shared::Loading;
use crate::lua::{Lua, REGISTRY, Raise, Results, Type, c_text};
use crate::run::{self, ALL_GLOBALS};
use crate::sandbox::protect::{self, Shown};
use crate::settings::{Identity, Settings};
use crate::{Failure, ScriptFlags, analysis, api};
use spec::{FunctionHandle, FunctionSpec};

/// The registry key of the globals table of libraries while they are loaded.
const LOADING_GLOBAL: &str = "globals of loading libraries";

/// Creates the globals for libraries being loaded.
pub(crate) fn install(lua: Lua<'_>, identity: &Identity) {
    lua.create_table(0, 2);
    lua.create_table(0, 12);
    lua.add_function("register_function", register_function);
    api::install_log_and_versions(lua, identity);
    protect::refuse_missing(lua, lua.top());
    protect::protect(lua, Shown::Metatable);
    for name in ["server", "redis"] {
        lua.push_value(-1);
        lua.raw_set_field(-3, name);
    }
    lua.pop(1);
    protect::refuse_missing(lua, lua.top());
    lua.raw_set_field(REGISTRY, LOADING_GLOBAL);
}

/// Runs the code of a library.
pub(crate) fn load(
    lua: Lua<'_>,
    code: &[u8],
    time_limit: Option<Duration>,
    settings: &Settings,
) -> Result<Vec<FunctionSpec>, Failure> {
    let compiled = run::compile(lua, c_text(code), "@user_function", settings)
        .map_err(|text| Failure::new([b"ERR Error compiling function: ", &*text].concat()))?;
    let deadline = time_limit.and_then(|limit| Instant::now().checked_add(limit));
    lua.state().loading = Some(Loading { functions: Vec::new(), deadline });
    lua.raw_get_field(REGISTRY, LOADING_GLOBAL);
    protect::set_globals_index(lua);
    lua.push_ref(compiled);
    let ended = run::protected(lua, settings, |lua| lua.call_protected(0, Some(0), None));
    let loading = lua.state().loading.take();
    let functions = loading.map(|loading| loading.functions).unwrap_or_default();
    lua.watch();
    let outcome = match ended {
        Ok(()) => Ok(analyse(lua, functions)),
        Err(_) => {
            functions.into_iter().for_each(|function| lua.forget(function.handle.0));
            Err(registration_failure(lua))
        }
    };
    lua.forget(compiled);
    lua.push_value(ALL_GLOBALS);
    protect::set_globals_index(lua);
    run::clear(lua);
    outcome
}

/// Adds what is known about the functions of a library. If one of them keeps state, the others may see it.
fn analyse(lua: Lua<'_>, mut functions: Vec<FunctionSpec>) -> Vec<FunctionSpec> {
    let mut keeps_state = false;
    for function in &mut functions {
        let facts = analysis::of_function(lua, function.handle.0);
        function.calls = facts.calls;
        keeps_state |= facts.keeps_state;
    }
    functions.iter_mut().for_each(|function| function.keeps_state = keeps_state);
    functions
}

/// The failure for the error on the top of the stack.
fn registration_failure(lua: Lua<'_>) -> Failure {
    let prefix: &[u8] = b"ERR Error registering functions: ";
    match lua.kind(-1) {
        Type::Table => Failure::new([prefix, returned_failure(lua).text()].concat()),
        _ => match lua.bytes(-1) {
            Some(text) => Failure::new([prefix, b"ERR ", c_text(text)].concat()),
            None => Failure::new([prefix, b"ERR unknown error"].concat()),
        },
    }
}

/// `register_function(name, callback)`, or `register_function` with a table of named arguments.
fn register_function(lua: Lua<'_>) -> Results {
    let read = match (lua.state().loading.is_some(), lua.top()) {
        (false, _) => Err("server.register_function can only be called on FUNCTION LOAD command"),
        (true, 1) => read_named(lua),
        (true, 2) => read_positional(lua),
        (true, _) => Err("wrong number of arguments to server.register_function"),
    };
    match read {
        Ok(flags) => {
            register(lua, flags);
            Ok(0)
        }
        Err(text) => {
            lua.push_text(format_args!("ERR {text}"));
            let text = lua.bytes(-1).unwrap_or_default();
            push_error(lua, text);
            Err(Raise)
        }
    }
}

/// Stack indices of the arguments read, nil if not given.
const NAME: i32 = 2;
const DESCRIPTION: i32 = 3;
const CALLBACK: i32 = 4;

fn read_positional(lua: Lua<'_>) -> Result<ScriptFlags, &'static str> {
    if !lua.is_string(1) {
        return Err("first argument to server.register_function must be a string");
    }
    if lua.kind(2) != Type::Function {
        return Err("second argument to server.register_function must be a function");
    }
    lua.set_top(CALLBACK);
    lua.push_value(2);
    lua.replace(CALLBACK);
    lua.push_value(1);
    lua.replace(NAME);
    Ok(ScriptFlags::default())
}

fn read_named(lua: Lua<'_>) -> Result<ScriptFlags, &'static str> {
    if lua.kind(1) != Type::Table {
        return Err(
            "calling server.register_function with a single argument is only applicable to Lua table (representing \
             named arguments).",
        );
    }
    protect::unwrap_protected(lua, 1);
    lua.set_top(CALLBACK);
    let mut flags = ScriptFlags::default();
    lua.push_nil();
    while lua.next(1) {
        // Converting a number key to a string would break the iteration of the table.
        let key = match lua.kind(-2) {
            Type::String => c_text(lua.bytes(-2).unwrap_or_default()),
            Type::Number => b"",
            _ => return Err("named argument key given to server.register_function is not a string"),
        };
        let is = |name: &str| key.eq_ignore_ascii_case(name.as_bytes());
        let place = if is("function_name") {
            if !lua.is_string(-1) {
                return Err("function_name argument given to server.register_function must be a string");
            }
            NAME
        } else if is("description") {
            if !lua.is_string(-1) {
                return Err("description argument given to server.register_function must be a string");
            }
            DESCRIPTION
        } else if is("callback") {
            if lua.kind(-1) != Type::Function {
                return Err("callback argument given to server.register_function must be a function");
            }
            CALLBACK
        } else if is("flags") {
            if lua.kind(-1) != Type::Table {
                return Err("flags argument to server.register_function must be a table representing function flags");
            }
            flags = read_flags(lua)?;
            lua.pop(1);
            continue;
        } else {
            return Err("unknown argument given to server.register_function");
        };
        lua.replace(place);
    }
    if lua.kind(NAME) == Type::Nil {
        return Err("server.register_function must get a function name argument");
    }
    if lua.kind(CALLBACK) == Type::Nil {
        return Err("server.register_function must get a callback argument");
    }
    Ok(flags)
}

/// Parses the list of flags on the top of the stack.
fn read_flags(lua: Lua<'_>) -> Result<ScriptFlags, &'static str> {
    let mut flags = ScriptFlags::default();
    for n in 1.. {
        lua.raw_get_item(-1, n);
        if lua.kind(-1) == Type::Nil {
            lua.pop(1);
            break;
        }
        let known = lua.bytes(-1).is_some_and(|name| flags.set_of_function(c_text(name)));
        lua.pop(1);
        if !known {
            return Err("unknown flag given");
        }
    }
    Ok(flags)
}

/// Adds the function to the library being loaded.
fn register(lua: Lua<'_>, flags: ScriptFlags) {
    lua.push_value(CALLBACK);
    let handle = FunctionHandle(lua.keep());
    // No Lua call after this point can fail.
    let name = lua.bytes(NAME).unwrap_or_default().to_vec();
    let description = lua.bytes(DESCRIPTION).map(<[u8]>::to_vec);
    if let Some(loading) = &mut lua.state().loading {
        loading.functions.push(FunctionSpec { name, description, flags, calls: None, keeps_state: true, handle });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvick_resp::{Reply, Version};

    use super::*;
    use crate::testing::{FakeHost, machine, shown};
    use crate::{Kind, Vm};

    fn call(vm: &mut Vm, function: &FunctionSpec) -> String {
        let mut out = Vec::new();
        let reply = &mut Reply::new(&mut out, Version::Resp2);
        let (keys, arguments) = (std::iter::empty(), std::iter::empty());
        let outcome = vm.call_function(&function.handle, keys, arguments, &mut FakeHost::default(), reply);
        shown(outcome, out)
    }

    fn vm() -> Vm {
        machine(Kind::Functions, Settings::default())
    }

    #[test]
    fn functions_report_their_metadata() {
        let code = b"server.register_function{function_name = 'f', description = 'for tests', flags = {'no-writes', \
            'Allow-Stale'}, callback = function() return 1 end}
            server.register_function('g', function() return 2 end)";
        let functions = vm().load_library(code, None).unwrap();
        let [f, g] = &functions[..] else { panic!("{functions:?}") };
        assert_eq!((&*f.name, f.description.as_deref()), (&b"f"[..], Some(&b"for tests"[..])));
        assert!(f.flags.names().eq(["no-writes", "allow-stale"]));
        assert_eq!((&*g.name, &g.description, g.flags), (&b"g"[..], &None, ScriptFlags::default()));
    }

    #[test]
    fn functions_of_a_library_share_its_local_variables() {
        let code = b"local n = 0
            redis.register_function('f', function() n = n + 1 return n end)
            redis.register_function('g', function() return n end)";
        let mut vm = vm();
        let functions = vm.load_library(code, None).unwrap();
        assert_eq!([0, 0, 1].map(|i| call(&mut vm, &functions[i])), [":1\r\n", ":2\r\n", ":2\r\n"]);
        let others = vm.load_library(code, None).unwrap();
        assert_eq!(call(&mut vm, &others[1]), ":0\r\n");
    }

    #[test]
    fn failed_and_dropped_scripts_leave_nothing() {
        let mut vm = vm();
        let big = "local big = string and 1 or 1 server.register_function('f', function() return 'x' end)";
        let failing = format!(
            "local t = {{'{}'}} {} error('x')",
            "y".repeat(1 << 20),
            &big["local big = string and 1 or 1 ".len()..]
        );
        vm.collect();
        let before = vm.memory();
        for _ in 0..3 {
            vm.load_library(failing.as_bytes(), None).unwrap_err();
            let code = format!("server.register_function('f', function() return '{}' end)", "y".repeat(1 << 20));
            for function in vm.load_library(code.as_bytes(), None).unwrap() {
                vm.drop_function(&function.handle);
            }
        }
        vm.collect();
        assert!(vm.memory() < before + 10_000, "{} after {before}", vm.memory());
    }

    #[test]
    fn loading_has_a_time_limit() {
        let mut vm = vm();
        let failure = vm.load_library(b"while true do end", Some(Duration::from_millis(5))).unwrap_err();
        assert_eq!(failure.text(), b"ERR Error registering functions: ERR FUNCTION LOAD timeout");
        let functions = vm.load_library(b"server.register_function('f', function() return 1 end)", None).unwrap();
        assert_eq!(call(&mut vm, &functions[0]), ":1\r\n");
    }
}
