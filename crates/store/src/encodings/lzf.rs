//! LZF: a fast compression without a header, as dump files and the inner blocks of lists use it.
//!
//! A control byte below 32 is followed by that many bytes and one more, taken as they are. A larger one repeats earlier
//! output: its upper three bits, plus one more byte if they are all set, say how many bytes beyond two; its lower five
//! and another byte say how far back, less one.

use super::Corrupt;

/// The longest run of bytes taken as they are.
const LITERALS_MAX: usize = 32;
/// How far back a repetition reaches.
const DISTANCE_MAX: usize = 1 << 13;
/// The shortest repetition that is worth its two bytes.
const MATCH_MIN: usize = 3;
/// The longest repetition: two bytes, seven more, and 255 more.
const MATCH_MAX: usize = 2 + 7 + 255;

const HASH_BITS: u32 = 12;

/// `input` compressed; `None` when that does not make it shorter.
pub fn compress(input: &[u8]) -> Option<Vec<u8>> {
    let mut output = Output { bytes: Vec::with_capacity(input.len()), limit: input.len().checked_sub(1)? };
    // Where each hash of three bytes was seen last, plus one; zero for never.
    let mut seen = [0u32; 1 << HASH_BITS];
    let (mut at, mut taken) = (0, 0);
    while let Some(next) = input.get(at..at + MATCH_MIN) {
        let place = &mut seen[hash(next)];
        let earlier = std::mem::replace(place, at as u32 + 1) as usize;
        match match_len(input, earlier, at) {
            Some(len) => {
                output.literals(&input[taken..at])?;
                output.repeat(len, at + 1 - earlier)?;
                note_inside(&mut seen, input, at, len);
                at += len;
                taken = at;
            }
            None => at += 1,
        }
    }
    output.literals(&input[taken..])?;
    output.bytes.shrink_to_fit();
    Some(output.bytes)
}

/// Length of what repeats at `at` what stands at `earlier - 1`, if that is worth it.
fn match_len(input: &[u8], earlier: usize, at: usize) -> Option<usize> {
    let from = earlier.checked_sub(1)?;
    if at - from > DISTANCE_MAX {
        return None;
    }
    let longest = MATCH_MAX.min(input.len() - at);
    let len = input[from..].iter().zip(&input[at..at + longest]).take_while(|(a, b)| a == b).count();
    (len >= MATCH_MIN).then_some(len)
}

/// Takes note of the last two positions inside of a repetition, from which others often go on.
fn note_inside(seen: &mut [u32; 1 << HASH_BITS], input: &[u8], at: usize, len: usize) {
    for inside in at + len - 2..at + len {
        if let Some(next) = input.get(inside..inside + MATCH_MIN) {
            seen[hash(next)] = inside as u32 + 1;
        }
    }
}

fn hash(next: &[u8]) -> usize {
    let word = u32::from_le_bytes([0, next[0], next[1], next[2]]);
    (word.wrapping_mul(0x9E37_79B1) >> (32 - HASH_BITS)) as usize
}

/// Compressed bytes, as long as they are fewer than the limit.
struct Output {
    bytes: Vec<u8>,
    limit: usize,
}

impl Output {
    fn literals(&mut self, bytes: &[u8]) -> Option<()> {
        for run in bytes.chunks(LITERALS_MAX) {
            self.room(1 + run.len())?;
            self.bytes.push(run.len() as u8 - 1);
            self.bytes.extend_from_slice(run);
        }
        Some(())
    }

    fn repeat(&mut self, len: usize, distance: usize) -> Option<()> {
        self.room(3)?;
        let (len, distance) = (len - 2, distance - 1);
        let high = (distance >> 8) as u8;
        if len < 7 {
            self.bytes.push((len as u8) << 5 | high);
        } else {
            self.bytes.extend([7 << 5 | high, (len - 7) as u8]);
        }
        self.bytes.push(distance as u8);
        Some(())
    }

    fn room(&self, more: usize) -> Option<()> {
        (self.bytes.len() + more <= self.limit).then_some(())
    }
}

