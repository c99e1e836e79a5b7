//! Deletes the keys of a failed import, on a thread of its own, some at a time.

use crate::ReplicatedCore;
use kvick_cluster::migration::{JobName, RangeList};
use kvick_core::admission::Reasons;
use kvick_resp::Args;
use kvick_runtime::clock;
use kvick_runtime::memory::Returning;
use kvick_store::db::Counters;
use kvick_store::effects::EventClass;
use kvick_store::global_lock::Participant;
use kvick_store::{Access, Db, Effects, Env};
use std::time::{Duration, Instant};

/// Keys that are deleted at once.
const KEYS_AT_ONCE: usize = 128;

/// How long a change of the role may take.
const ROLE_WAIT: Duration = Duration::from_secs(5);

/// Starts to delete the keys of those slots that this node does not own; reports the end to the jobs.
pub(super) fn start(core: &'static ReplicatedCore, job: JobName, number: u64, slots: RangeList) {
    let keyspace = core.keyspace;
    if slots.slots().all(|slot| keyspace.slot_len_total(slot) == 0) {
        core.slot_migration.with(core, |jobs, context| jobs.cleaned(job, number, context));
        return;
    }
    let run = move || {
        kvick_runtime::memory::register_thread();
        if let Some(participant) = core.slot_migration.participant(core) {
            delete(core, participant, &slots);
            core.slot_migration.return_participant(participant);
        }
        core.slot_migration.with(core, |jobs, context| jobs.cleaned(job, number, context));
    };
    if let Err(error) = std::thread::Builder::new().name("slot-cleanup".into()).spawn(run) {
        kvick_runtime::logging::warning(format_args!("Cannot start the deletion of imported keys: {error}"));
    }
}

/// Waits until a node that has just become a primary also writes its own log.
fn wait_for_role(core: &ReplicatedCore) {
    let began = Instant::now();
    while core.admission.has(Reasons::REPLICA) && began.elapsed() < ROLE_WAIT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn delete(core: &'static ReplicatedCore, participant: Participant, slots: &RangeList) {
    wait_for_role(core);
    let Some(membership) = core.slot_migration.membership.get() else { return };
    let topology = membership.topology();
    let me = topology.my_id();
    let (keyspace, global) = (core.keyspace, &core.keyspace.global_lock);
    let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
    let mut returning = Returning::default();
    for slot in slots.slots().filter(|slot| topology.owner(*slot) != Some(me)) {
        for number in 0..keyspace.databases() {
            let mut position = 0;
            while keyspace.slot_len(number, slot) > 0 {
                global.enter(participant);
                if core.admission.has(Reasons::REPLICA) {
                    // This node became a replica: its primary deletes these keys.
                    global.leave(participant);
                    return;
                }
                let mut locked = keyspace.lock_one(keyspace.slot_address(number, slot));
                effects.begin(keyspace.log.has_readers(), EventClass::empty(), number);
                let env = Env::background(clock::unix_ms(), &access, &counters, &mut effects);
                let mut db = Db::new(&mut locked, number, env);
                let (keys, next) = db.keys_in_slot_from(slot, position, KEYS_AT_ONCE);
                // Commands that were on their way may have added keys.
                position = next.unwrap_or(0);
                for key in &keys {
                    if db.remove(db.key(key), true) {
                        db.effects().changed(1);
                        db.effects().propagate(&[b"UNLINK", key]);
                    }
                }
                effects.commit(&keyspace.log, Args::new(&[], &[], &[]));
                drop(locked);
                global.leave(participant);
                core.on_log_appended(None);
                returning.follow();
            }
        }
    }
}
