//! The mix of requests: draws what to send next, and writes it.
//!
//! A [`Plan`] is a decision: which command, for which key, and when it was due. It is small, so that many can wait for
//! a connection, and it is kept until the reply, so that a redirected request can be sent again.

use crate::commands::{Gap, Piece, Template};
use crate::config::{Config, ConfigError, Topology};
use crate::keys::{Choice, Names};
use crate::topology::slot;
use crate::values::{Values, write_argument};
use fastrand::Rng;
use std::collections::VecDeque;

/// Entries read and not yet acknowledged that are remembered, per thread.
const IDS_MAX: usize = 65_536;

/// A request that is to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// When it is due, in nanoseconds since the start.
    pub intended_ns: u64,
    /// The number of its key.
    pub key: u64,
    /// The stream entry that it acknowledges.
    pub id: (u64, u64),
    /// The number of a checked write.
    pub sequence: u32,
    /// Its kind: an index into the templates.
    pub kind: u16,
    /// How often it was redirected.
    pub redirects: u8,
}

/// Keys and values of one keyspace.
#[derive(Clone, Debug)]
struct Space {
    keys: Choice,
    names: Names,
    fields: Names,
    field_count: u64,
    values: Values,
}

/// The requests of one thread.
#[derive(Clone, Debug)]
pub struct Workload {
    templates: Vec<Template>,
    /// The keyspace of each template.
    space_of: Vec<usize>,
    spaces: Vec<Space>,
    /// Sums of the weights up to each template.
    weights: Vec<f64>,
    random: Rng,
    /// Entries to acknowledge, for each keyspace.
    ids: Vec<VecDeque<(u64, (u64, u64))>>,
}

