//! The Rust data of a Lua state: its memory accounting, its host, and the buffers of Rust functions.

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;
use std::slice;
use std::time::Instant;

use kvick_resp::Version;
use mlua::ffi;

use super::heap::Heap;
use super::{Lua, NativeFunction, Raise};
use crate::Host;
use crate::debugger::session::Debugger;
use crate::library::spec::FunctionSpec;
use crate::libs::patterns::Choice;
use crate::random::Random;

/// The Rust data of a Lua state. Its address does not change.
pub(super) struct Shared {
    pub(super) heap: Heap,
    pub(super) state: UnsafeCell<State>,
    pub(super) main: Cell<Option<NonNull<ffi::lua_State>>>,
    pub(super) hooks: Hooks,
}

/// The functions that Lua's hook calls. An error ends the script.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    /// Called before each line that is debugged, with its number.
    pub(crate) at_line: fn(Lua<'_>, i32) -> Result<(), Raise>,
    /// Called periodically: whether the script may continue.
    pub(crate) check_interrupt: fn(Lua<'_>) -> Result<(), Raise>,
}

impl Shared {
    pub(super) fn new(state: State, hooks: Hooks) -> Shared {
        Shared { heap: Heap::new(), state: UnsafeCell::new(state), main: Cell::new(None), hooks }
    }
}

/// The data of Rust functions that Lua calls.
pub(crate) struct State {
    /// The host of the running script; `None` while a library is loaded.
    host: Option<NonNull<dyn Host>>,
    /// The debugger session that the script runs in.
    pub(super) debugger: Option<NonNull<Debugger>>,
    /// The protocol version of command replies, as selected by the script.
    pub(crate) version: Version,
    /// The error with which the script must end, once the host has requested it.
    pub(crate) ending: Option<String>,
    /// The library that is being loaded.
    pub(crate) loading: Option<Loading>,
    /// The generator behind `math.random`.
    pub(crate) random: Random,
    /// The functions of the standard library that Rust functions replace.
    pub(crate) originals: Option<Originals>,
    /// The request of a command that the script calls.
    pub(crate) request: Request,
    /// The reply of a command.
    pub(crate) reply: Vec<u8>,
    /// Output buffer of the libraries.
    pub(crate) text: Vec<u8>,
    /// The nesting levels of the value that a library is processing.
    pub(crate) levels: Vec<Level>,
    /// The choices of the search that is running.
    pub(crate) choices: Vec<Choice>,
    /// Buffer for messages.
    pub(crate) message: Message,
}

/// The library that is being loaded.
pub(crate) struct Loading {
    /// The functions registered so far.
    pub(crate) functions: Vec<FunctionSpec>,
    /// The time limit for loading.
    pub(crate) deadline: Option<Instant>,
}

impl Loading {
    /// Whether the deadline has passed.
    pub(crate) fn is_past_deadline(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() > deadline)
    }
}

/// An array or object that a library is reading or writing. Nesting is tracked in a list: Lua's stack limits it, and it
/// allows deeper nesting than the thread's stack.
#[derive(Clone, Copy)]
pub(crate) struct Level {
    /// Whether it has keys.
    pub(crate) keyed: bool,
    /// Number of items, or pairs, processed.
    pub(crate) done: usize,
    /// Their total number, if known.
    pub(crate) len: usize,
}

/// The functions of the standard library that Rust functions replace: those that would reveal protected tables.
#[derive(Clone, Copy)]
pub(crate) struct Originals {
    pub(crate) get_metatable: NativeFunction,
    pub(crate) set_metatable: NativeFunction,
    pub(crate) raw_get: NativeFunction,
    pub(crate) raw_set: NativeFunction,
    pub(crate) next: NativeFunction,
    pub(crate) table_insert: NativeFunction,
    pub(crate) table_foreach: NativeFunction,
}

impl State {
    pub(crate) fn new() -> State {
        State {
            host: None,
            debugger: None,
            version: Version::Resp2,
            ending: None,
            loading: None,
            random: Random::default(),
            originals: None,
            request: Request::default(),
            reply: Vec::with_capacity(BUFFER_MIN),
            text: Vec::with_capacity(BUFFER_MIN),
            levels: Vec::new(),
            choices: Vec::new(),
            message: Message::default(),
        }
    }

