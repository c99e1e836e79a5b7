//! Finds matches of Lua patterns: a search that can pause, and whose stack is a list.
//!
//! A pattern item with a repetition can match in several ways, and the number of combinations grows exponentially with
//! the number of such items. A search therefore pauses after some number of steps, and continues when it is called
//! again. The list of choices that could still be made differently has at most one entry per item of the pattern.

use std::ops::Range;

/// Maximum number of captures of a pattern.
const CAPTURES_MAX: usize = 32;

/// Steps until a search pauses. As many instructions lie between two checks whether a script may continue.
const STEPS: usize = 100_000;

const ESCAPE: u8 = b'%';

/// A search for a pattern in a text.
pub(super) struct Matcher<'a> {
    text: &'a [u8],
    /// Ends at the first NUL byte, as for Lua's own matcher.
    pattern: &'a [u8],
    /// Whether a match must begin where the search begins.
    is_anchored: bool,
    captures: [Capture; CAPTURES_MAX],
    captures_len: usize,
    /// Where in the text the current attempt began.
    start: usize,
    /// The next position in the text.
    at: usize,
    /// The next position in the pattern.
    item: usize,
    steps_left: usize,
}

/// A capture.
#[derive(Clone, Copy)]
pub(super) struct Capture {
    /// Where it begins in the text.
    pub(super) start: usize,
    pub(super) extent: Extent,
}

/// What a capture contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extent {
    /// Its end has not been found yet.
    Open,
    /// The position of its start.
    Position,
    /// This many bytes.
    Bytes(usize),
}

/// What a search has come to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// The next match.
    Found(Range<usize>),
    /// There is no further match.
    Missing,
    /// The search has to be continued.
    Paused,
}

/// The pattern is malformed; the text of the error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Malformed(pub(super) &'static str);

/// Something to undo, and perhaps to do in another way, if the rest of the pattern does not match.
pub(crate) enum Choice {
    /// A greedy repetition ended at `at`, and may end earlier, down to `min`. The pattern continues at `item`.
    Fewer { min: usize, at: usize, item: usize },
    /// A lazy repetition of the item up to `end` ended at `at`, and may go on.
    More { at: usize, item: usize, end: usize },
    /// An optional item may match nothing at `at`. The pattern continues at `item`.
    Nothing { at: usize, item: usize },
    /// A capture was opened.
    Opened,
    /// This capture was closed.
    Closed(usize),
}

/// What follows from one item of the pattern.
enum Step {
    Continue,
    Failed,
    Complete,
}

impl<'a> Matcher<'a> {
    /// A search that has not begun. In an anchored pattern, the anchor has been removed.
    pub(super) fn new(text: &'a [u8], pattern: &'a [u8], is_anchored: bool) -> Self {
        Matcher {
            text,
            pattern,
            is_anchored,
            captures: [Capture { start: 0, extent: Extent::Open }; CAPTURES_MAX],
            captures_len: 0,
            start: 0,
            at: 0,
            item: 0,
            steps_left: STEPS,
        }
    }

    /// The captures of the match.
    pub(super) fn captures(&self) -> &[Capture] {
        &self.captures[..self.captures_len]
    }

