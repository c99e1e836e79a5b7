//! The sparse representation: run-length encoded registers.
//!
//! One byte `00llllll` is a run of 1 to 64 zeros, two bytes `01llllll llllllll` a run of up to 16384 zeros, and one
//! byte `1vvvvvll` a run of 1 to 4 registers of value 1 to 32 (each stored minus one). A well-formed code covers
//! exactly 16384 registers.
//!
//! Values come from clients, so a code may be malformed. Reading the whole code (`runs`) detects this. Finding one
//! register ([`locate`]) reads the code only up to that register and, as in Valkey, detects only errors up to there. A
//! two-byte opcode that is cut off at the end is read as if a zero byte followed.
//!
//! [`plan`] and [`replace`] raise a register of a stored value (header and code). The result has exactly the form that
//! Valkey produces, including which adjacent runs are merged, so that Kvick and Valkey replicas stay identical byte by
//! byte.

use super::dense::{self, Histogram, Packed, REGISTERS, Raw};
use super::hash::Mark;
use super::value::{Corrupt, HEADER_LEN};

/// The largest value that the code can represent.
pub const VALUE_MAX: u8 = 32;
/// The code of 16384 zeros.
pub const EMPTY: [u8; 2] = [0x7f, 0xff];

const SHORT_ZEROS_MAX: usize = 64;
const VALUES_MAX: usize = 4;

/// One opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Up to 64 zeros.
    Zeros(usize),
    /// Up to 16384 zeros, in two bytes.
    ManyZeros(usize),
    /// Up to four registers of one value.
    Values {
        /// 1 to 32.
        value: u8,
        /// 1 to 4.
        len: usize,
    },
}

impl Run {
    /// The opcode at `at`; `None` at or beyond the end.
    #[inline(always)]
    fn read(code: &[u8], at: usize) -> Option<Run> {
        let byte = *code.get(at)?;
        let low = usize::from(byte & 0x3f);
        Some(match byte >> 6 {
            0 => Run::Zeros(low + 1),
            1 => Run::ManyZeros((low << 8 | usize::from(code.get(at + 1).copied().unwrap_or(0))) + 1),
            _ => Run::Values { value: (byte >> 2 & 0x1f) + 1, len: usize::from(byte & 3) + 1 },
        })
    }

    /// Number of registers that it covers.
    pub fn span(self) -> usize {
        match self {
            Run::Zeros(len) | Run::ManyZeros(len) | Run::Values { len, .. } => len,
        }
    }

    /// The value of the registers that it covers.
    pub fn value(self) -> u8 {
        match self {
            Run::Values { value, .. } => value,
            _ => 0,
        }
    }

    /// Bytes of the opcode.
    fn size(self) -> usize {
        match self {
            Run::ManyZeros(_) => 2,
            _ => 1,
        }
    }

    /// The shortest opcode for `len` zeros.
    fn zeros(len: usize) -> Run {
        if len > SHORT_ZEROS_MAX { Run::ManyZeros(len) } else { Run::Zeros(len) }
    }
}

/// The opcodes in order; the code may be malformed.
pub fn opcodes(code: &[u8]) -> impl Iterator<Item = Run> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let run = Run::read(code, at)?;
        at += run.size();
        Some(run)
    })
}

/// Calls `each` with the first register and the run, for every run in order. Registers are always below [`REGISTERS`];
/// an error is returned after the runs that fit.
fn runs(code: &[u8], mut each: impl FnMut(usize, Run)) -> Result<(), Corrupt> {
    let mut first = 0;
    for run in opcodes(code) {
        if first + run.span() > REGISTERS {
            return Err(Corrupt);
        }
        each(first, run);
        first += run.span();
    }
    if first == REGISTERS { Ok(()) } else { Err(Corrupt) }
}

/// The histogram of the registers.
pub fn histogram(code: &[u8]) -> Result<Histogram, Corrupt> {
    let mut histogram = [0; 64];
    runs(code, |_, run| histogram[usize::from(run.value())] += run.span() as u32)?;
    Ok(histogram)
}

/// Raises every register of `raw` to its counterpart. After an error, `raw` is invalid.
pub fn unite(raw: &mut Raw, code: &[u8]) -> Result<(), Corrupt> {
    runs(code, |first, run| {
        if let Run::Values { value, len } = run {
            raw[first..first + len].iter_mut().for_each(|register| *register = value.max(*register));
        }
    })
}

/// Writes the registers into `packed`, which must be all zero.
pub fn unpack(packed: &mut Packed, code: &[u8]) -> Result<(), Corrupt> {
    runs(code, |first, run| {
        if let Run::Values { value, len } = run {
            (first..first + len).for_each(|index| dense::set(packed, index, value));
        }
    })
}

