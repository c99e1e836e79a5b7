//! CRC-64 as used by dumps: Jones's polynomial, reflected, initial value zero, no final XOR.
//!
//! Short inputs, and all inputs on other architectures, are processed with eight tables, eight bytes
//! at a time. Long inputs on x86-64 are folded with carry-less multiplication, 64 bytes at a time: a
//! block of 128 bits is moved forward by `d` bits by multiplying each half by a power of x modulo the
//! polynomial. The remainder after folding is congruent to the whole input, so the tables compute the
//! checksum from it. (Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ".)

/// The polynomial, lowest power in the highest bit.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// `TABLES[k][b]`: the checksum of byte `b` followed by `k` zero bytes.
static TABLES: [[u64; 256]; 8] = tables();

const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            sum = times_x(sum);
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[zeros - 1][byte];
            tables[zeros][byte] = tables[0][(before & 0xff) as usize] ^ before >> 8;
            byte += 1;
        }
        zeros += 1;
    }
    tables
}

/// A reflected polynomial times x, modulo [`POLYNOMIAL`].
const fn times_x(value: u64) -> u64 {
    value >> 1 ^ if value & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// Extends checksum `sum` of preceding bytes by `bytes`. The initial value is 0.
pub fn update(sum: u64, bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= folding::LEN_MIN && std::arch::is_x86_feature_detected!("pclmulqdq") {
        // SAFETY: the processor supports the instruction.
        return unsafe { folding::update(sum, bytes) };
    }
    by_tables(sum, bytes)
}

fn by_tables(mut sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = sum ^ u64::from_le_bytes(*word);
        sum = 0;
        for (position, byte) in word.to_le_bytes().into_iter().enumerate() {
            sum ^= TABLES[7 - position][byte as usize];
        }
    }
    rest.iter().fold(sum, |sum, byte| TABLES[0][(sum as u8 ^ byte) as usize] ^ sum >> 8)
}

#[cfg(target_arch = "x86_64")]
mod folding {
    use super::{by_tables, times_x};
    use std::arch::x86_64::{
        __m128i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_srli_si128, _mm_xor_si128,
    };

    /// Minimum input length for which folding is faster.
    pub const LEN_MIN: usize = 192;

    /// x to the power `n`, modulo the polynomial.
    const fn power(n: u32) -> u64 {
        let mut value = 1 << 63;
        let mut i = 0;
        while i < n {
            value = times_x(value);
            i += 1;
        }
        value
    }

    /// The factors for the halves of a block that move it `distance` bits forward. The
    /// product of two reflected halves is one bit too high in 128, hence the smaller power.
    const fn movers(distance: u32) -> [u64; 2] {
        [power(distance + 63), power(distance - 1)]
    }

    #[target_feature(enable = "pclmulqdq")]
    fn pair([low, high]: [u64; 2]) -> __m128i {
        _mm_set_epi64x(high as i64, low as i64)
    }

    #[target_feature(enable = "pclmulqdq")]
    fn load(bytes: &[u8; 16]) -> __m128i {
        let number = u128::from_le_bytes(*bytes);
        pair([number as u64, (number >> 64) as u64])
    }

    /// Moves `block` forward and adds the block at that position.
    #[target_feature(enable = "pclmulqdq")]
    fn fold(block: __m128i, movers: __m128i, onto: __m128i) -> __m128i {
        let low = _mm_clmulepi64_si128::<0x00>(block, movers);
        let high = _mm_clmulepi64_si128::<0x11>(block, movers);
        _mm_xor_si128(_mm_xor_si128(low, high), onto)
    }

    #[target_feature(enable = "pclmulqdq")]
    pub fn update(sum: u64, bytes: &[u8]) -> u64 {
        let (blocks, rest) = bytes.as_chunks::<16>();
        let ([first, lines @ ..], tail) = blocks.as_chunks::<4>() else {
            return by_tables(sum, bytes);
        };
        let mut fast_paths = [load(&first[0]), load(&first[1]), load(&first[2]), load(&first[3])];
        fast_paths[0] = _mm_xor_si128(fast_paths[0], pair([sum, 0]));
        let by_line = pair(const { movers(512) });
        for line in lines {
            for (fast_path, block) in fast_paths.iter_mut().zip(line) {
                *fast_path = fold(*fast_path, by_line, load(block));
            }
        }
        let by_block = pair(const { movers(128) });
        let [mut folded, others @ ..] = fast_paths;
        for fast_path in others {
            folded = fold(folded, by_block, fast_path);
        }
        for block in tail {
            folded = fold(folded, by_block, load(block));
        }
        let low = _mm_cvtsi128_si64(folded) as u64;
        let high = _mm_cvtsi128_si64(_mm_srli_si128::<8>(folded)) as u64;
        let mut left = [0; 16];
        left[..8].copy_from_slice(&low.to_le_bytes());
        left[8..].copy_from_slice(&high.to_le_bytes());
        by_tables(by_tables(0, &left), rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bit_by_bit(mut sum: u64, bytes: &[u8]) -> u64 {
        for byte in bytes {
            sum ^= u64::from(*byte);
            for _ in 0..8 {
                sum = times_x(sum);
            }
        }
        sum
    }

    #[test]
    fn the_checksum_of_a_known_input() {
        assert_eq!(update(0, b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn the_checksum_does_not_depend_on_the_pieces() {
        let bytes: Vec<u8> = (0..1200u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for length in 0..bytes.len() {
            let expected = bit_by_bit(7, &bytes[..length]);
            assert_eq!(update(7, &bytes[..length]), expected, "{length}");
            assert_eq!(by_tables(7, &bytes[..length]), expected, "{length}");
            let (head, tail) = bytes[..length].split_at(length / 3);
            assert_eq!(update(update(7, head), tail), expected, "{length}");
        }
    }
}
