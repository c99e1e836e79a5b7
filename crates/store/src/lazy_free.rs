//! Lazy freeing: frees large values on a background thread, so that workers do not stall on it.

use crate::object::Value;
use crate::partition::Partition;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

/// An object to be freed.
pub enum Garbage {
    /// A value that was unlinked.
    Value {
        /// The value itself.
        value: Value,
        /// Its approximate memory, in bytes.
        bytes: usize,
    },
    /// A flushed partition.
    Partition(Box<Partition>),
    /// Something else.
    Other(Box<dyn Any + Send>),
}

impl Garbage {
    fn objects(&self) -> usize {
        match self {
            Garbage::Value { .. } => 1,
            Garbage::Partition(partition) => partition.len(),
            Garbage::Other(_) => 1,
        }
    }

    /// Its memory in bytes, if known.
    fn bytes(&self) -> usize {
        match self {
            Garbage::Value { bytes, .. } => *bytes,
            // Computing this would take as long as freeing it.
            Garbage::Partition(_) | Garbage::Other(_) => 0,
        }
    }
}

/// A job for the thread.
enum Job {
    Free(Garbage),
    Run(fn()),
}

/// The handle to the thread, which ends when the handle is dropped.
pub struct LazyFree {
    queue: Sender<Job>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    pending: AtomicUsize,
    pending_bytes: AtomicUsize,
    freed: AtomicUsize,
}

impl Counts {
    fn add(&self, garbage: &Garbage) {
        self.pending.fetch_add(garbage.objects(), Ordering::Relaxed);
        self.pending_bytes.fetch_add(garbage.bytes(), Ordering::Relaxed);
    }

    fn free(&self, garbage: Garbage) {
        let (objects, bytes) = (garbage.objects(), garbage.bytes());
        drop(garbage);
        self.pending.fetch_sub(objects, Ordering::Relaxed);
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.freed.fetch_add(objects, Ordering::Relaxed);
    }
}

impl LazyFree {
    /// Starts the thread. If that fails, objects are freed synchronously.
    pub fn start() -> Self {
        let (queue, jobs) = channel::<Job>();
        let counts = Arc::new(Counts::default());
        let shared = counts.clone();
        let work = move || {
            for job in jobs {
                match job {
                    Job::Free(garbage) => shared.free(garbage),
                    Job::Run(task) => task(),
                }
            }
        };
        // If the thread cannot be started, its end of the queue is dropped, and `dispose` detects that.
        let _ = std::thread::Builder::new().name("lazy-free".into()).spawn(work);
        LazyFree { queue, counts }
    }

    /// Frees `garbage` in the background.
    pub fn dispose(&self, garbage: Garbage) {
        self.counts.add(&garbage);
        if let Err(returned) = self.queue.send(Job::Free(garbage))
            && let Job::Free(garbage) = returned.0
        {
            self.counts.free(garbage);
        }
    }

    /// Runs a short task on the thread, if there is one, before any job queued later.
    pub fn run(&self, task: fn()) {
        // Without a thread, nothing needs to run.
        let _ = self.queue.send(Job::Run(task));
    }

    /// Number of objects that wait to be freed.
    pub fn pending(&self) -> usize {
        self.counts.pending.load(Ordering::Relaxed)
    }

    /// Approximate memory of the values among them, plus memory that another thread will free, in bytes.
    pub fn pending_bytes(&self) -> usize {
        self.counts.pending_bytes.load(Ordering::Relaxed)
    }

    /// Adds memory that another thread will free later, in bytes.
    pub(crate) fn await_bytes(&self, bytes: usize) {
        self.counts.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts memory that the other thread has freed.
    pub(crate) fn awaited_bytes(&self, bytes: usize) {
        self.counts.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Number of objects freed since the start or the last [`LazyFree::reset`].
    pub fn freed(&self) -> usize {
        self.counts.freed.load(Ordering::Relaxed)
    }

    /// Resets the number of freed objects.
    pub fn reset(&self) {
        self.counts.freed.store(0, Ordering::Relaxed);
    }
}
