//! A file mapped into memory, whose pages the kernel keeps when the process is killed.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

/// File systems on which a store to allocated blocks cannot fail for lack of space: those that overwrite in place, or
/// keep the file in memory. On others the store would end the process with SIGBUS.
#[allow(clippy::unnecessary_cast, reason = "the type of these constants depends on the C library")]
const FILE_SYSTEMS: [i64; 4] = [
    libc::EXT4_SUPER_MAGIC as i64,
    libc::XFS_SUPER_MAGIC as i64,
    libc::TMPFS_MAGIC as i64,
    libc::OVERLAYFS_SUPER_MAGIC as i64,
];

/// See the module's documentation. Only allocated bytes may be accessed.
pub(super) struct Mapping {
    first: NonNull<u8>,
    len: usize,
    /// Bytes of the file.
    allocated: usize,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for Mapping {}

/// Creates a file, in place of an existing one.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let folder = path.parent().unwrap_or(path);
    if !FILE_SYSTEMS.contains(&file_system(folder)?) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "its file system may move blocks that are overwritten"));
    }
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
}

/// Allocates blocks for the first `len` bytes of a file.
pub(super) fn allocate(file: &File, len: usize) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    let failed = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) } != 0;
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The type of the file system that holds a directory.
fn file_system(folder: &Path) -> io::Result<i64> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: all zeros are a valid value.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, and `status` is valid for writes.
    if unsafe { libc::statfs(path.as_ptr(), &mut status) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The type of the field depends on the C library.
    Ok(status.f_type as i64)
}

impl Mapping {
    /// Maps `len` bytes of a file, of which the first `allocated` have blocks.
    pub fn new(file: &File, len: usize, allocated: usize) -> io::Result<Mapping> {
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Mapping { first, len, allocated: allocated.min(len) })
    }
}

impl AsMut<[u8]> for Mapping {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping exists until this value is dropped, nothing else accesses it, and these bytes of the file
        // exist.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.allocated) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was created with this address and length, and nothing refers to it.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.len) };
    }
}
