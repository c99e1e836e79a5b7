//! Replay of the append-only file: the engine executes its commands.

use kvick_commands::context::Error;
use kvick_resp::Args;

/// Executes the commands of a log in order, on the thread that reads it.
pub trait Replayer {
    /// Enters a batch: no thread can take the global lock until the batch is left.
    fn enter(&mut self);

    /// Leaves the batch.
    fn leave(&mut self);

    /// Executes a request within a batch. Returns an error for an unknown command; the log reports commands that fail.
    fn execute(&mut self, args: Args<'_>) -> Result<Replayed, Error>;

    /// Whether a transaction has begun and not ended.
    fn is_in_transaction(&self) -> bool;
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replayed {
    /// It was executed or queued.
    Done,
    /// It began a transaction.
    BeganTransaction,
}
