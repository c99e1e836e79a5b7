//! The target's side, and that of its replicas.

use super::export::{OPERATION_TIMEOUT_MS, check_can_start, parse_owned};
use super::{Action, CommandError, Context, Direction, Finish, Job, JobName, Jobs, Message, Peer, RangeList, State};
use crate::NodeId;
use std::collections::VecDeque;

/// Who sent ESTABLISH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The source, through a connection of its own.
    Source,
    /// This node's primary, or the append-only file: the job is only tracked.
    Stream,
}

#[derive(Default)]
struct EstablishFields {
    source: Option<(NodeId, Peer)>,
    name: Option<JobName>,
    ranges: Option<RangeList>,
    owner: Option<NodeId>,
}

impl Jobs {
    /// CLUSTER SYNCSLOTS ESTABLISH. `arguments` begin after ESTABLISH. The request is propagated to replicas and the
    /// append-only file as received. If it comes from the source, its connection then belongs to the returned job,
    /// and no further command on it has a reply.
    pub fn establish(
        &mut self,
        arguments: &[&[u8]],
        origin: Origin,
        context: &Context<'_>,
    ) -> Result<JobName, CommandError> {
        if origin == Origin::Source {
            check_can_start(context)?;
        }
        let fields = self.parse_establish(arguments, origin, context)?;
        let (Some(name), Some(ranges)) = (fields.name, fields.ranges) else { return Err(CommandError::Syntax) };
        if origin == Origin::Stream {
            // The data are loaded anew: what this node knew of the job is out of date.
            let (old, others) = std::mem::take(&mut self.jobs)
                .into_iter()
                .partition::<VecDeque<Job>, _>(|job| job.name == name && !job.state.is_finished());
            self.jobs = others;
            let shown = old.into_iter().filter(Job::is_import);
            self.actions.extend(shown.map(|job| Action::SetImporting { slots: job.ranges, importing: false }));
        }
        if origin == Origin::Source {
            let (source, _) = fields.source.as_ref().ok_or(CommandError::Syntax)?;
            if fields.owner != Some(*source) {
                return Err(CommandError::OwnersDisagree);
            }
        }
        self.create_import(name, ranges, fields.source, context);
        Ok(name)
    }

    fn parse_establish(
        &self,
        arguments: &[&[u8]],
        origin: Origin,
        context: &Context<'_>,
    ) -> Result<EstablishFields, CommandError> {
        let mut fields = EstablishFields::default();
        let mut rest = arguments;
        while let [word, tail @ ..] = rest {
            if word.eq_ignore_ascii_case(b"slotsrange") {
                if fields.ranges.is_some() {
                    return Err(CommandError::Syntax);
                }
                let (ranges, taken) = self.parse_imported(tail, origin, &mut fields, context)?;
                fields.ranges = Some(ranges);
                rest = &tail[taken..];
                continue;
            }
            let [value, tail @ ..] = tail else { return Err(CommandError::Syntax) };
            if value.len() != JobName::LEN {
                return Err(CommandError::Syntax);
            }
            if word.eq_ignore_ascii_case(b"source") && fields.source.is_none() {
                // The primary may know other nodes than its replica, and the file is from another time.
                if origin == Origin::Source {
                    fields.source = Some(parse_source(value, context)?);
                }
            } else if word.eq_ignore_ascii_case(b"name") && fields.name.is_none() {
                fields.name = JobName::new(value);
            } else {
                return Err(CommandError::Syntax);
            }
            rest = tail;
        }
        Ok(fields)
    }

