//! Fuzzes the parser: any bytes yield the same requests and the
//! same error in one piece and in several, and never panic.
//!
//! The first four bytes determine the limits and the lengths of the pieces; the rest is what the connection receives.

#![no_main]

use kvick_resp::{Args, Limits, Parsed, Parser, ProtocolError};
use libfuzzer_sys::fuzz_target;

/// The requests of a connection, and the error that ended it.
type Outcome = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

fuzz_target!(|bytes: &[u8]| {
    let [flags, seed @ .., step] = *bytes.first_chunk::<4>().unwrap_or(&[0; 4]);
    let received = bytes.get(4..).unwrap_or_default();
    let limits = Limits {
        authenticated: flags & 1 == 0,
        replicated: flags & 2 != 0,
        bulk_len_max: if flags & 4 == 0 { 512 << 20 } else { 100 },
        ..Limits::default()
    };
    let whole = feed([received].into_iter(), &limits);
    let lengths = seed.into_iter().cycle().scan(step, |state, byte| {
        *state = state.wrapping_mul(31).wrapping_add(byte);
        Some(1 + usize::from(*state) * if flags & 8 == 0 { 1 } else { 200 })
    });
    assert_eq!(feed(Pieces { left: received, lengths }, &limits), whole);
});

/// Cuts the remaining bytes into pieces of the given lengths.
struct Pieces<'a, L> {
    left: &'a [u8],
    lengths: L,
}

impl<'a, L: Iterator<Item = usize>> Iterator for Pieces<'a, L> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let length = self.lengths.next()?.min(self.left.len());
        let (piece, left) = self.left.split_at(length);
        self.left = left;
        (!piece.is_empty()).then_some(piece)
    }
}

/// Feeds a parser like a connection that keeps unfinished input.
fn feed<'a>(pieces: impl Iterator<Item = &'a [u8]>, limits: &Limits) -> Outcome {
    let (mut parser, mut input, mut requests) = (Parser::new(), Vec::new(), Vec::new());
    let mut received = 0;
    for piece in pieces {
        input.extend_from_slice(piece);
        received += piece.len();
        let (mut pos, mut spans, mut big) = (0, Vec::new(), Vec::new());
        loop {
            let first = spans.len();
            match parser.parse(&input, &mut pos, &mut spans, &mut big, limits) {
                Parsed::Request => {
                    let args = Args::new(&input, &spans[first..], &big);
                    requests.push(args.iter().map(<[u8]>::to_vec).collect());
                }
                Parsed::Incomplete => break,
                Parsed::Big { needs } => {
                    assert!(needs > 0 && pos == input.len() && parser.spare().is_empty() != parser.is_receiving());
                    break;
                }
                Parsed::Error(error) => return (requests, Some(error)),
            }
        }
        assert!(parser.buffered() < 200_000 + 24 * received, "memory grows with what arrived");
        input.drain(..pos);
    }
    (requests, None)
}
