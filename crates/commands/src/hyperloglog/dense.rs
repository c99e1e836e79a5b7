//! The dense representation: 16384 registers of six bits.
//!
//! Registers are packed starting at the least significant bit of the first byte, so four registers fill three bytes and
//! eight fill six; no register crosses a group boundary. [`Raw`], one register per byte, is the form in which sketches
//! are merged.

use super::hash::Mark;
use crate::wide::widened;

/// Bits of the hash that select the register.
pub const INDEX_BITS: u32 = 14;
/// Number of registers.
pub const REGISTERS: usize = 1 << INDEX_BITS;
/// Bytes of the packed registers.
pub const PACKED_LEN: usize = REGISTERS * 6 / 8;

/// Packed registers.
pub type Packed = [u8; PACKED_LEN];
/// Unpacked registers, each at most 63.
pub type Raw = [u8; REGISTERS];
/// Number of registers with each value.
pub type Histogram = [u32; 64];

/// The first byte of the group of four that contains the register, and the shift of the register within the group.
fn place(index: usize) -> (usize, usize) {
    (index / 4 * 3, index % 4 * 6)
}

/// The value of one register.
pub fn get(packed: &Packed, index: usize) -> u8 {
    let (at, shift) = place(index);
    let group = u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], 0]);
    (group >> shift & 63) as u8
}

/// Sets one register; `value` is at most 63.
pub fn set(packed: &mut Packed, index: usize, value: u8) {
    let (at, shift) = place(index);
    let group = u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], 0]);
    let group = group & !(63 << shift) | u32::from(value) << shift;
    packed[at..at + 3].copy_from_slice(&group.to_le_bytes()[..3]);
}

/// Raises a register to the value of the mark; returns false if it is already that high.
pub fn raise(packed: &mut Packed, mark: Mark) -> bool {
    let raised = get(packed, mark.index) < mark.count;
    if raised {
        set(packed, mark.index, mark.count);
    }
    raised
}

/// Registers per block: with a byte each, they fill a vector register.
const BLOCK: usize = 32;
/// Bytes of the packed registers of a block.
const BLOCK_LEN: usize = BLOCK * 6 / 8;
/// Bytes of a group of eight packed registers.
const GROUP_LEN: usize = 6;

/// Spreads the low 48 bits of `group`, eight registers, over the eight bytes of a word; the other bits are ignored.
#[inline(always)]
fn spread(group: u64) -> u64 {
    let halves = group & 0xff_ffff | (group & 0xffff_ff00_0000) << 8;
    let quarters = halves & 0x0000_0fff_0000_0fff | (halves & 0x00ff_f000_00ff_f000) << 4;
    quarters & 0x003f_003f_003f_003f | (quarters & 0x0fc0_0fc0_0fc0_0fc0) << 2
}

/// The inverse of [`spread`]. The upper bits of bytes above 63 are lost.
#[inline(always)]
fn gather(word: u64) -> u64 {
    let quarters = word & 0x003f_003f_003f_003f | (word & 0x3f00_3f00_3f00_3f00) >> 2;
    let halves = quarters & 0x0000_0fff_0000_0fff | (quarters & 0x0fff_0000_0fff_0000) >> 4;
    halves & 0xff_ffff | (halves & 0x00ff_ffff_0000_0000) >> 8
}

/// Calls `each` with the index and the registers of every block.
#[inline(always)]
fn for_each_block(packed: &Packed, mut each: impl FnMut(usize, [u8; BLOCK])) {
    // Each group is read as a word of eight bytes, two more than the group has; the bytes after the last block are
    // arbitrary.
    let mut number = 0;
    while let Some(block) = packed.get(number * BLOCK_LEN..).and_then(|rest| rest.first_chunk()) {
        each(number, unpack(block));
        number += 1;
    }
    let mut last = [0; BLOCK_LEN + 2];
    last[..BLOCK_LEN].copy_from_slice(&packed[PACKED_LEN - BLOCK_LEN..]);
    each(number, unpack(&last));
}

/// Unpacks the registers of a block, which is followed by two arbitrary bytes.
#[inline(always)]
fn unpack(block: &[u8; BLOCK_LEN + 2]) -> [u8; BLOCK] {
    let word = |at: usize| spread(u64::from_le_bytes(std::array::from_fn(|i| block[at + i]))).to_le_bytes();
    let words = [word(0), word(GROUP_LEN), word(2 * GROUP_LEN), word(3 * GROUP_LEN)];
    let mut registers = [0; BLOCK];
    registers.as_chunks_mut().0.copy_from_slice(&words);
    registers
}