    fn parse_imported(
        &self,
        arguments: &[&[u8]],
        origin: Origin,
        fields: &mut EstablishFields,
        context: &Context<'_>,
    ) -> Result<(RangeList, usize), CommandError> {
        let (ranges, taken) = match origin {
            Origin::Source => {
                let (ranges, owner, taken) = parse_owned(arguments, context)?;
                fields.owner = Some(owner);
                (ranges, taken)
            }
            Origin::Stream => RangeList::parse(arguments, |_| Ok(()))?,
        };
        // The stream decides: an older job of this name is replaced.
        if origin == Origin::Source && ranges.slots().any(|slot| self.is_importing(slot)) {
            return Err(CommandError::AlreadyImporting);
        }
        if origin == Origin::Source && ranges.slots().any(|slot| context.topology.deletes(slot)) {
            return Err(CommandError::StillDeleting);
        }
        Ok((ranges, taken))
    }

    /// An import that a dump records.
    pub fn load_import(&mut self, name: JobName, ranges: RangeList, context: &Context<'_>) {
        self.create_import(name, ranges, None, context);
    }

    fn create_import(
        &mut self,
        name: JobName,
        ranges: RangeList,
        source: Option<(NodeId, Peer)>,
        context: &Context<'_>,
    ) {
        let tracking_only = source.is_none();
        let state = if tracking_only { State::ImportOccurringOnPrimary } else { State::ImportWaitingForAck };
        let mut job = Job::new(name, Direction::Import, state, ranges.clone(), source, context);
        job.tracking_only = tracking_only;
        self.actions.push(Action::SetImporting { slots: ranges, importing: true });
        let line = format!("New slot import job created: {}.", job.description);
        self.notice(line);
        self.jobs.push_front(job);
    }

    /// The connection of an import has sent something at this time, in Unix seconds.
    pub fn heard(&mut self, name: JobName, at_s: u64) {
        if let Some(index) = self.in_progress(name) {
            self.jobs[index].heard_s = self.jobs[index].heard_s.max(at_s);
        }
    }

    pub(super) fn snapshot_received(&mut self, index: usize, context: &Context<'_>) {
        if self.jobs[index].state != State::ImportReceivingSnapshot {
            let why = "but not currently loading an AOF snapshot.";
            return self.fail_unexpected(index, "SNAPSHOT-EOF from", why, context);
        }
        let description = &self.jobs[index].description;
        let line = format!(
            "Slot migration {description} successfully received slot snapshot. Beginning incremental stream..."
        );
        self.notice(line);
        self.enter(index, State::ImportWaitingForPaused, context);
        self.await_replicas(index, context);
    }

    pub(super) fn paused(&mut self, index: usize, context: &Context<'_>) {
        let job = &self.jobs[index];
        if job.state != State::ImportWaitingForPaused || job.awaits_replicas_since_s.is_some() {
            return self.fail_unexpected(index, "PAUSED from", "but we did not wait for it.", context);
        }
        self.enter(index, State::ImportFailoverRequested, context);
        self.await_replicas(index, context);
    }

    /// Continues when enough replicas have what was received so far: at once if none have to.
    fn await_replicas(&mut self, index: usize, context: &Context<'_>) {
        let replicas = context.settings.takeover_replicas;
        if replicas == 0 {
            return self.request_next(index, context);
        }
        let job = &mut self.jobs[index];
        job.awaits_replicas_since_s = Some(context.now_s());
        let action = Action::AwaitReplicas { job: job.name, replicas };
        self.actions.push(action);
    }

    /// Enough replicas have acknowledged what an import has received.
    pub fn replicated(&mut self, name: JobName, context: &Context<'_>) {
        let Some(index) = self.in_progress(name) else { return };
        if self.jobs[index].awaits_replicas_since_s.take().is_some() {
            self.request_next(index, context);
        }
    }

    fn request_next(&mut self, index: usize, context: &Context<'_>) {
        match self.jobs[index].state {
            State::ImportWaitingForPaused => self.send(index, Message::RequestPause),
            State::ImportFailoverRequested => {
                self.jobs[index].requested_ms = Some((context.now_ms, context.mono_ms));
                self.send(index, Message::RequestFailover);
            }
            _ => {}
        }
    }

