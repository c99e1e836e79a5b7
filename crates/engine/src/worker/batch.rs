//! The requests of one turn, parsed but not yet executed.
//!
//! Parsing runs ahead of execution so that the memory each request will touch can be asked for while others are still
//! being parsed or executed: the bucket of its key, or of the first keys that a script declares, when it is parsed, the
//! entry when all are.

use kvick_commands::table::CommandInfo;
use kvick_resp::{Args, ProtocolError, Span};
use kvick_store::Keyspace;
use kvick_store::global_lock::Exclusive;
use std::ops::Range;

/// Room for spans that is kept between batches; a request with a million arguments must not leave room for as many.
const SPANS_KEPT: usize = 8 * 1024;

/// Where a request's input lies.
#[derive(Clone, Copy)]
pub enum Source {
    /// In the worker's input buffer, from here to there.
    Shared(usize, usize),
    /// In this one of the batch's held inputs.
    Held(usize),
}

/// What is known of a request before it is executed.
#[derive(Clone, Copy)]
pub enum ResolvedCommand {
    /// For a command, told from its first word alone; with the hash of its key if it has exactly one and takes as many
    /// arguments.
    For(&'static CommandInfo, Option<u64>),
    /// For something that is looked up when its turn comes: a subcommand, or nothing known.
    Unresolved,
    /// Nothing: it breaks the protocol.
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
    /// What it asks for.
    pub resolved: ResolvedCommand,
    /// The database it was parsed for.
    pub db: usize,
}

impl Request {
    /// Whether it may take the [lane](super::fast_path), if nobody has to be kept from that.
    #[inline]
    pub fn is_for_fast_path(&self) -> bool {
        matches!(self.resolved, ResolvedCommand::For(command, _) if command.fast_path.is_some())
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct Batch {
    /// The requests, those of one connection side by side.
    pub requests: Vec<Request>,
    /// Spans of all requests.
    pub spans: Vec<Span>,
    /// Large arguments of all requests.
    pub big: Vec<Vec<u8>>,
    /// Hashes of the keys that are asked for together.
    hashes: Vec<u64>,
    /// The database and the hash of keys that scripts declare, and that are asked for with those.
    pub declared: Vec<(usize, u64)>,
    /// Inputs taken out of connections, with the connection and how much of it was parsed.
    pub held: Vec<(usize, Vec<u8>, usize)>,
}

impl Batch {
    /// True when there is nothing to execute.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The arguments of a request.
    #[inline]
    pub fn args<'a>(&'a self, request: &Request, shared: &'a [u8]) -> Args<'a> {
        let input = match request.source {
            Source::Shared(start, end) => &shared[start..end],
            Source::Held(number) => &self.held[number].1,
        };
        Args::new(input, &self.spans[request.spans.clone()], &self.big)
    }

    /// Asks the processor for the memory that the requests will touch; for how many keys.
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
        for (db, hash) in &self.declared {
            keyspace.prefetch_entries(*db, &[*hash], exclusive);
        }
        keys += self.declared.len();
        keys
    }

    /// The buffer of the large argument that the request's command would keep, moved out. Until it is put back the
    /// argument reads as empty.
    pub fn take_large(&mut self, request: &Request, shared: &[u8]) -> Option<(usize, Vec<u8>)> {
        let ResolvedCommand::For(command, _) = request.resolved else { return None };
        let place = self.args(request, shared).big_index(command.spec.takes?)?;
        self.big.get_mut(place).map(|buffer| (place, std::mem::take(buffer)))
    }

    /// Forgets the requests; the caller has put the held inputs back.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.declared.clear();
        self.spans.clear();
        self.spans.shrink_to(SPANS_KEPT);
        self.hashes.shrink_to(SPANS_KEPT);
        self.declared.shrink_to(SPANS_KEPT);
        self.big.clear();
        self.held.clear();
    }
}
