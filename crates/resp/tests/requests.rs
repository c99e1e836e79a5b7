//! Tests of the parser, driven as by a server.

use kvick_resp::{Args, Limits, OwnedArgs, Parsed, Parser, ProtocolError, Span};

const LINE_END: &[u8] = b"\r\n";

/// The result of a whole input: the requests, then how it ended.
#[derive(Debug, PartialEq)]
struct Outcome {
    requests: Vec<Vec<Vec<u8>>>,
    error: Option<ProtocolError>,
}

/// Feeds `pieces` to a parser like a connection that keeps unfinished input. Bytes
/// of big arguments are read through `spare` if `direct`, otherwise passed as input.
fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limits: &Limits, direct: bool) -> Outcome {
    let mut parser = Parser::new();
    let mut outcome = Outcome { requests: Vec::new(), error: None };
    let mut input = Vec::new();
    let mut needs = 0;
    for mut piece in pieces {
        while direct && needs > LINE_END.len() && !piece.is_empty() {
            let spare = parser.spare();
            assert!(!spare.is_empty() && spare.len() <= needs - LINE_END.len());
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

#[test]
fn empty_requests_are_skipped() {
    let found = requests(b"\r\n\n  \r\n*0\r\n*-10\r\n*1\r\n$4\r\nPING\r\n*0\r\nPING\r\n\r\n");
    assert_eq!(found, [strings(&["PING"]), strings(&["PING"])]);
}

#[test]
fn lengths_of_any_size_are_parsed() {
    for len in [0, 9, 10, 99, 100, 999, 1000, 16_384, 32_768, 100_000] {
        let value = vec![b'v'; len];
        assert_eq!(requests(&encode(&[b"SET".to_vec(), b"k".to_vec(), value.clone()]))[0][2], value);
    }
    let many = vec![b"a".to_vec(); 12_345];
    assert_eq!(requests(&encode(&many)), [many]);
}

#[test]
fn inline_requests_follow_the_quoting_rules() {
    let args = |line: &str| requests(format!("{line}\r\n").as_bytes()).remove(0);
    assert_eq!(args("  set\tkey  value "), strings(&["set", "key", "value"]));
    assert_eq!(args(r#"set """tes"t-'k'e"y" "test"'-'value"#), strings(&["set", "test-key", "test-value"]));
    assert_eq!(args(r#"a "\n\r\t\b\a\"\\\q" '\'\n' "" ''"#), strings(&["a", "\n\r\t\x08\x07\"\\q", "'\\n", "", ""]));
    assert_eq!(args(r#"a "\x41\x4g\xzz" b\n"#), strings(&["a", "Ax4gxzz", "b\\n"]));
    assert_eq!(args(r#"echo "abc\""#), strings(&["echo", r"abc\"]));
    assert_eq!(args("a\u{b}b \u{b}c"), strings(&["a\u{b}b", "c"]));
    assert_eq!(requests(b"a \"\\xff\\x00\"\n")[0][1], [0xff, 0]);
}

#[test]
fn quoted_arguments_of_a_batch_are_separate() {
    let found = requests(b"a 'b c'\r\nd \"e\"\r\n*1\r\n$1\r\nf\r\ng 'h' i\r\n");
    let expected = [strings(&["a", "b c"]), strings(&["d", "e"]), strings(&["f"]), strings(&["g", "h", "i"])];
    assert_eq!(found, expected);
}

#[test]
fn malformed_requests_have_distinct_errors() {
    use ProtocolError::*;
    let cases: &[(&[u8], ProtocolError)] = &[
        (b"*3000000000\r\n", InvalidMultibulkLength),
        (b"*2147483648\r\n", InvalidMultibulkLength),
        (b"*-0\r\n", InvalidMultibulkLength),
        (b"*00\r\n", InvalidMultibulkLength),
        (b"*01\r\n", InvalidMultibulkLength),
        (b"*+1\r\n", InvalidMultibulkLength),
        (b"* 1\r\n", InvalidMultibulkLength),
        (b"*\r\n", InvalidMultibulkLength),
        (b"*99999999999999999999999\r\n", InvalidMultibulkLength),
        (b"*3x\n$3\r\nSET", InvalidMultibulkLength),
        (b"*3xx$3\r\nSET", InvalidMultibulkLength),
        (b"*3\rx$3\r\nSET", InvalidCrlf),
        (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfooz\r\n", ExpectedDollar(b'f')),
        (b"*1\r\n\r\n", ExpectedDollar(b'\r')),
        (b"*1\r\nfoo\rx", ExpectedDollar(b'f')),
        (b"*2\r\n$3\r\nGET\r\n$-10\r\n", InvalidBulkLength),
        (b"*2\r\n$3\r\nGET\r\n$2000000000\r\n", InvalidBulkLength),
        (b"*2\r\n$3\r\nGET\r\n$blabla\r\n", InvalidBulkLength),
        (b"*2\r\n$03\r\nGET\r\n", InvalidBulkLength),
        (b"*2\r\n$3x\nGET\r\n", InvalidBulkLength),
        (b"*2\r\n$3\rxGET\r\n", InvalidCrlf),
        (b"*2\r\n$3\r\nGETx\n", InvalidCrlf),
        (b"*2\r\n$3\r\nGET\rx", InvalidCrlf),
        (b"*2\r\n$3\r\nGETS\r\n", InvalidCrlf),
        (b"set foo 'b'a'r\r\nping\r\n", UnbalancedQuotes),
        (b"set foo \"b\"a\"r\r\nping\r\n", UnbalancedQuotes),
    ];
    for (input, error) in cases {
        assert_eq!(parse(input), Outcome { requests: vec![], error: Some(*error) }, "{}", input.escape_ascii());
    }
}

#[test]
fn lines_over_64_kib_are_refused() {
    use ProtocolError::*;
    let cases: &[(&[u8], ProtocolError)] = &[
        (b"A", BigInline),
        (b"\0", BigInline),
        (b"$\0", BigInline),
        (b"*\0", BigMultibulkCount),
        (b"*1\r\n$\0", BigBulkCount),
        (b"*1\r\n", BigBulkCount),
    ];
    for (start, error) in cases {
        let line = start.len() - start.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut input = start.to_vec();
        input.resize(start.len() - line + 65_536, b'A');
        assert_eq!(parse(&input), Outcome { requests: vec![], error: None });
        input.push(b'A');
        assert_eq!(parse(&input), Outcome { requests: vec![], error: Some(*error) });
    }
}

#[test]
fn a_line_of_64_kib_is_not_too_long() {
    let name = "a".repeat(65_536);
    assert_eq!(requests(format!("{name}\n").as_bytes()), [strings(&[&name])]);
    let pieces = feed(format!("{name}\n").as_bytes().chunks(65_536), &Limits::default(), false);
    assert_eq!(pieces, Outcome { requests: vec![strings(&[&name])], error: None });
}

#[test]
fn an_inline_request_ends_at_a_nul_byte() {
    assert_eq!(parse(b"PING\0\r\nPING\r\n"), Outcome { requests: vec![], error: None });
}

#[test]
fn errors_have_valkeys_texts() {
    let text = |error: ProtocolError| error.to_string();
    assert_eq!(text(ProtocolError::ExpectedDollar(b'f')), "Protocol error: expected '$', got 'f'");
    assert_eq!(text(ProtocolError::InvalidMultibulkLength), "Protocol error: invalid multibulk length");
    assert_eq!(*ProtocolError::ExpectedDollar(0xff).text(), *b"Protocol error: expected '$', got '\xff'");
}

#[test]
fn unauthenticated_requests_are_limited() {
    let limits = Limits { authenticated: false, ..Limits::default() };
    let outcome = |input: &[u8]| feed([input], &limits, false);
    assert_eq!(outcome(b"*11\r\n").error, Some(ProtocolError::UnauthenticatedMultibulkLength));
    assert_eq!(outcome(b"*1\r\n$16385\r\n").error, Some(ProtocolError::UnauthenticatedBulkLength));
    let allowed = vec![vec![b'a'; 16_384]; 10];
    assert_eq!(outcome(&encode(&allowed)).requests, [allowed]);
    assert!(limits.query_buffer_exceeded(1024 * 1024 + 1) && !limits.query_buffer_exceeded(1024 * 1024));
    assert!(!Limits::default().query_buffer_exceeded(1024 * 1024 + 1));
}

#[test]
fn the_maximum_argument_length_is_configurable() {
    let limits = Limits { bulk_len_max: 50, ..Limits::default() };
    for (len, error) in [(50, None), (51, Some(ProtocolError::InvalidBulkLength))] {
        assert_eq!(feed([&encode(&[vec![b'a'; len]])[..]], &limits, false).error, error);
    }
}

#[test]
fn a_replication_stream_has_in_place_arguments_and_no_inline_requests() {
    let limits = Limits { replicated: true, bulk_len_max: 10, ..Limits::default() };
    let request = encode(&[vec![b'a'; 100_000]]);
    let (mut parser, mut pos, mut spans, mut big) = (Parser::new(), 0, Vec::new(), Vec::new());
    let half = &request[..50_000];
    assert_eq!(parser.parse(half, &mut pos, &mut spans, &mut big, &limits), Parsed::Incomplete);
    assert_eq!(parser.parse(&request, &mut pos, &mut spans, &mut big, &limits), Parsed::Request);
    assert_eq!((pos, big.len()), (request.len(), 0));
    assert_eq!(feed([&b"\n*1\r\n$1\r\na\r\n"[..]], &limits, false).requests, [strings(&["a"])]);
    assert_eq!(feed([&b"PING\r\n"[..]], &limits, false).error, Some(ProtocolError::UnexpectedInline));
}

#[test]
fn a_claimed_length_reserves_no_memory() {
    let (mut parser, mut spans, mut big) = (Parser::new(), Vec::new(), Vec::new());
    let limits = Limits { bulk_len_max: u64::MAX, ..Limits::default() };
    let claim = b"*2147483647\r\n$3\r\nSET\r\n$1000000000000\r\nabc";
    let parsed = parser.parse(claim, &mut 0, &mut spans, &mut big, &limits);
    assert_eq!(parsed, Parsed::Big { needs: 1_000_000_000_000 + 2 - 3 });
    assert!(parser.is_partial() && parser.buffered() < 80_000, "{}", parser.buffered());
    assert!(spans.capacity() < 1000 && parser.spare().len() <= 64 * 1024);

    let claim = b"*1\r\n$9223372036854775807\r\nabc";
    let parsed = Parser::new().parse(claim, &mut 0, &mut spans, &mut big, &limits);
    assert_eq!(parsed, Parsed::Incomplete);
}

#[test]
fn a_big_argument_grows_as_it_arrives_and_can_be_kept() {
    let value: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
    let request = encode(&[b"SET".to_vec(), b"key".to_vec(), value.clone()]);
    let (mut parser, mut spans, mut big) = (Parser::new(), Vec::new(), Vec::new());
    let limits = Limits::default();
    let (mut pos, mut sent) = (0, 40_000);
    let parsed = parser.parse(&request[..sent], &mut pos, &mut spans, &mut big, &limits);
    assert_eq!((parsed, pos), (Parsed::Big { needs: request.len() - sent }, sent));
    while sent < request.len() - LINE_END.len() {
        let spare = parser.spare();
        let n = spare.len().min(16_000);
        assert!(n > 0);
        spare.iter_mut().zip(&request[sent..sent + n]).for_each(|(to, from)| {
            to.write(*from);
        });
        sent += n;
        // SAFETY: `n` bytes were written just now.
        assert_eq!(unsafe { parser.filled(n) }, request.len() - sent);
        let room_max = (4 * sent).max((16 * sent).min(1024 * 1024));
        assert!(parser.buffered() < room_max + 80_000 && parser.received() <= sent);
    }
    assert!(parser.spare().is_empty());
    assert_eq!(parser.parse(b"\r", &mut 0, &mut spans, &mut big, &limits), Parsed::Big { needs: 1 });
    assert_eq!(parser.parse(b"\n", &mut 0, &mut spans, &mut big, &limits), Parsed::Request);
    assert!(!parser.is_partial() && parser.buffered() == 0);
    let args = Args::new(b"", &spans, &big);
    assert_eq!((&args[0], &args[1], args.shared(1)), (&b"SET"[..], &b"key"[..], None));
    let kept = args.shared(2).unwrap().clone();
    drop(big);
    assert!(kept[..] == value && kept.capacity() == value.len());
}

#[test]
fn a_big_argument_gets_room_for_what_has_arrived() {
    let (mut parser, limits) = (Parser::new(), Limits::default());
    parser.expect(1_000_000);
    assert!(!parser.must_grow() && parser.buffered() == 0);
    let head = b"*2\r\n$4\r\nECHO\r\n$3000000\r\nabc";
    let parsed = parser.parse(head, &mut 0, &mut Vec::new(), &mut Vec::new(), &limits);
    assert_eq!(parsed, Parsed::Big { needs: 3_000_000 + 2 - 3 });
    assert!(parser.must_grow() && parser.spare().len() == 64 * 1024 - 3);
    // What waits in the socket, of which a buffer may be 16 times the size up to 1 MiB, then four times.
    parser.expect(200_000);
    assert!(parser.must_grow() && (200_000..=1024 * 1024).contains(&parser.spare().len()));
    parser.expect(400_000);
    assert!(parser.must_grow() && (400_000..=1_600_012).contains(&parser.spare().len()));
    parser.expect(usize::MAX);
    assert!(!parser.must_grow() && parser.spare().len() == 3_000_000 - 3);
}

#[test]
fn a_big_argument_ends_at_its_length() {
    let mut input = encode(&[vec![b'a'; 40_000]]);
    let end = input.len();
    for (at, byte) in [(end - 2, b'a'), (end - 1, b'\r')] {
        let right = std::mem::replace(&mut input[at], byte);
        for direct in [false, true] {
            let outcome = feed(input.chunks(30_000), &Limits::default(), direct);
            assert_eq!(outcome, Outcome { requests: vec![], error: Some(ProtocolError::InvalidCrlf) });
        }
        input[at] = right;
    }
}

#[test]
fn a_big_argument_has_its_own_buffer() {
    let value = vec![b'v'; 40_000];
    let mut input = encode(&[b"ECHO".to_vec(), value.clone()]);
    input.extend_from_slice(b"ECHO 'quoted'\r\n");
    let (mut parser, mut spans, mut big) = (Parser::new(), Vec::new(), Vec::new());
    let (start, end) = input.split_at(20_000);
    let limits = Limits::default();
    assert!(matches!(parser.parse(start, &mut 0, &mut spans, &mut big, &limits), Parsed::Big { .. }));
    let mut pos = 0;
    assert_eq!(parser.parse(end, &mut pos, &mut spans, &mut big, &limits), Parsed::Request);
    assert_eq!(parser.parse(end, &mut pos, &mut spans, &mut big, &limits), Parsed::Request);
    let kept = Args::new(end, &spans[..2], &big).shared(1).unwrap();
    assert!(kept[..] == value && OwnedArgs::from(Args::new(end, &spans[..2], &big)).args().shared(1) == Some(kept));
    assert_eq!(&Args::new(end, &spans[2..], &big)[1], b"quoted");
}

#[test]
fn an_idle_parser_is_small() {
    assert!(size_of::<Parser>() <= 64 && size_of::<Span>() <= 16);
}

/// A request in RESP.
fn encode(args: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

mod properties {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// An argument: mostly short, sometimes around the length from which it is received separately.
    fn argument() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            20 => vec(any::<u8>(), 0..20),
            2 => vec(any::<u8>(), 90..130),
            1 => (32_760usize..32_780, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
            1 => (60_000usize..200_000, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
        ]
    }

    fn request() -> impl Strategy<Value = Vec<Vec<u8>>> {
        vec(argument(), 1..12)
    }

    /// A piece of input that resembles requests more than noise, so that parsing gets far.
    fn stretch() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            4 => vec(vec(any::<u8>(), 0..20), 1..5).prop_map(|args| encode(&args)),
            2 => "[a-z \"'\\\\x0-9]{0,20}\r?\n".prop_map(String::into_bytes),
            2 => "[*$][-0-9]{0,5}\r\n".prop_map(String::into_bytes),
            1 => Just(b"*2\r\n$3\r\nGET\r\n$40000\r\n".to_vec()),
            1 => vec(prop_oneof![any::<u8>(), Just(b'\r'), Just(b'\n'), Just(b'$'), Just(b'*'), Just(b'1')], 0..30),
        ]
    }

    /// Cuts `input` at the offsets (taken modulo its length).
    fn cut<'a>(input: &'a [u8], offsets: &[usize]) -> Vec<&'a [u8]> {
        let mut offsets: Vec<_> = offsets.iter().map(|offset| offset % (input.len() + 1)).collect();
        offsets.extend([0, input.len()]);
        offsets.sort_unstable();
        offsets.windows(2).map(|pair| &input[pair[0]..pair[1]]).collect()
    }

    proptest! {
        #[test]
        fn requests_parse_the_same_in_any_pieces(
            requests in vec(request(), 1..4),
            offsets in vec(any::<usize>(), 0..12),
            direct in any::<bool>(),
        ) {
            let input: Vec<u8> = requests.iter().flat_map(|request| encode(request)).collect();
            let expected = Outcome { requests, error: None };
            prop_assert!(feed([&input[..]], &Limits::default(), direct) == expected, "in one piece");
            prop_assert!(feed(cut(&input, &offsets), &Limits::default(), direct) == expected, "in pieces");
        }

        #[test]
        fn requests_parse_the_same_cut_at_every_byte(request in vec(vec(any::<u8>(), 0..120), 1..6)) {
            let input = encode(&request);
            let whole = Outcome { requests: vec![request], error: None };
            for at in 0..=input.len() {
                let pieces = [&input[..at], &input[at..]];
                prop_assert_eq!(&feed(pieces, &Limits::default(), false), &whole);
            }
            prop_assert_eq!(&feed(input.chunks(1), &Limits::default(), true), &whole);
        }

        #[test]
        fn noise_parses_the_same_in_any_pieces(
            stretches in vec(stretch(), 0..8),
            offsets in vec(any::<usize>(), 0..12),
            authenticated in any::<bool>(),
            replicated in any::<bool>(),
        ) {
            let input = stretches.concat();
            let limits = Limits { authenticated, replicated, ..Limits::default() };
            let whole = feed([&input[..]], &limits, false);
            prop_assert_eq!(&feed(cut(&input, &offsets), &limits, false), &whole);
            prop_assert_eq!(&feed(input.chunks(1), &limits, true), &whole);
        }

        #[test]
        fn arguments_survive_quoting(args in vec(vec(any::<u8>(), 0..10), 1..5)) {
            let quote = |arg: &Vec<u8>| {
                let bytes: String = arg.iter().map(|byte| format!("\\x{byte:02x}")).collect();
                format!("\"{bytes}\"")
            };
            let line = args.iter().map(quote).collect::<Vec<_>>().join(" ");
            prop_assert_eq!(requests(format!("{line}\r\n").as_bytes()), [args.clone()]);
            prop_assert_eq!(kvick_resp::split_args(line.as_bytes()), Ok(args));
        }
    }
}
