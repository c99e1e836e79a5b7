//! The CRC by carry-less multiplication, on processors that have it.
//!
//! A key, padded in front with zero bytes to blocks of sixteen, is a polynomial of 128 bits per block. Each block is
//! moved onto the next by multiplying its halves by powers of x modulo the CRC's polynomial P. The last one, times
//! x^16, is reduced to 80 and then to 64 bits in the same way, and the rest by a Barrett reduction: its quotient by P
//! is the product with x^64 / P, without the lowest bits.

use super::POLYNOMIAL;
use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_cmpeq_epi8, _mm_cvtsi128_si64, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x,
    _mm_set1_epi8, _mm_setzero_si128, _mm_srli_epi64, _mm_unpackhi_epi64, _mm_xor_si128,
};

/// x to the power `n`, modulo P.
const fn power(n: u32) -> i64 {
    let (mut value, mut i) = (1u16, 0);
    while i < n {
        value = if value & 0x8000 == 0 { value << 1 } else { (value << 1) ^ POLYNOMIAL };
        i += 1;
    }
    value as i64
}

/// The quotient of x^64 by P without its highest bit, in the upper bits of a word.
const QUOTIENT: i64 = {
    let (mut rest, mut quotient, mut i) = (1u32, 0u64, 0);
    while i < 64 {
        rest <<= 1;
        let bit = rest >> 16;
        rest ^= bit * (1 << 16 | POLYNOMIAL as u32);
        quotient = quotient << 1 | bit as u64;
        i += 1;
    }
    (quotient << 16) as i64
};

/// Up to sixteen bytes, as a number with the first byte highest.
#[inline(always)]
fn number(bytes: &[u8]) -> (u64, u64) {
    match bytes.split_last_chunk::<8>() {
        None => (0, super::short_word(bytes)),
        Some((first, last)) => (super::short_word(first), u64::from_be_bytes(*last)),
    }
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse2")]
fn vector((high, low): (u64, u64)) -> __m128i {
    _mm_set_epi64x(high as i64, low as i64)
}

/// The sum of the products of the halves of `block` and of `factors`.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2")]
fn fold(block: __m128i, factors: __m128i) -> __m128i {
    _mm_xor_si128(_mm_clmulepi64_si128::<0x11>(block, factors), _mm_clmulepi64_si128::<0x00>(block, factors))
}

/// The CRC of a key; `None` if the key contains an opening brace.
#[target_feature(enable = "pclmulqdq,sse2")]
pub fn crc16_without_brace(key: &[u8]) -> Option<u16> {
    let (head, blocks) = key.split_at(key.len() % 16);
    let brace = _mm_set1_epi8(b'{' as i8);
    let mut sum = vector(number(head));
    let mut braces = _mm_cmpeq_epi8(sum, brace);
    if let ([first, rest @ ..], _) = blocks.as_chunks::<16>() {
        let next_block = _mm_set_epi64x(const { power(192) }, const { power(128) });
        let mut add = |sum, block: &[u8; 16]| {
            let block = u128::from_be_bytes(*block);
            let block = vector(((block >> 64) as u64, block as u64));
            braces = _mm_or_si128(braces, _mm_cmpeq_epi8(block, brace));
            _mm_xor_si128(block, sum)
        };
        sum = if head.is_empty() { add(_mm_setzero_si128(), first) } else { add(fold(sum, next_block), first) };
        for block in rest {
            sum = add(fold(sum, next_block), block);
        }
    }
    if _mm_movemask_epi8(braces) != 0 {
        return None;
    }
    let sum = fold(sum, _mm_set_epi64x(const { power(80) }, const { power(16) }));
    let factors = _mm_set_epi64x(QUOTIENT, const { power(64) });
    let sum = _mm_xor_si128(sum, _mm_clmulepi64_si128::<0x01>(sum, factors));
    let product = _mm_clmulepi64_si128::<0x10>(_mm_srli_epi64::<16>(sum), factors);
    let sum = _mm_cvtsi128_si64(sum) as u64;
    let quotient = _mm_cvtsi128_si64(_mm_unpackhi_epi64(product, product)) as u64 ^ sum >> 16;
    // P times the quotient: P = x^16 + x^12 + x^5 + 1, and only the lowest sixteen bits are left.
    Some((sum ^ quotient ^ quotient << 5 ^ quotient << 12) as u16)
}
