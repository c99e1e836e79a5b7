//! How the append-only file is replayed: the engine executes its commands.

use kvick_commands::context::Error;
use kvick_resp::Args;

/// Executes the commands of a log, one after the other, on the thread that reads it.
pub trait Replayer {
    /// Enters a batch: nobody takes the global lock until it is left.
    fn enter(&mut self);

    /// Leaves the batch.
    fn leave(&mut self);

    /// Executes a request, within a batch. An error means that there is no such command; the log reports a command that
    /// fails.
    fn play(&mut self, args: Args<'_>) -> Result<Replayed, Error>;

    /// Whether a transaction has begun and not ended.
    fn is_in_transaction(&self) -> bool;
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replayed {
    /// It was executed or queued.
    Done,
    /// It began a transaction.
    Begun,
}
