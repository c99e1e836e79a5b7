//! Requests in RESP.

use kvick_resp::Args;
use kvick_resp::format::format_i64;

/// Appends a request: as it was received, if possible.
#[inline]
pub fn encode(args: Args<'_>, out: &mut Vec<u8>) {
    match args.encoded() {
        Some(bytes) => out.extend_from_slice(bytes),
        None => encode_words(args, out),
    }
}

fn encode_words(args: Args<'_>, out: &mut Vec<u8>) {
    header(b'*', args.len(), out);
    for word in args.iter() {
        header(b'$', word.len(), out);
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn header(kind: u8, length: usize, out: &mut Vec<u8>) {
    out.push(kind);
    format_i64(length as i64, out);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_resp::OwnedArgs;

    #[test]
    fn words_are_bulk_strings() {
        let mut out = Vec::new();
        encode(OwnedArgs::new(["SET", "a\r\n", ""]).args(), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "*3\r\n$3\r\nSET\r\n$3\r\na\r\n\r\n$0\r\n\r\n");
    }
}
