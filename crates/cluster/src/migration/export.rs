//! The source's side.

use super::{Action, CommandError, Context, Direction, Establish, Job, JobName, Jobs, Message, RangeList, State};
use crate::NodeId;

/// CLUSTER_OPERATION_TIMEOUT of Valkey: how long writes stay paused at least after the grant, in milliseconds.
pub(super) const OPERATION_TIMEOUT_MS: u64 = 2000;

/// The time between two requests to a target that is still deleting its old keys of the slots, in milliseconds.
const ESTABLISH_INTERVAL_MS: u64 = 100;

/// The longest pause is this many times the timeout of a manual failover.
const PAUSE_FACTOR: u64 = 2;

/// Why a job ends whose target is marked as failed, or is no primary any more.
const TARGET_FAILED: &str = "Target node failed";

/// How far an export's stream is behind, as its sender measures it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Bytes of the slots' writes that were not sent.
    pub remaining_bytes: u64,
    /// Whether all of that can reach the target within a few milliseconds, so that a pause would be short.
    pub is_close: bool,
    /// Whether the target has yet to execute more than it can within a few milliseconds, although it was sent.
    pub target_lags: bool,
}

impl Jobs {
    /// CLUSTER MIGRATESLOTS. `arguments` begin after the subcommand; `new_name` chooses random names; `client` is the
    /// client as the log shows it.
    pub fn migrate(
        &mut self,
        arguments: &[&[u8]],
        client: &str,
        mut new_name: impl FnMut() -> JobName,
        context: &Context<'_>,
    ) -> Result<(), CommandError> {
        check_can_start(context)?;
        // The newest first.
        let mut exports: Vec<Job> = Vec::new();
        let mut rest = arguments;
        while let [word, tail @ ..] = rest {
            if !is_word(word, b"slotsrange") {
                return Err(CommandError::Syntax);
            }
            let (ranges, taken) = self.parse_exported(tail, context)?;
            if exports.iter().any(|export| export.ranges.overlaps(&ranges)) {
                return Err(CommandError::JobsOverlap);
            }
            let target = match tail.get(taken..) {
                Some([word, name, tail @ ..]) if is_word(word, b"node") => {
                    rest = tail;
                    parse_target(name, context)?
                }
                _ => return Err(CommandError::Syntax),
            };
            let peer = context.topology.peer(&target).map(|peer| (target, peer));
            let job = Job::new(new_name(), Direction::Export, State::ExportConnecting, ranges, peer, context);
            exports.insert(0, job);
        }
        for export in exports {
            let line = format!(
                "Slot migration initiated through CLUSTER MIGRATESLOTS command: {} (user request from '{client}')",
                export.description
            );
            self.notice(line);
            self.jobs.push_front(export);
            self.connect(0, context);
        }
        Ok(())
    }

    fn parse_exported(&self, arguments: &[&[u8]], context: &Context<'_>) -> Result<(RangeList, usize), CommandError> {
        let (ranges, owner, taken) = parse_owned(arguments, context)?;
        if owner != context.topology.my_id() {
            return Err(CommandError::NotOwner);
        }
        if let Some(slot) = ranges.slots().find(|slot| self.is_exporting(*slot)) {
            return Err(CommandError::AlreadyExporting(slot));
        }
        Ok((ranges, taken))
    }

    /// CLUSTER CANCELSLOTMIGRATIONS: ends all exports.
    pub fn cancel(&mut self, client: &str, context: &Context<'_>) -> Result<(), CommandError> {
        if !self.exports_any() {
            return Err(CommandError::NothingToCancel);
        }
        for index in 0..self.jobs.len() {
            if self.jobs[index].is_export() && self.jobs[index].state.is_in_progress() {
                self.finish(index, State::Cancelled, None, context);
            }
        }
        self.notice(format!("Canceled all in progress slot migrations (user request from '{client}')"));
        Ok(())
    }

    fn connect(&mut self, index: usize, context: &Context<'_>) {
        let job = &self.jobs[index];
        let (name, target) = (job.name, job.target);
        let found = target.and_then(|id| context.topology.peer(&id).map(|peer| (id, peer)));
        match found {
            Some((node, peer)) => {
                let line =
                    format!("Connecting slot migration {} (ip: {}, port {})", job.description, peer.address, peer.port);
                self.notice(line);
                self.actions.push(Action::Connect { job: name, node, address: peer.address, port: peer.port });
            }
            None => {
                let id = target.map(|id| id.to_string()).unwrap_or_default();
                let line = format!(
                    "Slot migration {}: target node {id} not found in cluster, aborting connection attempt.",
                    job.description
                );
                self.warn(line);
                self.fail(index, "Unable to connect to target node: target node not found", context);
            }
        }
    }