impl Workload {
    /// The share of thread `thread` of `threads`.
    pub fn new(config: &Config, seed: u64, thread: usize, threads: usize) -> Result<Workload, ConfigError> {
        let mut workload = Workload {
            templates: Vec::new(),
            space_of: Vec::new(),
            spaces: Vec::new(),
            weights: Vec::new(),
            random: Rng::with_seed(seed.wrapping_add(thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            ids: vec![VecDeque::new(); config.workload.keyspace.len()],
        };
        let mut sum = 0.0;
        for (index, keyspace) in config.workload.keyspace.iter().enumerate() {
            let weights: f64 = keyspace.commands.iter().map(|command| command.weight).sum();
            for command in keyspace.commands.iter().filter(|command| command.weight > 0.0) {
                let template = Template::new(command, keyspace)?;
                if template.blocks && config.client.pipeline > 1 {
                    let message = format!("\"{}\" blocks its connection: set client.pipeline = 1", template.name);
                    return Err(ConfigError(message));
                }
                let tag = keyspace.hash_tag_keys;
                if config.target.topology == Topology::Cluster
                    && template.has_several_keys
                    && tag < command.cardinality as u64
                {
                    let message = format!("\"{}\" of several keys in a cluster: set hash_tag_keys", template.name);
                    return Err(ConfigError(message));
                }
                sum += keyspace.weight * command.weight / weights;
                workload.weights.push(sum);
                workload.space_of.push(index);
                workload.templates.push(template);
            }
            workload.spaces.push(Space {
                keys: Choice::new(keyspace, thread, threads),
                names: Names::new(&keyspace.prefix, keyspace.klen, keyspace.nkeys, keyspace.hash_tag_keys),
                fields: Names::new("", keyspace.inner_keys_klen, keyspace.inner_keys_nkeys, 0),
                field_count: keyspace.inner_keys_nkeys,
                values: Values::new(keyspace, seed ^ index as u64),
            });
        }
        if sum <= 0.0 {
            return Err(ConfigError("no keyspace has a weight above 0".to_owned()));
        }
        Ok(workload)
    }

    /// One command for every key of a keyspace in turn.
    pub fn filling(
        config: &Config,
        space: usize,
        template: Template,
        seed: u64,
        (thread, threads): (usize, usize),
    ) -> Result<Workload, ConfigError> {
        let mut workload = Workload::new(config, seed, thread, threads)?;
        workload.spaces[space].keys = Choice::sequential(config.workload.keyspace[space].nkeys, thread, threads);
        (workload.templates, workload.space_of, workload.weights) = (vec![template], vec![space], vec![1.0]);
        Ok(workload)
    }

    /// The kinds of requests.
    pub fn templates(&self) -> &[Template] {
        &self.templates
    }

    /// Draws the next request.
    #[inline]
    pub fn plan(&mut self, intended_ns: u64) -> Plan {
        let kind = if self.weights.len() == 1 {
            0
        } else {
            let point = self.random.f64() * self.weights.last().copied().unwrap_or(0.0);
            self.weights.partition_point(|sum| *sum <= point).min(self.weights.len() - 1)
        };
        let space = self.space_of[kind];
        let mut plan = Plan { intended_ns, kind: kind as u16, ..Plan::default() };
        if self.templates[kind].takes_id
            && let Some((key, id)) = self.ids[space].pop_front()
        {
            (plan.key, plan.id) = (key, id);
        } else {
            plan.key = self.spaces[space].keys.draw(intended_ns, &mut self.random);
        }
        plan
    }

    /// The slot of a request.
    pub fn slot(&self, plan: &Plan) -> u16 {
        let mut name = Vec::with_capacity(64);
        self.spaces[self.space_of[plan.kind as usize]].names.write(plan.key, &mut name);
        slot(&name)
    }

    /// Appends the bytes of a request.
    #[inline]
    pub fn write(&mut self, plan: &Plan, connection: usize, out: &mut Vec<u8>) {
        let space = &self.spaces[self.space_of[plan.kind as usize]];
        let mut digits = itoa::Buffer::new();
        for piece in &self.templates[plan.kind as usize].pieces {
            match piece {
                Piece::Bytes(bytes) => out.extend_from_slice(bytes),
                Piece::Gap(Gap::Key) => write_name(&space.names, plan.key, out),
                Piece::Gap(Gap::NextKey(distance)) => write_name(&space.names, self.next_key(plan, *distance), out),
                Piece::Gap(Gap::Value) => space.values.write_argument(out, &mut self.random),
                Piece::Gap(Gap::Field) => {
                    write_name(&space.fields, self.random.u64(0..space.field_count), out);
                }
                Piece::Gap(Gap::Number) => write_argument(digits.format(self.random.u16(..)).as_bytes(), out),
                Piece::Gap(Gap::Consumer) => write_argument(format!("c{connection}").as_bytes(), out),
                Piece::Gap(Gap::Id) => write_argument(format!("{}-{}", plan.id.0, plan.id.1).as_bytes(), out),
            }
        }
    }

    /// Another key of the same request: within the hash tag of the first, if keys have one.
    fn next_key(&self, plan: &Plan, distance: u64) -> u64 {
        let space = &self.spaces[self.space_of[plan.kind as usize]];
        space.names.neighbour(plan.key, distance, space.keys.count())
    }

    /// Remembers the entries in a reply of XREADGROUP, which [`Self::plan`] then acknowledges.
    pub fn remember_ids(&mut self, plan: &Plan, ids: impl Iterator<Item = (u64, u64)>) {
        let known = &mut self.ids[self.space_of[plan.kind as usize]];
        let room = IDS_MAX.saturating_sub(known.len());
        known.extend(ids.take(room).map(|id| (plan.key, id)));
    }
}

#[inline]
fn write_name(names: &Names, key: u64, out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    out.push(b'$');
    out.extend_from_slice(digits.format(names.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    names.write(key, out);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(text: &str) -> Result<Workload, ConfigError> {
        Workload::new(&Config::parse(text)?, 1, 0, 1)
    }

    #[test]
    fn requests_follow_the_weights() {
        let text = "[[workload.keyspace]]\nweight = 3\ncommands = [{ verb = 'get', weight = 8 }, { verb = 'set', \
                    weight = 2 }]\n[[workload.keyspace]]\nprefix = 'h'\ncommands = [{ verb = 'hget', weight = 7 }]";
        let mut workload = workload(text).expect("a workload");
        let mut counts = [0_i32; 3];
        (0..100_000).for_each(|_| counts[workload.plan(0).kind as usize] += 1);
        for (count, expected) in counts.into_iter().zip([60_000, 15_000, 25_000]) {
            assert!((count - expected).abs() < 1000, "{counts:?}");
        }
    }

    #[test]
    fn requests_are_complete() {
        let text = "[[workload.keyspace]]\nklen = 8\nvlen = 3\nvkind = 'bytes'\ncompression_ratio = 1000.0\n\
                    inner_keys_nkeys = 1\ninner_keys_klen = 2\nnkeys = 1\ncommands = [{ verb = 'hset' }]";
        let mut workload = workload(text).expect("a workload");
        let (plan, mut out) = (workload.plan(0), Vec::new());
        workload.write(&plan, 0, &mut out);
        let text = String::from_utf8_lossy(&out).into_owned();
        assert!(text.starts_with("*4\r\n$4\r\nHSET\r\n$8\r\nkey:0000\r\n$2\r\n00\r\n$3\r\n"), "{text}");
        assert!(text.ends_with("\r\n"));
    }

    #[test]
    fn acknowledgements_use_what_was_read() {
        let text = "[[workload.keyspace]]\nnkeys = 1000\ncommands = [{ verb = 'xack' }]";
        let mut workload = workload(text).expect("a workload");
        let read = Plan { key: 77, ..Plan::default() };
        workload.remember_ids(&read, [(5, 6)].into_iter());
        let plan = workload.plan(0);
        assert_eq!((plan.key, plan.id), (77, (5, 6)));
        assert_eq!(workload.plan(0).id, (0, 0));
    }

    #[test]
    fn what_cannot_work_is_an_error() {
        let blocking = "[client]\npipeline = 2\n[[workload.keyspace]]\ncommands = [{ verb = 'blpop' }]";
        assert!(workload(blocking).expect_err("an error").to_string().contains("pipeline = 1"));
        let several = "[target]\ntopology = 'cluster'\n[[workload.keyspace]]\n\
                       commands = [{ verb = 'mget', cardinality = 3 }]";
        assert!(workload(several).expect_err("an error").to_string().contains("hash_tag_keys"));
        assert!(workload(&several.replace("commands", "hash_tag_keys = 3\ncommands")).is_ok());
    }
}
