//! Writes what a connection is to receive, with as few calls and copies as possible.

use kvick_net::page_pipe::PagePipe;
use kvick_net::socket::Socket;
use kvick_resp::SharedBytes;
use std::io::{self, IoSlice};

/// Maximum parts written with one call.
const SLICES_PER_WRITE: usize = 128;

/// A part of a connection's output that is contiguous in memory.
#[derive(Clone, Copy)]
pub enum Segment<'a> {
    Bytes(&'a [u8]),
    /// A shared string, from an offset on.
    Shared(&'a SharedBytes, usize),
}

impl<'a> Segment<'a> {
    /// What is to be sent.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Segment::Bytes(bytes) => bytes,
            Segment::Shared(bytes, from) => &bytes[from..],
        }
    }

    /// The segment without its first `n` bytes.
    pub fn skip(self, n: usize) -> Self {
        match self {
            Segment::Bytes(bytes) => Segment::Bytes(&bytes[n..]),
            Segment::Shared(bytes, from) => Segment::Shared(bytes, from + n),
        }
    }

    /// The bytes in front of lent pages, these pages, and the bytes behind them. All are in front if none are lent.
    fn split(self, takes_pages: bool) -> (&'a [u8], &'a [u8], &'a [u8]) {
        let Segment::Shared(bytes, from) = self else { return (self.bytes(), &[], &[]) };
        let lent = match from {
            _ if !takes_pages => None,
            0 => bytes.lend(),
            _ => bytes.lent(),
        };
        let Some(pages) = lent.filter(|pages| pages.end > from) else { return (self.bytes(), &[], &[]) };
        let start = pages.start.max(from);
        (&bytes[from..start], &bytes[start..pages.end], &bytes[pages.end..])
    }
}

/// Slices of memory that are written with one call.
struct Slices<'a> {
    slices: [IoSlice<'a>; SLICES_PER_WRITE],
    count: usize,
    len: usize,
}

impl<'a> Slices<'a> {
    fn push(&mut self, bytes: &'a [u8]) {
        if !bytes.is_empty() {
            self.slices[self.count] = IoSlice::new(bytes);
            self.count += 1;
            self.len += bytes.len();
        }
    }

    fn is_full(&self) -> bool {
        self.count == SLICES_PER_WRITE
    }

    /// Returns the bytes written, and whether these are all.
    fn write(&mut self, socket: &mut Socket, more: bool) -> io::Result<(usize, bool)> {
        if self.count == 0 {
            return Ok((0, true));
        }
        let slices = &self.slices[..std::mem::take(&mut self.count)];
        let written = if more { socket.write_vectored_before_more(slices) } else { socket.write_vectored(slices) }?;
        Ok((written, written == std::mem::take(&mut self.len)))
    }
}

/// Writes segments, at most `max` bytes, until the socket takes no more. Returns the number of bytes written.
///
/// # Errors
/// The socket's error, if nothing was written before it.
pub fn write_segments<'a>(
    socket: &mut Socket,
    pipe: &mut PagePipe,
    segments: impl Iterator<Item = Segment<'a>>,
    max: usize,
) -> io::Result<usize> {
    let mut total = 0;
    match write_up_to(socket, pipe, segments, max, &mut total) {
        Err(error) if total == 0 => Err(error),
        _ => Ok(total),
    }
}

