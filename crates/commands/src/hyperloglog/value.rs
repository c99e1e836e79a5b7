//! A stored HyperLogLog: an ordinary string with a header of 16 bytes, followed by the registers.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0-3 | `HYLL` |
//! | 4 | 0 dense, 1 sparse |
//! | 5-7 | unused, zero |
//! | 8-15 | the last estimate, little-endian; its highest bit is set if registers have changed since |
//! | 16- | the registers, see [`dense`] and [`sparse`] |
//!
//! Clients can store any string, so [`View::new`] checks the header and the length, and all functions that read a
//! sparse code may find it [`Corrupt`]. Dense registers are always valid.

use super::dense::{self, PACKED_LEN, Packed, Raw};
use super::estimate;
use super::hash::Mark;
use super::sparse::{self, Cursor, Located, Plan, Replacement};

/// Bytes of the header.
pub const HEADER_LEN: usize = 16;
/// Bytes of a dense value.
pub const DENSE_LEN: usize = HEADER_LEN + PACKED_LEN;

const MAGIC: &[u8; 4] = b"HYLL";
const ENCODING_AT: usize = 4;
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
const ESTIMATE_AT: usize = 8;
const STALE: u64 = 1 << 63;

/// The string is not a HyperLogLog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHyperLogLog;

/// The sparse registers are malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// The registers of a stored value.
#[derive(Clone, Copy)]
pub enum Registers<'a> {
    /// Six bits each.
    Dense(&'a Packed),
    /// Run-length coded, possibly malformed.
    Sparse(&'a [u8]),
}

/// A stored value, for reading.
#[derive(Clone, Copy)]
pub struct View<'a> {
    bytes: &'a [u8],
    registers: Registers<'a>,
}

impl<'a> View<'a> {
    /// Interprets a string as a HyperLogLog.
    pub fn new(bytes: &'a [u8]) -> Result<View<'a>, NotHyperLogLog> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(NotHyperLogLog)?;
        if !header.starts_with(MAGIC) {
            return Err(NotHyperLogLog);
        }
        let registers = match header[ENCODING_AT] {
            DENSE => Registers::Dense(rest.try_into().map_err(|_| NotHyperLogLog)?),
            SPARSE => Registers::Sparse(rest),
            _ => return Err(NotHyperLogLog),
        };
        Ok(View { bytes, registers })
    }

    /// The registers.
    pub fn registers(&self) -> Registers<'a> {
        self.registers
    }

    /// The estimate in the header, unless registers have changed since.
    pub fn cached(&self) -> Option<u64> {
        let estimate = self.bytes[ESTIMATE_AT..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes))?;
        (estimate & STALE == 0).then_some(estimate)
    }

    /// The estimate from the registers.
    pub fn estimate(&self) -> Result<u64, Corrupt> {
        let histogram = match self.registers {
            Registers::Dense(packed) => dense::histogram(packed),
            Registers::Sparse(code) => sparse::histogram(code)?,
        };
        Ok(estimate::cardinality(&histogram))
    }

    /// Raises every register of `raw` to its counterpart. After an error, `raw` is invalid.
    pub fn unite_into(&self, raw: &mut Raw) -> Result<(), Corrupt> {
        match self.registers {
            Registers::Dense(packed) => dense::unite(raw, packed),
            Registers::Sparse(code) => sparse::unite(raw, code)?,
        }
        Ok(())
    }

    /// The same value in the dense representation.
    pub fn to_dense(&self) -> Result<Vec<u8>, Corrupt> {
        let mut packed = [0; PACKED_LEN];
        match self.registers {
            Registers::Dense(registers) => packed = *registers,
            Registers::Sparse(code) => sparse::unpack(&mut packed, code)?,
        }
        Ok(self.with_registers(&packed))
    }

    /// The same header with other, dense registers.
    pub fn with_registers(&self, packed: &Packed) -> Vec<u8> {
        let mut dense = Vec::with_capacity(DENSE_LEN);
        dense.extend_from_slice(&self.bytes[..HEADER_LEN]);
        dense[ENCODING_AT] = DENSE;
        dense.extend_from_slice(packed);
        dense
    }
}

