//! Logs protocol errors, with the client and a sample of its input from the position where the parser stopped. Also
//! detects TLS handshakes on a port without TLS.

use kvick_config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use kvick_core::clients::{ClientInfo, REDACTED};
use kvick_engine::services::Services;
use kvick_resp::ProtocolError;
use kvick_runtime::logging;

/// Longer input is logged as its beginning and its end, each of half this size.
const SAMPLE_BYTES: usize = 128;

/// The first byte of a TLS handshake; no request begins with it.
pub const TLS_HANDSHAKE: u8 = 0x16;
/// The reply to a TLS handshake. A TLS client interprets it as a wrong version.
pub const NO_TLS: &[u8] = b"-ERR this port does not take TLS\r\n";

/// Whether input begins a TLS handshake.
#[cold]
pub fn is_tls(input: &[u8]) -> bool {
    matches!(input, [TLS_HANDSHAKE, 3, ..])
}

/// Logs that a client has begun a TLS handshake.
#[cold]
pub fn log_tls(client: &ClientInfo) {
    logging::verbose(format_args!("Closing a client that speaks TLS to a port without it: addr={}", client.peer));
}

/// Logs a protocol error.
#[cold]
pub fn log(server: &Services, client: &ClientInfo, error: ProtocolError, input: &[u8]) {
    let hide = server.config.read(HIDE_USER_DATA_FROM_LOG);
    logging::verbose(format_args!(
        "Protocol error ({}) from client: {}. Query buffer: {}",
        error.log_reason(),
        client.described(hide),
        if hide { REDACTED.into() } else { sample(input) }
    ));
}

/// The sample of input for the log: one line, with a dot for each unprintable byte.
fn sample(input: &[u8]) -> String {
    let plain = |bytes: &[u8]| -> String {
        let show = |&byte: &u8| if byte == b' ' || byte.is_ascii_graphic() { char::from(byte) } else { '.' };
        bytes.iter().map(show).collect()
    };
    let Some(left_out) = input.len().checked_sub(SAMPLE_BYTES) else { return format!("'{}'", plain(input)) };
    let (head, tail) = (&input[..SAMPLE_BYTES / 2], &input[input.len() - SAMPLE_BYTES / 2..]);
    format!("'{}' (... more {left_out} bytes ...) '{}'", plain(head), plain(tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_is_told_from_requests() {
        assert!(is_tls(b"\x16\x03\x01\x02\x00"));
        assert!(!is_tls(b"\x16PING\r\n") && !is_tls(b"\x16") && !is_tls(b"*1\r\n"));
    }

    #[test]
    fn a_sample_is_short_and_prints_on_one_line() {
        assert_eq!(sample(b"$blabla\r\n\xff"), "'$blabla...'");
        assert_eq!(sample(&[b'x'; 127]).len(), 129);
        let long = [&[b'a'; 500][..], &[b'b'; 500]].concat();
        assert_eq!(sample(&long), format!("'{}' (... more 872 bytes ...) '{}'", "a".repeat(64), "b".repeat(64)));
    }
}