/// A boundary between opcodes of a stored value: the offset of the next opcode and the first register that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    at: usize,
    first: usize,
}

impl Cursor {
    /// The start of the code.
    pub const START: Cursor = Cursor { at: HEADER_LEN, first: 0 };
}

/// The opcode that covers a register.
#[derive(Clone, Copy, Debug)]
pub struct Located {
    /// The opcode before it, if the search passed one.
    before: Option<Cursor>,
    here: Cursor,
    run: Run,
}

impl Located {
    /// The value of the register.
    pub fn value(&self) -> u8 {
        self.run.value()
    }

    /// Where to continue the search for later registers, also after [`replace`].
    pub fn cursor(&self) -> Cursor {
        self.before.unwrap_or(Cursor::START)
    }
}

/// Finds the opcode in the code of `value` that covers register `index`. Searches from `from` if that finds both it and
/// its predecessor, otherwise from the start.
pub fn locate(value: &[u8], from: Cursor, index: usize) -> Result<Located, Corrupt> {
    let resumes = Run::read(value, from.at).is_some_and(|run| index >= from.first + run.span());
    let (mut before, mut here) = (None, if resumes { from } else { Cursor::START });
    while let Some(run) = Run::read(value, here.at) {
        let next = here.first + run.span();
        if index < next {
            return Ok(Located { before, here, run });
        }
        before = Some(here);
        here = Cursor { at: here.at + run.size(), first: next };
    }
    Err(Corrupt)
}

/// The opcodes that replace one opcode: at most zeros, value, zeros.
#[derive(Default)]
pub struct Replacement {
    bytes: [u8; 5],
    len: usize,
}

impl Replacement {
    fn push(&mut self, run: Run) {
        match run {
            Run::Zeros(len) => self.push_byte((len - 1) as u8),
            Run::ManyZeros(len) => {
                self.push_byte(0x40 | ((len - 1) >> 8) as u8);
                self.push_byte((len - 1) as u8);
            }
            Run::Values { value, len } => self.push_byte(value_opcode(value, len)),
        }
    }

    fn push_byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    /// The opcodes for the run of `located` with the register at `mark.index` set to `mark.count`.
    fn splitting(located: &Located, mark: Mark) -> Replacement {
        let (ahead, behind) =
            (mark.index - located.here.first, located.here.first + located.run.span() - 1 - mark.index);
        let part = |len| match located.run {
            Run::Values { value, .. } => Run::Values { value, len },
            _ => Run::zeros(len),
        };
        let mut replacement = Replacement::default();
        if ahead > 0 {
            replacement.push(part(ahead));
        }
        replacement.push(Run::Values { value: mark.count, len: 1 });
        if behind > 0 {
            replacement.push(part(behind));
        }
        replacement
    }
}

fn value_opcode(value: u8, len: usize) -> u8 {
    0x80 | (value - 1) << 2 | (len - 1) as u8
}

/// How to raise a register of a stored value.
pub enum Plan {
    /// Do nothing: the register is already that high.
    Keep(Located),
    /// Replace one opcode.
    Replace(Located, Replacement),
    /// Convert to dense: the code cannot represent the result, or would exceed the allowed size.
    Outgrown,
}

/// Plans to raise the register of `mark` in the stored `value`, which may grow up to `size_max` bytes. Searches for the
/// register like [`locate`].
pub fn plan(value: &[u8], from: Cursor, mark: Mark, size_max: usize) -> Result<Plan, Corrupt> {
    if mark.count > VALUE_MAX {
        return Ok(Plan::Outgrown);
    }
    let located = locate(value, from, mark.index)?;
    if located.value() >= mark.count {
        return Ok(Plan::Keep(located));
    }
    let replacement = Replacement::splitting(&located, mark);
    let size = located.run.size();
    let outgrown = replacement.len > size && value.len() + replacement.len - size > size_max;
    Ok(if outgrown { Plan::Outgrown } else { Plan::Replace(located, replacement) })
}

/// Executes a [`Plan::Replace`] made for this value.
pub fn replace(value: &mut Vec<u8>, located: &Located, replacement: &Replacement) {
    let (at, size) = (located.here.at, located.run.size());
    let len = value.len() + replacement.len - size;
    value.splice(at..value.len().min(at + size), replacement.bytes[..replacement.len].iter().copied());
    // If the replaced opcode was cut off at the end, so is its replacement.
    value.truncate(len);
    merge_values(value, located.cursor().at);
}

