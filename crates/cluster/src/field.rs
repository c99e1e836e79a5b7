//! Which texts about a node can be stored in `nodes.conf` and read back.
//!
//! The file separates fields with spaces, lines with newlines, and the parts of an address with `,`, `=`, `:` and
//! `@`, without quoting. A text that another node announces must not break that.

/// Whether `text` can be a host name: no whitespace, control characters, quotes or commas.
pub(crate) fn is_host(text: &str) -> bool {
    text.chars().all(|character| !breaks_line(character) && character != ',')
}

/// Whether `text` can be an IP address: as a host name, without the `@` before the bus port.
///
/// Received gossip needs this a hundred thousand times a second in a large cluster, so the characters of real addresses
/// have a fast path.
pub(crate) fn is_address(text: &str) -> bool {
    text.bytes().all(is_plain_in_address) || (is_host(text) && !text.contains('@'))
}

/// Whether a byte can be in any address, whatever the others are.
pub(crate) fn is_plain_in_address(byte: u8) -> bool {
    const PLAIN: [bool; 256] = {
        let mut plain = [false; 256];
        let mut byte = 0;
        while byte < plain.len() {
            plain[byte] = (byte as u8).is_ascii_hexdigit() || matches!(byte as u8, b'.' | b':');
            byte += 1;
        }
        plain
    };
    PLAIN[usize::from(byte)]
}

/// Whether `text` can be the value of an auxiliary field. Valkey refuses to load the file if a value has one of the
/// punctuation characters.
pub(crate) fn is_value(text: &str) -> bool {
    text.chars().all(|character| !breaks_line(character) && !",=!#$%&()*+;<>?@[]^{|}~".contains(character))
}

/// Whether a character ends a field or starts a quoted one.
fn breaks_line(character: char) -> bool {
    character.is_control() || character.is_whitespace() || matches!(character, '"' | '\'')
}
