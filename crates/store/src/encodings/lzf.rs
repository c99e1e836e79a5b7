//! LZF: a fast compression without a header, used by dump files and the inner blocks of lists.
//!
//! A control byte below 32 is followed by that many literal bytes plus one. A larger control
//! byte repeats earlier output: its upper three bits, plus one more byte if all three are set,
//! are the length minus two; its lower five bits and another byte are the distance minus one.

use super::Corrupt;

/// Maximum length of a run of literals.
const LITERALS_MAX: usize = 32;
/// Maximum distance of a repetition.
const DISTANCE_MAX: usize = 1 << 13;
/// Maximum length of a repetition: two bytes, seven more, and 255 more.
const MATCH_MAX: usize = 2 + 7 + 255;

/// Bytes after the limit of the output into which a copy of constant length may overrun.
const SLACK: usize = LITERALS_MAX;

/// Slots of the hash table for short inputs, and maximum size of those inputs in bytes.
const SLOTS_FEW: usize = 1 << 9;
/// The same for inputs of medium size.
const SLOTS_SOME: usize = 1 << 12;
/// Slots of the hash table for larger inputs.
const SLOTS_MANY: usize = 1 << 14;

/// Compresses `input`; `None` if that does not make it shorter.
pub fn compress(input: &[u8]) -> Option<Vec<u8>> {
    let mut output = Vec::new();
    let len = compress_into(input, &mut output)?;
    output.truncate(len);
    output.shrink_to_fit();
    Some(output)
}

/// Like [`compress`], into the beginning of a reusable vector,
/// whose contents are overwritten; returns the compressed length.
pub fn compress_into(input: &[u8], output: &mut Vec<u8>) -> Option<usize> {
    let limit = input.len().checked_sub(1)?;
    if output.len() < limit + SLACK {
        output.resize(limit + SLACK, 0);
    }
    let mut output = Output { bytes: output, len: 0, limit };
    // Clearing a table that is larger than the input would take longer than the compression.
    if input.len() <= SLOTS_FEW {
        compress_with(&mut [0; SLOTS_FEW], input, &mut output)?;
    } else if input.len() <= SLOTS_SOME {
        compress_with(&mut [0; SLOTS_SOME], input, &mut output)?;
    } else {
        compress_with(&mut [0; SLOTS_MANY], input, &mut output)?;
    }
    Some(output.len)
}

/// Compresses with a table that maps each hash of three bytes to its last position. The
/// lower 16 bits of the position suffice, since anything further back than 64 KiB exceeds
/// the maximum distance. Position 0 also means "none", since candidates are compared anyway.
#[inline]
fn compress_with<const SLOTS: usize>(seen: &mut [u16; SLOTS], input: &[u8], output: &mut Output<'_>) -> Option<()> {
    let (mut at, mut taken) = (1, 0);
    while let Some(next) = word(input, at) {
        let slot = &mut seen[hash::<SLOTS>(next as u32)];
        let distance = usize::from((at as u16).wrapping_sub(*slot));
        *slot = at as u16;
        let different = word(input, at.wrapping_sub(distance)).unwrap_or(!next) ^ next;
        // A match of three bytes between literals gains nothing: the literals after it need another control byte.
        let compared = if at == taken { 0x00ff_ffff } else { 0xffff_ffff_u64 };
        if (different & compared != 0) | (distance.wrapping_sub(1) >= DISTANCE_MAX) {
            at += 1;
            continue;
        }
        output.literals(input, taken, at)?;
        let len = match different {
            0 => {
                let (earlier, longest) = (at - distance, MATCH_MAX.min(input.len() - at));
                common_len(&input[earlier..earlier + longest], &input[at..at + longest])
            }
            different => different.trailing_zeros() as usize / 8,
        };
        output.repeat(len, distance)?;
        at += len;
        taken = at;
        // Matches often continue from the last two positions inside a repetition.
        if let Some(next) = word(input, at - 2) {
            seen[hash::<SLOTS>(next as u32)] = (at - 2) as u16;
            seen[hash::<SLOTS>((next >> 8) as u32)] = (at - 1) as u16;
        }
    }
    output.literals(input, taken, input.len())
}

/// The eight bytes at `at`.
#[inline]
fn word(input: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*input.get(at..)?.first_chunk()?))
}

/// Length of the common prefix of two slices of the same length.
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

/// The slot number for the lower three bytes of a word.
#[inline]
fn hash<const SLOTS: usize>(word: u32) -> usize {
    ((word << 8).wrapping_mul(0x9E37_79B1) >> (32 - SLOTS.ilog2())) as usize
}

/// Compressed bytes, up to a limit.
struct Output<'a> {
    /// Longer than the limit by [`SLACK`].
    bytes: &'a mut [u8],
    len: usize,
    limit: usize,
}

impl Output<'_> {
    /// Writes the bytes from `from` to `to` as literals.
    #[inline]
    fn literals(&mut self, input: &[u8], mut from: usize, to: usize) -> Option<()> {
        while from < to {
            let run = LITERALS_MAX.min(to - from);
            let end = self.len + 1 + run;
            if end > self.limit {
                return None;
            }
            self.bytes[self.len] = run as u8 - 1;
            let room = &mut self.bytes[self.len + 1..];
            // If possible, copies the maximum length of a run: a copy of constant length needs no call.
            match (room.first_chunk_mut::<LITERALS_MAX>(), input[from..].first_chunk::<LITERALS_MAX>()) {
                (Some(room), Some(bytes)) => *room = *bytes,
                _ => room[..run].copy_from_slice(&input[from..from + run]),
            }
            self.len = end;
            from += run;
        }
        Some(())
    }

    #[inline]
    fn repeat(&mut self, len: usize, distance: usize) -> Option<()> {
        let room = self.bytes.get_mut(self.len..)?.first_chunk_mut::<3>()?;
        let (len, distance) = (len - 2, distance - 1);
        let high = (distance >> 8) as u8;
        self.len += if len < 7 {
            *room = [(len as u8) << 5 | high, distance as u8, 0];
            2
        } else {
            *room = [7 << 5 | high, (len - 7) as u8, distance as u8];
            3
        };
        (self.len <= self.limit).then_some(())
    }
}

