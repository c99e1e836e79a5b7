//! A network link with an adjustable delay: two TAP devices, in one or two network namespaces, and threads that copy
//! frames between them. It needs no queueing discipline of the kernel.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Frames on their way in one direction; more are lost, as in any queue.
const FRAMES_MAX: usize = 4096;
/// The largest frame of an interface with the usual limit of 1500 bytes.
const FRAME_BYTES: usize = 2048;
/// Interval of checks for the end of the cable.
const SLICE_MS: i32 = 50;

/// `TUNSETIFF`: makes a device, or takes hold of one.
const SET_INTERFACE: libc::c_ulong = 0x4004_54ca;
/// `IFF_TAP | IFF_NO_PI`: whole frames, with nothing in front.
const PLAIN_FRAMES: libc::c_short = 0x0002 | 0x1000;

/// The argument of `TUNSETIFF`: `struct ifreq`.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

/// Creates a TAP device in the namespace of the calling thread. It is deleted when the file is closed.
pub fn tap(name: &str) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let mut request = Request { name: [0; libc::IFNAMSIZ], flags: PLAIN_FRAMES, rest: [0; 22] };
    let bytes = name.as_bytes();
    // The last byte stays zero, as the kernel wants it.
    if bytes.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: the structure is as large as the kernel takes it to be, and lives as long as the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), SET_INTERFACE as _, &mut request) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// See the module's documentation. Ended when dropped.
pub struct Cable {
    delay_ms: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Cable {
    /// Between two devices, without a delay.
    pub fn between(near: File, far: File) -> io::Result<Cable> {
        let (delay_ms, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut cable = Cable { delay_ms: delay_ms.clone(), is_over, threads: Vec::new() };
        cable.forward(near.try_clone()?, far.try_clone()?, delay_ms);
        cable.forward(far, near, Arc::default());
        Ok(cable)
    }

    /// Sets the delay of what the near end sends from now on.
    pub fn delay(&self, by: Duration) {
        self.delay_ms.store(by.as_millis() as u64, Ordering::Relaxed);
    }

    /// Carries frames from one device to the other.
    fn forward(&mut self, from: File, to: File, delay_ms: Arc<AtomicU64>) {
        let (sender, frames) = sync_channel(FRAMES_MAX);
        let is_over = self.is_over.clone();
        self.threads.push(std::thread::spawn(move || receive(from, &sender, &delay_ms, &is_over)));
        self.threads.push(std::thread::spawn(move || deliver(to, &frames)));
    }
}

/// Receives the frames of a device until the cable ends.
fn receive(mut from: File, frames: &SyncSender<(Instant, Vec<u8>)>, delay_ms: &AtomicU64, is_over: &AtomicBool) {
    let mut frame = [0; FRAME_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        let mut poll = libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which lives as long as the call.
        if unsafe { libc::poll(&mut poll, 1, SLICE_MS) } <= 0 {
            continue;
        }
        // A device that is down has nothing to read.
        let Ok(length) = from.read(&mut frame) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let due = Instant::now() + Duration::from_millis(delay_ms.load(Ordering::Relaxed));
        // One that finds no room is lost.
        let _ = frames.try_send((due, frame[..length].to_vec()));
    }
}

/// Hands frames to a device when they are due, until no more come.
fn deliver(mut to: File, frames: &Receiver<(Instant, Vec<u8>)>) {
    for (due, frame) in frames {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // A device that is down takes none.
        let _ = to.write(&frame);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The panic has been printed.
            let _ = thread.join();
        }
    }
}
