//! Requests through the parser as a server would drive it.

use kvick_resp::{Args, Limits, Parsed, Parser, ProtocolError, Span};

/// What a whole input came to: the requests, then how it ended.
#[derive(Debug, PartialEq)]
struct Outcome {
    requests: Vec<Vec<Vec<u8>>>,
    error: Option<ProtocolError>,
}

/// Feeds `pieces` to a parser like a connection that keeps what is unfinished. Bytes of big arguments are read through
/// `spare` when `direct`, otherwise handed in as input.
fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limits: &Limits, direct: bool) -> Outcome {
    let mut parser = Parser::new();
    let mut outcome = Outcome { requests: Vec::new(), error: None };
    let mut input = Vec::new();
    let mut needs = 0;
    for mut piece in pieces {
        while direct && needs > 0 && !piece.is_empty() {
            let spare = parser.spare();
            assert!(!spare.is_empty() && spare.len() <= needs);
            let n = piece.len().min(spare.len());
            for (to, from) in spare.iter_mut().zip(piece) {
                to.write(*from);
            }
            piece = &piece[n..];
            // SAFETY: the first `n` bytes were written just now.
            needs = unsafe { parser.filled(n) };
        }
        input.extend_from_slice(piece);
        let (mut pos, mut spans, mut big) = (0, Vec::<Span>::new(), Vec::new());
        let mut ranges = Vec::new();
        loop {
            let first = spans.len();
            match parser.parse(&input, &mut pos, &mut spans, &mut big, limits) {
                Parsed::Request => ranges.push(first..spans.len()),
                Parsed::Incomplete => break,
                Parsed::Big { needs: missing } => {
                    assert_eq!(pos, input.len());
                    needs = missing;
                    break;
                }
                Parsed::Error(error) => {
                    outcome.error = Some(error);
                    break;
                }
            }
        }
        for range in ranges {
            let args = Args::new(&input, &spans[range], &big);
            outcome.requests.push(args.iter().map(<[u8]>::to_vec).collect());
        }
        if outcome.error.is_some() {
            break;
        }
        input.drain(..pos);
    }
    outcome
}

fn parse(input: &[u8]) -> Outcome {
    feed([input], &Limits::default(), false)
}

/// The requests of an input without errors.
fn requests(input: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let outcome = parse(input);
    assert_eq!(outcome.error, None);
    outcome.requests
}

fn strings(args: &[&str]) -> Vec<Vec<u8>> {
    args.iter().map(|arg| arg.as_bytes().to_vec()).collect()
}

#[test]
fn a_pipeline_is_parsed_request_by_request() {
    let found = requests(b"*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$12\r\nabcdefghijkl\r\nGET k\r\n");
    assert_eq!(found, [strings(&["PING"]), strings(&["SET", "k", "abcdefghijkl"]), strings(&["GET", "k"])]);
}