    /// The connection to the target is there.
    pub fn connected(&mut self, name: JobName, context: &Context<'_>) {
        let Some(index) = self.export_in(name, State::ExportConnecting) else { return };
        let line = format!("Slot migration {} connection established.", self.jobs[index].description);
        self.notice(line);
        if context.settings.authenticates {
            self.enter(index, State::ExportSendingAuth, context);
            self.actions.push(Action::Authenticate { job: name });
            self.enter(index, State::ExportReadingAuthReply, context);
        } else {
            self.establish_export(index, context);
        }
    }

    /// The target cannot be reached.
    pub fn connect_failed(&mut self, name: JobName, error: &str, context: &Context<'_>) {
        if let Some(index) = self.export_in(name, State::ExportConnecting) {
            self.fail(index, &format!("Unable to connect to target node: {error}"), context);
        }
    }

    /// The target has answered AUTH, with this error if it refused. An empty error: it did not answer.
    pub fn authenticated(&mut self, name: JobName, result: Result<(), &str>, context: &Context<'_>) {
        let Some(index) = self.export_in(name, State::ExportReadingAuthReply) else { return };
        match result {
            Ok(()) => {
                let line = format!("Successfully authenticated slot migration {}", self.jobs[index].description);
                self.notice(line);
                self.establish_export(index, context);
            }
            Err("") => self.fail(index, "Target node did not respond to AUTH command", context),
            Err(error) => self.fail(index, &format!("Failed to AUTH to target node: {error}"), context),
        }
    }

    fn establish_export(&mut self, index: usize, context: &Context<'_>) {
        self.enter(index, State::ExportSendingEstablish, context);
        self.send_establish(index, context);
        self.enter(index, State::ExportReadingEstablishReply, context);
    }

    fn send_establish(&mut self, index: usize, context: &Context<'_>) {
        let job = &self.jobs[index];
        let establish = Establish { source: context.topology.my_id(), name: job.name, ranges: job.ranges.clone() };
        let action = Action::Establish { job: job.name, request: establish.encode() };
        self.actions.push(action);
    }

    /// The target has answered ESTABLISH, with this error (`-ERR ...`) if it refused.
    pub fn established(&mut self, name: JobName, result: Result<(), &str>, context: &Context<'_>) {
        let Some(index) = self.export_in(name, State::ExportReadingEstablishReply) else { return };
        if let Err(error) = result {
            if error.ends_with(&CommandError::StillDeleting.to_string()) {
                self.jobs[index].establish_again_ms = Some(context.now_ms.saturating_add(ESTABLISH_INTERVAL_MS));
                return;
            }
            return self.fail(index, &format!("Received error during handshake to target: {error}"), context);
        }
        self.jobs[index].acknowledged_s = context.now_s();
        self.enter(index, State::ExportWaitingToSnapshot, context);
        // Ends the target's wait for an ACK.
        self.send(index, Message::Ack);
        let action = Action::StartSnapshot { job: name, slots: self.jobs[index].ranges.clone() };
        self.actions.push(action);
    }

    /// The snapshot of the slots has begun: all writes from now on are sent after it.
    pub fn snapshot_started(&mut self, name: JobName, context: &Context<'_>) {
        let Some(index) = self.export_in(name, State::ExportWaitingToSnapshot) else { return };
        let line = format!("Beginning snapshot of slot migration {}.", self.jobs[index].description);
        self.notice(line);
        self.enter(index, State::ExportSnapshotting, context);
    }

    /// The snapshot was sent, and with it SNAPSHOT-EOF.
    pub fn snapshot_sent(&mut self, name: JobName, context: &Context<'_>) {
        if let Some(index) = self.export_in(name, State::ExportSnapshotting) {
            self.begin_replicating(index, context);
        }
    }

    fn begin_replicating(&mut self, index: usize, context: &Context<'_>) {
        self.enter(index, State::ExportReplicating, context);
        let description = &self.jobs[index].description;
        let line = format!("Slot migration {description} snapshot finished, starting streaming.");
        self.notice(line);
    }

    /// The sender's measurement. Pauses writes if the target waits for that and little is left.
    pub fn progressed(&mut self, name: JobName, progress: Progress, context: &Context<'_>) {
        let Some(index) = self.in_progress(name).filter(|index| self.jobs[*index].is_export()) else { return };
        self.jobs[index].remaining_bytes = progress.remaining_bytes;
        if self.jobs[index].state == State::ExportWaitingToPause && may_pause(progress, context) {
            self.pause(index, context);
        }
    }