widened! {
    /// Raises every register of `raw` to its packed counterpart.
    pub fn unite(raw: &mut Raw, packed: &Packed) {
        let (blocks, _) = raw.as_chunks_mut::<BLOCK>();
        for_each_block(packed, |number, registers| {
            for (old, new) in blocks[number].iter_mut().zip(registers) {
                *old = new.max(*old);
            }
        });
    }
}

widened! {
    /// Packs registers.
    pub fn pack(packed: &mut Packed, raw: &Raw) {
        let (groups, _) = packed.as_chunks_mut::<GROUP_LEN>();
        let (words, _) = raw.as_chunks::<8>();
        for (group, word) in groups.iter_mut().zip(words) {
            let bytes = gather(u64::from_le_bytes(*word)).to_le_bytes();
            group.copy_from_slice(&bytes[..GROUP_LEN]);
        }
    }
}

/// Builds a histogram. Adjacent registers are counted in different tables, since a run of equal values would otherwise
/// make every increment depend on the previous one.
struct Counter([Histogram; 4]);

impl Counter {
    fn new() -> Self {
        Counter([[0; 64]; 4])
    }

    /// Counts the lowest six bits of every `STEP` bits of `word`, eight times.
    #[inline(always)]
    fn add<const STEP: usize>(&mut self, word: u64) {
        for register in 0..8 {
            self.0[register % 4][(word >> (register * STEP) & 63) as usize] += 1;
        }
    }

    fn sum(self) -> Histogram {
        std::array::from_fn(|value| self.0.iter().map(|table| table[value]).sum())
    }
}

/// The histogram of packed registers.
pub fn histogram(packed: &Packed) -> Histogram {
    let mut counter = Counter::new();
    for [a, b, c, d, e, f] in packed.as_chunks::<GROUP_LEN>().0 {
        counter.add::<6>(u64::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0]));
    }
    counter.sum()
}

/// The histogram of unpacked registers.
pub fn raw_histogram(raw: &Raw) -> Histogram {
    let mut counter = Counter::new();
    raw.as_chunks::<8>().0.iter().for_each(|word| counter.add::<8>(u64::from_le_bytes(*word)));
    counter.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn raws() -> impl Strategy<Value = Box<Raw>> {
        vec(0u8..64, REGISTERS).prop_map(|registers| registers.try_into().unwrap())
    }

    fn packed_one_by_one(raw: &Raw) -> Box<Packed> {
        let mut packed = Box::new([0xff; PACKED_LEN]);
        raw.iter().enumerate().for_each(|(index, value)| set(&mut packed, index, *value));
        packed
    }

    #[test]
    fn registers_are_packed_from_the_lowest_bit_on() {
        let mut packed = [0; PACKED_LEN];
        set(&mut packed, 0, 0b111111);
        set(&mut packed, 1, 0b000011);
        set(&mut packed, 2, 0b100000);
        assert_eq!(packed[..3], [0b1111_1111, 0b0000_0000, 0b0000_0010]);
        set(&mut packed, REGISTERS - 1, 51);
        assert_eq!(packed[PACKED_LEN - 1], 51 << 2);
    }

    #[test]
    fn registers_only_increase() {
        let mut packed = [0; PACKED_LEN];
        assert!(raise(&mut packed, Mark { index: 77, count: 5 }));
        assert!(!raise(&mut packed, Mark { index: 77, count: 5 }));
        assert!(!raise(&mut packed, Mark { index: 77, count: 4 }));
        assert_eq!((get(&packed, 76), get(&packed, 77), get(&packed, 78)), (0, 5, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn bulk_operations_agree_with_single_registers(a in raws(), b in raws()) {
            let packed = packed_one_by_one(&a);
            for (index, value) in a.iter().enumerate() {
                prop_assert_eq!(get(&packed, index), *value);
            }
            let mut bulk = Box::new([0; PACKED_LEN]);
            pack(&mut bulk, &a);
            prop_assert!(bulk == packed);

            let mut united = b.clone();
            unite(&mut united, &packed);
            prop_assert!((0..REGISTERS).all(|index| united[index] == a[index].max(b[index])));

            let mut expected = [0; 64];
            a.iter().for_each(|value| expected[usize::from(*value)] += 1);
            prop_assert_eq!(histogram(&packed), expected);
            prop_assert_eq!(raw_histogram(&a), expected);
        }
    }
}
