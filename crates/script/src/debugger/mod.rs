//! The debugger: runs a script line by line for a user at a [`Console`].
//!
//! A [`Debugger`] is one session: the source of the script, the breakpoints, and the pending messages. While a script
//! runs in the session, Lua's hook calls [`at_line`] before every line. If the session stops there, it runs the
//! [`commands`] that the console sends until one of them continues the script. [`show`] formats values and replies as
//! text.
//!
//! Messages are collected and sent when the session stops, after each command, and at the end of the script, each time
//! as one array of simple strings, which is the format that debugging clients read.
//!
//! **Invariants**: the code that runs a script owns its session. Lua functions borrow the session only briefly, since
//! code that a debugger command evaluates may access it again. In [`at_line`] and below, no value with a destructor is
//! held while Lua may fail.

mod commands;
mod show;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::io::Write;

use kvick_resp::{Limits, Parsed, Parser, Span};

use crate::lua::{Lua, Raise};
use crate::run;
use commands::Outcome;

/// The user's end of a debugger session.
pub trait Console {
    /// Sends bytes to the user.
    fn send(&mut self, bytes: &[u8]);

    /// Waits for input and appends it.
    fn receive(&mut self, into: &mut Vec<u8>) -> Heard;
}

/// The result of waiting for input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// Input has arrived.
    Input,
    /// The user has disconnected: the script continues to its end.
    Nobody,
    /// The script must end with this error.
    End(String),
}

/// Default of `maxlen`: maximum bytes shown of a command's output or a reply.
const LEN_MAX: usize = 256;
/// Minimum of `maxlen`.
const LEN_MIN: usize = 60;
/// Maximum bytes shown of a value, regardless of `maxlen`.
const SHOWN_MAX: usize = 1 << 20;
/// Maximum bytes of buffered input.
const INPUT_MAX: usize = 1 << 20;
/// Maximum number of words per command, and of bytes per word.
const WORDS_MAX: usize = 1024;
const WORD_LEN_MAX: usize = 1024;
/// Maximum number of words shown of a server command.
const WORDS_SHOWN: usize = 10;
/// Maximum number of breakpoints.
const BREAKPOINTS_MAX: usize = 64;

/// The chunk name of the code in which it stops.
const SCRIPT: &[u8] = b"@user_script";

/// A debugger session.
pub struct Debugger {
    lines: Vec<Vec<u8>>,
    breakpoints: Vec<i32>,
    /// Stop at the next line.
    step: bool,
    /// Stop at the next line, because the script called `redis.breakpoint()`.
    break_next: bool,
    /// The current line.
    line: i32,
    /// Maximum length of shown replies (`maxlen`); 0 means unlimited.
    len_max: usize,
    /// Whether the hint about `maxlen` has been shown.
    hinted: bool,
    /// Pending messages.
    messages: Vec<Vec<u8>>,
    /// Whether the user has disconnected.
    deserted: bool,
    input: Input,
    /// Buffer for composing a message.
    text: Vec<u8>,
    /// The code of an `eval` command.
    code: Vec<u8>,
    /// Buffer for output, and for the reply of a command that the console runs.
    reply: Vec<u8>,
}

/// Input from the console.
#[derive(Default)]
struct Input {
    parser: Parser,
    bytes: Vec<u8>,
    spans: Vec<Span>,
    big: Vec<Vec<u8>>,
    /// The words of the current command.
    words: Vec<Vec<u8>>,
}

/// The result of reading a command.
enum Read {
    Command,
    Incomplete,
    Broken,
}

impl Debugger {
    /// A session for a script with this text. It stops at the first line.
    pub fn new(text: &[u8]) -> Debugger {
        let end = text.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
        Debugger {
            lines: text[..end].split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
            breakpoints: Vec::new(),
            step: true,
            break_next: false,
            line: -1,
            len_max: LEN_MAX,
            hinted: false,
            messages: Vec::new(),
            deserted: false,
            input: Input::default(),
            text: Vec::new(),
            code: Vec::new(),
            reply: Vec::new(),
        }
    }

