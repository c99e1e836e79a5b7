//! Checks that acknowledged writes are kept.
//!
//! Each thread writes keys of its own, each key with increasing numbers, and never two writes to one key at a time. It
//! remembers the last acknowledged number of each key, and all numbers whose fate is unknown because the connection
//! ended or the server answered with an error. After the run, [`verify`] reads all keys. A key must hold its last
//! acknowledged number, or one of unknown fate: such a write may have been executed at any time.

use crate::client::{Client, cluster_slots};
use crate::config::{Check, Config, Topology};
use crate::connection::write_request;
use crate::reply::Value;
use crate::source::Outcome;
use crate::topology::slot;
use crate::transport::TlsSettings;
use crate::workload::Plan;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

/// Writes of unknown fate that are remembered for a key. A key with more is not written any more.
const UNKNOWN_MAX: usize = 256;
/// Keys that are read at once.
const READ_AT_ONCE: usize = 200;
/// Problems that a report describes.
const EXAMPLES_MAX: usize = 20;

/// What is known about a key.
#[derive(Clone, Debug, Default, PartialEq)]
struct Record {
    issued: u32,
    /// 0 for none.
    acknowledged: u32,
    unknown: Vec<u32>,
}

/// The checked writes of one thread.
#[derive(Clone, Debug)]
pub struct Writer {
    /// What its keys begin with.
    prefix: String,
    records: Vec<Record>,
    /// Keys without an outstanding write.
    free: VecDeque<u32>,
}

impl Writer {
    /// For one thread of a run. `run` distinguishes the values of runs.
    pub fn new(check: &Check, run: u64, thread: usize) -> Writer {
        Writer {
            prefix: format!("{}{run:x}:{thread}:", check.prefix),
            records: vec![Record::default(); check.keys as usize],
            free: (0..check.keys).collect(),
        }
    }

    fn key(&self, key: u64) -> String {
        format!("{}{key}", self.prefix)
    }

    fn value(&self, key: u64, sequence: u32) -> String {
        format!("{}{key}={sequence}", self.prefix)
    }

    /// The next write; `None` if all keys have one outstanding.
    pub fn plan(&mut self, intended_ns: u64) -> Option<Plan> {
        let key = self.free.pop_front()?;
        let record = &mut self.records[key as usize];
        record.issued += 1;
        Some(Plan { intended_ns, key: key.into(), sequence: record.issued, ..Plan::default() })
    }

    /// The slot of a write.
    pub fn slot(&self, plan: &Plan) -> u16 {
        slot(self.key(plan.key).as_bytes())
    }

    /// Appends the bytes of a write.
    pub fn write(&self, plan: &Plan, out: &mut Vec<u8>) {
        write_request(&["SET".to_owned(), self.key(plan.key), self.value(plan.key, plan.sequence)], out);
    }

    /// Notes how a write ended.
    pub fn end(&mut self, plan: &Plan, outcome: Outcome) {
        let record = &mut self.records[plan.key as usize];
        match outcome {
            Outcome::Acknowledged => record.acknowledged = plan.sequence,
            Outcome::Refused | Outcome::Unknown => record.unknown.push(plan.sequence),
            Outcome::NotSent => {}
        }
        if record.unknown.len() < UNKNOWN_MAX {
            self.free.push_back(plan.key as u32);
        }
    }

    /// Compares a key with what it must hold, and counts the result.
    fn judge(&self, key: u64, found: &Value, report: &mut CheckReport) {
        let record = &self.records[key as usize];
        let name = self.key(key);
        report.keys += 1;
        let text = match found {
            Value::Null if record.acknowledged == 0 => return,
            Value::Null => {
                report.missing += 1;
                return report
                    .describe(format!("{name}: write {} was acknowledged, the key is missing", record.acknowledged));
            }
            Value::Text(bytes) => String::from_utf8_lossy(bytes),
            other => {
                report.never_written += 1;
                return report.describe(format!("{name}: the reply is {other:?}"));
            }
        };
        let sequence = text.strip_prefix(&*name).and_then(|rest| rest.strip_prefix('=')?.parse::<u32>().ok());
        match sequence.filter(|sequence| (1..=record.issued).contains(sequence)) {
            None => {
                report.never_written += 1;
                report.describe(format!("{name}: holds {text:?}, which was never written"));
            }
            Some(sequence) if sequence == record.acknowledged || record.unknown.contains(&sequence) => {}
            Some(sequence) => {
                report.stale += 1;
                let acknowledged = record.acknowledged;
                report
                    .describe(format!("{name}: write {acknowledged} was acknowledged, the key holds write {sequence}"));
            }
        }
    }
}

/// What reading back found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Keys that were read.
    pub keys: u64,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Writes that may or may not have been executed.
    pub unknown: u64,
    /// Keys with an acknowledged write that do not exist.
    pub missing: u64,
    /// Keys that hold an older write than the last acknowledged one.
    pub stale: u64,
    /// Keys with a value that was never written.
    pub never_written: u64,
    /// Some of the problems.
    pub examples: Vec<String>,
}

impl CheckReport {
    /// Whether nothing was lost.
    pub fn is_good(&self) -> bool {
        self.missing + self.stale + self.never_written == 0
    }