/// Merges adjacent runs of the same value, examining five opcodes from `at`: all that one split can affect.
fn merge_values(value: &mut Vec<u8>, mut at: usize) {
    for _ in 0..5 {
        let Some(run) = Run::read(value, at) else { return };
        match (run, Run::read(value, at + 1)) {
            (Run::Values { value: a, len: m }, Some(Run::Values { value: b, len: n }))
                if a == b && m + n <= VALUES_MAX =>
            {
                value[at] = value_opcode(a, m + n);
                value.remove(at + 1);
            }
            _ => at += run.size(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hyperloglog::value::{self, Registers, Sketch, View};
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// A value with this code after an empty header.
    fn value_of(code: &[u8]) -> Vec<u8> {
        [&value::empty()[..HEADER_LEN], code].concat()
    }

    fn raised(value: &[u8], index: usize, count: u8) -> Result<Vec<u8>, Corrupt> {
        let mut value = value.to_vec();
        if let Plan::Replace(located, replacement) = plan(&value, Cursor::START, Mark { index, count }, 3000)? {
            replace(&mut value, &located, &replacement);
        }
        Ok(value)
    }

    fn decoded(value: &[u8]) -> Vec<Run> {
        opcodes(&value[HEADER_LEN..]).collect()
    }

    #[test]
    fn setting_a_register_splits_a_zero_run() {
        let value = raised(&value::empty(), 100, 7).unwrap();
        let expected = [Run::ManyZeros(100), Run::Values { value: 7, len: 1 }, Run::ManyZeros(16283)];
        assert_eq!(decoded(&value), expected);
        let value = raised(&value, 50, 1).unwrap();
        assert_eq!(decoded(&value)[..3], [Run::Zeros(50), Run::Values { value: 1, len: 1 }, Run::Zeros(49)]);
    }

    #[test]
    fn neighbours_of_equal_value_are_merged_up_to_four() {
        let mut value = value::empty();
        for index in [0, 2, 1, 3, 4] {
            value = raised(&value, index, 9).unwrap();
        }
        let (four, one) = (Run::Values { value: 9, len: 4 }, Run::Values { value: 9, len: 1 });
        assert_eq!(decoded(&value), [four, one, Run::ManyZeros(16379)]);
    }

    #[test]
    fn sparse_code_with_wrong_total_is_corrupt() {
        for code in [&[][..], &[0x7f, 0xfe], &[0x7f, 0xff, 0x00], &[0x7f, 0xff, 0x80], &[0x80], &[0x7f]] {
            assert_eq!(histogram(code), Err(Corrupt), "{code:x?}");
            assert_eq!(unite(&mut [0; REGISTERS], code), Err(Corrupt), "{code:x?}");
            assert_eq!(View::new(&value_of(code)).unwrap().to_dense(), Err(Corrupt), "{code:x?}");
        }
        assert_eq!(raised(&value_of(&[0x7f, 0xfe]), 16383, 1), Err(Corrupt));
    }

    #[test]
    fn truncated_opcode_reads_as_if_followed_by_zero() {
        assert!(histogram(&[0x7f, 0xfe, 0x40]).is_ok());
        assert_eq!(raised(&value_of(&[0x7f, 0xfe, 0x40]), 16383, 5).unwrap(), value_of(&[0x7f, 0xfe]));
        assert_eq!(raised(&value_of(&[0x7f]), 3, 5).unwrap(), value_of(&[0x02, 0x90, 0x7e]));
    }

    proptest! {
        #[test]
        fn registers_are_the_highest_counts_added(
            marks in vec((0..REGISTERS, 1u8..=51), 0..300), sorted: bool, size_max in 16usize..2000,
        ) {
            let mut marks = marks;
            if sorted {
                marks.sort();
            }
            let mut expected = [0; REGISTERS];
            let mut sketch = Sketch::new(size_max);
            for (index, count) in marks {
                let changed = sketch.add(Mark { index, count }).unwrap();
                prop_assert_eq!(changed, expected[index] < count);
                expected[index] = expected[index].max(count);
            }
            let bytes = sketch.into_bytes();
            let view = View::new(&bytes).unwrap();
            let mut raw = [0; REGISTERS];
            view.unite_into(&mut raw).unwrap();
            prop_assert!(raw == expected);
            let dense = view.to_dense().unwrap();
            prop_assert_eq!(View::new(&dense).unwrap().estimate(), view.estimate());
            if let Registers::Sparse(_) = view.registers() {
                prop_assert!(bytes.len() <= size_max.max(value::empty().len()));
                prop_assert!(expected.iter().all(|count| *count <= VALUE_MAX));
            }
        }
    }
}