/// Decompresses `input` to `len` bytes. Allocates no more memory than that, and no more than `input` can expand to.
pub fn decompress(input: &[u8], len: usize) -> Result<Vec<u8>, Corrupt> {
    let mut output = Vec::new();
    decompress_into(input, len, &mut output)?;
    Ok(output)
}

/// Like [`decompress`], into a reusable vector, replacing its contents.
pub fn decompress_into(input: &[u8], len: usize, output: &mut Vec<u8>) -> Result<(), Corrupt> {
    if len > input.len().saturating_mul(MATCH_MAX) {
        return Err(Corrupt);
    }
    // Existing contents need not be cleared: either all of it is overwritten, or an error is returned.
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

/// Copies `run` bytes. If there is room, copies the maximum length of a run: a copy of constant length needs no call.
#[inline]
fn copy_literals(input: &[u8], from: usize, output: &mut [u8], to: usize, run: usize) -> Option<()> {
    let (source, target) = (input.get(from..)?, output.get_mut(to..)?);
    match (source.first_chunk::<LITERALS_MAX>(), target.first_chunk_mut::<LITERALS_MAX>()) {
        (Some(source), Some(target)) => *target = *source,
        _ => target.get_mut(..run)?.copy_from_slice(source.get(..run)?),
    }
    Some(())
}

/// Writes `count` bytes at `to` that repeat those `distance` before.
#[inline]
fn repeat(output: &mut [u8], to: usize, distance: usize, count: usize) -> Option<()> {
    /// Bytes copied at once. A repetition with a smaller distance overlaps itself, and must be copied byte by byte.
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
    fn known_compressed_streams_decompress() {
        assert_eq!(decompress(&[4, b'h', b'e', b'l', b'l', b'o'], 5).unwrap(), b"hello");
        // One byte, then a repetition of it: 3 bytes from one back.
        assert_eq!(decompress(&[0, b'a', 1 << 5, 0], 4).unwrap(), b"aaaa");
        // The longest: 2 + 7 + 255.
        assert_eq!(decompress(&[0, b'a', 0xE0, 255, 0], 265).unwrap(), [b'a'; 265]);
    }

    #[test]
    fn inconsistent_lengths_are_rejected() {
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
    fn repetitive_input_shrinks_and_random_input_is_kept() {
        assert!(compress(&[b'x'; 8192]).unwrap().len() < 120);
        let distinct: Vec<u8> = (0..=255).collect();
        assert_eq!(compress(&distinct), None);
        assert_eq!(compress(b""), None);
        assert_eq!(compress(b"a"), None);
    }

    #[test]
    fn large_input_compresses_as_well_as_small() {
        // Words in an order without a pattern, more than the table's positions can distinguish.
        let mut state = 1u32;
        let mut words = Vec::new();
        while words.len() < 300_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            words.extend(format!("word:{} ", state >> 24).bytes());
        }
        let compressed = compress(&words).unwrap();
        assert!(compressed.len() * 2 < words.len(), "{} of {}", compressed.len(), words.len());
        assert!(decompress(&compressed, words.len()).is_ok_and(|back| back == words));
        let first = compress(&words[..8192]).unwrap();
        assert!(compressed.len() * 8192 < first.len() * words.len() * 101 / 100);
    }

    #[test]
    fn matches_beyond_the_window_are_not_compressed() {
        // The same bytes at distances around the maximum, and around those where positions are equal modulo 2^16.
        for distance in [DISTANCE_MAX - 1, DISTANCE_MAX, DISTANCE_MAX + 1, 65535, 65536, 65537, 131_072] {
            let mut input: Vec<u8> = (0..distance as u32 / 4 + 1).flat_map(|i| i.to_be_bytes()).collect();
            input.truncate(distance);
            let start = input[..distance.min(40)].to_vec();
            input.extend(&start);
            // Enough compressible bytes that the whole becomes shorter.
            input.resize(input.len() + 300 + distance / 8, b'z');
            let compressed = compress(&input).unwrap();
            assert!(decompress(&compressed, input.len()).is_ok_and(|back| back == input), "{distance}");
        }
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
        fn compression_round_trips(input in inputs()) {
            if let Some(compressed) = compress(&input) {
                prop_assert!(compressed.len() < input.len());
                prop_assert_eq!(decompress(&compressed, input.len()), Ok(input));
            }
        }

        #[test]
        fn output_vector_can_be_reused(inputs in vec(inputs(), 1..4)) {
            let mut used = std::vec![0xAB; 100];
            for input in inputs {
                let len = compress_into(&input, &mut used);
                prop_assert_eq!(len.map(|len| used[..len].to_vec()), compress(&input));
            }
        }

        #[test]
        fn decompression_of_arbitrary_bytes_is_safe(input in vec(any::<u8>(), 0..200), len in 0usize..3000) {
            if let Ok(output) = decompress(&input, len) {
                prop_assert_eq!(output.len(), len);
            }
        }
    }
}
