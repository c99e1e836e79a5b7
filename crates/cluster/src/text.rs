//! Numbers and slots in texts with thousands of lines: CLUSTER NODES and `nodes.conf`. No formatting machinery.

use crate::slots::SlotsRef;

/// Appends a separator and a number.
pub(crate) fn push_number(out: &mut String, separator: char, number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = number;
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.push(separator);
    // All digits are ASCII.
    out.push_str(std::str::from_utf8(&digits[start..]).unwrap_or_default());
}

/// Slots as both texts have them: numbers and ranges, each behind a space.
pub(crate) fn slots_text(slots: SlotsRef<'_>) -> String {
    let mut out = String::new();
    for range in slots.ranges() {
        push_number(&mut out, ' ', u64::from(*range.start()));
        if range.start() != range.end() {
            push_number(&mut out, '-', u64::from(*range.end()));
        }
    }
    out
}