    pub(super) fn pause_requested(&mut self, index: usize, context: &Context<'_>) {
        // The target may have executed SNAPSHOT-EOF before the sender reports that it was sent.
        if self.jobs[index].state == State::ExportSnapshotting {
            self.begin_replicating(index, context);
        }
        if self.jobs[index].state != State::ExportReplicating {
            let why = "but the client was not streaming incremental updates.";
            return self.fail_unexpected(index, "REQUEST-PAUSE for", why, context);
        }
        self.enter(index, State::ExportWaitingToPause, context);
    }

    fn pause(&mut self, index: usize, context: &Context<'_>) {
        let length_ms = context.settings.manual_failover_timeout_ms.saturating_mul(PAUSE_FACTOR);
        let job = &mut self.jobs[index];
        job.pause_end_ms = Some(context.mono_ms.saturating_add(length_ms));
        let line = format!(
            "Pausing writes (remaining_repl_size is {}) to allow slot migration {} to finalize failover.",
            job.remaining_bytes, job.description
        );
        let action = Action::PauseWrites { job: job.name, slots: job.ranges.clone() };
        self.notice(line);
        self.actions.push(action);
        self.enter(index, State::ExportFailoverPaused, context);
    }

    pub(super) fn failover_requested(&mut self, index: usize, context: &Context<'_>) {
        if self.jobs[index].state != State::ExportFailoverPaused {
            let why = "but the client was not in the paused state.";
            return self.fail_unexpected(index, "REQUEST-FAILOVER for", why, context);
        }
        if context.topology.is_failing_over() {
            // The replica would accept writes to slots that the target is about to claim.
            return self.fail(index, "A manual failover is in progress", context);
        }
        if !self.jobs[index].target.is_some_and(|target| context.topology.is_working_primary(&target)) {
            // A replica is about to replace it.
            return self.fail(index, TARGET_FAILED, context);
        }
        let now_ms = context.mono_ms;
        let Some(end_ms) = self.jobs[index].pause_end_ms.filter(|end_ms| *end_ms >= now_ms) else {
            let description = &self.jobs[index].description;
            let line = format!(
                "Received CLUSTER SYNCSLOTS REQUEST-FAILOVER on slot migration {description}, \
                 but we are not paused. Denying failover."
            );
            self.warn(line);
            return self.fail(index, "Unpaused before failover completed", context);
        };
        // The claim needs time to arrive.
        self.jobs[index].pause_end_ms = Some(end_ms.max(now_ms.saturating_add(OPERATION_TIMEOUT_MS)));
        self.jobs[index].granted_ms = now_ms;
        let action = Action::GrantFailover { job: self.jobs[index].name };
        self.actions.push(action);
        self.enter(index, State::ExportFailoverGranted, context);
    }

    pub(super) fn proceed_with_export(&mut self, index: usize, context: &Context<'_>) {
        let job = &self.jobs[index];
        if job.state == State::ExportReadingEstablishReply
            && job.establish_again_ms.is_some_and(|at_ms| at_ms <= context.now_ms)
        {
            self.jobs[index].establish_again_ms = None;
            return self.send_establish(index, context);
        }
        let pause_ended = job.pause_end_ms.is_none_or(|end_ms| end_ms < context.mono_ms);
        match job.state {
            State::ExportFailoverPaused if pause_ended => {
                let line = format!("Slot migration {} timed out during slot failover.", job.description);
                self.warn(line);
                self.fail(index, "Timed out before streaming completed", context);
            }
            State::ExportFailoverGranted if pause_ended => {
                let line = format!(
                    "Write loss risk! During slot migration {}, new owner did not broadcast ownership before we \
                     unpaused ourselves. Any writes we have recorded since unpausing may be lost!",
                    job.description
                );
                self.warn(line);
                let message = "Unpaused before migration completed (migration may have succeeded with lost writes)";
                self.fail(index, message, context);
            }
            State::ExportFailoverGranted => self.check_export(index, context),
            _ => {}
        }
    }

    /// Ends an export whose slots have another owner: successfully if it is the target.
    pub(super) fn check_export(&mut self, index: usize, context: &Context<'_>) {
        let job = &self.jobs[index];
        let owner = context.owner_of(&job.ranges);
        if owner == Some(context.topology.my_id()) {
            let works = job.target.is_some_and(|target| context.topology.is_working_primary(&target));
            if job.state == State::ExportFailoverGranted && job.ending.is_none() && !works {
                // A replica, which knows nothing of a claim, may replace it: then its claim must not win any more. If
                // it works all the same, it takes a higher epoch.
                let action = Action::WithdrawGrant { job: job.name };
                self.actions.push(action);
                self.end_later(index, State::Failed, Some(TARGET_FAILED.to_owned()));
            }
            return;
        }
        if owner.is_some() && owner == job.target {
            // Before the log: writers wait.
            self.resume_writes(index);
            let job = &self.jobs[index];
            let line = format!("Slot migration {} slots are now owned by target node.", job.description);
            self.notice(line);
            return self.finish(index, State::Success, None, context);
        }
        let line = format!("Slot migration {} contains slots that are no longer all owned by myself", job.description);
        self.warn(line);
        self.fail(index, "Slots are no longer owned by myself", context);
    }

