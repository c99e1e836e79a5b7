//! The requests of one turn, parsed but not yet executed.
//!
//! Parsing runs ahead of execution so that the memory each request will touch can be asked for while others are still
//! being parsed or executed: first the bucket of its key, then the entry.

use crate::table::Registered;
use kvick_resp::{Args, Span};
use kvick_store::Keyspace;
use std::ops::Range;

/// Where a request's input lies.
#[derive(Clone, Copy)]
pub enum Source {
    /// In the worker's input buffer, from here to there.
    Shared(usize, usize),
    /// In this one of the batch's held inputs.
    Held(usize),
}

/// A parsed request.
pub struct Request {
    /// The connection that sent it.
    pub connection: usize,
    /// Its input.
    pub source: Source,
    /// Its arguments.
    pub spans: Range<usize>,
    /// What it asks for, if that could be told from its first word alone.
    pub command: Option<&'static Registered>,
    /// The hash of its only key, for commands that have exactly one.
    pub hash: Option<u64>,
    /// The database it was parsed for.
    pub db: usize,
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

    /// Asks the processor for the memory that the requests will touch.
    #[inline]
    pub fn prefetch(&self, keyspace: &'static Keyspace) {
        if self.requests.len() < 2 {
            return;
        }
        let keys = || self.requests.iter().filter_map(|request| Some((request.db, request.hash?)));
        keys().for_each(|(db, hash)| keyspace.prefetch_bucket(db, hash));
        keys().for_each(|(db, hash)| keyspace.prefetch_entry(db, hash));
    }

    /// Forgets the requests; the caller has put the held inputs back.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.spans.clear();
        self.big.clear();
        self.held.clear();
    }
}
