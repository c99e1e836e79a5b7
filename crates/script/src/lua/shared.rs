//! What belongs to a state beside Lua's own: its memory, who it runs for, and the buffers of functions that hold nothing.

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;
use std::slice;
use std::time::Instant;

use kvick_resp::Version;
use mlua::ffi;

use super::Foreign;
use super::heap::Heap;
use crate::Host;
use crate::debugger::Debugger;
use crate::library::FunctionSpec;
use crate::libs::Random;

/// What a state has beside Lua's own. Its address does not change.
pub(super) struct Shared {
    pub(super) heap: Heap,
    pub(super) state: UnsafeCell<State>,
    pub(super) main: Cell<Option<NonNull<ffi::lua_State>>>,
}

impl Shared {
    pub(super) fn new(state: State) -> Shared {
        Shared { heap: Heap::new(), state: UnsafeCell::new(state), main: Cell::new(None) }
    }
}

/// What functions of this crate find when Lua calls them.
pub(crate) struct State {
    /// Who what runs speaks to; none while a library is loaded.
    host: Option<NonNull<dyn Host>>,
    /// The session of the debugger that the script runs in.
    pub(super) debugger: Option<NonNull<Debugger>>,
    /// The protocol version in which what runs wants replies.
    pub(crate) version: Version,
    /// The error with which what runs must end, once the host said so.
    pub(crate) ending: Option<String>,
    /// The library that is being loaded.
    pub(crate) loading: Option<Loading>,
    /// The generator behind `math.random`.
    pub(crate) random: Random,
    /// The functions of the standard library that ours stand in for.
    pub(crate) originals: Option<Originals>,
    /// The request of a command that what runs calls.
    pub(crate) request: Request,
    /// A command's reply.
    pub(crate) reply: Vec<u8>,
    /// What the libraries write.
    pub(crate) text: Vec<u8>,
    /// The nested values that a library is in.
    pub(crate) levels: Vec<Level>,
    /// A message.
    pub(crate) message: Message,
}

/// The library that is being loaded.
pub(crate) struct Loading {
    /// What it registered so far.
    pub(crate) functions: Vec<FunctionSpec>,
    /// When it must be done.
    pub(crate) deadline: Option<Instant>,
}

/// An array or an object that a library is reading or writing: nesting is followed on a list, since how deep it may be
/// is for Lua's stack to say, which allows more than a thread's does.
#[derive(Clone, Copy)]
pub(crate) struct Level {
    /// Whether it has keys.
    pub(crate) keyed: bool,
    /// How many items, or pairs, were done.
    pub(crate) done: usize,
    /// How many there are, if that is known.
    pub(crate) len: usize,
}

/// The functions of the standard library that ours stand in for: those that would see that protected tables are not
/// what they seem, and those that must not be given everything.
#[derive(Clone, Copy)]
pub(crate) struct Originals {
    pub(crate) get_metatable: Foreign,
    pub(crate) set_metatable: Foreign,
    pub(crate) raw_get: Foreign,
    pub(crate) raw_set: Foreign,
    pub(crate) next: Foreign,
    pub(crate) table_insert: Foreign,
    pub(crate) table_foreach: Foreign,
    pub(crate) string_find: Foreign,
    pub(crate) string_match: Foreign,
    pub(crate) string_gmatch: Foreign,
    pub(crate) string_gsub: Foreign,
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
            reply: Vec::new(),
            text: Vec::new(),
            levels: Vec::new(),
            message: Message::default(),
        }
    }

    /// Speaks to `host` from now on, until [`dismiss`](Self::dismiss), which the caller does before `host` is used by
    /// anybody else.
    pub(crate) fn engage(&mut self, host: &mut dyn Host) {
        let host = NonNull::from(host);
        // SAFETY: only the lifetime changes, and `host` is let go before its own ends.
        self.host = Some(unsafe { std::mem::transmute::<NonNull<dyn Host + '_>, NonNull<dyn Host>>(host) });
    }

    /// Has a script run in a session of the debugger, until [`dismiss`](Self::dismiss), which the caller does before it
    /// uses the session again.
    pub(crate) fn engage_debugger(&mut self, debugger: &mut Debugger) {
        self.debugger = Some(NonNull::from(debugger));
    }

    /// Speaks to nobody.
    pub(crate) fn dismiss(&mut self) {
        self.host = None;
        self.debugger = None;
    }

    /// Who what runs speaks to.
    pub(crate) fn host(&mut self) -> Option<&mut dyn Host> {
        // SAFETY: it is alive and ours alone between `engage` and `dismiss`.
        self.host.map(|mut host| unsafe { host.as_mut() })
    }

    /// Has the host run the request, and its reply in [`reply`](Self::reply). Does nothing without a host.
    pub(crate) fn call_host(&mut self) {
        self.reply.clear();
        let Some(mut host) = self.host else { return };
        let request = self.request.arguments();
        // SAFETY: as in `Lua::debugger`; no function of its own is running.
        let debugger = self.debugger.map(|mut debugger| unsafe { debugger.as_mut() });
        let mut told_by = debugger.filter(|debugger| debugger.tells_calls());
        if let Some(debugger) = &mut told_by {
            debugger.note_call(request);
        }
        // SAFETY: as in `host`.
        unsafe { host.as_mut() }.call(request, self.version, &mut self.reply);
        if let Some(debugger) = told_by {
            debugger.note_reply(&self.reply);
        }
    }

    /// Asks the host whether its user may run the request.
    pub(crate) fn ask_host(&mut self) -> Option<bool> {
        let mut host = self.host?;
        // SAFETY: as in `host`.
        unsafe { host.as_mut() }.may_call(self.request.arguments())
    }
}

/// The arguments of a command. They lie on the stack of the function that calls it, but numbers, which are written here.
#[derive(Default)]
pub(crate) struct Request {
    arguments: Vec<Argument>,
    digits: Vec<u8>,
    borrowed: Vec<&'static [u8]>,
}

/// Where an argument lies.
enum Argument {
    /// On the stack.
    Stack(NonNull<u8>, usize),
    /// In the digits up to there, from where the one before it ends.
    Digits(usize, usize),
}

impl Request {
    /// Forgets all arguments.
    pub(crate) fn clear(&mut self) {
        self.arguments.clear();
        self.digits.clear();
        self.borrowed.clear();
    }

    /// Adds an argument that stays on the stack until the command has run.
    #[inline]
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.arguments.push(Argument::Stack(NonNull::from(bytes).cast(), bytes.len()));
    }

    /// Adds an argument that `write` appends.
    #[inline]
    pub(crate) fn push_written(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.digits.len();
        write(&mut self.digits);
        self.arguments.push(Argument::Digits(start, self.digits.len()));
    }

    /// All arguments. They are gone with the next [`clear`](Self::clear).
    fn arguments(&mut self) -> &[&[u8]] {
        let Request { arguments, digits, borrowed } = self;
        borrowed.clear();
        borrowed.extend(arguments.iter().map(|argument| match *argument {
            // SAFETY: the bytes are on the stack while the command runs, and nobody uses them after.
            Argument::Stack(bytes, len) => unsafe { slice::from_raw_parts(bytes.as_ptr(), len) },
            // SAFETY: the range was written, and the digits do not change before they are cleared, with `borrowed`.
            Argument::Digits(start, end) => unsafe { slice::from_raw_parts(digits.as_ptr().add(start), end - start) },
        }));
        borrowed
    }
}

/// A buffer that text is formatted into.
#[derive(Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// Makes it empty.
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
