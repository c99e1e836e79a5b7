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
#[inline]
fn match_len(input: &[u8], earlier: usize, at: usize) -> Option<usize> {
    let from = earlier.checked_sub(1)?;
    if at - from > DISTANCE_MAX {
        return None;
    }
    // Most that have the same hash are not the same: that is seen at once.
    if input[from..].first_chunk::<MATCH_MIN>() != input[at..].first_chunk() {
        return None;
    }
    let longest = MATCH_MAX.min(input.len() - at);
    let len = common_len(&input[from..from + longest], &input[at..at + longest]);
    (len >= MATCH_MIN).then_some(len)
}

/// How many bytes two slices of the same length begin with alike.
#[inline]
fn common_len(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = size_of::<u64>();
    let (a_words, _) = a.as_chunks::<STEP>();
    let (b_words, _) = b.as_chunks::<STEP>();
    for (number, (a, b)) in a_words.iter().zip(b_words).enumerate() {
        let different = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if different != 0 {
            return number * STEP + different.trailing_zeros() as usize / 8;
        }
    }
    let start = a_words.len() * STEP;
    start + a[start..].iter().zip(&b[start..]).take_while(|(a, b)| a == b).count()
}

/// Takes note of the last two positions inside of a repetition, from which others often go on.
fn note_inside(seen: &mut [u32; 1 << HASH_BITS], input: &[u8], at: usize, len: usize) {
    for inside in at + len - 2..at + len {
        if let Some(next) = input.get(inside..inside + MATCH_MIN) {
            seen[hash(next)] = inside as u32 + 1;
        }
    }
}

#[inline]
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
    let mut output = Vec::new();
    decompress_into(input, len, &mut output)?;
    Ok(output)
}

/// The same into a vector, instead of what it holds: one that is used again and again.
pub fn decompress_into(input: &[u8], len: usize, output: &mut Vec<u8>) -> Result<(), Corrupt> {
    if len > input.len().saturating_mul(MATCH_MAX) {
        return Err(Corrupt);
    }
    // What is there already need not be cleared: all of it is written, or it is an error.
    output.resize(len, 0);
    let (mut from, mut to) = (0, 0);
    while let Some(&control) = input.get(from) {
        from += 1;
        if usize::from(control) < LITERALS_MAX {
            let run = usize::from(control) + 1;
            copy_literals(input, from, output, to, run).ok_or(Corrupt)?;
            (from, to) = (from + run, to + run);
        } else {
            let mut count = usize::from(control >> 5) + 2;
            if control >> 5 == 7 {
                count += usize::from(*input.get(from).ok_or(Corrupt)?);
                from += 1;
            }
            let low = usize::from(*input.get(from).ok_or(Corrupt)?);
            from += 1;
            repeat(output, to, (usize::from(control & 0x1F) << 8 | low) + 1, count).ok_or(Corrupt)?;
            to += count;
        }
    }
    if to == len { Ok(()) } else { Err(Corrupt) }
}

/// Copies `run` bytes. As many as a run may have are copied at once where there is room: copying a known number takes no
/// call.
#[inline]
fn copy_literals(input: &[u8], from: usize, output: &mut [u8], to: usize, run: usize) -> Option<()> {
    let (source, target) = (input.get(from..)?, output.get_mut(to..)?);
    match (source.first_chunk::<LITERALS_MAX>(), target.first_chunk_mut::<LITERALS_MAX>()) {
        (Some(source), Some(target)) => *target = *source,
        _ => target.get_mut(..run)?.copy_from_slice(source.get(..run)?),
    }
    Some(())
}

/// Writes `count` bytes at `to` that repeat what stands `distance` before.
#[inline]
fn repeat(output: &mut [u8], to: usize, distance: usize, count: usize) -> Option<()> {
    /// Bytes copied at once; a repetition of what is nearer has to be copied byte by byte, as it repeats itself.
    const STEP: usize = 16;
    let mut from = to.checked_sub(distance)?;
    let end = to.checked_add(count).filter(|end| *end <= output.len())?;
    let mut to = to;
    if distance >= STEP {
        while to < end && to + STEP <= output.len() {
            let mut step = [0; STEP];
            step.copy_from_slice(&output[from..from + STEP]);
            output[to..to + STEP].copy_from_slice(&step);
            (from, to) = (from + STEP, to + STEP);
        }
    }
    while to < end {
        output[to] = output[from];
        (from, to) = (from + 1, to + 1);
    }
    Some(())
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
