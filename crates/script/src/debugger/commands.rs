//! The commands of the debugger.

use kvick_resp::format::parse_i64;

use super::session::{BREAKPOINTS_MAX, Debugger, LEN_MIN, SCRIPT};
use super::show;
use crate::lua::{Failed, Lua, Type, c_text};

/// The next step after a command.
pub(super) enum Outcome {
    /// Send the messages and wait for the next command.
    Told,
    /// Continue the script.
    GoOn,
    /// End the script with an error.
    Abort,
}

/// The number of words allowed after the name of a command.
enum Words {
    UpTo(usize),
    AtLeastOne,
}

struct Command {
    /// Its full name.
    name: &'static str,
    /// Length of its abbreviation, the first letters of its name.
    short: usize,
    words: Words,
    /// Its arguments and description, for help; `None` hides it there.
    help: Option<(&'static str, &'static str)>,
    run: fn(Lua<'_>) -> Outcome,
}

const fn command(name: &'static str, short: usize, words: Words, run: fn(Lua<'_>) -> Outcome) -> Command {
    Command { name, short, words, help: None, run }
}

impl Command {
    const fn help(mut self, words: &'static str, does: &'static str) -> Command {
        self.help = Some((words, does));
        self
    }

    fn matches(&self, words: &[Vec<u8>]) -> bool {
        let Some((name, rest)) = words.split_first() else { return false };
        let is_named = name.eq_ignore_ascii_case(self.name.as_bytes())
            || (name.len() == self.short && name.eq_ignore_ascii_case(&self.name.as_bytes()[..self.short]));
        let fits = match self.words {
            Words::UpTo(most) => rest.len() <= most,
            Words::AtLeastOne => !rest.is_empty(),
        };
        is_named && fits
    }
}

const COMMANDS: &[Command] = &[
    command("help", 1, Words::UpTo(0), help).help("", "Tell what the commands are for."),
    command("maxlen", 3, Words::UpTo(1), maxlen).help(
        " [len]",
        "Cut replies and values that are longer than so many bytes, or none with 0. Without a number, tell after how \
         many they are cut.",
    ),
    command("step", 1, Words::UpTo(0), step).help("", "Run this line and stop at the next."),
    command("next", 1, Words::UpTo(0), step).help("", "The same as step."),
    command("continue", 1, Words::UpTo(0), |_| Outcome::GoOn).help("", "Run up to the next breakpoint."),
    command("list", 1, Words::UpTo(2), list).help(
        " [line] [ctx]",
        "Show the script around a line, or around this one, with so many lines before and after it, or five.",
    ),
    command("whole", 1, Words::UpTo(0), whole).help("", "Show the whole script."),
    command("print", 1, Words::UpTo(1), print)
        .help(" [var]", "Show a local variable, KEYS or ARGV. Without a name, show all local variables."),
    command("break", 1, Words::UpTo(1), breakpoint).help(
        " [line|-line]",
        "Have the script stop at a line, or not any more. Without a line, show where it stops; with 0, have it stop \
         nowhere.",
    ),
    command("trace", 1, Words::UpTo(0), trace).help("", "Show which functions are running."),
    command("eval", 1, Words::AtLeastOne, eval)
        .help(" <code>", "Run Lua code, which does not see the script's local variables."),
    command("valkey", 1, Words::AtLeastOne, server).help(" <cmd>", "Run a command of the server."),
    command("redis", 1, Words::AtLeastOne, server),
    command("server", 0, Words::AtLeastOne, server),
    command("abort", 1, Words::UpTo(0), |_| Outcome::Abort)
        .help("", "End the script. What it has written stays written in the synchronous mode."),
];

/// Runs the command that was read.
pub(super) fn run(lua: Lua<'_>) -> Outcome {
    let Some(debugger) = lua.debugger() else { return Outcome::GoOn };
    match COMMANDS.iter().find(|command| command.matches(&debugger.input.words)) {
        Some(command) => (command.run)(lua),
        None => {
            debugger.add_message("<error> Unknown debugger command or wrong number of arguments.");
            Outcome::Told
        }
    }
}

/// Runs a command that does not need Lua.
fn with(lua: Lua<'_>, run: impl FnOnce(&mut Debugger)) -> Outcome {
    if let Some(debugger) = lua.debugger() {
        run(debugger);
    }
    Outcome::Told
}

impl Debugger {
    /// The word at index `n`, where 0 is the command's name.
    fn word(&self, n: usize) -> Option<&[u8]> {
        self.input.words.get(n).map(Vec::as_slice)
    }
}

