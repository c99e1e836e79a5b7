//! Pages of memory, which the kernel can send without copying them.

use std::ops::Range;

/// The size of a page in bytes.
pub fn size() -> usize {
    rustix::param::page_size()
}

/// The part of a slice that consists of whole pages; empty if there is none.
pub fn within(bytes: &[u8]) -> Range<usize> {
    let (start, size) = (bytes.as_ptr() as usize, size());
    let from = start.next_multiple_of(size) - start;
    let end = ((start + bytes.len()) / size * size).saturating_sub(start);
    if from < end { from..end } else { 0..0 }
}

/// Gives up the whole pages of a buffer, whoever else refers to them, and puts others in their place. Returns whether
/// this succeeded. The content of these pages is lost.
pub fn replace(buffer: &mut [u8]) -> bool {
    let pages = within(buffer);
    let pages = &mut buffer[pages];
    if pages.is_empty() {
        return true;
    }
    replace_pages(pages.as_mut_ptr().cast(), pages.len())
}

#[cfg(not(miri))]
fn replace_pages(start: *mut std::ffi::c_void, len: usize) -> bool {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    // SAFETY: the pages are private memory of the caller, and lie in its buffer from the first to the last byte. They
    // are replaced by pages of zeroes.
    unsafe {
        madvise(start, len, Advice::LinuxDontNeed).is_ok() || {
            // This fails for memory that is locked, which can be replaced all the same.
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            mmap_anonymous(start, len, ProtFlags::READ | ProtFlags::WRITE, flags).is_ok()
        }
    }
}

/// The interpreter has no kernel that could refer to pages.
#[cfg(miri)]
fn replace_pages(_: *mut std::ffi::c_void, _: usize) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_are_found() {
        let size = size();
        let bytes = vec![0u8; 8 * size];
        let first = bytes.as_ptr().align_offset(size);
        let starts = [(0, 3 * size, 3), (1, 3 * size, 2), (size - 1, 2, 0), (size - 1, size, 0), (1, size, 0)];
        for (offset, len, expected) in starts {
            let part = &bytes[first + offset..][..len];
            let pages = within(part);
            assert_eq!(pages.len(), expected * size, "{offset} {len}");
            assert!(pages.is_empty() || (part.as_ptr() as usize + pages.start).is_multiple_of(size));
        }
        assert!(within(&[]).is_empty());
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs a kernel")]
    fn replaced_pages_are_new_and_their_surroundings_are_kept() {
        let mut bytes = vec![7u8; 5 * size() + 100];
        let pages = within(&bytes);
        assert!(replace(&mut bytes));
        assert!(bytes[pages.clone()].iter().all(|byte| *byte == 0));
        assert!(bytes[..pages.start].iter().chain(&bytes[pages.end..]).all(|byte| *byte == 7));
        bytes.fill(8);
        assert!(bytes.iter().all(|byte| *byte == 8));
    }
}
