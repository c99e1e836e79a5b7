//! Follows values through the registers of one function, along all its paths.
//!
//! The analysis computes, for each instruction, what each register holds before it on any path. It gives up (`None`)
//! where one of the tracked values would go out of sight: where the table of keys, the table `redis` or the function
//! `redis.call` is stored, captured, returned, or passed to a function other than the few that are known. So a value
//! that is not tracked is none of these, and calling it neither calls a command unseen nor changes the table of keys.

use super::bytecode::{Constant, Function, Instruction, Operand};
use super::{CallSite, Rest, Word};

/// Globals that reveal neither other globals nor the environment of functions, and that do not compile code. `KEYS`,
/// `redis`, `server`, `ipairs` and `unpack` are tracked.
const HARMLESS: [&[u8]; 19] = [
    b"ARGV",
    b"assert",
    b"bit",
    b"cjson",
    b"cmsgpack",
    b"error",
    b"math",
    b"next",
    b"os",
    b"pairs",
    b"pcall",
    b"select",
    b"string",
    b"struct",
    b"table",
    b"tonumber",
    b"tostring",
    b"type",
    b"xpcall",
];

/// Maximum number of instructions visited.
const STEPS_MAX: usize = 100_000;

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// Something that is not tracked.
    Other,
    /// The string constant with this index.
    Text(usize),
    /// An item of the table of keys, or nil.
    Key,
    /// The table of keys.
    Keys,
    /// The table `redis`.
    Redis,
    /// `redis.call` or `redis.pcall`.
    Call,
    /// The function `ipairs`.
    Ipairs,
    /// The function `unpack`.
    Unpack,
    /// The iterator that `ipairs` returns.
    Iterator,
    /// Different values on different paths, one of which must not go out of sight.
    Mixed,
}

impl Value {
    /// Whether it must not go out of sight.
    fn is_tracked(self) -> bool {
        matches!(self, Value::Keys | Value::Redis | Value::Call | Value::Mixed)
    }

    fn joined(self, other: Value) -> Value {
        match (self, other) {
            _ if self == other => self,
            _ if self.is_tracked() || other.is_tracked() => Value::Mixed,
            _ => Value::Other,
        }
    }
}

/// What is known before an instruction.
#[derive(Clone, PartialEq, Eq)]
struct State {
    registers: Vec<Value>,
    /// The registers that functions defined so far have captured, and so may change.
    captured: Vec<bool>,
    /// The first register of an open list of values, which the next call, return or table takes, and its values.
    open: Option<(usize, Rest)>,
}

/// Numbers of the operations.
mod operation {
    pub(super) const MOVE: u32 = 0;
    pub(super) const LOADK: u32 = 1;
    pub(super) const LOADBOOL: u32 = 2;
    pub(super) const LOADNIL: u32 = 3;
    pub(super) const GETUPVAL: u32 = 4;
    pub(super) const GETGLOBAL: u32 = 5;
    pub(super) const GETTABLE: u32 = 6;
    pub(super) const SETUPVAL: u32 = 8;
    pub(super) const SETTABLE: u32 = 9;
    pub(super) const NEWTABLE: u32 = 10;
    pub(super) const SELF: u32 = 11;
    pub(super) const ADD: u32 = 12;
    pub(super) const LEN: u32 = 20;
    pub(super) const CONCAT: u32 = 21;
    pub(super) const JMP: u32 = 22;
    pub(super) const EQ: u32 = 23;
    pub(super) const TEST: u32 = 26;
    pub(super) const TESTSET: u32 = 27;
    pub(super) const CALL: u32 = 28;
    pub(super) const TAILCALL: u32 = 29;
    pub(super) const RETURN: u32 = 30;
    pub(super) const FORLOOP: u32 = 31;
    pub(super) const FORPREP: u32 = 32;
    pub(super) const TFORLOOP: u32 = 33;
    pub(super) const SETLIST: u32 = 34;
    pub(super) const CLOSE: u32 = 35;
    pub(super) const CLOSURE: u32 = 36;
    pub(super) const VARARG: u32 = 37;
}
use operation::*;