    /// Sets the host, until [`clear_host`](Self::clear_host), which the caller must call before
    /// `host` is used otherwise.
    pub(crate) fn set_host(&mut self, host: &mut dyn Host) {
        let host = NonNull::from(host);
        // SAFETY: only the lifetime changes, and `host` is released before its own lifetime ends.
        self.host = Some(unsafe { std::mem::transmute::<NonNull<dyn Host + '_>, NonNull<dyn Host>>(host) });
    }

    /// Sets the debugger session, until [`clear_host`](Self::clear_host), which the caller must call before it uses the
    /// session again.
    pub(crate) fn set_debugger(&mut self, debugger: &mut Debugger) {
        self.debugger = Some(NonNull::from(debugger));
    }

    /// Removes the host and the debugger session.
    pub(crate) fn clear_host(&mut self) {
        self.host = None;
        self.debugger = None;
    }

    /// The current host.
    pub(crate) fn host(&mut self) -> Option<&mut dyn Host> {
        // SAFETY: it is alive and exclusively borrowed between `set_host` and `clear_host`.
        self.host.map(|mut host| unsafe { host.as_mut() })
    }

    /// Runs the request on the host, and stores its reply in [`reply`](Self::reply). Does nothing without a host.
    pub(crate) fn call_host(&mut self) {
        self.reply.clear();
        let Some(mut host) = self.host else { return };
        let request = self.request.arguments();
        // SAFETY: as in `Lua::debugger`; none of the session's own functions is running.
        let debugger = self.debugger.map(|mut debugger| unsafe { debugger.as_mut() });
        let mut call_observer = debugger.filter(|debugger| debugger.shows_calls());
        if let Some(debugger) = &mut call_observer {
            debugger.note_call(request);
        }
        // SAFETY: as in `host`.
        unsafe { host.as_mut() }.call(request, self.version, &mut self.reply);
        if let Some(debugger) = call_observer {
            debugger.note_reply(&self.reply);
        }
    }

    /// Asks the host whether the current user may run the request.
    pub(crate) fn check_permission(&mut self) -> Option<bool> {
        let mut host = self.host?;
        // SAFETY: as in `host`.
        unsafe { host.as_mut() }.may_call(self.request.arguments())
    }
}

/// The least capacity of buffers that are often written: several cache lines, so that they share none with the buffers
/// of other threads.
const BUFFER_MIN: usize = 256;

/// The arguments of a command. Strings remain on the stack of the calling function; numbers are formatted here.
pub(crate) struct Request {
    arguments: Vec<Argument>,
    digits: Vec<u8>,
    borrowed: Vec<&'static [u8]>,
}

impl Default for Request {
    fn default() -> Request {
        let (arguments, borrowed) = (Vec::with_capacity(BUFFER_MIN / 16), Vec::with_capacity(BUFFER_MIN / 16));
        Request { arguments, digits: Vec::with_capacity(BUFFER_MIN), borrowed }
    }
}

/// The location of an argument.
enum Argument {
    /// On the stack.
    Stack(NonNull<u8>, usize),
    /// In `digits`: start and end.
    Digits(usize, usize),
}

impl Request {
    /// Removes all arguments.
    pub(crate) fn clear(&mut self) {
        self.arguments.clear();
        self.digits.clear();
        self.borrowed.clear();
    }

    /// Adds an argument that remains on the stack until the command has run.
    #[inline]
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.arguments.push(Argument::Stack(NonNull::from(bytes).cast(), bytes.len()));
    }

    /// Adds an argument that `write` appends.
    #[inline]
    pub(crate) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.digits.len();
        write(&mut self.digits);
        self.arguments.push(Argument::Digits(start, self.digits.len()));
    }

    /// All arguments. The slice is invalid after the next [`clear`](Self::clear).
    fn arguments(&mut self) -> &[&[u8]] {
        let Request { arguments, digits, borrowed } = self;
        borrowed.clear();
        borrowed.extend(arguments.iter().map(|argument| match *argument {
            // SAFETY: the bytes are on the stack while the command runs, and are not used after that.
            Argument::Stack(bytes, len) => unsafe { slice::from_raw_parts(bytes.as_ptr(), len) },
            // SAFETY: the range was written, and the digits do not change before they are cleared together with
            // `borrowed`.
            Argument::Digits(start, end) => unsafe { slice::from_raw_parts(digits.as_ptr().add(start), end - start) },
        }));
        borrowed
    }
}

/// A buffer for formatting text.
#[derive(Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// Clears the buffer.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl std::fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
