//! Integers of 1 to 64 bits at any bit offset of a string, for BITFIELD.
//!
//! Bits are numbered from the most significant bit of the first byte; integers are big-endian and in two's complement.
//! One integer spans at most nine bytes, so it is read and written through a 128-bit window. Bits beyond the end of the
//! string read as zero.

/// Signedness and width of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntType {
    signed: bool,
    bits: u32,
}

/// The handling of values that do not fit the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The value is truncated to the low bits.
    Wrap,
    /// The value becomes the nearest value that fits.
    Saturate,
    /// The value is not written.
    Fail,
}

impl Overflow {
    /// Finds a handling by name, case-insensitively.
    pub fn parse(name: &[u8]) -> Option<Overflow> {
        const NAMES: [(&str, Overflow); 3] =
            [("wrap", Overflow::Wrap), ("sat", Overflow::Saturate), ("fail", Overflow::Fail)];
        NAMES.iter().find(|(word, _)| name.eq_ignore_ascii_case(word.as_bytes())).map(|(_, overflow)| *overflow)
    }
}

impl IntType {
    /// A signed type of 1 to 64 bits or an unsigned type of 1 to 63 bits (so that every value fits in an `i64`).
    pub fn new(signed: bool, bits: i64) -> Option<IntType> {
        let widest = if signed { 64 } else { 63 };
        (1..=widest).contains(&bits).then_some(IntType { signed, bits: bits as u32 })
    }

    /// Width in bits.
    pub fn bits(self) -> u32 {
        self.bits
    }

    fn min(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    fn max(self) -> i128 {
        if self.signed { (1 << (self.bits - 1)) - 1 } else { (1 << self.bits) - 1 }
    }

    /// The value of this type with the low bits of `value`.
    fn truncate(self, value: i128) -> i64 {
        let unused = 128 - self.bits;
        let value = if self.signed { value << unused >> unused } else { value & self.max() };
        value as i64
    }

    /// The value to store for the exact result `value`; `None` if it does not fit and must not be stored.
    pub fn fit(self, value: i128, overflow: Overflow) -> Option<i64> {
        if (self.min()..=self.max()).contains(&value) {
            return Some(value as i64);
        }
        match overflow {
            Overflow::Wrap => Some(self.truncate(value)),
            Overflow::Saturate => Some(value.clamp(self.min(), self.max()) as i64),
            Overflow::Fail => None,
        }
    }

    /// The exact number for the argument `value` of BITFIELD SET. Unsigned types interpret a negative number as its
    /// 64-bit pattern, which is always too large for them.
    pub fn exact(self, value: i64) -> i128 {
        if self.signed { i128::from(value) } else { i128::from(value as u64) }
    }

    /// Reads the integer at bit `offset`.
    pub fn read(self, bytes: &[u8], offset: u64) -> i64 {
        let field = window(bytes, offset) << (offset & 7) >> (128 - self.bits);
        self.truncate(field as i128)
    }

    /// Writes the low bits of `value` as the integer at bit `offset`, which must lie within `bytes`.
    pub fn write(self, bytes: &mut [u8], offset: u64, value: i64) {
        let shift = 128 - self.bits - (offset & 7) as u32;
        let mask = u128::MAX >> (128 - self.bits) << shift;
        let field = (value as u128) << shift & mask;
        let new = (window(bytes, offset) & !mask | field).to_be_bytes();
        let touched = ((offset & 7) as u32 + self.bits).div_ceil(8) as usize;
        let at = (offset >> 3) as usize;
        bytes[at..at + touched].copy_from_slice(&new[..touched]);
    }
}

/// The 16 bytes starting at the byte of bit `offset` as a big-endian number, padded with zero bytes.
fn window(bytes: &[u8], offset: u64) -> u128 {
    let rest = usize::try_from(offset >> 3).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
    if let Some(full) = rest.first_chunk::<16>() {
        return u128::from_be_bytes(*full);
    }
    let mut padded = [0; 16];
    padded[..rest.len()].copy_from_slice(rest);
    u128::from_be_bytes(padded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn types() -> impl Strategy<Value = IntType> {
        prop_oneof![(1..=64i64).prop_map(|bits| (true, bits)), (1..=63i64).prop_map(|bits| (false, bits))]
            .prop_filter_map("widths are valid", |(signed, bits)| IntType::new(signed, bits))
    }

    fn bit(bytes: &[u8], at: u64) -> bool {
        bytes.get((at / 8) as usize).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1)
    }

    #[test]
    fn out_of_range_widths_are_rejected() {
        assert!(IntType::new(true, 64).is_some());
        assert!(IntType::new(false, 63).is_some());
        for (signed, bits) in [(true, 65), (false, 64), (true, 0), (false, 0), (true, -1)] {
            assert_eq!(IntType::new(signed, bits), None);
        }
    }

    #[test]
    fn saturation_stops_at_the_ends_of_the_type() {
        let i8_type = IntType::new(true, 8).unwrap();
        assert_eq!(i8_type.fit(200, Overflow::Saturate), Some(127));
        assert_eq!(i8_type.fit(-200, Overflow::Saturate), Some(-128));
        assert_eq!(i8_type.fit(200, Overflow::Fail), None);
        assert_eq!(i8_type.fit(200, Overflow::Wrap), Some(-56));
        let u8_type = IntType::new(false, 8).unwrap();
        assert_eq!(u8_type.fit(u8_type.exact(-1), Overflow::Saturate), Some(255));
        assert_eq!(u8_type.fit(-1, Overflow::Saturate), Some(0));
    }

    proptest! {
        #[test]
        fn reading_takes_the_bits_one_by_one(bytes in vec(any::<u8>(), 0..24), offset in 0u64..200, kind in types()) {
            let mut expected = if kind.signed && bit(&bytes, offset) { -1i64 } else { 0 };
            for at in offset..offset + u64::from(kind.bits) {
                expected = expected << 1 | i64::from(bit(&bytes, at));
            }
            prop_assert_eq!(kind.read(&bytes, offset), expected);
        }

        #[test]
        fn writing_changes_only_the_field(
            before in vec(any::<u8>(), 9..40), at: prop::sample::Index, value: i64, kind in types(),
        ) {
            let bits = before.len() as u64 * 8;
            let offset = at.index((bits - u64::from(kind.bits) + 1) as usize) as u64;
            let mut after = before.clone();
            kind.write(&mut after, offset, value);
            prop_assert_eq!(kind.read(&after, offset), kind.truncate(i128::from(value)));
            for at in (0..bits).filter(|at| !(offset..offset + u64::from(kind.bits)).contains(at)) {
                prop_assert_eq!(bit(&after, at), bit(&before, at));
            }
        }

        #[test]
        fn wrapping_is_arithmetic_modulo_the_width(a: i64, b: i64, kind in types()) {
            let sum = i128::from(a) + i128::from(b);
            let fitted = i128::from(kind.fit(sum, Overflow::Wrap).unwrap());
            prop_assert_eq!((fitted - sum).rem_euclid(1 << kind.bits), 0);
            prop_assert!(kind.min() <= fitted && fitted <= kind.max());
            prop_assert_eq!(kind.fit(sum, Overflow::Fail).is_some(), fitted == sum);
        }
    }
}