/// The commands that a function calls, if all of them are seen. `takes_keys`: its first parameter is the table of keys.
pub(super) fn calls(function: &Function, takes_keys: bool, calls: &mut Vec<CallSite>) -> Option<()> {
    let flow = Flow { function };
    let mut states: Vec<Option<State>> = vec![None; function.code.len()];
    let (registers, captured) = (vec![Value::Other; function.registers], vec![false; function.registers]);
    let mut entry = State { registers, captured, open: None };
    if takes_keys {
        entry.set(0, Value::Keys)?;
    }
    *states.first_mut()? = Some(entry);
    let (mut waiting, mut steps) = (vec![0], 0);
    while let Some(at) = waiting.pop() {
        steps += 1;
        if steps > STEPS_MAX {
            return None;
        }
        let mut state = states[at].clone()?;
        for next in flow.step(at, &mut state, None)?.into_iter().flatten() {
            let known = states.get_mut(next.at)?;
            let before = known.clone();
            let mut arriving = state.clone();
            if let Some((register, value)) = next.assigned {
                arriving.set(register, value)?;
            }
            match known {
                None => *known = Some(arriving),
                Some(known) => {
                    known
                        .registers
                        .iter_mut()
                        .zip(arriving.registers)
                        .for_each(|(one, other)| *one = one.joined(other));
                    known.captured.iter_mut().zip(arriving.captured).for_each(|(one, other)| *one |= other);
                    if known.open != arriving.open {
                        return None;
                    }
                }
            }
            if *known != before {
                waiting.push(next.at);
            }
        }
    }
    for (at, state) in states.into_iter().enumerate() {
        if let Some(mut state) = state {
            flow.step(at, &mut state, Some(calls))?;
        }
    }
    Some(())
}

/// Whether a function assigns to a variable of an outer one.
pub(super) fn assigns_upvalues(function: &Function) -> bool {
    // A bare word may look like an instruction; then the answer is only too careful.
    function.code.iter().any(|instruction| instruction.operation() == SETUPVAL)
}

/// An instruction that may follow, and what a register holds only there.
#[derive(Clone, Copy)]
struct Next {
    at: usize,
    assigned: Option<(usize, Value)>,
}

fn next(at: usize) -> Option<Next> {
    Some(Next { at, assigned: None })
}

impl State {
    /// Stores a value. Others may change a captured register at any time, and see its value.
    fn set(&mut self, register: usize, value: Value) -> Option<()> {
        *self.registers.get_mut(register)? = match self.captured.get(register)? {
            true if value.is_tracked() => return None,
            true => Value::Other,
            false => value,
        };
        Some(())
    }

    /// Forgets the registers from this one on.
    fn clobber(&mut self, from: usize) -> Option<()> {
        self.registers.get_mut(from..)?.fill(Value::Other);
        Some(())
    }

    /// A function that is being defined captures a register.
    fn capture(&mut self, register: usize) -> Option<()> {
        *self.captured.get_mut(register)? = true;
        self.set(register, *self.registers.get(register)?)
    }
}

struct Flow<'f> {
    function: &'f Function,
}