fn write_up_to<'a>(
    socket: &mut Socket,
    pipe: &mut PagePipe,
    segments: impl Iterator<Item = Segment<'a>>,
    max: usize,
    total: &mut usize,
) -> io::Result<()> {
    let takes_pages = socket.takes_pages() && pipe.is_open();
    let mut slices = Slices { slices: [IoSlice::new(&[]); SLICES_PER_WRITE], count: 0, len: 0 };
    let mut left = max;
    let mut segments = segments.filter(|segment| !segment.bytes().is_empty()).peekable();
    while let Some(segment) = segments.next() {
        let (before, pages, behind) = segment.split(takes_pages);
        let before = &before[..before.len().min(left)];
        slices.push(before);
        left -= before.len();
        if !pages.is_empty() && left > 0 {
            let (written, is_all) = slices.write(socket, true)?;
            *total += written;
            if !is_all {
                return Ok(());
            }
            let pages = &pages[..pages.len().min(left)];
            // The socket waits for what follows, so something must.
            let is_followed = left > pages.len() && (!behind.is_empty() || segments.peek().is_some());
            // SAFETY: the string has lent these pages.
            let written = unsafe { socket.write_pages(pipe, pages, is_followed) }?;
            *total += written;
            left -= written;
            if written < pages.len() {
                return Ok(());
            }
            let behind = &behind[..behind.len().min(left)];
            slices.push(behind);
            left -= behind.len();
        }
        if left == 0 || slices.is_full() {
            break;
        }
    }
    *total += slices.write(socket, false)?.0;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_resp::{COPIES, LENT_MIN};
    use kvick_testing::connected_pair;
    use std::io::Read;
    use std::net::TcpStream;

    fn connected() -> (Socket, TcpStream) {
        let (sender, receiver) = connected_pair();
        sender.set_nonblocking(true).expect("a socket that does not block");
        (Socket::Tcp(mio::net::TcpStream::from_std(sender)), receiver)
    }

    fn send_often(string: &SharedBytes) {
        assert!((0..COPIES).all(|_| string.lend().is_none()));
    }

    /// Strings of which every other one is shared, and of these some were sent so often that the next time is by pages.
    fn strings() -> Vec<SharedBytes> {
        let lens = [5, LENT_MIN, 0, 3 * LENT_MIN + 1, 20_000, 1_500_000, 2, LENT_MIN - 1, 7, 700_001];
        let string = |(number, len)| SharedBytes::new((0..len).map(|i| (i / 11 + i / 4096 + number) as u8).collect());
        let strings: Vec<SharedBytes> = lens.into_iter().enumerate().map(string).collect();
        strings.iter().skip(1).step_by(4).for_each(send_often);
        strings
    }

    fn segments(strings: &[SharedBytes], mut skipped: usize) -> impl Iterator<Item = Segment<'_>> {
        let of_kinds = strings.iter().enumerate().map(|(number, string)| match number % 2 {
            0 => Segment::Bytes(&string[..]),
            _ => Segment::Shared(string, 0),
        });
        of_kinds.filter_map(move |segment| {
            let skip = skipped.min(segment.bytes().len());
            skipped -= skip;
            (skip < segment.bytes().len() || skip == 0).then(|| segment.skip(skip))
        })
    }

    #[test]
    fn segments_arrive_in_order_however_much_the_socket_takes() {
        let strings = strings();
        let whole: Vec<u8> = strings.iter().flat_map(|string| string.iter().copied()).collect();
        for max in [usize::MAX, 1 << 20, 99_999, 4_097] {
            let ((mut socket, mut receiver), mut pipe) = (connected(), PagePipe::open());
            let (mut sent, mut received) = (0, Vec::new());
            while received.len() < whole.len() {
                match write_segments(&mut socket, &mut pipe, segments(&strings, sent), max) {
                    Ok(n) => {
                        assert!(n <= max);
                        sent += n;
                    }
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
                let mut some = vec![0; (sent - received.len()).min(300_000)];
                receiver.read_exact(&mut some).expect("bytes");
                received.extend(some);
            }
            assert!(received == whole && sent == whole.len() && pipe.is_open(), "{max}");
        }
        let lent: Vec<bool> = strings.iter().map(|string| string.lent().is_some()).collect();
        assert_eq!(lent, [false, true, false, false, false, true, false, false, false, true]);
    }

    #[test]
    fn a_receiver_gets_what_was_sent_although_the_memory_is_used_again() {
        let ((mut socket, mut receiver), mut pipe) = (connected(), PagePipe::open());
        let string = SharedBytes::new(vec![7; 1 << 20]);
        send_often(&string);
        let sent = write_segments(&mut socket, &mut pipe, std::iter::once(Segment::Shared(&string, 0)), usize::MAX);
        let sent = sent.expect("bytes");
        drop(string);
        // Memory that is free is used again.
        let others: Vec<Vec<u8>> = (0..20).map(|_| vec![8; 1 << 20]).collect();
        assert!(others.iter().flatten().all(|byte| *byte == 8));
        let mut received = vec![0; sent];
        receiver.read_exact(&mut received).expect("bytes");
        assert!(sent > LENT_MIN && received.iter().all(|byte| *byte == 7));
    }
}