/// Parses the number at the start of a word; 0 if there is none.
fn leading_number(word: &[u8]) -> i32 {
    let signed = usize::from(matches!(word.first(), Some(b'-' | b'+')));
    let end = signed + word[signed..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = word[..end].strip_prefix(b"+").unwrap_or(&word[..end]);
    let number = str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    number.clamp(-1_000_000_000, 1_000_000_000) as i32
}

fn help(lua: Lua<'_>) -> Outcome {
    const NAMES_WIDTH: usize = 21;
    const WIDTH: usize = 70;
    with(lua, |debugger| {
        debugger.add_message("LUA debugger help:");
        for Command { name, short, help, .. } in COMMANDS {
            let Some((words, does)) = help else { continue };
            let mut left = format!("[{}]{}{words}", &name[..*short], &name[*short..]);
            let mut line = String::new();
            for word in does.split(' ') {
                if NAMES_WIDTH + line.len() + 1 + word.len() > WIDTH {
                    debugger.add_message(format!("{left:NAMES_WIDTH$}{line}"));
                    left.clear();
                    line.clear();
                }
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
            debugger.add_message(format!("{left:NAMES_WIDTH$}{line}"));
        }
    })
}

fn maxlen(lua: Lua<'_>) -> Outcome {
    with(lua, |debugger| {
        let Some(word) = debugger.word(1) else {
            return debugger.add_message(format!("Current maxlen is {}", debugger.len_max));
        };
        match parse_i64(word).and_then(|len| usize::try_from(len).ok()) {
            None => debugger.add_message("<error> Invalid maxlen value."),
            Some(len) => {
                debugger.hinted = true;
                debugger.len_max = if len == 0 { 0 } else { len.max(LEN_MIN) };
                debugger.add_message(match debugger.len_max {
                    0 => "<value> replies are not truncated.".to_string(),
                    len => format!("<value> replies are truncated at {len} bytes."),
                });
            }
        }
    })
}

fn step(lua: Lua<'_>) -> Outcome {
    with(lua, |debugger| debugger.step = true);
    Outcome::GoOn
}

fn list(lua: Lua<'_>) -> Outcome {
    with(lua, |debugger| {
        let around = debugger.word(1).map(leading_number).filter(|line| *line > 0).unwrap_or(debugger.line);
        let context = debugger.word(2).map_or(5, leading_number);
        debugger.add_source_lines(around, context);
    })
}

fn whole(lua: Lua<'_>) -> Outcome {
    with(lua, |debugger| debugger.add_source_lines(0, 0))
}

fn breakpoint(lua: Lua<'_>) -> Outcome {
    with(lua, |debugger| {
        let Some(word) = debugger.word(1) else { return debugger.list_breakpoints() };
        let Some(line) = parse_i64(word) else {
            let message = [b"Invalid argument:'", word, b"'"].concat();
            return debugger.add_message(message);
        };
        match line {
            0 => {
                debugger.breakpoints.clear();
                debugger.add_message("All breakpoints removed.");
            }
            1.. => debugger.set_breakpoint(line),
            _ => {
                let known = debugger.breakpoints.iter().position(|known| i64::from(*known) == line.saturating_neg());
                let removed = known.map(|index| debugger.breakpoints.remove(index));
                debugger.add_message(match removed {
                    Some(_) => "Breakpoint removed.",
                    None => "No breakpoint in the specified line.",
                });
            }
        }
    })
}

impl Debugger {
    fn list_breakpoints(&mut self) {
        if self.breakpoints.is_empty() {
            return self.add_message("No breakpoints set. Use 'b <line>' to add one.");
        }
        self.add_message(format!("{} breakpoints set:", self.breakpoints.len()));
        for line in self.breakpoints.clone() {
            self.add_source_line(line);
        }
    }

    fn set_breakpoint(&mut self, line: i64) {
        if self.breakpoints.len() == BREAKPOINTS_MAX {
            return self.add_message("Too many breakpoints set.");
        }
        let line = i32::try_from(line).ok().filter(|line| *line as usize <= self.lines.len());
        match line.filter(|line| !self.breakpoints.contains(line)) {
            Some(line) => {
                self.breakpoints.push(line);
                self.add_source_lines(line, 1);
            }
            None => self.add_message("Wrong line number."),
        }
    }

    /// Adds a message with the value on the top of the stack, after the text that is already in `text`.
    fn add_top_value(&mut self, lua: Lua<'_>) {
        let len_max = self.shown_max();
        show::value(lua, -1, len_max, &mut self.text);
        let message = std::mem::take(&mut self.text);
        self.add_truncated_message(message);
    }
}

fn print(lua: Lua<'_>) -> Outcome {
    let Some(debugger) = lua.debugger() else { return Outcome::GoOn };
    if debugger.word(1).is_none() {
        print_all(lua, debugger);
        return Outcome::Told;
    }
    if print_local(lua, debugger) {
        return Outcome::Told;
    }
    let global = match debugger.word(1) {
        Some(b"KEYS") => Some("return KEYS"),
        Some(b"ARGV") => Some("return ARGV"),
        _ => None,
    };
    match global {
        Some(code) => {
            debugger.code = code.into();
            evaluate(lua, "<value> ");
        }
        None => debugger.add_message("No such variable."),
    }
    Outcome::Told
}

/// Prints the requested local variable: the innermost one with that name in the innermost function that has it.
fn print_local(lua: Lua<'_>, debugger: &mut Debugger) -> bool {
    for level in 0.. {
        if lua.place(level).is_none() {
            return false;
        }
        let name = debugger.word(1).unwrap_or_default();
        let mut found = None;
        for n in 1.. {
            let Some(local) = lua.push_local(level, n) else { break };
            if local == name {
                found = Some(n);
            }
            lua.pop(1);
        }
        if let Some(n) = found
            && lua.push_local(level, n).is_some()
        {
            debugger.begin_text(format_args!("<value> "));
            debugger.add_top_value(lua);
            lua.pop(1);
            return true;
        }
    }
    false
}

/// Prints all local variables of the running function.
fn print_all(lua: Lua<'_>, debugger: &mut Debugger) {
    let mut any = false;
    for n in 1.. {
        let Some(name) = lua.push_local(0, n) else { break };
        if name != b"(*temporary)" {
            any = true;
            debugger.begin_text(format_args!("<value> "));
            debugger.text.extend_from_slice(name);
            debugger.text.extend_from_slice(b" = ");
            debugger.add_top_value(lua);
        }
        lua.pop(1);
    }
    if !any {
        debugger.add_message("No local variables in the current context.");
    }
}

fn trace(lua: Lua<'_>) -> Outcome {
    with(lua, |debugger| {
        for level in 0.. {
            let Some(place) = lua.place(level) else { break };
            if place.source == SCRIPT {
                let word: &[u8] = if level == 0 { b"In " } else { b"From " };
                debugger.add_message([word, place.name.unwrap_or(b"top level"), b":"].concat());
                debugger.add_source_line(place.line);
            }
        }
    })
}

fn eval(lua: Lua<'_>) -> Outcome {
    if let Some(debugger) = lua.debugger() {
        debugger.code = debugger.input.words[1..].join(&b' ');
        evaluate(lua, "<retval> ");
    }
    Outcome::Told
}

/// Runs the code, as an expression if possible, and adds a message with `label` and the result.
fn evaluate(lua: Lua<'_>, label: &str) {
    let compiled = {
        let Some(debugger) = lua.debugger() else { return };
        debugger.begin_text(format_args!("return "));
        debugger.text.extend_from_slice(&debugger.code);
        lua.push_bytes("@ldb_eval");
        lua.compile(&debugger.text).or_else(|Failed| {
            lua.pop(1);
            lua.compile(&debugger.code)
        })
    };
    let outcome = match compiled {
        // Breakpoints do not apply to its lines.
        Ok(()) => lua.call_apart().map_err(|Failed| "<error> "),
        Err(Failed) => Err("Error compiling code: "),
    };
    if outcome.is_err() && lua.kind(-1) == Type::Table {
        lua.raw_get_field(-1, "err");
        lua.replace(-2);
    }
    if let Some(debugger) = lua.debugger() {
        match outcome {
            Ok(()) => {
                debugger.begin_text(format_args!("{label}"));
                debugger.add_top_value(lua);
            }
            Err(label) => {
                let text = c_text(lua.bytes(-1).unwrap_or_default());
                debugger.add_message([label.as_bytes(), text].concat());
            }
        }
    }
    lua.pop(2);
}

/// Runs a command of the server as if the script called it.
fn server(lua: Lua<'_>) -> Outcome {
    with(lua, |debugger| {
        let words = std::mem::take(&mut debugger.input.words);
        let words: Vec<&[u8]> = words[1..].iter().map(Vec::as_slice).collect();
        debugger.note_call(&words);
        let mut reply = std::mem::take(&mut debugger.reply);
        reply.clear();
        let state = lua.state();
        let version = state.version;
        if let Some(host) = state.host() {
            host.call(&words, version, &mut reply);
        }
        debugger.note_reply(&reply);
        debugger.reply = reply;
    })
}
