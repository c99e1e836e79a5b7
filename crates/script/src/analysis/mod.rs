//! Finds out what code will do before it runs: which commands it calls with which keys, and whether a library keeps
//! state between calls.
//!
//! [`flow`] follows values through the bytecode. Its result is sound: if it returns the call sites of a script, the
//! script calls no command in another way, and an argument that is [`Word::Key`] is one of the keys that the script's
//! caller declared (or nil, with which no command runs). It recognises keys that are written as `KEYS[...]`, stored in
//! local variables, iterated over with `ipairs(KEYS)`, or passed as `unpack(KEYS)`. It does not follow values into
//! other functions, tables or upvalues.

mod bytecode;
mod flow;

use crate::lua::reference::Ref;
use crate::lua::{Lua, Type};
use bytecode::Function;

/// A place in the code that calls a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallSite {
    /// The name of the command and its arguments, as far as their number is known.
    pub words: Vec<Word>,
    /// Arguments behind these, in unknown number.
    pub rest: Option<Rest>,
}

/// An argument of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Word {
    /// A constant.
    Text(Box<[u8]>),
    /// A declared key.
    Key,
    /// Anything.
    Other,
}

/// The last arguments of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Declared keys.
    Keys,
    /// Anything.
    Other,
}

/// What is known about a function of a library.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The commands that it calls, if all of them are known.
    pub(crate) calls: Option<Vec<CallSite>>,
    /// Whether it may depend on what earlier calls left behind.
    pub(crate) keeps_state: bool,
}

/// How deep functions that are reached through upvalues are followed.
const DEPTH_MAX: usize = 8;

/// The commands that a script calls, if all of them are known.
pub(crate) fn of_script(lua: Lua<'_>, script: Ref) -> Option<Vec<CallSite>> {
    lua.push_ref(script);
    let bytecode = lua.bytecode(-1);
    lua.pop(1);
    let mut calls = Vec::new();
    add_calls(&bytecode::read(&bytecode)?, false, &mut calls)?;
    Some(calls)
}

/// What is known about a library's function.
pub(crate) fn of_function(lua: Lua<'_>, function: Ref) -> Facts {
    let mut walk = Walk { calls: Some(Vec::new()), keeps_state: false, seen: Vec::new() };
    lua.push_ref(function);
    walk.visit(lua, 0);
    lua.pop(1);
    Facts { calls: walk.calls, keeps_state: walk.keeps_state }
}

/// Adds the calls of a function and of the functions that are defined in it.
fn add_calls(function: &Function, takes_keys: bool, calls: &mut Vec<CallSite>) -> Option<()> {
    flow::calls(function, takes_keys, calls)?;
    function.functions.iter().try_for_each(|inner| add_calls(inner, false, calls))
}

/// Whether a function, or one that is defined in it, assigns to a variable of an outer one.
fn assigns_upvalues(function: &Function) -> bool {
    flow::assigns_upvalues(function) || function.functions.iter().any(assigns_upvalues)
}

/// A walk through a function and those that it reaches through upvalues.
struct Walk {
    calls: Option<Vec<CallSite>>,
    keeps_state: bool,
    seen: Vec<*const u8>,
}

impl Walk {
    /// Visits the function on the top of the stack.
    fn visit(&mut self, lua: Lua<'_>, depth: usize) {
        let function = lua.top();
        if self.seen.contains(&lua.pointer(function)) || lua.native_function(function).is_some() {
            return;
        }
        if depth == DEPTH_MAX {
            (self.calls, self.keeps_state) = (None, true);
            return;
        }
        self.seen.push(lua.pointer(function));
        match bytecode::read(&lua.bytecode(function)) {
            None => (self.calls, self.keeps_state) = (None, true),
            Some(code) => {
                self.keeps_state |= assigns_upvalues(&code);
                if let Some(calls) = &mut self.calls
                    && add_calls(&code, depth == 0, calls).is_none()
                {
                    self.calls = None;
                }
            }
        }
        let mut upvalue = 1;
        while lua.push_upvalue(function, upvalue) {
            match lua.kind(-1) {
                Type::Nil | Type::Boolean | Type::Number | Type::String => {}
                Type::Function => self.visit(lua, depth + 1),
                _ => self.keeps_state = true,
            }
            lua.pop(1);
            upvalue += 1;
        }
    }
}

#[cfg(test)]
mod tests;
