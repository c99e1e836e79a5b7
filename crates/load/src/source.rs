//! Where the requests of a thread come from: the configured mix, or the writer of checked writes.

use crate::check::Writer;
use crate::commands::Template;
use crate::reply::Value;
use crate::workload::{Plan, Workload};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server did what was asked.
    Acknowledged,
    /// The server answered with an error.
    Refused,
    /// The connection ended before the reply.
    Unknown,
    /// The request was not sent.
    NotSent,
}

/// Where the requests of a thread come from.
pub enum Source {
    /// The configured mix.
    Mix(Box<Workload>),
    /// Numbered writes.
    Checked(Box<Writer>),
}

impl Source {
    /// The names of its kinds of requests.
    pub fn names(&self) -> Vec<String> {
        match self {
            Source::Mix(workload) => workload.templates().iter().map(|template| template.name.clone()).collect(),
            Source::Checked(_) => vec!["set".to_owned()],
        }
    }

    /// Whether it needs the content of replies.
    pub fn reads_replies(&self) -> bool {
        self.templates().iter().any(|template| template.reads_ids)
    }

    fn templates(&self) -> &[Template] {
        if let Source::Mix(workload) = self { workload.templates() } else { &[] }
    }

    /// Whether a kind only reads.
    #[inline]
    pub fn is_read(&self, kind: u16) -> bool {
        self.templates().get(kind as usize).is_some_and(|template| template.is_read)
    }

    /// The replies to a request of a kind.
    #[inline]
    pub fn replies(&self, kind: u16) -> u16 {
        self.templates().get(kind as usize).map_or(1, |template| template.requests)
    }

    /// Draws the next request; `None` if there is none that may be sent now.
    #[inline]
    pub fn plan(&mut self, intended_ns: u64) -> Option<Plan> {
        match self {
            Source::Mix(workload) => Some(workload.plan(intended_ns)),
            Source::Checked(writer) => writer.plan(intended_ns),
        }
    }

    /// The slot of a request.
    pub fn slot(&self, plan: &Plan) -> u16 {
        match self {
            Source::Mix(workload) => workload.slot(plan),
            Source::Checked(writer) => writer.slot(plan),
        }
    }

    /// Appends the bytes of a request.
    #[inline]
    pub fn write(&mut self, plan: &Plan, connection: usize, out: &mut Vec<u8>) {
        match self {
            Source::Mix(workload) => workload.write(plan, connection, out),
            Source::Checked(writer) => writer.write(plan, out),
        }
    }

    /// Notes how a request ended.
    #[inline]
    pub fn end(&mut self, plan: &Plan, outcome: Outcome) {
        if let Source::Checked(writer) = self {
            writer.end(plan, outcome);
        }
    }

    /// Takes what later requests need from the content of a reply.
    pub fn take_reply(&mut self, plan: &Plan, bytes: &[u8]) {
        let Source::Mix(workload) = self else { return };
        if !workload.templates()[plan.kind as usize].reads_ids {
            return;
        }
        // Streams with their entries; each entry begins with its ID. RESP3 has a map of streams.
        let Ok(reply) = Value::parse(bytes) else { return };
        let top = reply.elements();
        let entries = match top {
            [Value::Array(stream), ..] => stream.get(1),
            [Value::Text(_), entries, ..] => Some(entries),
            _ => None,
        };
        let ids = entries.into_iter().flat_map(Value::elements).filter_map(|entry| {
            let id = entry.elements().first()?.text();
            let (ms, sequence) = id.split_once('-')?;
            Some((ms.parse().ok()?, sequence.parse().ok()?))
        });
        workload.remember_ids(plan, ids);
    }
}
