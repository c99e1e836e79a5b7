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
    Value(Value),
    /// A flushed partition.
    Partition(Box<Partition>),
    /// Something else.
    Other(Box<dyn Any + Send>),
}

impl Garbage {
    fn objects(&self) -> usize {
        match self {
            Garbage::Value(_) => 1,
            Garbage::Partition(partition) => partition.len(),
            Garbage::Other(_) => 1,
        }
    }
}

/// The handle to the thread, which ends when the handle is dropped.
pub struct Janitor {
    queue: Sender<Garbage>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    pending: AtomicUsize,
    freed: AtomicUsize,
}

impl Janitor {
    /// Starts the thread. Where none can be had, things are freed on the spot.
    pub fn start() -> Self {
        let (queue, garbage) = channel::<Garbage>();
        let counts = Arc::new(Counts::default());
        let shared = counts.clone();
        let work = move || {
            for item in garbage {
                let objects = item.objects();
                drop(item);
                shared.pending.fetch_sub(objects, Ordering::Relaxed);
                shared.freed.fetch_add(objects, Ordering::Relaxed);
            }
        };
        // When the thread cannot be started its end of the queue is dropped, and `dispose` notices.
        let _ = std::thread::Builder::new().name("janitor".into()).spawn(work);
        Janitor { queue, counts }
    }

    /// Frees `garbage` soon.
    pub fn dispose(&self, garbage: Garbage) {
        let objects = garbage.objects();
        self.counts.pending.fetch_add(objects, Ordering::Relaxed);
        if let Err(returned) = self.queue.send(garbage) {
            drop(returned);
            self.counts.pending.fetch_sub(objects, Ordering::Relaxed);
            self.counts.freed.fetch_add(objects, Ordering::Relaxed);
        }
    }

    /// Objects waiting to be freed.
    pub fn pending(&self) -> usize {
        self.counts.pending.load(Ordering::Relaxed)
    }

    /// Objects freed since the start or [`Janitor::reset`].
    pub fn freed(&self) -> usize {
        self.counts.freed.load(Ordering::Relaxed)
    }

    /// Begins to count freed objects anew.
    pub fn reset(&self) {
        self.counts.freed.store(0, Ordering::Relaxed);
    }
}
