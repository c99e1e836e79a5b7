//! The requests of one turn, parsed but not yet executed.
//!
//! Parsing runs ahead of execution, so that the memory of each request can be prefetched while others are still being
//! parsed or executed: the bucket of its key, or of the first keys that a script declares, when the request is parsed;
//! the entry when all requests are parsed.

use kvick_commands::table::CommandInfo;
use kvick_resp::{Args, ProtocolError, SharedBytes, Span};
use kvick_store::Keyspace;
use kvick_store::global_lock::Exclusive;
use std::ops::Range;

/// Capacity for spans kept between batches, so that a request with a million arguments does not hold its memory.
const SPANS_KEPT: usize = 8 * 1024;

/// Location of a request's input.
#[derive(Clone, Copy)]
pub enum Source {
    /// In the worker's input buffer, from the first offset to the second.
    Shared(usize, usize),
    /// In the batch's detached input with this index.
    Detached(usize),
}

/// The result of resolving a request before it is executed.
#[derive(Clone, Copy)]
pub enum ResolvedCommand {
    /// A command resolved from its first word alone, with the hash of its key if it has exactly one key and a valid
    /// argument count.
    For(&'static CommandInfo, Option<u64>),
    /// To be resolved when it is executed: a subcommand, or an unknown command.
    Unresolved,
    /// A protocol error.
    Broken(ProtocolError),
}

/// A parsed request.
pub struct Request {
    /// The connection that sent it.
    pub connection: usize,
    /// Its input.
    pub source: Source,
    /// Its arguments.
    pub spans: Range<usize>,
    /// The command it resolves to.
    pub resolved: ResolvedCommand,
    /// The database it was parsed for.
    pub db: usize,
}

impl Request {
    /// Whether it qualifies for the [fast path](super::fast_path), provided that the client does too.
    #[inline]
    pub fn is_for_fast_path(&self) -> bool {
        matches!(self.resolved, ResolvedCommand::For(command, _) if command.fast_path.is_some())
    }
}

/// A key that a script declares.
#[derive(Clone, Copy)]
pub struct DeclaredKey {
    /// Its database.
    pub db: usize,
    /// Its hash.
    pub hash: u64,
}

/// Input moved out of its connection while its requests are executed.
pub struct DetachedInput {
    /// The connection.
    pub connection: usize,
    /// The input.
    pub bytes: Vec<u8>,
    /// Number of bytes parsed.
    pub parsed: usize,
}

/// The requests of one turn; see the module's documentation.
#[derive(Default)]
pub struct Batch {
    /// The requests; those of one connection are adjacent.
    pub requests: Vec<Request>,
    /// Spans of all requests.
    pub spans: Vec<Span>,
    /// Large arguments of all requests.
    pub big: Vec<SharedBytes>,
    /// Hashes of the keys that are prefetched together.
    hashes: Vec<u64>,
    /// Keys that scripts declare, which are prefetched with those.
    pub declared: Vec<DeclaredKey>,
    /// Inputs moved out of their connections.
    pub inputs: Vec<DetachedInput>,
}

impl Batch {
    /// True when no request is to be executed.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The arguments of a request.
    #[inline]
    pub fn args<'a>(&'a self, request: &Request, shared: &'a [u8]) -> Args<'a> {
        let input = match request.source {
            Source::Shared(start, end) => &shared[start..end],
            Source::Detached(number) => &self.inputs[number].bytes,
        };
        Args::new(input, &self.spans[request.spans.clone()], &self.big)
    }

    /// Prefetches the memory that the requests will touch. Returns the number of keys.
    #[inline]
    pub fn prefetch(&mut self, keyspace: &'static Keyspace, exclusive: Option<&Exclusive>) -> usize {
        let mut keys = 0;
        if self.requests.len() < 2 && exclusive.is_none() {
            return keys;
        }
        for stretch in self.requests.chunk_by(|a, b| a.db == b.db) {
            self.hashes.clear();
            self.hashes.extend(stretch.iter().filter_map(|request| match request.resolved {
                ResolvedCommand::For(_, hash) => hash,
                _ => None,
            }));
            keyspace.prefetch_entries(stretch[0].db, &self.hashes, exclusive);
            keys += self.hashes.len();
        }
        for DeclaredKey { db, hash } in &self.declared {
            keyspace.prefetch_entries(*db, &[*hash], exclusive);
        }
        keys += self.declared.len();
        keys
    }

    /// Removes the requests; the caller has put the detached inputs back.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.declared.clear();
        self.spans.clear();
        self.spans.shrink_to(SPANS_KEPT);
        self.hashes.shrink_to(SPANS_KEPT);
        self.declared.shrink_to(SPANS_KEPT);
        self.big.clear();
        self.inputs.clear();
    }
}
