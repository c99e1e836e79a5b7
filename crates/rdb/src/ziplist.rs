//! Ziplists and zipmaps: the compact encodings that preceded listpacks, read only.
//!
//! ```text
//! ziplist: | bytes 4 | offset of the last entry 4 | entries 2 | entry ... | 0xff |      numbers little-endian
//! entry:   | length of the entry before it: 1, or 0xfe and 4 | kind and length: 1, 2 or 5 | text or integer |
//! zipmap:  | pairs 1 | field length 1 or 5 | field | value length 1 or 5 | spare 1 | value | spare | ... | 0xff |
//! ```
//!
//! Reading validates everything: lengths, the number of entries, the offset of the last entry and the terminator.

use kvick_store::Str;

/// The bytes are not a valid encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

const END: u8 = 0xff;
const HEADER_LEN: usize = 10;
/// First byte of a five-byte length.
const WIDE: u8 = 0xfe;

/// Calls `visit` with every entry of a ziplist.
pub(crate) fn for_each<'a>(
    ziplist: &'a [u8],
    mut visit: impl FnMut(Str<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut header = Bytes(ziplist);
    let claimed = (header.u32()? as usize, header.u32()? as usize, header.array().map(u16::from_le_bytes)?);
    let (bytes, last, count) = claimed;
    let [_, .., END] = ziplist else { return Err(Malformed) };
    if bytes != ziplist.len() || last > bytes - 1 {
        return Err(Malformed);
    }
    let mut entries = Bytes(ziplist.get(HEADER_LEN..bytes - 1).ok_or(Malformed)?);
    let (mut visited, mut previous, mut at) = (0, 0, HEADER_LEN);
    while !entries.0.is_empty() {
        let before = entries.0.len();
        let previous_len = match entries.u8()? {
            WIDE => entries.u32()? as usize,
            END => return Err(Malformed),
            short => usize::from(short),
        };
        if previous_len != previous {
            return Err(Malformed);
        }
        visit(entry(&mut entries)?)?;
        at += previous;
        previous = before - entries.0.len();
        visited += 1;
    }
    let count_is_right = count == u16::MAX || usize::from(count) == visited;
    if !count_is_right || (visited > 0 && at != last) {
        return Err(Malformed);
    }
    Ok(())
}

/// The content of an entry.
fn entry<'a>(entries: &mut Bytes<'a>) -> Result<Str<'a>, Malformed> {
    let first = entries.u8()?;
    Ok(match first {
        0x00..=0x3f => Str::Bytes(entries.take(usize::from(first))?),
        0x40..=0x7f => {
            let len = usize::from(first & 0x3f) << 8 | usize::from(entries.u8()?);
            Str::Bytes(entries.take(len)?)
        }
        0x80 => {
            let len = entries.array().map(u32::from_be_bytes)?;
            Str::Bytes(entries.take(len as usize)?)
        }
        0xc0 => Str::Int(i64::from(entries.array().map(i16::from_le_bytes)?)),
        0xd0 => Str::Int(i64::from(entries.array().map(i32::from_le_bytes)?)),
        0xe0 => Str::Int(entries.array().map(i64::from_le_bytes)?),
        0xf0 => {
            let [a, b, c] = entries.array()?;
            Str::Int(i64::from(i32::from_le_bytes([0, a, b, c]) >> 8))
        }
        0xfe => Str::Int(i64::from(entries.array().map(i8::from_le_bytes)?)),
        0xf1..=0xfd => Str::Int(i64::from(first & 0x0f) - 1),
        _ => return Err(Malformed),
    })
}

/// Calls `visit` with every field of a zipmap and its value; an empty zipmap is an error.
pub(crate) fn for_each_pair<'a>(
    zipmap: &'a [u8],
    mut visit: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let [count, body @ .., END] = zipmap else { return Err(Malformed) };
    let mut pairs = Bytes(body);
    let mut visited = 0;
    while !pairs.0.is_empty() {
        let len = pairs.zipmap_len()?;
        let field = pairs.take(len)?;
        let len = pairs.zipmap_len()?;
        let spare = pairs.u8()?;
        let value = pairs.take(len)?;
        pairs.take(usize::from(spare))?;
        visit(field, value)?;
        visited += 1;
    }
    let count_is_right = *count == WIDE || usize::from(*count) == visited;
    if visited > 0 && count_is_right { Ok(()) } else { Err(Malformed) }
}

/// The remaining bytes of an encoding.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn zipmap_len(&mut self) -> Result<usize, Malformed> {
        match self.u8()? {
            WIDE => self
                .u32()
                .map(|len| len as usize)
                .and_then(|len| if len < usize::from(WIDE) { Err(Malformed) } else { Ok(len) }),
            END => Err(Malformed),
            short => Ok(usize::from(short)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn read(ziplist: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
        let mut entries = Vec::new();
        for_each(ziplist, |entry| {
            entries.push(entry.bytes(&mut [0; 20]).to_vec());
            Ok(())
        })?;
        Ok(entries)
    }

    fn contents() -> Vec<Vec<u8>> {
        let numbers = ["0", "12", "13", "-1", "127", "-128", "128", "32767", "-32768", "8388607", "-8388608"];
        let larger = ["8388608", "2147483647", "-2147483648", "2147483648", "9223372036854775807"];
        let mut contents: Vec<Vec<u8>> = numbers.into_iter().chain(larger).map(|text| text.into()).collect();
        contents.extend([0, 1, 63, 64, 252, 253, 254, 300, 16383, 16384, 20000].map(|len| vec![b'x'; len]));
        contents.push(b"end".to_vec());
        contents
    }

    #[test]
    fn every_kind_of_entry_is_read() {
        let contents = contents();
        let ziplist = samples::ziplist(contents.iter().map(Vec::as_slice));
        assert_eq!(read(&ziplist).as_ref(), Ok(&contents));
        assert_eq!(read(&samples::ziplist([].into_iter())), Ok(vec![]));
    }

    #[test]
    fn a_damaged_ziplist_is_never_read_past_its_end() {
        let contents: Vec<Vec<u8>> = contents().into_iter().filter(|content| content.len() < 300).collect();
        let ziplist = samples::ziplist(contents.iter().map(Vec::as_slice));
        for length in 0..ziplist.len() {
            assert_eq!(read(&ziplist[..length]), Err(Malformed), "{length}");
        }
        for bit in 0..ziplist.len() * 8 {
            let mut changed = ziplist.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            if let Ok(read) = read(&changed) {
                assert_eq!(read.len(), contents.len(), "{bit}");
            }
        }
    }

    #[test]
    fn zipmaps_are_read_and_checked() {
        let (long, longer) = (vec![b'l'; 253], vec![b'L'; 254]);
        let pairs: [(&[u8], &[u8]); 3] = [(b"foo", b"bar"), (&long, &longer), (&longer, b"")];
        let zipmap = samples::zipmap(pairs);
        let read = |zipmap: &[u8]| {
            let mut read = Vec::new();
            for_each_pair(zipmap, |field, value| {
                read.push((field.to_vec(), value.to_vec()));
                Ok(())
            })
            .map(|()| read)
        };
        assert_eq!(read(&zipmap), Ok(pairs.map(|(field, value)| (field.to_vec(), value.to_vec())).to_vec()));
        for length in 0..zipmap.len() {
            assert_eq!(read(&zipmap[..length]), Err(Malformed), "{length}");
        }
        for bit in 0..zipmap.len() * 8 {
            let mut changed = zipmap.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let _ = read(&changed);
        }
        assert_eq!(read(b"\x00\xff"), Err(Malformed), "none is empty");
    }
}
