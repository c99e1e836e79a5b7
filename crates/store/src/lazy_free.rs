//! Frees large things on a thread of its own, so that no worker stalls on it.

use crate::partition::Partition;
use crate::value::Value;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Something to be freed.
pub enum Garbage {
    /// A value that was unlinked.
    Value {
        /// The value.
        value: Value,
        /// About how much memory it takes, in bytes.
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

    /// Bytes that it is known to take.
    fn bytes(&self) -> usize {
        match self {
            Garbage::Value { bytes, .. } => *bytes,
            // To tell it would take as long as to free it.
            Garbage::Partition(_) | Garbage::Other(_) => 0,
        }
    }
}

/// What the thread is asked for.
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
    /// Starts the thread. Where none can be had, things are freed on the spot.
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
        // When the thread cannot be started its end of the queue is dropped, and `dispose` notices.
        let _ = std::thread::Builder::new().name("janitor".into()).spawn(work);
        LazyFree { queue, counts }
    }

    /// Frees `garbage` soon.
    pub fn dispose(&self, garbage: Garbage) {
        self.counts.add(&garbage);
        if let Err(returned) = self.queue.send(Job::Free(garbage))
            && let Job::Free(garbage) = returned.0
        {
            self.counts.free(garbage);
        }
    }

    /// Runs something short on the thread, if there is one, before what it is given later.
    pub fn run(&self, task: fn()) {
        // Without a thread there is nothing to be done on it.
        let _ = self.queue.send(Job::Run(task));
    }

    /// Objects waiting to be freed.
    pub fn pending(&self) -> usize {
        self.counts.pending.load(Ordering::Relaxed)
    }

    /// About how much memory the values among them take, and what another thread is about to free, in bytes.
    pub fn pending_bytes(&self) -> usize {
        self.counts.pending_bytes.load(Ordering::Relaxed)
    }

    /// Counts memory that another thread frees when it comes to it, in bytes.
    pub(crate) fn await_bytes(&self, bytes: usize) {
        self.counts.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// It is freed.
    pub(crate) fn awaited_bytes(&self, bytes: usize) {
        self.counts.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Objects freed since the start or [`LazyFree::reset`].
    pub fn freed(&self) -> usize {
        self.counts.freed.load(Ordering::Relaxed)
    }

    /// Begins to count freed objects anew.
    pub fn reset(&self) {
        self.counts.freed.store(0, Ordering::Relaxed);
    }
}
