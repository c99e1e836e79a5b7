//! The quoting rules of configuration files: splits a line into arguments, and quotes an argument so that the splitter
//! restores it.
//!
//! Outside quotes, blanks separate arguments and all other characters are literal. Inside `"double quotes"` a backslash
//! escapes: `\n \r \t \b \a`, `\xHH` for any byte, and any other character for itself. Inside `'single quotes'`, the
//! only escape is `\'`. Quotes may open and close anywhere: `a"b c"d` is one argument.

/// Splits a line into its arguments; `None` if quotes are not balanced. As in C, a NUL byte outside quotes ends the
/// line, and one inside quotes leaves them open.
pub fn split_args(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    kvick_resp::split_args(line).ok()
}

/// Appends `text` in double quotes, with everything that is not printable ASCII escaped.
pub fn push_quoted(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0x07 => out.extend(b"\\a"),
            0x08 => out.extend(b"\\b"),
            b' '..=b'~' => out.push(byte),
            _ => out.extend(format!("\\x{byte:02x}").bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(line: &str) -> Option<Vec<String>> {
        let args = split_args(line.as_bytes())?;
        Some(args.into_iter().map(|arg| String::from_utf8_lossy(&arg).into_owned()).collect())
    }

    #[test]
    fn blanks_separate_arguments() {
        assert_eq!(split("  port\t 6379 \r\n").unwrap(), ["port", "6379"]);
        assert_eq!(split(" \t").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn double_quotes_know_escapes() {
        assert_eq!(split(r#"a "b \"c\" \x41\n\t\q" "#).unwrap(), ["a", "b \"c\" A\n\tq"]);
        assert_eq!(split_args(br#""\xff\x0""#).unwrap(), [b"\xffx0".to_vec()]);
        assert_eq!(split_args(br#""\a\b\r""#).unwrap(), [b"\x07\x08\r".to_vec()]);
    }

    #[test]
    fn single_quotes_know_only_their_own_escape() {
        assert_eq!(split(r"'a\n' '\'' ''").unwrap(), ["a\\n", "'", ""]);
    }

    #[test]
    fn quotes_may_open_and_close_within_an_argument() {
        assert_eq!(split(r#"a"b c"d'e f'"#).unwrap(), ["ab cde f"]);
        assert_eq!(split(r#""""#).unwrap(), [""]);
    }

    #[test]
    fn open_quotes_are_an_error() {
        for line in ["\"", "'", "a \"b", "a 'b", "\"a\\", "\"a\\\""] {
            assert_eq!(split(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_split_without_panic(line: Vec<u8>) {
            let _ = split_args(&line);
        }

        #[test]
        fn lines_of_quotes_and_escapes_split_without_panic(line in "[\"'\\\\xnaf0 \\x00]{0,24}") {
            let _ = split_args(line.as_bytes());
        }

        #[test]
        fn quoted_arguments_come_back_unchanged(args: Vec<Vec<u8>>) {
            let mut line = Vec::new();
            for arg in &args {
                push_quoted(&mut line, arg);
                line.push(b' ');
            }
            prop_assert_eq!(split_args(&line), Some(args));
        }

        #[test]
        fn plain_words_split_at_blanks(words in proptest::collection::vec("[a-z0-9./:*-]{1,9}", 0..9)) {
            let line = words.join(" \t ");
            prop_assert_eq!(split(&line).unwrap(), words);
        }
    }
}