    /// Adds another one.
    pub fn add(&mut self, other: &CheckReport) {
        self.keys += other.keys;
        self.acknowledged += other.acknowledged;
        self.unknown += other.unknown;
        self.missing += other.missing;
        self.stale += other.stale;
        self.never_written += other.never_written;
        other.examples.iter().for_each(|example| self.describe(example.clone()));
    }

    fn describe(&mut self, problem: String) {
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(problem);
        }
    }
}

/// Reads back all keys of the writers. Tries again while servers fail over, up to the configured time.
pub fn verify(writers: &[Writer], config: &Config, tls: Option<&TlsSettings>) -> io::Result<CheckReport> {
    let mut report = CheckReport::default();
    let settle = config.check.as_ref().map_or(Duration::ZERO, |check| check.settle.0);
    for writer in writers {
        report.acknowledged += writer.records.iter().map(|record| u64::from(record.acknowledged > 0)).sum::<u64>();
        report.unknown += writer.records.iter().map(|record| record.unknown.len() as u64).sum::<u64>();
        let mut left: Vec<u64> =
            (0..writer.records.len() as u64).filter(|key| writer.records[*key as usize].issued > 0).collect();
        let deadline = Instant::now() + settle;
        while !left.is_empty() {
            let before = left.len();
            let tried = read_back(writer, &mut left, config, tls, &mut report);
            if let Err(error) = tried
                && Instant::now() > deadline
            {
                return Err(error);
            }
            if left.len() == before {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    Ok(report)
}

/// Reads keys and removes those that were answered from `left`.
fn read_back(
    writer: &Writer,
    left: &mut Vec<u64>,
    config: &Config,
    tls: Option<&TlsSettings>,
    report: &mut CheckReport,
) -> io::Result<()> {
    let slots = match config.target.topology {
        Topology::Cluster => Some(cluster_slots(config, tls)?),
        _ => None,
    };
    // Writes were spread over independent servers without a rule, so a key is on one of them.
    let mut by_node: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for key in left.iter() {
        let owner = slots.as_ref().map(|slots| slots.owner(slot(writer.key(*key).as_bytes())).map(str::to_owned));
        let node = match owner {
            Some(owner) => owner.ok_or_else(|| io::Error::other("a slot has no owner"))?,
            None => config.target.endpoints[0].clone(),
        };
        by_node.entry(node).or_default().push(*key);
    }
    let mut problem = None;
    let mut answered = std::collections::HashSet::new();
    for (node, keys) in by_node {
        let mut client = match Client::connect(&node, &config.client, tls) {
            Ok(client) => client,
            Err(error) => {
                problem = Some(error);
                continue;
            }
        };
        for keys in keys.chunks(READ_AT_ONCE) {
            let mut requests = Vec::new();
            keys.iter().for_each(|key| write_request(&["GET".to_owned(), writer.key(*key)], &mut requests));
            let replies = match client.send(&requests, keys.len()) {
                Ok(replies) => replies,
                Err(error) => {
                    problem = Some(error);
                    break;
                }
            };
            for (key, reply) in keys.iter().zip(replies) {
                if let Value::Error(error) = reply {
                    problem = Some(io::Error::other(error));
                } else {
                    writer.judge(*key, &reply, report);
                    answered.insert(*key);
                }
            }
        }
    }
    left.retain(|key| !answered.contains(key));
    problem.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(outcomes: &[Outcome], found: Value) -> CheckReport {
        let mut writer = Writer::new(&Check { keys: 1, ..Check::default() }, 1, 0);
        for outcome in outcomes {
            let plan = writer.plan(0).expect("a free key");
            assert_eq!(writer.plan(0), None, "two writes to one key");
            writer.end(&plan, *outcome);
        }
        let mut report = CheckReport::default();
        writer.judge(0, &found, &mut report);
        report
    }

    fn value(sequence: u32) -> Value {
        Value::Text(format!("checked:1:0:0={sequence}").into_bytes())
    }

    #[test]
    fn what_was_acknowledged_must_be_there() {
        use Outcome::{Acknowledged, NotSent, Refused, Unknown};
        let good = |outcomes: &[Outcome], found: Value| judged(outcomes, found).is_good();
        assert!(good(&[Acknowledged], value(1)));
        assert!(good(&[Unknown], Value::Null) && good(&[Unknown], value(1)));
        assert!(good(&[Acknowledged, Unknown], value(1)) && good(&[Acknowledged, Unknown], value(2)));
        // A write of unknown fate may be executed after a later one.
        assert!(good(&[Refused, Acknowledged], value(1)) && good(&[Unknown, Acknowledged], value(2)));
        assert_eq!(judged(&[Acknowledged], Value::Null).missing, 1);
        assert_eq!(judged(&[Acknowledged, Acknowledged], value(1)).stale, 1);
        assert_eq!(judged(&[Acknowledged, NotSent], value(3)).never_written, 1);
        assert_eq!(judged(&[Acknowledged], Value::Text(b"other".to_vec())).never_written, 1);
        assert_eq!(judged(&[Acknowledged], Value::Array(Vec::new())).never_written, 1);
    }
}
