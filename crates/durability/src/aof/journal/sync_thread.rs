//! The journal's background thread, which does the slow work: it creates the file and syncs increments.

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

/// Bytes per write when the file is created.
const CHUNK: usize = 1 << 20;

/// The offset up to which an increment has been synced.
pub(super) struct Checkpoint {
    offset: AtomicU64,
    /// The system's error number if the sync failed.
    failed: AtomicI32,
}

impl Checkpoint {
    pub fn at(offset: u64) -> Checkpoint {
        Checkpoint { offset: AtomicU64::new(offset), failed: AtomicI32::new(0) }
    }

    pub fn offset(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    pub fn advance(&self, offset: u64) {
        self.offset.fetch_max(offset, Ordering::AcqRel);
    }

    pub fn failure(&self) -> Option<io::Error> {
        let number = self.failed.load(Ordering::Acquire);
        (number != 0).then(|| io::Error::from_raw_os_error(number))
    }
}

/// A sync to do.
struct Task {
    file: Arc<File>,
    offset: u64,
    checkpoint: Weak<Checkpoint>,
}

/// See the module's documentation. Dropping it ends the thread.
pub(super) struct SyncThread {
    tasks: Sender<Task>,
    created: Receiver<io::Result<Arc<File>>>,
    thread: JoinHandle<()>,
}

impl SyncThread {
    /// Starts the thread, which creates a journal file at this path.
    pub fn start(path: PathBuf) -> io::Result<SyncThread> {
        let ((tasks, waiting), (done, created)) = (mpsc::channel(), mpsc::channel());
        let thread = std::thread::Builder::new().name("aof-journal".into()).spawn(move || {
            kvick_runtime::memory::register_thread();
            affinity::set(Role::Background);
            let file = create(&path).map(Arc::new);
            let kept = file.as_ref().ok().cloned();
            // The receiver may be gone.
            let _ = done.send(file);
            if let Some(journal) = kept {
                waiting.iter().for_each(|task| sync_task(&task, &journal));
            }
        })?;
        Ok(SyncThread { tasks, created, thread })
    }

    /// Waits until all requested work is done.
    pub fn close(self) {
        drop(self.tasks);
        // The thread has logged its errors.
        let _ = self.thread.join();
    }

    /// The file, once it has been created.
    pub fn created(&self) -> io::Result<Option<Arc<File>>> {
        match self.created.try_recv() {
            Ok(created) => created.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(io::Error::other("its thread has ended")),
        }
    }

    /// Requests a sync of what has been written to an increment, at least up to this offset.
    pub fn sync(&self, file: &Arc<File>, offset: u64, checkpoint: &Arc<Checkpoint>) {
        // The thread ends only when this is dropped.
        let _ = self.tasks.send(Task { file: file.clone(), offset, checkpoint: Arc::downgrade(checkpoint) });
    }
}

/// Creates a file and writes all of its blocks.
fn create(path: &Path) -> io::Result<File> {
    let created =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).and_then(|mut file| {
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
    if created.is_err() {
        // A partial file is useless.
        let _ = super::remove(path);
    }
    created
}

fn sync_task(task: &Task, journal: &File) {
    // An increment that is no longer in use has already been synced by another thread.
    let Some(checkpoint) = task.checkpoint.upgrade() else { return };
    if checkpoint.offset() >= task.offset {
        return;
    }
    match task.file.sync_data() {
        Ok(()) => checkpoint.advance(task.offset),
        Err(error) => {
            // If this fails, the next start trusts the increment; nothing else can be done.
            let _ = format::force_recovery(journal);
            checkpoint.failed.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Release);
        }
    }
}