/// What was compressed into `input` and has `len` bytes. Takes no more memory than that, and no more than `input` can
/// amount to.
pub fn decompress(input: &[u8], len: usize) -> Result<Vec<u8>, Corrupt> {
    if len > input.len().saturating_mul(MATCH_MAX) {
        return Err(Corrupt);
    }
    let mut output = Vec::with_capacity(len);
    let mut rest = input;
    while let Some((&control, after)) = rest.split_first() {
        rest = after;
        if usize::from(control) < LITERALS_MAX {
            let (run, after) = rest.split_at_checked(usize::from(control) + 1).ok_or(Corrupt)?;
            if run.len() > len - output.len() {
                return Err(Corrupt);
            }
            output.extend_from_slice(run);
            rest = after;
        } else {
            rest = repeat(&mut output, control, rest, len)?;
        }
    }
    if output.len() == len { Ok(output) } else { Err(Corrupt) }
}

/// Follows a control byte that repeats earlier output; what is left of the input then.
fn repeat<'a>(output: &mut Vec<u8>, control: u8, input: &'a [u8], limit: usize) -> Result<&'a [u8], Corrupt> {
    let mut count = usize::from(control >> 5) + 2;
    let mut rest = input;
    if control >> 5 == 7 {
        let (&more, after) = rest.split_first().ok_or(Corrupt)?;
        count += usize::from(more);
        rest = after;
    }
    let (&low, rest) = rest.split_first().ok_or(Corrupt)?;
    let distance = (usize::from(control & 0x1F) << 8 | usize::from(low)) + 1;
    let from = output.len().checked_sub(distance).ok_or(Corrupt)?;
    if count > limit - output.len() {
        return Err(Corrupt);
    }
    if distance >= count {
        output.extend_from_within(from..from + count);
    } else {
        // It repeats what it is just writing.
        for i in from..from + count {
            output.push(output[i]);
        }
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn known_streams_are_understood() {
        assert_eq!(decompress(&[4, b'h', b'e', b'l', b'l', b'o'], 5).unwrap(), b"hello");
        // One byte, then a repetition of it: 3 bytes from one back.
        assert_eq!(decompress(&[0, b'a', 1 << 5, 0], 4).unwrap(), b"aaaa");
        // The longest: 2 + 7 + 255.
        assert_eq!(decompress(&[0, b'a', 0xE0, 255, 0], 265).unwrap(), [b'a'; 265]);
    }

    #[test]
    fn what_does_not_add_up_is_refused() {
        for (input, len) in [
            (&[4, b'h', b'e'][..], 5),
            (&[0, b'a', 1 << 5], 4),
            (&[0, b'a', 0xE0, 255], 265),
            (&[0, b'a', 1 << 5, 1], 4),
            (&[0, b'a', 1 << 5, 0], 3),
            (&[0, b'a', 1 << 5, 0], 5),
            (&[0, b'a'], usize::MAX),
            (&[], 1),
        ] {
            assert_eq!(decompress(input, len), Err(Corrupt), "{input:?}");
        }
        assert_eq!(decompress(&[], 0), Ok(vec![]));
    }

    #[test]
    fn what_repeats_gets_much_shorter_and_what_does_not_is_left() {
        assert!(compress(&[b'x'; 8192]).unwrap().len() < 120);
        let distinct: Vec<u8> = (0..=255).collect();
        assert_eq!(compress(&distinct), None);
        assert_eq!(compress(b""), None);
        assert_eq!(compress(b"a"), None);
    }

    /// Bytes with repetitions of all lengths and distances.
    fn inputs() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            vec(any::<u8>(), 0..80),
            (any::<u8>(), 0usize..600).prop_map(|(byte, len)| vec![byte; len]),
            (vec(any::<u8>(), 1..9), 0usize..90).prop_map(|(unit, times)| unit.repeat(times)),
        ];
        vec((piece, 1usize..4), 0..24).prop_map(|pieces| {
            let copies = pieces.iter().map(|(_, copies)| *copies).max().unwrap_or(1);
            (0..copies)
                .flat_map(|i| pieces.iter().filter(move |(_, n)| i < *n).flat_map(|(piece, _)| piece.clone()))
                .collect()
        })
    }

    proptest! {
        #[test]
        fn what_is_compressed_comes_back(input in inputs()) {
            if let Some(compressed) = compress(&input) {
                prop_assert!(compressed.len() < input.len());
                prop_assert_eq!(decompress(&compressed, input.len()), Ok(input));
            }
        }

        #[test]
        fn any_bytes_may_be_decompressed(input in vec(any::<u8>(), 0..200), len in 0usize..3000) {
            if let Ok(output) = decompress(&input, len) {
                prop_assert_eq!(output.len(), len);
            }
        }
    }
}
