//! The debugger: runs a script line by line for somebody who sits at a [`Console`].
//!
//! [`Debugger`] is one session: the script's source, the breakpoints, and what there is to tell. While a script runs in it,
//! Lua's hook asks [`at_line`] before every line. There the session stops if it is told to, and goes through the
//! [`commands`] that come until one lets the script go on. [`show`] makes text of values and replies.
//!
//! What is told is collected and sent when the session stops, when a command is done and when the script has ended: as
//! one array of simple strings each time, which is what debugging clients read.
//!
//! **What always holds**: who runs a script owns its session, and Lua's functions only borrow it for a moment, since what a
//! command of the debugger evaluates may come back to it. In [`at_line`] and below nothing with a destructor is held
//! while Lua may fail.

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

/// Who sits at a debugger.
pub trait Console {
    /// Sends them bytes.
    fn send(&mut self, bytes: &[u8]);

    /// Waits for what they send, and appends it.
    fn receive(&mut self, into: &mut Vec<u8>) -> Heard;
}

/// What came of waiting for input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// Input.
    Input,
    /// Nobody is there any more: the script goes on to its end.
    Nobody,
    /// The script is to end with this error.
    End(String),
}

/// The longest output of a command or a reply that is shown, unless `maxlen` says otherwise, in bytes.
const LEN_MAX: usize = 256;
/// What `maxlen` makes of less.
const LEN_MIN: usize = 60;
/// Bytes of one value that are shown at most, however long they may be.
const SHOWN_MAX: usize = 1 << 20;
/// Bytes of input that are held at most.
const INPUT_MAX: usize = 1 << 20;
/// Words of a command, and bytes of a word.
const WORDS_MAX: usize = 1024;
const WORD_LEN_MAX: usize = 1024;
/// Words of a command of the server that are shown.
const WORDS_SHOWN: usize = 10;
/// Breakpoints that may be set.
const BREAKPOINTS_MAX: usize = 64;

/// The chunks that it stops in.
const SCRIPT: &[u8] = b"@user_script";

/// A session.
pub struct Debugger {
    lines: Vec<Vec<u8>>,
    breakpoints: Vec<i32>,
    /// Stop at the next line.
    step: bool,
    /// Stop at the next line, as the script asked for it.
    break_next: bool,
    /// The line that runs.
    line: i32,
    /// Replies longer than this are cut; 0 for none.
    len_max: usize,
    /// Whether nobody needs to be told any more how to see all of a reply.
    hinted: bool,
    /// What there is to tell.
    messages: Vec<Vec<u8>>,
    /// Whether nobody is there any more.
    deserted: bool,
    input: Input,
    /// A message that is being put together.
    text: Vec<u8>,
    /// The code of an `eval`.
    code: Vec<u8>,
    /// What is being sent, and the reply of a command that the console asked for.
    reply: Vec<u8>,
}

/// What the console sent.
#[derive(Default)]
struct Input {
    parser: Parser,
    bytes: Vec<u8>,
    spans: Vec<Span>,
    big: Vec<Vec<u8>>,
    /// The words of the present command.
    words: Vec<Vec<u8>>,
}

/// Whether there is a command.
enum Read {
    Command,
    Incomplete,
    Broken,
}

impl Debugger {
    /// A session that stops at the first line of a script with this text.
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

    /// Ends the session: sends what there is to tell, and that this is the end.
    pub fn end(mut self, console: &mut dyn Console) {
        self.tell("<endsession>");
        console.send(self.take_messages());
    }

    fn tell(&mut self, message: impl Into<Vec<u8>>) {
        self.messages.push(message.into());
    }

    /// Begins a message that is put together in `text`.
    fn begin_text(&mut self, beginning: fmt::Arguments<'_>) {
        self.text.clear();
        // Vectors take whatever is written to them.
        let _ = self.text.write_fmt(beginning);
    }

    /// Tells a value or a reply, cut if it is too long.
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

    /// How much of a value need be made text.
    fn shown_max(&self) -> usize {
        if self.len_max == 0 { SHOWN_MAX } else { self.len_max.min(SHOWN_MAX) + 1 }
    }

    /// All that there is to tell, as a reply.
    fn take_messages(&mut self) -> &[u8] {
        let reply = &mut self.reply;
        reply.clear();
        // Vectors take whatever is written to them.
        let _ = write!(reply, "*{}\r\n", self.messages.len());
        for message in self.messages.drain(..) {
            reply.push(b'+');
            reply.extend(message.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
            reply.extend_from_slice(b"\r\n");
        }
        reply
    }

    /// Tells a line of the source.
    fn tell_line(&mut self, number: i32) {
        let text = usize::try_from(number - 1).ok().and_then(|index| self.lines.get(index));
        let text = text.map_or(&b"<out of range source code line>"[..], Vec::as_slice);
        let arrow = if number == self.line { "->" } else { "  " };
        let mark = if self.breakpoints.contains(&number) { '#' } else { ' ' };
        let message = [format!("{arrow}{mark}{number:<3} ").as_bytes(), text].concat();
        self.tell(message);
    }

    /// Tells the lines that are no more than `context` away from `around`.
    fn tell_lines(&mut self, around: i32, context: i32) {
        for number in (1..).take(self.lines.len()) {
            if around == 0 || i64::from(around - number).abs() <= i64::from(context) {
                self.tell_line(number);
            }
        }
    }

    /// Why to stop at the line that is about to run, if there is a reason.
    fn reason_to_stop(&self) -> Option<&'static str> {
        if self.break_next {
            Some("server.breakpoint() called")
        } else if self.breakpoints.contains(&self.line) {
            Some("break point")
        } else {
            self.step.then_some("step over")
        }
    }

    /// The script asked to stop at the next line.
    pub(crate) fn break_at_next(&mut self) {
        self.break_next = !self.deserted;
    }

    /// Whether the commands that the script calls are told.
    pub(crate) fn tells_calls(&self) -> bool {
        self.step
    }

    /// The script calls a command.
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

    /// A command that the script called was answered.
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

    /// Nobody is there any more: nothing stops the script.
    fn desert(&mut self) {
        self.deserted = true;
        self.step = false;
        self.break_next = false;
        self.breakpoints.clear();
    }
}

impl Input {
    /// Finds the next command in what has come.
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

/// Asked by the hook before a line runs.
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

/// Goes through commands until one lets the script go on.
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

/// Waits for a command; false if nobody is there to give one.
///
/// # Errors
///
/// The error that the script is to end with.
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

/// Sends what there is to tell.
fn send_messages(lua: Lua<'_>) {
    if let Some(debugger) = lua.debugger()
        && let Some(console) = lua.state().host().and_then(|host| host.console())
    {
        console.send(debugger.take_messages());
    }
}

/// `redis.debug(...)`: tells its arguments.
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
