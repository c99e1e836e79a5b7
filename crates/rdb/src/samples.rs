//! Builders of obsolete encodings, for tests.

use kvick_resp::format::parse_i64;

/// A ziplist of these entries; integers are encoded as such.
pub fn ziplist<'a>(entries: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut body = Vec::new();
    let (mut previous, mut last, mut count) = (0usize, 10, 0u16);
    for entry in entries {
        last = 10 + body.len();
        let start = body.len();
        if previous < 254 {
            body.push(previous as u8);
        } else {
            body.push(0xfe);
            body.extend((previous as u32).to_le_bytes());
        }
        match parse_i64(entry) {
            Some(number) => push_int(&mut body, number),
            None => push_text(&mut body, entry),
        }
        previous = body.len() - start;
        count += 1;
    }
    let mut ziplist = Vec::new();
    ziplist.extend((body.len() as u32 + 11).to_le_bytes());
    ziplist.extend((last as u32).to_le_bytes());
    ziplist.extend(count.to_le_bytes());
    ziplist.extend(body);
    ziplist.push(0xff);
    ziplist
}

fn push_int(body: &mut Vec<u8>, number: i64) {
    let bytes = number.to_le_bytes();
    let fits = |bits: u32| number >> (bits - 1) == 0 || number >> (bits - 1) == -1;
    match number {
        0..=12 => body.push(0xf1 + number as u8),
        _ if fits(8) => body.extend([0xfe, bytes[0]]),
        _ if fits(16) => body.extend([0xc0, bytes[0], bytes[1]]),
        _ if fits(24) => body.extend([0xf0, bytes[0], bytes[1], bytes[2]]),
        _ if fits(32) => body.extend([0xd0, bytes[0], bytes[1], bytes[2], bytes[3]]),
        _ => {
            body.push(0xe0);
            body.extend(bytes);
        }
    }
}

fn push_text(body: &mut Vec<u8>, text: &[u8]) {
    match text.len() {
        len @ 0..=63 => body.push(len as u8),
        len @ 64..=16383 => body.extend([0x40 | (len >> 8) as u8, len as u8]),
        len => {
            body.push(0x80);
            body.extend((len as u32).to_be_bytes());
        }
    }
    body.extend(text);
}

/// A zipmap of these pairs; every value is followed by a spare byte.
pub fn zipmap<'a>(pairs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let mut zipmap = vec![0];
    for (field, value) in pairs {
        zipmap[0] += 1;
        zipmap_len(&mut zipmap, field.len());
        zipmap.extend(field);
        zipmap_len(&mut zipmap, value.len());
        zipmap.push(1);
        zipmap.extend(value);
        zipmap.push(b'?');
    }
    zipmap.push(0xff);
    zipmap
}

fn zipmap_len(zipmap: &mut Vec<u8>, len: usize) {
    if len < 254 {
        zipmap.push(len as u8);
    } else {
        zipmap.push(254);
        zipmap.extend((len as u32).to_le_bytes());
    }
}