    /// Ends the session: sends the pending messages and the end-of-session message.
    pub fn end(mut self, console: &mut dyn Console) {
        self.tell("<endsession>");
        console.send(self.take_messages());
    }

    fn tell(&mut self, message: impl Into<Vec<u8>>) {
        self.messages.push(message.into());
    }

    /// Starts a message, which is composed in `text`.
    fn begin_text(&mut self, beginning: fmt::Arguments<'_>) {
        self.text.clear();
        // Writing to a vector does not fail.
        let _ = self.text.write_fmt(beginning);
    }

    /// Adds a message with a value or a reply, truncated to `maxlen`.
    fn tell_cut(&mut self, mut message: Vec<u8>) {
        let is_cut = self.len_max > 0 && message.len() > self.len_max;
        if is_cut {
            message.truncate(self.len_max);
            message.extend_from_slice(b" ...");
        }
        self.tell(message);
        if is_cut && !std::mem::replace(&mut self.hinted, true) {
            self.tell("<hint> The above reply was trimmed. Use 'maxlen 0' to disable trimming.");
        }
    }

    /// Number of bytes to format of a value.
    fn shown_max(&self) -> usize {
        if self.len_max == 0 { SHOWN_MAX } else { self.len_max.min(SHOWN_MAX) + 1 }
    }

    /// The pending messages as a reply.
    fn take_messages(&mut self) -> &[u8] {
        let reply = &mut self.reply;
        reply.clear();
        // Writing to a vector does not fail.
        let _ = write!(reply, "*{}\r\n", self.messages.len());
        for message in self.messages.drain(..) {
            reply.push(b'+');
            reply.extend(message.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
            reply.extend_from_slice(b"\r\n");
        }
        reply
    }

    /// Adds a message with a line of the source.
    fn tell_line(&mut self, number: i32) {
        let text = usize::try_from(number - 1).ok().and_then(|index| self.lines.get(index));
        let text = text.map_or(&b"<out of range source code line>"[..], Vec::as_slice);
        let arrow = if number == self.line { "->" } else { "  " };
        let mark = if self.breakpoints.contains(&number) { '#' } else { ' ' };
        let message = [format!("{arrow}{mark}{number:<3} ").as_bytes(), text].concat();
        self.tell(message);
    }

    /// Adds messages with the lines within `context` lines of `around`.
    fn tell_lines(&mut self, around: i32, context: i32) {
        for number in (1..).take(self.lines.len()) {
            if around == 0 || i64::from(around - number).abs() <= i64::from(context) {
                self.tell_line(number);
            }
        }
    }

    /// The reason to stop at the line about to run, if any.
    fn reason_to_stop(&self) -> Option<&'static str> {
        if self.break_next {
            Some("server.breakpoint() called")
        } else if self.breakpoints.contains(&self.line) {
            Some("break point")
        } else {
            self.step.then_some("step over")
        }
    }

    /// Stops at the next line, at the request of the script.
    pub(crate) fn break_at_next(&mut self) {
        self.break_next = !self.deserted;
    }

    /// Whether to show the commands that the script calls.
    pub(crate) fn tells_calls(&self) -> bool {
        self.step
    }

    /// Adds a message about a command that the script calls.
    pub(crate) fn note_call(&mut self, request: &[&[u8]]) {
        let mut message = b"<command>".to_vec();
        for word in request.iter().take(WORDS_SHOWN) {
            message.push(b' ');
            message.extend_from_slice(word);
        }
        if request.len() > WORDS_SHOWN {
            let _ = write!(message, " ... ({} more)", request.len() - WORDS_SHOWN);
        }
        self.tell(message);
    }

    /// Adds a message about the reply to such a command.
    pub(crate) fn note_reply(&mut self, reply: &[u8]) {
        let mut message = b"<reply> ".to_vec();
        show::reply(reply, self.shown_max(), &mut message);
        self.tell_cut(message);
        if let Some(error) = reply.strip_prefix(b"-") {
            let line = error.split(|byte| *byte == b'\r').next().unwrap_or_default();
            let text = line.strip_prefix(b"ERR ").unwrap_or(line);
            self.tell([b"<error> ", text].concat());
        }
    }

