//! The state of a debugger session: source, breakpoints, pending messages and input. Independent of Lua.

use std::fmt;
use std::io::Write;

use kvick_resp::{Limits, Parsed, Parser, Span};

use super::console::Console;
use super::show_reply;

/// Default of `maxlen`: maximum bytes shown of a command's output or a reply.
const LEN_MAX: usize = 256;
/// Minimum of `maxlen`.
pub(super) const LEN_MIN: usize = 60;
/// Maximum bytes shown of a value, regardless of `maxlen`.
pub(super) const SHOWN_MAX: usize = 1 << 20;
/// Maximum bytes of buffered input.
const INPUT_MAX: usize = 1 << 20;
/// Maximum number of words per command, and of bytes per word.
const WORDS_MAX: usize = 1024;
const WORD_LEN_MAX: usize = 1024;
/// Maximum number of words shown of a server command.
const WORDS_SHOWN: usize = 10;
/// Maximum number of breakpoints.
pub(super) const BREAKPOINTS_MAX: usize = 64;

/// The chunk name of the code in which it stops.
pub(super) const SCRIPT: &[u8] = b"@user_script";

/// A debugger session.
pub struct Debugger {
    pub(super) lines: Vec<Vec<u8>>,
    pub(super) breakpoints: Vec<i32>,
    /// Stop at the next line.
    pub(super) step: bool,
    /// Stop at the next line, because the script called `redis.breakpoint()`.
    pub(super) break_next: bool,
    /// The current line.
    pub(super) line: i32,
    /// Maximum length of shown replies (`maxlen`); 0 means unlimited.
    pub(super) len_max: usize,
    /// Whether the hint about `maxlen` has been shown.
    pub(super) hinted: bool,
    /// Pending messages.
    pub(super) messages: Vec<Vec<u8>>,
    /// Whether the user has disconnected.
    pub(super) detached: bool,
    pub(super) input: Input,
    /// Buffer for composing a message.
    pub(super) text: Vec<u8>,
    /// The code of an `eval` command.
    pub(super) code: Vec<u8>,
    /// Buffer for output, and for the reply of a command that the console runs.
    pub(super) reply: Vec<u8>,
}

/// Input from the console.
#[derive(Default)]
pub(super) struct Input {
    parser: Parser,
    pub(super) bytes: Vec<u8>,
    spans: Vec<Span>,
    big: Vec<kvick_resp::SharedBytes>,
    /// The words of the current command.
    pub(super) words: Vec<Vec<u8>>,
}

/// The result of reading a command.
pub(super) enum Read {
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
            detached: false,
            input: Input::default(),
            text: Vec::new(),
            code: Vec::new(),
            reply: Vec::new(),
        }
    }

    /// Ends the session: sends the pending messages and the end-of-session message.
    pub fn end(mut self, console: &mut dyn Console) {
        self.add_message("<endsession>");
        console.send(self.take_messages());
    }

    pub(super) fn add_message(&mut self, message: impl Into<Vec<u8>>) {
        self.messages.push(message.into());
    }

    /// Starts a message, which is composed in `text`.
    pub(super) fn begin_text(&mut self, beginning: fmt::Arguments<'_>) {
        self.text.clear();
        // Writing to a vector does not fail.
        let _ = self.text.write_fmt(beginning);
    }

    /// Adds a message with a value or a reply, truncated to `maxlen`.
    pub(super) fn add_truncated_message(&mut self, mut message: Vec<u8>) {
        let is_cut = self.len_max > 0 && message.len() > self.len_max;
        if is_cut {
            message.truncate(self.len_max);
            message.extend_from_slice(b" ...");
        }
        self.add_message(message);
        if is_cut && !std::mem::replace(&mut self.hinted, true) {
            self.add_message("<hint> The above reply was trimmed. Use 'maxlen 0' to disable trimming.");
        }
    }

    /// Number of bytes to format of a value.
    pub(super) fn shown_max(&self) -> usize {
        if self.len_max == 0 { SHOWN_MAX } else { self.len_max.min(SHOWN_MAX) + 1 }
    }

    /// The pending messages as a reply.
    pub(super) fn take_messages(&mut self) -> &[u8] {
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
    pub(super) fn add_source_line(&mut self, number: i32) {
        let text = usize::try_from(number - 1).ok().and_then(|index| self.lines.get(index));
        let text = text.map_or(&b"<out of range source code line>"[..], Vec::as_slice);
        let arrow = if number == self.line { "->" } else { "  " };
        let mark = if self.breakpoints.contains(&number) { '#' } else { ' ' };
        let message = [format!("{arrow}{mark}{number:<3} ").as_bytes(), text].concat();
        self.add_message(message);
    }

    /// Adds messages with the lines within `context` lines of `around`.
    pub(super) fn add_source_lines(&mut self, around: i32, context: i32) {
        for number in (1..).take(self.lines.len()) {
            if around == 0 || i64::from(around - number).abs() <= i64::from(context) {
                self.add_source_line(number);
            }
        }
    }

    /// The reason to stop at the line about to run, if any.
    pub(super) fn reason_to_stop(&self) -> Option<&'static str> {
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
        self.break_next = !self.detached;
    }

    /// Whether to show the commands that the script calls.
    pub(crate) fn shows_calls(&self) -> bool {
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
        self.add_message(message);
    }

    /// Adds a message about the reply to such a command.
    pub(crate) fn note_reply(&mut self, reply: &[u8]) {
        let mut message = b"<reply> ".to_vec();
        show_reply::reply(reply, self.shown_max(), &mut message);
        self.add_truncated_message(message);
        if let Some(error) = reply.strip_prefix(b"-") {
            let line = error.split(|byte| *byte == b'\r').next().unwrap_or_default();
            let text = line.strip_prefix(b"ERR ").unwrap_or(line);
            self.add_message([b"<error> ", text].concat());
        }
    }

    /// The user has disconnected: nothing stops the script any more.
    pub(super) fn detach(&mut self) {
        self.detached = true;
        self.step = false;
        self.break_next = false;
        self.breakpoints.clear();
    }
}

impl Input {
    /// Parses the next command in the input.
    pub(super) fn next(&mut self) -> Read {
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
                let is_valid = words.len() <= WORDS_MAX && words.iter().all(|word| !word.is_empty());
                if is_valid { Read::Command } else { Read::Broken }
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
