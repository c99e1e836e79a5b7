//! CLUSTER SYNCSLOTS as it is on the wire.
//!
//! Only ESTABLISH has a reply. All other messages are requests in both directions that are not answered.

use super::{CommandError, Job, JobName, RangeList, State};
use crate::NodeId;

/// A SYNCSLOTS subcommand that has no arguments, or whose arguments do not matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// From the source: the snapshot is complete.
    SnapshotEof,
    /// From the target: pause writes.
    RequestPause,
    /// From the source: writes are paused, and all of them were sent.
    Paused,
    /// From the target: may the slots be taken over?
    RequestFailover,
    /// From the source: the slots may be taken over.
    FailoverGranted,
    /// From both: a sign of life.
    Ack,
    /// Capabilities. None are defined, and Valkey ignores it. A target that is not Valkey returns it, so that the
    /// source learns how far behind the target is.
    Capa,
}

/// The arguments of ESTABLISH.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Establish {
    /// The old owner.
    pub source: NodeId,
    /// The job.
    pub name: JobName,
    /// The slots.
    pub ranges: RangeList,
}

/// The arguments of FINISH.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finish {
    /// The job.
    pub name: JobName,
    /// Whether the slots are now this shard's.
    pub success: bool,
    /// Why it failed.
    pub message: Option<String>,
}

impl Message {
    /// All messages.
    pub const ALL: [Message; 7] = [
        Message::SnapshotEof,
        Message::RequestPause,
        Message::Paused,
        Message::RequestFailover,
        Message::FailoverGranted,
        Message::Ack,
        Message::Capa,
    ];

    /// The subcommand's name.
    pub fn name(self) -> &'static str {
        match self {
            Message::SnapshotEof => "SNAPSHOT-EOF",
            Message::RequestPause => "REQUEST-PAUSE",
            Message::Paused => "PAUSED",
            Message::RequestFailover => "REQUEST-FAILOVER",
            Message::FailoverGranted => "FAILOVER-GRANTED",
            Message::Ack => "ACK",
            Message::Capa => "CAPA",
        }
    }

    /// The message with this name, in any case.
    pub fn from_name(name: &[u8]) -> Option<Message> {
        Message::ALL.into_iter().find(|message| message.name().as_bytes().eq_ignore_ascii_case(name))
    }

    /// The request in RESP.
    pub fn encode(self) -> Vec<u8> {
        encode_request(&[b"CLUSTER", b"SYNCSLOTS", self.name().as_bytes()])
    }
}

impl Establish {
    /// The request in RESP.
    pub fn encode(&self) -> Vec<u8> {
        let numbers: Vec<String> =
            self.ranges.ranges().iter().flat_map(|range| [range.first.to_string(), range.last.to_string()]).collect();
        let mut words: Vec<&[u8]> = vec![
            b"CLUSTER",
            b"SYNCSLOTS",
            b"ESTABLISH",
            b"SOURCE",
            self.source.as_bytes(),
            b"NAME",
            self.name.as_bytes(),
            b"SLOTSRANGE",
        ];
        words.extend(numbers.iter().map(String::as_bytes));
        encode_request(&words)
    }
}

impl Finish {
    /// Parses the arguments after FINISH.
    pub fn parse(arguments: &[&[u8]]) -> Result<Finish, CommandError> {
        let (mut name, mut success, mut message) = (None, None, None);
        for pair in arguments.chunks(2) {
            let [field, value] = *pair else { return Err(CommandError::Syntax) };
            let new = if field.eq_ignore_ascii_case(b"state") {
                success.replace(value).is_none()
            } else if field.eq_ignore_ascii_case(b"name") {
                name.replace(JobName::new(value).ok_or(CommandError::Syntax)?).is_none()
            } else if field.eq_ignore_ascii_case(b"message") {
                message.replace(String::from_utf8_lossy(value).into_owned()).is_none()
            } else {
                false
            };
            if !new {
                return Err(CommandError::Syntax);
            }
        }
        let (Some(name), Some(state)) = (name, success) else { return Err(CommandError::Syntax) };
        let success = match state {
            _ if state.eq_ignore_ascii_case(b"success") => true,
            _ if state.eq_ignore_ascii_case(b"failed") => false,
            _ => return Err(CommandError::Syntax),
        };
        Ok(Finish { name, success, message })
    }

    /// The end of this job.
    pub(super) fn of(job: &Job) -> Finish {
        Finish { name: job.name, success: job.state == State::Success, message: job.message.clone() }
    }

    /// The request's words.
    pub fn words(&self) -> Vec<Vec<u8>> {
        let state: &[u8] = if self.success { b"SUCCESS" } else { b"FAILED" };
        let mut words: Vec<&[u8]> =
            vec![b"CLUSTER", b"SYNCSLOTS", b"FINISH", b"STATE", state, b"NAME", self.name.as_bytes()];
        if let Some(message) = &self.message {
            words.extend([&b"MESSAGE"[..], message.as_bytes()]);
        }
        words.into_iter().map(<[u8]>::to_vec).collect()
    }
}

/// A request in RESP.
pub fn encode_request(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}