    /// Whether the target of an export may claim the slots at any moment.
    pub(super) fn may_be_taken_over(&self, index: usize, context: &Context<'_>) -> bool {
        let job = &self.jobs[index];
        job.state == State::ExportFailoverGranted
            && job.pause_end_ms.is_some_and(|end_ms| end_ms >= context.mono_ms)
            && context.owner_of(&job.ranges) == Some(context.topology.my_id())
    }

    /// Ends an export when its target may not claim the slots any more, unless it claims them before: if writes resumed
    /// now, they would be lost by the claim.
    pub(super) fn end_later(&mut self, index: usize, state: State, message: Option<String>) {
        let job = &mut self.jobs[index];
        job.ending.get_or_insert((state, message));
        let end_ms = job.granted_ms.saturating_add(OPERATION_TIMEOUT_MS);
        job.pause_end_ms = job.pause_end_ms.map(|until_ms| until_ms.min(end_ms));
        let line = format!(
            "Slot migration {} ends when the target may not take the slots over any more: {}",
            job.description,
            state.as_str()
        );
        let action = Action::Disconnect { job: job.name };
        self.notice(line);
        self.actions.push(action);
    }

    /// Fails an export for a reason that its sender found.
    pub fn export_failed(&mut self, name: JobName, message: &str, context: &Context<'_>) {
        if let Some(index) = self.in_progress(name).filter(|index| self.jobs[*index].is_export()) {
            self.fail(index, message, context);
        }
    }

    fn export_in(&self, name: JobName, state: State) -> Option<usize> {
        self.jobs.iter().position(|job| job.name == name && job.state == state)
    }
}

/// Whether a migration may start on this node.
pub(super) fn check_can_start(context: &Context<'_>) -> Result<(), CommandError> {
    if !context.topology.is_primary() {
        return Err(CommandError::NotPrimary);
    }
    if context.topology.imports_manually() {
        return Err(CommandError::ManualImport);
    }
    if context.topology.migrates_manually() {
        return Err(CommandError::ManualMigration);
    }
    Ok(())
}

/// Parses ranges that must all have one owner. Returns also that owner, and how many arguments the ranges take.
pub(super) fn parse_owned(
    arguments: &[&[u8]],
    context: &Context<'_>,
) -> Result<(RangeList, NodeId, usize), CommandError> {
    let mut owner = None;
    let (ranges, taken) = RangeList::parse(arguments, |range| {
        for slot in range.slots() {
            let its_owner = context.topology.owner(slot).ok_or(CommandError::SlotUnowned(slot))?;
            if *owner.get_or_insert(its_owner) != its_owner {
                return Err(CommandError::SeveralShards);
            }
        }
        Ok(())
    })?;
    Ok((ranges, owner.ok_or(CommandError::NoRanges)?, taken))
}

/// Whether an argument is this word. As in Valkey, it ends at a zero byte: valkey-cli sends `SLOTSRANGE` with one.
fn is_word(argument: &[u8], word: &[u8]) -> bool {
    argument.split(|byte| *byte == 0).next().is_some_and(|argument| argument.eq_ignore_ascii_case(word))
}

fn parse_target(name: &[u8], context: &Context<'_>) -> Result<NodeId, CommandError> {
    let text = || String::from_utf8_lossy(name).into_owned();
    let bytes = name.try_into().map_err(|_| CommandError::InvalidNodeName(text()))?;
    let id = NodeId::new(bytes).map_err(|_| CommandError::UnknownNodeName(text()))?;
    if context.topology.peer(&id).is_none() {
        return Err(CommandError::UnknownNodeName(text()));
    }
    if id == context.topology.my_id() {
        return Err(CommandError::TargetIsMyself);
    }
    Ok(id)
}

fn may_pause(progress: Progress, context: &Context<'_>) -> bool {
    let settings = context.settings;
    let few = match settings.max_failover_repl_bytes {
        Some(limit) => progress.is_close || (progress.remaining_bytes <= limit && !progress.target_lags),
        None => true,
    };
    few && !settings.prevent_pause
}