    /// The user has disconnected: nothing stops the script any more.
    fn desert(&mut self) {
        self.deserted = true;
        self.step = false;
        self.break_next = false;
        self.breakpoints.clear();
    }
}

impl Input {
    /// Parses the next command in the input.
    fn next(&mut self) -> Read {
        let Input { parser, bytes, spans, big, words } = self;
        if bytes.first().is_some_and(|first| *first != b'*') && !parser.is_partial() {
            return Read::Broken;
        }
        let limits = Limits { bulk_len_max: WORD_LEN_MAX as u64, ..Limits::default() };
        let mut end = 0;
        let parsed = parser.parse(bytes, &mut end, spans, big, &limits);
        let read = match parsed {
            Parsed::Request => {
                let args = kvick_resp::Args::new(bytes, spans, big);
                *words = args.iter().map(<[u8]>::to_vec).collect();
                let is_fine = words.len() <= WORDS_MAX && words.iter().all(|word| !word.is_empty());
                if is_fine { Read::Command } else { Read::Broken }
            }
            Parsed::Incomplete if bytes.len() <= INPUT_MAX => Read::Incomplete,
            _ => Read::Broken,
        };
        bytes.drain(..end);
        spans.clear();
        big.clear();
        read
    }
}

/// Called by the hook before each line.
pub(crate) fn at_line(lua: Lua<'_>, line: i32) -> Result<(), Raise> {
    let Some(debugger) = lua.debugger() else { return Ok(()) };
    if lua.place(0).is_none_or(|place| place.source != SCRIPT) {
        return Ok(());
    }
    debugger.line = line;
    let Some(reason) = debugger.reason_to_stop() else { return Ok(()) };
    debugger.step = false;
    debugger.break_next = false;
    debugger.tell(format!("* Stopped at {line}, stop reason = {reason}"));
    debugger.tell_line(line);
    send_messages(lua);
    converse(lua)
}

/// Runs commands until one continues the script.
fn converse(lua: Lua<'_>) -> Result<(), Raise> {
    loop {
        match read_command(lua) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(text) => {
                lua.state().ending = Some(text);
                return run::may_go_on(lua);
            }
        }
        match commands::run(lua) {
            Outcome::Told => {
                send_messages(lua);
                if lua.state().ending.is_some() {
                    return run::may_go_on(lua);
                }
            }
            Outcome::GoOn => return Ok(()),
            Outcome::Abort => {
                lua.state().ending = Some("ERR script aborted for user request".to_string());
                return run::may_go_on(lua);
            }
        }
    }
}

/// Waits for a command; returns false if the user has disconnected.
///
/// # Errors
///
/// The error with which the script must end.
fn read_command(lua: Lua<'_>) -> Result<bool, String> {
    let Some(debugger) = lua.debugger() else { return Ok(false) };
    loop {
        if !debugger.input.bytes.is_empty() {
            match debugger.input.next() {
                Read::Command => return Ok(true),
                Read::Incomplete => {}
                Read::Broken => return Err("ERR protocol error".to_string()),
            }
        }
        let console = lua.state().host().and_then(|host| host.console());
        match console.map_or(Heard::Nobody, |console| console.receive(&mut debugger.input.bytes)) {
            Heard::Input => {}
            Heard::Nobody => {
                debugger.desert();
                return Ok(false);
            }
            Heard::End(text) => return Err(text),
        }
    }
}

/// Sends the pending messages.
fn send_messages(lua: Lua<'_>) {
    if let Some(debugger) = lua.debugger()
        && let Some(console) = lua.state().host().and_then(|host| host.console())
    {
        console.send(debugger.take_messages());
    }
}

/// `redis.debug(...)`: adds a message with its arguments.
pub(crate) fn debug(lua: Lua<'_>) {
    let Some(debugger) = lua.debugger() else { return };
    let line = debugger.line;
    debugger.begin_text(format_args!("<debug> line {line}: "));
    for n in 1..=lua.top() {
        if n > 1 {
            debugger.text.extend_from_slice(b", ");
        }
        show::value(lua, n, SHOWN_MAX, &mut debugger.text);
    }
    let message = std::mem::take(&mut debugger.text);
    debugger.tell(message);
}
