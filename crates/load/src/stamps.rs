//! Reads from TCP sockets with the time at which the kernel received the bytes.
//!
//! A thread that looks at its sockets once per turn reads replies late. Linux notes for each packet when it arrived, so
//! the lateness of the thread does not become part of the latency of the server. Bytes of several packets that one read
//! takes have the time of the last packet: the figure may be too long by a turn, and never too short.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Whether the system can tell when bytes arrived.
pub const ARE_SUPPORTED: bool = cfg!(target_os = "linux");

/// Asks the kernel to note when packets arrive.
#[cfg(target_os = "linux")]
pub fn enable(socket: BorrowedFd<'_>) -> io::Result<()> {
    let is_on: libc::c_int = 1;
    // SAFETY: the pointer and the length are those of an integer that lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const is_on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads, and returns the number of bytes with the time since the epoch at which the last of them arrived, if the
/// kernel noted it.
#[cfg(target_os = "linux")]
pub fn read(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Option<Duration>)> {
    /// Room for one control message with a time, aligned as its header must be.
    #[repr(C, align(8))]
    struct Control([u8; 64]);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the structure may be all zeros. Its pointers are to a buffer, a part and a control buffer that live until
    // the call returns, with their lengths. The kernel wrote the control messages that the macros walk through, and a
    // message of this kind holds a `timespec`, which is read without an assumption about its alignment.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        let count = libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0);
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut arrived = None;
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_TIMESTAMPNS {
                let time: libc::timespec = libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned();
                arrived = Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32));
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        Ok((count as usize, arrived))
    }
}

/// Not supported by this system.
#[cfg(not(target_os = "linux"))]
pub fn enable(_socket: BorrowedFd<'_>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Not supported by this system.
#[cfg(not(target_os = "linux"))]
pub fn read(_socket: BorrowedFd<'_>, _buffer: &mut [u8]) -> io::Result<(usize, Option<Duration>)> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use kvick_testing::connected_pair;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::time::SystemTime;

    #[test]
    fn a_late_read_has_the_time_of_the_arrival() {
        let (reader, mut writer) = connected_pair();
        enable(reader.as_fd()).expect("times of arrival");
        let since_epoch = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970");
        let mut buffer = [0; 16];
        // The kernel begins to note times a moment after the first socket asks for them.
        for _ in 0..1000 {
            let before = since_epoch();
            writer.write_all(b"+OK\r\n").expect("written");
            let written = since_epoch();
            std::thread::sleep(Duration::from_millis(20));
            let (count, arrived) = read(reader.as_fd(), &mut buffer).expect("read");
            assert_eq!(&buffer[..count], b"+OK\r\n");
            if let Some(arrived) = arrived {
                assert!(before <= arrived && arrived < written + Duration::from_millis(20), "{before:?} {arrived:?}");
                return;
            }
        }
        panic!("no read has a time");
    }

    #[test]
    fn an_empty_socket_would_block() {
        let (reader, _writer) = connected_pair();
        reader.set_nonblocking(true).expect("a socket that does not block");
        let error = read(reader.as_fd(), &mut [0; 16]).expect_err("nothing to read");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
