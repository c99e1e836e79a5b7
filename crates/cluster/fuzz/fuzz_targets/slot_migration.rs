//! Any requests, messages and events in any order leave the jobs of slot migrations in order: none panics, each slot
//! that an import hides is shown again when it ends, and each pause of writes ends with its job.
//!
//! Each line of the input is an event: its first byte chooses the kind, the others are the words of a request.

#![no_main]

use kvick_cluster::NodeId;
use kvick_cluster::migration::{
    Action, Context, Job, JobName, Jobs, Message, Origin, Peer, Progress, RangeList, Settings, Topology,
};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeSet;

const ME: &[u8; 40] = b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const OTHER: &[u8; 40] = b"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

/// Two nodes: slots below `boundary` belong to this one.
struct Pair {
    boundary: u16,
    is_primary: bool,
    is_failing_over: bool,
    other_works: bool,
}

fn id(name: &[u8; 40]) -> NodeId {
    NodeId::new(*name).expect("a valid ID")
}

impl Topology for Pair {
    fn my_id(&self) -> NodeId {
        id(ME)
    }

    fn is_primary(&self) -> bool {
        self.is_primary
    }

    fn owner(&self, slot: u16) -> Option<NodeId> {
        (slot != 16_383).then(|| if slot < self.boundary { id(ME) } else { id(OTHER) })
    }

    fn peer(&self, node: &NodeId) -> Option<Peer> {
        let peer = Peer { address: "127.0.0.1".into(), port: 1, human_name: String::new() };
        [ME, OTHER].iter().any(|name| id(name) == *node).then_some(peer)
    }

    fn deletes(&self, slot: u16) -> bool {
        slot == 7
    }

    fn has_keys(&self, slot: u16) -> bool {
        slot % 2 == 0
    }

    fn imports_manually(&self) -> bool {
        false
    }

    fn migrates_manually(&self) -> bool {
        false
    }

    fn is_working_primary(&self, _: &NodeId) -> bool {
        self.other_works
    }

    fn is_failing_over(&self) -> bool {
        self.is_failing_over
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut pair = Pair { boundary: 8192, is_primary: true, is_failing_over: false, other_works: true };
    let (mut jobs, mut now_ms, mut mono_ms) = (Jobs::default(), 1_000_000, 0);
    let (mut names, mut effects) = (0u8, Effects::default());
    let settings = Settings { log_max_len: 4, ..Settings::default() };
    for line in bytes.split(|byte| *byte == b'\n').take(200) {
        let Some((kind, rest)) = line.split_first() else { continue };
        let mut new_name = || {
            names = names.wrapping_add(1);
            JobName::from_random([names; 20])
        };
        // Words of one character stand for the long ones.
        let fresh = new_name();
        let known: Vec<JobName> = jobs.iter().map(Job::name).collect();
        let picked = known.get(usize::from(*kind >> 4)).copied().unwrap_or(fresh);
        let words: Vec<&[u8]> = rest
            .split(|byte| *byte == b' ')
            .map(|word| match word {
                b"m" => &ME[..],
                b"o" => OTHER,
                b"n" => picked.as_bytes(),
                b"r" => b"SLOTSRANGE",
                word => word,
            })
            .collect();
        match kind & 15 {
            6 => pair.boundary = pair.boundary.wrapping_add(512) % 16_384,
            7 => match kind >> 4 {
                0 => pair.is_failing_over = !pair.is_failing_over,
                1 => pair.other_works = !pair.other_works,
                _ => pair.is_primary = !pair.is_primary,
            },
            8 => {
                now_ms += 1 << (kind >> 3);
                // Sometimes only the wall clock jumps.
                mono_ms += if kind & 128 == 0 { 1 << (kind >> 3) } else { 0 };
            }
            _ => {}
        }
        let context = Context { topology: &pair, settings: &settings, now_ms, mono_ms, loading: kind & 128 != 0 };
        match kind & 15 {
            0 => _ = jobs.migrate(&words, "client", &mut new_name, &context),
            1 => _ = jobs.establish(&words, Origin::Source, &context),
            2 => _ = jobs.establish(&words, Origin::Stream, &context),
            3 => _ = jobs.finish_command(&words, &context),
            4 => match Message::from_name(words.first().copied().unwrap_or_default()) {
                Some(message) => jobs.received(picked, message, &context),
                None => jobs.received_unknown(picked, &context),
            },
            5 => _ = jobs.cancel("client", &context),
            6 | 7 => jobs.topology_changed(&context),
            8 => jobs.tick(&context),
            9 => jobs.connected(picked, &context),
            10 => jobs.established(picked, Ok(()), &context),
            11 => {
                jobs.snapshot_started(picked, &context);
                jobs.snapshot_sent(picked, &context);
            }
            12 => jobs.progressed(picked, Progress::default(), &context),
            13 => jobs.disconnected(picked, &context),
            14 => jobs.load_began(&context),
            _ => jobs.load_ended(&context),
        }
        effects.carry_out(&mut jobs, &context);
        effects.check(&jobs);
    }
});

/// The state of the surroundings.
#[derive(Default)]
struct Effects {
    paused: BTreeSet<[u8; 40]>,
    hidden: BTreeSet<u16>,
}

impl Effects {
    /// Carries out all actions; claims and deletions succeed at once.
    fn carry_out(&mut self, jobs: &mut Jobs, context: &Context<'_>) {
        loop {
            let actions = jobs.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::PauseWrites { job, .. } => assert!(self.paused.insert(*job.as_bytes())),
                    Action::ResumeWrites { job, .. } => assert!(self.paused.remove(job.as_bytes())),
                    Action::SetImporting { slots, importing } => self.hide(&slots, importing),
                    Action::AwaitReplicas { job, .. } => jobs.replicated(job, context),
                    Action::Claim { job, .. } => {
                        if jobs.may_claim(job, context) {
                            jobs.claimed(job, context.topology.is_primary(), context);
                        }
                    }
                    Action::DeleteKeys { job, number, .. } => jobs.cleaned(job, number, context),
                    _ => {}
                }
            }
        }
    }

    fn hide(&mut self, slots: &RangeList, importing: bool) {
        for slot in slots.slots() {
            _ = if importing { self.hidden.insert(slot) } else { self.hidden.remove(&slot) };
        }
    }

    fn check(&self, jobs: &Jobs) {
        let names: BTreeSet<[u8; 40]> = jobs.iter().map(|job| *job.name().as_bytes()).collect();
        assert!(self.paused.is_subset(&names), "a paused job is listed");
        for job in jobs.iter().filter(|job| job.state().is_finished()) {
            assert!(!self.paused.contains(job.name().as_bytes()), "a finished job pauses no writes");
        }
        if !jobs.imports_any() {
            assert!(self.hidden.is_empty(), "hidden slots are shown when no import is left");
        }
    }
}