impl Flow<'_> {
    fn operand(&self, state: &State, operand: Operand) -> Option<Value> {
        match operand {
            Operand::Register(register) => state.registers.get(register).copied(),
            Operand::Constant(constant) => self.constant(constant),
        }
    }

    fn constant(&self, index: usize) -> Option<Value> {
        Some(match self.function.constants.get(index)? {
            Constant::Text(_) => Value::Text(index),
            Constant::Other => Value::Other,
        })
    }

    fn text(&self, value: Value) -> Option<&[u8]> {
        match (value, self.function.constants.get(if let Value::Text(index) = value { index } else { usize::MAX })) {
            (Value::Text(_), Some(Constant::Text(text))) => Some(text),
            _ => None,
        }
    }

    /// Fails if a value would go out of sight.
    fn untracked(value: Value) -> Option<()> {
        (!value.is_tracked()).then_some(())
    }

    fn all_untracked(values: &[Value]) -> Option<()> {
        values.iter().try_for_each(|value| Self::untracked(*value))
    }

    /// An argument of a command.
    fn word(&self, value: Value) -> Word {
        match value {
            Value::Key => Word::Key,
            value => self.text(value).map_or(Word::Other, |text| Word::Text(text.into())),
        }
    }

    /// Applies an instruction to the state before it, and adds a call of a command to `calls`. Returns the instructions
    /// that may follow.
    fn step(&self, at: usize, state: &mut State, calls: Option<&mut Vec<CallSite>>) -> Option<[Option<Next>; 2]> {
        let code = *self.function.code.get(at)?;
        let (a, after) = (code.a(), next(at + 1));
        match code.operation() {
            MOVE => {
                let value = *state.registers.get(code.b())?;
                state.set(a, value)?;
            }
            LOADK => state.set(a, self.constant(code.bx())?)?,
            LOADBOOL => {
                state.set(a, Value::Other)?;
                if code.c() != 0 {
                    return Some([next(at + 2), None]);
                }
            }
            LOADNIL => (a..=code.b()).try_for_each(|register| state.set(register, Value::Other))?,
            GETUPVAL | NEWTABLE => state.set(a, Value::Other)?,
            GETGLOBAL => state.set(a, self.global(code.bx())?)?,
            GETTABLE => {
                let (table, index) = (*state.registers.get(code.b())?, self.operand(state, code.operand_c())?);
                state.set(a, self.field(table, index)?)?;
            }
            SETUPVAL => Self::untracked(*state.registers.get(a)?)?,
            SETTABLE => {
                Self::untracked(*state.registers.get(a)?)?;
                Self::untracked(self.operand(state, code.operand_b())?)?;
                Self::untracked(self.operand(state, code.operand_c())?)?;
            }
            SELF => {
                let object = *state.registers.get(code.b())?;
                Self::untracked(object)?;
                state.set(a + 1, object)?;
                state.set(a, Value::Other)?;
            }
            // Arithmetic and lengths have plain results.
            ADD..=LEN => state.set(a, Value::Other)?,
            CONCAT => {
                Self::all_untracked(state.registers.get(code.b()..=code.c())?)?;
                state.set(a, Value::Other)?;
            }
            JMP => return Some([Some(self.jump(at, code)?), None]),
            EQ..=TEST => return Some([after, next(at + 2)]),
            TESTSET => {
                let assigned = Some((a, *state.registers.get(code.b())?));
                return Some([Some(Next { at: at + 1, assigned }), next(at + 2)]);
            }
            CALL | TAILCALL => self.call(state, code, calls)?,
            RETURN => {
                Self::all_untracked(Self::list(state, a, code.b())?)?;
                return Some([None, None]);
            }
            FORLOOP => {
                state.set(a, Value::Other)?;
                return Some([after, Some(Next { assigned: Some((a + 3, Value::Other)), ..self.jump(at, code)? })]);
            }
            FORPREP => {
                state.set(a, Value::Other)?;
                return Some([Some(self.jump(at, code)?), None]);
            }
            TFORLOOP => {
                self.iterate(state, a)?;
                return Some([after, next(at + 2)]);
            }
            SETLIST => {
                Self::untracked(*state.registers.get(a)?)?;
                Self::all_untracked(Self::list(state, a + 1, if code.b() == 0 { 0 } else { code.b() + 1 })?)?;
                state.open = None;
                if code.c() == 0 {
                    return Some([next(at + 2), None]);
                }
            }
            // The registers from here on get other variables.
            CLOSE => state.captured.get_mut(a..)?.fill(false),
            CLOSURE => {
                let upvalues = self.function.functions.get(code.bx())?.upvalues;
                state.set(a, Value::Other)?;
                let words = self.function.code.get(at + 1..at + 1 + upvalues)?.iter();
                words.filter(|word| word.operation() == MOVE).try_for_each(|word| state.capture(word.b()))?;
                return Some([next(at + 1 + upvalues), None]);
            }
            VARARG if code.b() == 0 => state.open = Some((a, Rest::Other)),
            VARARG => (a..a + code.b() - 1).try_for_each(|register| state.set(register, Value::Other))?,
            // Stores into globals, which fail.
            _ => return None,
        }
        Some([after, None])
    }

    fn jump(&self, at: usize, code: Instruction) -> Option<Next> {
        next((at + 1).checked_add_signed(code.jump())?)
    }

    fn global(&self, name: usize) -> Option<Value> {
        let Constant::Text(name) = self.function.constants.get(name)? else { return None };
        Some(match &**name {
            b"KEYS" => Value::Keys,
            b"redis" | b"server" => Value::Redis,
            b"ipairs" => Value::Ipairs,
            b"unpack" => Value::Unpack,
            name if HARMLESS.contains(&name) => Value::Other,
            _ => return None,
        })
    }

    fn field(&self, table: Value, index: Value) -> Option<Value> {
        Self::untracked(index)?;
        match table {
            Value::Keys => Some(Value::Key),
            Value::Redis => match self.text(index)? {
                b"call" | b"pcall" => Some(Value::Call),
                _ => Some(Value::Other),
            },
            Value::Call | Value::Mixed => None,
            _ => Some(Value::Other),
        }
    }

    /// The values from register `from` on: `count` is one more than their number, or 0 for an open list.
    fn list(state: &State, from: usize, count: usize) -> Option<&[Value]> {
        let end = match count.checked_sub(1) {
            Some(count) => from + count,
            None => state.open?.0,
        };
        state.registers.get(from..end)
    }

    fn call(&self, state: &mut State, code: Instruction, calls: Option<&mut Vec<CallSite>>) -> Option<()> {
        let a = code.a();
        let callee = *state.registers.get(a)?;
        let arguments = Self::list(state, a + 1, code.b())?;
        let rest = if code.b() == 0 { state.open.map(|(_, rest)| rest) } else { None };
        let mut results: (Rest, &[Value]) = (Rest::Other, &[]);
        match callee {
            Value::Call => {
                Self::all_untracked(arguments)?;
                if let Some(calls) = calls {
                    calls.push(CallSite { words: arguments.iter().map(|value| self.word(*value)).collect(), rest });
                }
            }
            Value::Ipairs if rest.is_none() && arguments == [Value::Keys] => {
                results.1 = &[Value::Iterator, Value::Keys];
            }
            Value::Unpack if arguments.first() == Some(&Value::Keys) => {
                Self::all_untracked(&arguments[1..])?;
                results = (Rest::Keys, &[Value::Key; 8]);
            }
            callee => {
                Self::untracked(callee)?;
                Self::all_untracked(arguments)?;
            }
        }
        state.open = None;
        state.clobber(a)?;
        match code.c().checked_sub(1) {
            // A tail call has this form.
            None => state.open = Some((a, results.0)),
            Some(count) => {
                for (register, value) in (a..a + count).zip(results.1) {
                    state.set(register, *value)?;
                }
            }
        }
        Some(())
    }

    /// A step of `for ... in`, whose iterator, its state and its variable are in registers from `a` on.
    fn iterate(&self, state: &mut State, a: usize) -> Option<()> {
        let (iterator, over) = (*state.registers.get(a)?, *state.registers.get(a + 1)?);
        let is_over_keys = (iterator, over) == (Value::Iterator, Value::Keys);
        if !is_over_keys {
            Self::untracked(iterator)?;
            Self::untracked(over)?;
        }
        Self::untracked(*state.registers.get(a + 2)?)?;
        state.set(a + 2, Value::Other)?;
        state.clobber(a + 3)?;
        if is_over_keys {
            state.set(a + 4, Value::Key)?;
        }
        Some(())
    }
}