    /// The text that is searched.
    pub(super) fn text(&self) -> &'a [u8] {
        self.text
    }

    /// Begins a search at a position of the text.
    pub(super) fn begin(&mut self, start: usize, choices: &mut Vec<Choice>) {
        (self.start, self.at, self.item, self.captures_len) = (start, start, 0, 0);
        choices.clear();
    }

    /// Searches, or continues a search that has paused with the same `choices`.
    pub(super) fn search(&mut self, choices: &mut Vec<Choice>) -> Result<Progress, Malformed> {
        loop {
            if self.steps_left == 0 {
                self.steps_left = STEPS;
                return Ok(Progress::Paused);
            }
            self.count_steps(1);
            match self.step(choices)? {
                Step::Continue => {}
                Step::Complete => return Ok(Progress::Found(self.start..self.at)),
                Step::Failed if self.backtrack(choices) => {}
                Step::Failed if self.is_anchored || self.start >= self.text.len() => return Ok(Progress::Missing),
                Step::Failed => self.begin(self.start + 1, choices),
            }
        }
    }

    fn count_steps(&mut self, n: usize) {
        self.steps_left = self.steps_left.saturating_sub(n);
    }

    /// The byte of the pattern at `item`; 0 at its end.
    fn symbol(&self, item: usize) -> u8 {
        self.pattern.get(item).copied().unwrap_or(0)
    }

    /// Whether the byte of the text at `at` exists and matches the item up to `end`.
    fn matches_at(&self, at: usize, item: usize, end: usize) -> bool {
        self.text.get(at).is_some_and(|byte| self.matches_one(*byte, item, end))
    }

    fn matches_one(&self, byte: u8, item: usize, end: usize) -> bool {
        match self.symbol(item) {
            b'.' => true,
            ESCAPE => is_in_class(byte, self.symbol(item + 1)),
            b'[' => is_in_set(byte, &self.pattern[item + 1..end - 1]),
            literal => literal == byte,
        }
    }

    /// Matches the next item of the pattern.
    fn step(&mut self, choices: &mut Vec<Choice>) -> Result<Step, Malformed> {
        match self.symbol(self.item) {
            b'(' => self.open_capture(choices),
            b')' => self.close_capture(choices),
            0 => Ok(Step::Complete),
            b'$' if self.item + 1 == self.pattern.len() => {
                Ok(if self.at == self.text.len() { Step::Complete } else { Step::Failed })
            }
            ESCAPE => match self.symbol(self.item + 1) {
                b'b' => self.match_balanced(),
                b'f' => self.match_frontier(),
                digit @ b'0'..=b'9' => self.match_capture(digit),
                _ => self.match_item(choices),
            },
            _ => self.match_item(choices),
        }
    }

    /// Returns to the last choice that can be made differently, if there is one.
    fn backtrack(&mut self, choices: &mut Vec<Choice>) -> bool {
        while let Some(choice) = choices.last_mut() {
            match choice {
                Choice::Fewer { min, at, item } if *at > *min => {
                    *at -= 1;
                    (self.at, self.item) = (*at, *item);
                    return true;
                }
                Choice::More { at, item, end } if self.matches_at(*at, *item, *end) => {
                    *at += 1;
                    (self.at, self.item) = (*at, *end + 1);
                    return true;
                }
                Choice::Nothing { at, item } => {
                    (self.at, self.item) = (*at, *item);
                    choices.pop();
                    return true;
                }
                Choice::Fewer { .. } | Choice::More { .. } => {}
                Choice::Opened => self.captures_len -= 1,
                Choice::Closed(n) => self.captures[*n].extent = Extent::Open,
            }
            choices.pop();
        }
        false
    }

    /// Matches an item that stands for one byte, with its repetition.
    fn match_item(&mut self, choices: &mut Vec<Choice>) -> Result<Step, Malformed> {
        let (at, item) = (self.at, self.item);
        let end = self.item_end(item)?;
        let suffix = self.symbol(end);
        match suffix {
            b'*' | b'+' => {
                let rest = &self.text[at..];
                let count = rest.iter().take_while(|byte| self.matches_one(**byte, item, end)).count();
                self.count_steps(count);
                let min = at + usize::from(suffix == b'+');
                if at + count < min {
                    return Ok(Step::Failed);
                }
                (self.at, self.item) = (at + count, end + 1);
                if self.at > min {
                    choices.push(Choice::Fewer { min, at: self.at, item: self.item });
                }
            }
            b'-' => {
                choices.push(Choice::More { at, item, end });
                self.item = end + 1;
            }
            b'?' => {
                self.item = end + 1;
                if self.matches_at(at, item, end) {
                    choices.push(Choice::Nothing { at, item: self.item });
                    self.at += 1;
                }
            }
            _ if self.matches_at(at, item, end) => (self.at, self.item) = (at + 1, end),
            _ => return Ok(Step::Failed),
        }
        Ok(Step::Continue)
    }

    /// Where an item that stands for one byte ends, without its repetition.
    fn item_end(&self, item: usize) -> Result<usize, Malformed> {
        match self.symbol(item) {
            ESCAPE if self.symbol(item + 1) == 0 => Err(Malformed("malformed pattern (ends with '%')")),
            ESCAPE => Ok(item + 2),
            b'[' => {
                let mut at = item + 1 + usize::from(self.symbol(item + 1) == b'^');
                // The first byte belongs to the set even if it is a bracket.
                loop {
                    match self.symbol(at) {
                        0 => return Err(Malformed("malformed pattern (missing ']')")),
                        ESCAPE if self.symbol(at + 1) != 0 => at += 2,
                        _ => at += 1,
                    }
                    if self.symbol(at) == b']' {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(item + 1),
        }
    }

    fn open_capture(&mut self, choices: &mut Vec<Choice>) -> Result<Step, Malformed> {
        if self.captures_len == CAPTURES_MAX {
            return Err(Malformed("too many captures"));
        }
        let is_position = self.symbol(self.item + 1) == b')';
        let extent = if is_position { Extent::Position } else { Extent::Open };
        self.captures[self.captures_len] = Capture { start: self.at, extent };
        self.captures_len += 1;
        self.item += 1 + usize::from(is_position);
        choices.push(Choice::Opened);
        Ok(Step::Continue)
    }

    fn close_capture(&mut self, choices: &mut Vec<Choice>) -> Result<Step, Malformed> {
        let open = self.captures().iter().rposition(|capture| capture.extent == Extent::Open);
        let n = open.ok_or(Malformed("invalid pattern capture"))?;
        self.captures[n].extent = Extent::Bytes(self.at - self.captures[n].start);
        self.item += 1;
        choices.push(Choice::Closed(n));
        Ok(Step::Continue)
    }

    /// `%1` to `%9`: the text of a capture once more.
    fn match_capture(&mut self, digit: u8) -> Result<Step, Malformed> {
        let n = usize::from(digit).wrapping_sub(usize::from(b'1'));
        let capture = self.captures().get(n).filter(|capture| capture.extent != Extent::Open);
        let Capture { start, extent } = *capture.ok_or(Malformed("invalid capture index"))?;
        // A position matches nothing.
        let Extent::Bytes(len) = extent else { return Ok(Step::Failed) };
        self.count_steps(len);
        if !self.text[self.at..].starts_with(&self.text[start..start + len]) {
            return Ok(Step::Failed);
        }
        self.at += len;
        self.item += 2;
        Ok(Step::Continue)
    }

    /// `%bxy`: from `x` to the `y` that belongs to it.
    fn match_balanced(&mut self) -> Result<Step, Malformed> {
        let (open, close) = (self.symbol(self.item + 2), self.symbol(self.item + 3));
        if open == 0 || close == 0 {
            return Err(Malformed("unbalanced pattern"));
        }
        let Some((_, rest)) = self.text[self.at..].split_first().filter(|(first, _)| **first == open) else {
            return Ok(Step::Failed);
        };
        let mut depth = 1;
        let end = rest.iter().position(|byte| {
            if *byte == close {
                depth -= 1;
            } else if *byte == open {
                depth += 1;
            }
            depth == 0
        });
        self.count_steps(end.unwrap_or(rest.len()));
        let Some(end) = end else { return Ok(Step::Failed) };
        self.at += end + 2;
        self.item += 4;
        Ok(Step::Continue)
    }

    /// `%f[set]`: between a byte outside of the set and one in it. Both ends of the text count as NUL.
    fn match_frontier(&mut self) -> Result<Step, Malformed> {
        let item = self.item + 2;
        if self.symbol(item) != b'[' {
            return Err(Malformed("missing '[' after '%f' in pattern"));
        }
        let end = self.item_end(item)?;
        let byte_at = |at: Option<usize>| at.and_then(|at| self.text.get(at)).copied().unwrap_or(0);
        let is_in = |byte| is_in_set(byte, &self.pattern[item + 1..end - 1]);
        if is_in(byte_at(self.at.checked_sub(1))) || !is_in(byte_at(Some(self.at))) {
            return Ok(Step::Failed);
        }
        self.item = end;
        Ok(Step::Continue)
    }
}

/// Whether a byte belongs to the class that a letter names; another byte stands for itself.
fn is_in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == b'\x0b',
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_in == class.is_ascii_lowercase()
}

/// Whether a byte belongs to a set, given by what is between its brackets.
fn is_in_set(byte: u8, set: &[u8]) -> bool {
    let (is_listed, mut rest) = match set {
        [b'^', rest @ ..] => (false, rest),
        _ => (true, set),
    };
    loop {
        rest = match rest {
            [] => return !is_listed,
            [ESCAPE, class, rest @ ..] => {
                if is_in_class(byte, *class) {
                    return is_listed;
                }
                rest
            }
            [first, b'-', last, rest @ ..] => {
                if (*first..=*last).contains(&byte) {
                    return is_listed;
                }
                rest
            }
            [single, rest @ ..] => {
                if *single == byte {
                    return is_listed;
                }
                rest
            }
        }
    }
}
