//! Libraries: code that is run once, with nothing but `server.register_function` at hand, to say which functions there
//! are.

use std::time::{Duration, Instant};

use crate::convert::push_error;
use crate::lua::shared::Loading;
use crate::lua::{Lua, REGISTRY, Raise, Ref, Results, Type};
use crate::run::{self, WORLD, c_text};
use crate::sandbox::{self, Shown};
use crate::vm::{Identity, Settings};
use crate::{Failure, ScriptFlags, api};

/// The table that libraries find their globals in while they are loaded, in the registry.
const LOADING_WORLD: &str = "globals of loading libraries";

/// A function that a library registered.
#[derive(Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    /// Its name, not yet checked for what names may hold.
    pub name: Vec<u8>,
    /// What it is for.
    pub description: Option<Vec<u8>>,
    /// What it says of itself.
    pub flags: ScriptFlags,
    /// What it is called and dropped by.
    pub handle: FunctionHandle,
}

/// A function of one machine. It stays until it is given to [`Vm::drop_function`](crate::Vm::drop_function).
#[derive(Debug, PartialEq, Eq)]
pub struct FunctionHandle(pub(crate) Ref);

impl Loading {
    /// Whether it takes too long.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() > deadline)
    }
}

/// Makes the globals of libraries that are loaded.
pub(crate) fn install(lua: Lua<'_>, identity: &Identity) {
    lua.create_table(0, 2);
    lua.create_table(0, 12);
    lua.add_function("register_function", register_function);
    api::install_log_and_versions(lua, identity);
    sandbox::refuse_missing(lua, lua.top());
    sandbox::protect(lua, Shown::Metatable);
    for name in ["server", "redis"] {
        lua.push_value(-1);
        lua.raw_set_field(-3, name);
    }
    lua.pop(1);
    sandbox::refuse_missing(lua, lua.top());
    lua.raw_set_field(REGISTRY, LOADING_WORLD);
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
    lua.raw_get_field(REGISTRY, LOADING_WORLD);
    sandbox::look_into(lua);
    lua.push_kept(compiled);
    let ended = run::protected(lua, settings, |lua| lua.call_protected(0, Some(0), None));
    let loading = lua.state().loading.take();
    let functions = loading.map(|loading| loading.functions).unwrap_or_default();
    lua.watch();
    let outcome = match ended {
        Ok(()) => Ok(functions),
        Err(_) => {
            functions.into_iter().for_each(|function| lua.forget(function.handle.0));
            Err(registration_failure(lua))
        }
    };
    lua.forget(compiled);
    lua.push_value(WORLD);
    sandbox::look_into(lua);
    run::clear(lua);
    outcome
}

/// The failure that the error on the top of the stack means.
fn registration_failure(lua: Lua<'_>) -> Failure {
    let prefix: &[u8] = b"ERR Error registering functions: ";
    match lua.kind(-1) {
        Type::Table => Failure::new([prefix, run::returned_failure(lua).text()].concat()),
        _ => match lua.bytes(-1) {
            Some(text) => Failure::new([prefix, b"ERR ", c_text(text)].concat()),
            None => Failure::new([prefix, b"ERR unknown error"].concat()),
        },
    }
}

/// `register_function(name, callback)`, or with one table of named arguments.
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

/// Where what is read is put, nil if it was not given.
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
    sandbox::reveal(lua, 1);
    lua.set_top(CALLBACK);
    let mut flags = ScriptFlags::default();
    lua.push_nil();
    while lua.next(1) {
        if lua.kind(-2) != Type::String {
            return Err("named argument key given to server.register_function is not a string");
        }
        let key = c_text(lua.bytes(-2).unwrap_or_default());
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

/// Reads the table of names on the top of the stack.
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

/// Adds what was read to the library that is being loaded.
fn register(lua: Lua<'_>, flags: ScriptFlags) {
    lua.push_value(CALLBACK);
    let handle = FunctionHandle(lua.keep());
    // From here on nothing of Lua can fail.
    let name = lua.bytes(NAME).unwrap_or_default().to_vec();
    let description = lua.bytes(DESCRIPTION).map(<[u8]>::to_vec);
    if let Some(loading) = &mut lua.state().loading {
        loading.functions.push(FunctionSpec { name, description, flags, handle });
    }
}
