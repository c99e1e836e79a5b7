//! Lazy freeing: frees large values on a background thread, so that workers do not stall on it.

pub(crate) mod counts;

use crate::object::Value;
use crate::partition::Partition;
use counts::Counts;
use std::any::Any;
use std::sync::Arc;
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

    fn free(self, counts: &Counts) {
        let (objects, bytes) = (self.objects(), self.bytes());
        drop(self);
        counts.freed_objects(objects, bytes);
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

impl LazyFree {
    /// Starts the thread. If that fails, objects are freed synchronously.
    pub fn start() -> Self {
        let (queue, jobs) = channel::<Job>();
        let counts = Arc::new(Counts::default());
        let shared = counts.clone();
        let work = move || {
            for job in jobs {
                match job {
                    Job::Free(garbage) => garbage.free(&shared),
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
        self.counts.add(garbage.objects(), garbage.bytes());
        if let Err(returned) = self.queue.send(Job::Free(garbage))
            && let Job::Free(garbage) = returned.0
        {
            garbage.free(&self.counts);
        }
    }

    /// Runs a short task on the thread, if there is one, before any job queued later.
    pub fn run(&self, task: fn()) {
        // Without a thread, nothing needs to run.
        let _ = self.queue.send(Job::Run(task));
    }

    /// Number of objects that wait to be freed.
    pub fn pending(&self) -> usize {
        self.counts.pending()
    }

    /// Approximate memory of the values among them, plus memory that another thread will free, in bytes.
    pub fn pending_bytes(&self) -> usize {
        self.counts.pending_bytes()
    }

    /// The counts, for code that frees memory in another thread.
    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Number of objects freed since the start or the last [`LazyFree::reset`].
    pub fn freed(&self) -> usize {
        self.counts.freed()
    }

    /// Resets the number of freed objects.
    pub fn reset(&self) {
        self.counts.reset_freed();
    }
}
