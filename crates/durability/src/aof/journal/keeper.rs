//! The thread that does for a journal what takes long: it makes the file, and syncs increments.

use super::format;
use kvick_runtime::affinity::{self, Role};
use kvick_runtime::fsync_dir;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// Bytes that are written at once when the file is made.
const CHUNK: usize = 1 << 20;

/// Up to where an increment has been synced.
pub(super) struct Checkpoint {
    offset: AtomicU64,
    /// The system's error number when that failed.
    failed: AtomicI32,
}

impl Checkpoint {
    pub fn at(offset: u64) -> Checkpoint {
        Checkpoint { offset: AtomicU64::new(offset), failed: AtomicI32::new(0) }
    }

    pub fn offset(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    pub fn reach(&self, offset: u64) {
        self.offset.fetch_max(offset, Ordering::AcqRel);
    }

    pub fn failure(&self) -> Option<io::Error> {
        let number = self.failed.load(Ordering::Acquire);
        (number != 0).then(|| io::Error::from_raw_os_error(number))
    }
}

/// Something to sync.
struct Task {
    file: Arc<File>,
    offset: u64,
    checkpoint: Weak<Checkpoint>,
}

/// See the module's documentation. The thread ends with it.
pub(super) struct Keeper {
    tasks: Sender<Task>,
    made: Receiver<io::Result<Arc<File>>>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Has a journal's file made at this path.
    pub fn start(path: PathBuf) -> io::Result<Keeper> {
        let ((tasks, waiting), (done, made)) = (mpsc::channel(), mpsc::channel());
        let thread = std::thread::Builder::new().name("aof-journal".into()).spawn(move || {
            kvick_runtime::memory::register_thread();
            affinity::set(Role::Background);
            let file = make(&path).map(Arc::new);
            let kept = file.as_ref().ok().cloned();
            // Nobody may want it any more.
            let _ = done.send(file);
            if let Some(journal) = kept {
                waiting.iter().for_each(|task| carry_out(&task, &journal));
            }
        })?;
        Ok(Keeper { tasks, made, thread })
    }

    /// Waits until all is done that it was asked for.
    pub fn end(self) {
        drop(self.tasks);
        // What it could not do it has told.
        let _ = self.thread.join();
    }

    /// The file, as soon as it is there.
    pub fn made(&self) -> io::Result<Option<Arc<File>>> {
        match self.made.try_recv() {
            Ok(made) => made.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(io::Error::other("its thread has ended")),
        }
    }

    /// Has an increment synced, as far as it has been written: at least up to this offset.
    pub fn sync(&self, file: &Arc<File>, offset: u64, checkpoint: &Arc<Checkpoint>) {
        // The thread ends with this alone.
        let _ = self.tasks.send(Task { file: file.clone(), offset, checkpoint: Arc::downgrade(checkpoint) });
    }
}

/// A file all of whose blocks have been written.
fn make(path: &Path) -> io::Result<File> {
    let made = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).and_then(|mut file| {
        let zeros = vec![0; CHUNK];
        let mut left = format::FILE as usize;
        while left > 0 {
            let len = left.min(CHUNK);
            file.write_all(&zeros[..len])?;
            left -= len;
        }
        file.sync_all()?;
        fsync_dir::sync_of(path)?;
        Ok(file)
    });
    if made.is_err() {
        // Part of one is of no use.
        let _ = super::remove(path);
    }
    made
}

fn carry_out(task: &Task, journal: &File) {
    // Where nobody goes on with the increment, it has been synced by others.
    let Some(checkpoint) = task.checkpoint.upgrade() else { return };
    if checkpoint.offset() >= task.offset {
        return;
    }
    match task.file.sync_data() {
        Ok(()) => checkpoint.reach(task.offset),
        Err(error) => {
            // Without it the next start trusts the increment, which is all that can be done.
            let _ = format::demand(journal);
            checkpoint.failed.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Release);
        }
    }
}