/// Writes an estimate into the header of a value.
pub fn set_cached(value: &mut [u8], estimate: u64) {
    if let Some(field) = value.get_mut(ESTIMATE_AT..HEADER_LEN) {
        field.copy_from_slice(&estimate.to_le_bytes());
    }
}

/// Marks the estimate in the header of a value as outdated.
pub fn invalidate(value: &mut [u8]) {
    if let Some(byte) = value.get_mut(HEADER_LEN - 1) {
        *byte |= (STALE >> 56) as u8;
    }
}

/// The registers of a dense value, mutable; `None` if the value has another length.
pub fn dense_registers(value: &mut [u8]) -> Option<&mut Packed> {
    value.get_mut(HEADER_LEN..)?.try_into().ok()
}

/// A sparse value without elements.
pub fn empty() -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[ENCODING_AT] = SPARSE;
    bytes.extend_from_slice(&sparse::EMPTY);
    bytes
}

/// A copy of a value that is changed outside the keyspace.
///
/// A sparse value becomes dense if the code cannot represent a register or the value would exceed `sparse_len_max`
/// bytes.
pub struct Sketch {
    bytes: Vec<u8>,
    cursor: Cursor,
    sparse_len_max: usize,
}

impl Sketch {
    /// A sketch without elements.
    pub fn new(sparse_len_max: usize) -> Sketch {
        Sketch { bytes: empty(), cursor: Cursor::START, sparse_len_max }
    }

    /// A copy of a stored value.
    pub fn copy(view: &View<'_>, sparse_len_max: usize) -> Sketch {
        Sketch { bytes: view.bytes.to_vec(), cursor: Cursor::START, sparse_len_max }
    }

    /// A copy of the value with a mark added; `None` if the mark changes nothing. Copies only if it does.
    pub fn with(view: &View<'_>, mark: Mark, sparse_len_max: usize) -> Result<Option<Sketch>, Corrupt> {
        let plan = match view.registers {
            Registers::Dense(packed) if dense::get(packed, mark.index) >= mark.count => return Ok(None),
            Registers::Dense(_) => Plan::Outgrown,
            Registers::Sparse(_) => sparse::plan(view.bytes, Cursor::START, mark, sparse_len_max)?,
        };
        let sketch = match plan {
            Plan::Keep(_) => return Ok(None),
            Plan::Replace(located, replacement) => {
                let mut sketch = Sketch::copy(view, sparse_len_max);
                sketch.replace(&located, &replacement);
                sketch
            }
            Plan::Outgrown => {
                let mut sketch = Sketch { bytes: view.to_dense()?, cursor: Cursor::START, sparse_len_max };
                sketch.add(mark)?;
                sketch
            }
        };
        Ok(Some(sketch))
    }

    /// Adds a mark; returns whether that changed a register.
    ///
    /// Adding marks in ascending order of their registers takes one pass over a sparse code in total.
    pub fn add(&mut self, mark: Mark) -> Result<bool, Corrupt> {
        let view = self.view()?;
        if matches!(view.registers, Registers::Sparse(_)) {
            match sparse::plan(&self.bytes, self.cursor, mark, self.sparse_len_max)? {
                Plan::Keep(located) => {
                    self.cursor = located.cursor();
                    return Ok(false);
                }
                Plan::Replace(located, replacement) => {
                    self.replace(&located, &replacement);
                    return Ok(true);
                }
                Plan::Outgrown => self.bytes = view.to_dense()?,
            }
        }
        let packed = dense_registers(&mut self.bytes).ok_or(Corrupt)?;
        Ok(dense::raise(packed, mark))
    }

    /// The current value.
    pub fn view(&self) -> Result<View<'_>, Corrupt> {
        View::new(&self.bytes).map_err(|_| Corrupt)
    }

    fn replace(&mut self, located: &Located, replacement: &Replacement) {
        self.cursor = located.cursor();
        sparse::replace(&mut self.bytes, located, replacement);
    }

    /// The value to store, with its estimate marked as outdated.
    pub fn into_bytes(mut self) -> Vec<u8> {
        invalidate(&mut self.bytes);
        self.bytes
    }
}
