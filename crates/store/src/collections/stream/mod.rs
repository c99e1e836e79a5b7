//! Streams: entries in a [`Log`], and the consumer [`Groups`] that read it.
//!
//! [`id`] defines the order of entries, [`ordered`] the map from IDs that holds both the
//! log's blocks and pending entries. A [`block`] is the unit of the log, in the same format
//! as in dumps. A snapshot [captures](capture) the blocks of a large stream in pieces, and
//! everything else at once. Streams may be empty; only commands about keys remove them.

pub mod block;
mod capture;
pub mod group;
pub mod id;
pub mod log;
pub mod ordered;
mod radix;
#[cfg(test)]
mod tests;

pub use block::Entry;
pub use group::{BadGroup, Consumer, ConsumerId, Group, Groups, Pending};
pub use id::{Id, IdBuf};
pub use log::{AppendError, BlockLimits, History, Log, NewId, Trim};

use super::collection::{Collection, Inside};
use crate::defrag::Mover;
use crate::encodings::Corrupt;
use crate::memory::size_class;
use crate::snapshot::pieces::Gradual;
use crate::value::Kind;
use crate::word::Word;

/// A stream.
#[repr(transparent)]
pub struct Stream(Word);

#[derive(Clone, Default)]
#[repr(align(8))]
struct Body {
    log: Log,
    groups: Groups,
}

impl Stream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::with_body(Body::default())
    }

    fn with_body(body: Body) -> Self {
        Stream(Word::from_box(Box::new(body), 0))
    }

    #[inline]
    fn body(&self) -> &Body {
        // SAFETY: made from such a box, and changed only through `self`.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn body_mut(&mut self) -> &mut Body {
        // SAFETY: made from such a box, and accessed only through `self`.
        unsafe { self.0.as_mut() }
    }

    /// The entries.
    #[inline]
    pub fn log(&self) -> &Log {
        &self.body().log
    }

    /// The entries, for modification.
    #[inline]
    pub fn log_mut(&mut self) -> &mut Log {
        &mut self.body_mut().log
    }

    /// The consumer groups.
    #[inline]
    pub fn groups(&self) -> &Groups {
        &self.body().groups
    }

    /// The consumer groups, for modification, and the entries.
    #[inline]
    pub fn groups_mut(&mut self) -> (&Log, &mut Groups) {
        let body = self.body_mut();
        (&body.log, &mut body.groups)
    }

    /// Number of nodes of a radix tree of the blocks' IDs, as XINFO reports it.
    pub fn radix_nodes(&self) -> usize {
        radix::nodes(self.log().blocks().map(|(id, _)| id))
    }
}

/// Builds a stream from a dump: first the blocks, in order, then the history, then the groups.
#[derive(Default)]
pub struct Loader(Body);

impl Loader {
    /// Adds a block with its ID, after a full check.
    pub fn block(&mut self, id: Id, bytes: &[u8]) -> Result<(), Corrupt> {
        self.0.log.load_block(id, bytes)
    }

    /// The stream. `len` must be the number of entries that are not deleted, and no entry may be after `last_id`. Old
    /// dumps have no history. Groups are added to the stream through [`Stream::groups_mut`] and their `load_` methods.
    pub fn finish(self, len: u64, last_id: Id, history: Option<History>) -> Result<Stream, Corrupt> {
        let mut body = self.0;
        body.log.loaded(len, last_id, history)?;
        Ok(Stream::with_body(body))
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Stream {
    fn clone(&self) -> Self {
        Self::with_body(self.body().clone())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made from such a box, and dropped once.
        unsafe { drop(self.0.into_box::<Body>()) }
    }
}

// SAFETY: transparent around a word.
unsafe impl Collection for Stream {
    const KIND: Kind = Kind::Stream;

    fn len(&self) -> usize {
        self.log().len() as usize
    }

    fn encoding(&self) -> &'static str {
        "stream"
    }

    fn relocate(&mut self, position: u64, mover: &mut Mover<'_>) -> Option<u64> {
        /// Positions from here on refer to the groups.
        const IN_GROUPS: u64 = 1 << 62;
        if position == 0 {
            // SAFETY: the word points to such a box, which is borrowed exclusively.
            unsafe { self.0.relocate_box::<Body>(mover) };
        }
        let body = self.body_mut();
        let mut spot = group::RelocatePosition::unpack(position);
        if position & IN_GROUPS == 0 {
            if let Some(chunk) = body.log.relocate(position as usize, mover) {
                return Some(chunk as u64);
            }
            spot = group::RelocatePosition::default();
            if mover.is_due() && !body.groups.is_empty() {
                return Some(IN_GROUPS);
            }
        }
        Some(IN_GROUPS | body.groups.relocate(spot, mover)?.pack()?)
    }

    fn gradual(&mut self) -> Option<&mut dyn Gradual> {
        self.log_mut().gradual()
    }

    fn inside(&self) -> Inside<'_> {
        Inside::Other
    }

    fn memory(&self, samples: usize) -> usize {
        size_class(size_of::<Body>()) + self.log().memory(samples) + self.groups().memory()
    }

    fn free_effort(&self) -> usize {
        self.log().blocks_len() + self.groups().allocations()
    }
}
