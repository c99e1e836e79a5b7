//! Who executes commands.

/// A thread that executes commands, by what it does otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Executor {
    /// The worker with this number.
    Worker(usize),
    /// The thread that follows a primary.
    Replication,
    /// The thread that loads the append-only file.
    AofLoad,
}

impl Executor {
    /// Whether it is a worker.
    pub fn is_worker(self) -> bool {
        matches!(self, Executor::Worker(_))
    }

    /// Its place in tables that have one place per worker, and one behind them for the other executors.
    #[inline]
    pub fn slot(self, workers: usize) -> usize {
        match self {
            Executor::Worker(number) => number,
            Executor::Replication | Executor::AofLoad => workers,
        }
    }
}