    pub(super) fn failover_granted_to_me(&mut self, index: usize, context: &Context<'_>) {
        let job = &self.jobs[index];
        if job.state != State::ImportFailoverRequested || job.awaits_replicas_since_s.is_some() {
            let why = "but we never sent a failover request.";
            return self.fail_unexpected(index, "FAILOVER-GRANTED from", why, context);
        }
        self.enter(index, State::ImportFailoverGranted, context);
        self.proceed_with_import(index, context);
    }

    pub(super) fn proceed_with_import(&mut self, index: usize, context: &Context<'_>) {
        let job = &mut self.jobs[index];
        let waited_s = job.awaits_replicas_since_s.map_or(0, |since_s| context.now_s().saturating_sub(since_s));
        if waited_s > context.settings.repl_timeout_s {
            let message = "Not enough replicas have acknowledged the slots (cluster-slot-takeover-replicas)";
            return self.fail(index, message, context);
        }
        if job.state == State::ImportFailoverGranted && !job.claiming && !context.settings.prevent_failover {
            if !is_grant_valid(job, context) {
                return self.fail_late(index, context);
            }
            let job = &mut self.jobs[index];
            job.claiming = true;
            let action = Action::Claim { job: job.name, slots: job.ranges.clone() };
            self.actions.push(action);
        }
    }

    /// Whether the slots of a job may still be claimed. If not, the job ends.
    pub fn may_claim(&mut self, name: JobName, context: &Context<'_>) -> bool {
        let Some(index) = self.in_progress(name).filter(|index| self.jobs[*index].claiming) else { return false };
        let is_valid = is_grant_valid(&self.jobs[index], context);
        if !is_valid {
            self.jobs[index].claiming = false;
            self.fail_late(index, context);
        }
        is_valid
    }

    fn fail_late(&mut self, index: usize, context: &Context<'_>) {
        self.fail(index, "The source's permission to take the slots over came too late", context);
    }

    /// This node has claimed the slots of the job, or could not because it is no longer a primary.
    pub fn claimed(&mut self, name: JobName, claimed: bool, context: &Context<'_>) {
        let Some(index) = self.in_progress(name).filter(|index| self.jobs[*index].claiming) else { return };
        self.jobs[index].claiming = false;
        if !claimed {
            return self.check_import(index, context);
        }
        let description = &self.jobs[index].description;
        let line =
            format!("Slot migration {description} completed successfully. This node is now the owner of the slots");
        self.notice(line);
        self.finish(index, State::Success, None, context);
    }

    /// The keys of a failed import are deleted: this deletion is complete. One of an older job of this name, which was
    /// replaced since, does not count.
    pub fn cleaned(&mut self, name: JobName, number: u64, context: &Context<'_>) {
        let is_it = |job: &Job| job.name == name && job.state == State::ImportCleaningUp && job.cleanup == number;
        let found = self.jobs.iter().position(is_it);
        if let Some(index) = found {
            let (state, message) = (self.jobs[index].after_cleanup, self.jobs[index].message.take());
            self.finish(index, state, message, context);
        }
    }

    /// Shows the keys, which are now this node's or gone, and tells replicas and the append-only file.
    pub(super) fn end_import(&mut self, index: usize, context: &Context<'_>) {
        let job = &self.jobs[index];
        let (slots, words) = (job.ranges.clone(), Finish::of(job).words());
        self.actions.push(Action::SetImporting { slots, importing: false });
        if context.topology.is_primary() && !context.loading {
            self.actions.push(Action::Propagate { words });
        }
    }

    /// CLUSTER SYNCSLOTS FINISH. `arguments` begin after FINISH. The request is propagated as received, so actions of
    /// this call do not propagate one.
    pub fn finish_command(&mut self, arguments: &[&[u8]], context: &Context<'_>) -> Result<(), CommandError> {
        let Finish { name, success, message } = Finish::parse(arguments)?;
        let index = self.jobs.iter().position(|job| job.name == name).ok_or(CommandError::NoSuchJob)?;
        if self.jobs[index].state.is_finished() {
            return Ok(());
        }
        let state = if success { State::Success } else { State::Failed };
        self.finish(index, state, message, context);
        Ok(())
    }

    /// Ends imports that the new owners contradict. On a node that became a replica they turn into tracked ones: its
    /// primary decides. A node that became a primary ends the imports of its former primary.
    pub(super) fn check_import(&mut self, index: usize, context: &Context<'_>) {
        let job = &self.jobs[index];
        if job.claiming {
            return;
        }
        if !context.topology.is_primary() {
            if job.state != State::ImportOccurringOnPrimary {
                let name = job.name;
                self.enter(index, State::ImportOccurringOnPrimary, context);
                self.jobs[index].tracking_only = true;
                self.actions.push(Action::Disconnect { job: name });
            }
            return;
        }
        if job.state == State::ImportOccurringOnPrimary {
            // What a load finds is ended when it is complete.
            if !context.loading {
                self.fail(index, "A failover occurred during slot import", context);
            }
            return;
        }
        let Some(source) = job.source else { return };
        let owner = context.owner_of(&job.ranges);
        if owner == Some(source) {
            return;
        }
        let message = if owner == Some(context.topology.my_id()) {
            "Slots were unexpectedly assigned to myself during import"
        } else {
            "Slots are no longer owned by source node"
        };
        self.fail(index, message, context);
    }

    /// A dump is about to be loaded: forgets all finished jobs, and imports of the old data.
    pub fn load_began(&mut self, context: &Context<'_>) {
        self.fail_all(Job::is_import, "A new RDB is being loaded", context);
        self.notice("Cleaning slot migration log in anticipation of a load operation.".to_owned());
        self.trim_log(0);
    }

    /// A dump or the append-only file was loaded: a primary ends the imports that it found there. Those whose source is
    /// connected have begun since.
    pub fn load_ended(&mut self, context: &Context<'_>) {
        if context.topology.is_primary() {
            self.fail_all(|job| job.is_import() && job.tracking_only, "Process restarted", context);
        }
    }

    /// A write of the stream found no memory.
    pub fn out_of_memory(&mut self, name: JobName, context: &Context<'_>) {
        if let Some(index) = self.in_progress(name).filter(|index| self.jobs[*index].is_import()) {
            let line = format!("Slot migration {} failed due to OOM", self.jobs[index].description);
            self.warn(line);
            self.fail(index, "Ran out of memory (OOM) during slot import", context);
        }
    }
}

/// Whether the source still holds writes, so that the slots can be claimed.
///
/// It does so for [`OPERATION_TIMEOUT_MS`] after it has received the request, if it does not fail; then a replica may
/// replace it after the node timeout. Half of that is left for the claim to arrive. One of the two clocks shows that
/// the process or its machine stood still.
fn is_grant_valid(job: &Job, context: &Context<'_>) -> bool {
    let limit_ms = OPERATION_TIMEOUT_MS.min(context.settings.node_timeout_ms) / 2;
    job.requested_ms.is_some_and(|(unix_ms, mono_ms)| {
        context.now_ms.abs_diff(unix_ms) <= limit_ms && context.mono_ms.saturating_sub(mono_ms) <= limit_ms
    })
}

fn parse_source(value: &[u8], context: &Context<'_>) -> Result<(NodeId, Peer), CommandError> {
    let bytes = value.try_into().map_err(|_| CommandError::Syntax)?;
    let id = NodeId::new(bytes).map_err(|_| CommandError::UnknownSource)?;
    let peer = context.topology.peer(&id).ok_or(CommandError::UnknownSource)?;
    if id == context.topology.my_id() {
        return Err(CommandError::SourceIsMyself);
    }
    Ok((id, peer))
}
