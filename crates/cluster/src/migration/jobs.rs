//! The jobs of a node, and what exports and imports have in common.

use super::{Action, CommandError, Context, Direction, Job, JobName, Level, Message, State};
use std::collections::VecDeque;

/// Time between two ACKs, in milliseconds.
const ACK_PERIOD_MS: u64 = 1000;

/// The migration jobs of a node, finished ones included. See the module documentation.
///
/// Methods collect [`Action`]s, which the caller takes with [`take_actions`](Jobs::take_actions).
#[derive(Default)]
pub struct Jobs {
    /// The newest first.
    pub(super) jobs: VecDeque<Job>,
    pub(super) actions: Vec<Action>,
    /// Number of deletions so far.
    cleanups: u64,
    /// The job whose connection has sent what is being handled. Its connection writes nothing meanwhile.
    receiving: Option<JobName>,
}

impl Jobs {
    /// The jobs, the newest first, as GETSLOTMIGRATIONS shows them.
    pub fn iter(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter()
    }

    /// The job with this name.
    pub fn get(&self, name: JobName) -> Option<&Job> {
        self.jobs.iter().find(|job| job.name == name)
    }

    /// Takes what is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether a slot comes to this node or its primary, so that its keys are hidden.
    pub fn is_importing(&self, slot: u16) -> bool {
        self.unfinished(Direction::Import).any(|job| job.ranges.contains(slot))
    }

    /// Whether a slot leaves this node.
    pub fn is_exporting(&self, slot: u16) -> bool {
        self.unfinished(Direction::Export).any(|job| job.ranges.contains(slot))
    }

    /// Whether any import is not finished.
    pub fn imports_any(&self) -> bool {
        self.unfinished(Direction::Import).next().is_some()
    }

    /// Whether any export is not finished.
    pub fn exports_any(&self) -> bool {
        self.unfinished(Direction::Export).next().is_some()
    }

    /// The imports that are not finished, the newest first: those that a dump records.
    pub fn unfinished_imports(&self) -> impl Iterator<Item = &Job> {
        self.unfinished(Direction::Import)
    }

    /// Whether a slot's export has granted the takeover. A claim of the target may then have the epoch of this node.
    pub fn failover_granted(&self, slot: u16) -> bool {
        let job =
            self.jobs.iter().find(|job| job.is_export() && job.state.is_in_progress() && job.ranges.contains(slot));
        job.is_some_and(|job| job.state == State::ExportFailoverGranted)
    }

    /// Whether writes to any slot are paused.
    pub fn pauses_writes(&self) -> bool {
        self.jobs.iter().any(|job| job.pause_end_ms.is_some())
    }

    /// When the longest pause of writes ends at the latest, on the monotonic clock.
    pub fn pause_end_ms(&self) -> Option<u64> {
        self.jobs.iter().filter_map(|job| job.pause_end_ms).max()
    }

    fn unfinished(&self, direction: Direction) -> impl Iterator<Item = &Job> {
        self.jobs.iter().filter(move |job| job.direction == direction && !job.state.is_finished())
    }

    /// A message from the other side, on the connection of this job.
    pub fn received(&mut self, name: JobName, message: Message, context: &Context<'_>) {
        let Some(index) = self.in_progress(name) else { return };
        if self.jobs[index].is_import() {
            self.jobs[index].heard_s = context.now_s();
        }
        self.receiving = Some(name);
        match message {
            Message::Ack => self.acknowledged(index, context),
            Message::Capa if self.jobs[index].is_import() => self.send(index, Message::Capa),
            Message::Capa => {}
            Message::SnapshotEof => self.snapshot_received(index, context),
            Message::Paused => self.paused(index, context),
            Message::FailoverGranted => self.failover_granted_to_me(index, context),
            Message::RequestPause => self.pause_requested(index, context),
            Message::RequestFailover => self.failover_requested(index, context),
        }
        self.receiving = None;
    }

    /// An unknown SYNCSLOTS subcommand from the other side.
    pub fn received_unknown(&mut self, name: JobName, context: &Context<'_>) {
        if let Some(index) = self.in_progress(name) {
            let description = &self.jobs[index].description;
            let line = format!(
                "Received unknown SYNCSLOTS subcommand from slot migration {description}. Failing the migration."
            );
            self.warn(line);
            self.receiving = Some(name);
            self.fail(index, "Unknown SYNCSLOTS subcommand used", context);
            self.receiving = None;
        }
    }

    /// A message from a client that belongs to no job.
    pub fn refuse_stray(subcommand: &[u8]) -> CommandError {
        match Message::from_name(subcommand) {
            Some(message) => CommandError::OnlyForMigrationClients(message.name()),
            None => CommandError::Syntax,
        }
    }

    fn acknowledged(&mut self, index: usize, context: &Context<'_>) {
        self.jobs[index].acknowledged_s = context.now_s();
        if self.jobs[index].state == State::ImportWaitingForAck {
            self.enter(index, State::ImportReceivingSnapshot, context);
        }
    }

    /// The job's connection is gone, and not because of [`Action::Disconnect`].
    pub fn disconnected(&mut self, name: JobName, context: &Context<'_>) {
        let Some(index) = self.in_progress(name) else { return };
        let job = &self.jobs[index];
        if job.tracking_only || job.claiming {
            return;
        }
        let line = format!("Slot migration {} connection lost", job.description);
        let state = job.state;
        let message = match job.direction {
            Direction::Export => {
                "Connection lost to target. Check CLUSTER GETSLOTMIGRATIONS on the target node for more information."
            }
            Direction::Import => {
                "Connection lost to source. Check CLUSTER GETSLOTMIGRATIONS on the source node for more information."
            }
        };
        self.notice(line);
        // The target may have taken over: writes stay paused until its claim arrives or the pause ends.
        if state != State::ExportFailoverGranted {
            self.fail(index, message, context);
        }
    }

    /// A command of the stream failed on this node, or the other side sent an error.
    pub fn command_failed(&mut self, name: JobName, context: &Context<'_>) {
        if let Some(index) = self.in_progress(name) {
            let message = "Failed to process command during slot migration. Check logs for more information";
            self.fail(index, message, context);
        }
    }

    /// Shows a remark about a job that is in progress.
    pub fn note(&mut self, name: JobName, remark: Option<&str>) {
        if let Some(index) = self.in_progress(name) {
            self.jobs[index].message = remark.map(str::to_owned);
        }
    }

    /// The data of this node, or of one of its databases, was flushed.
    pub fn flushed(&mut self, context: &Context<'_>) {
        self.fail_all(|_| true, "Data was flushed", context);
    }

    /// The owners of slots, the role of this node, or both have changed. New owners must already be visible to
    /// clients: writes that were paused proceed.
    pub fn topology_changed(&mut self, context: &Context<'_>) {
        for index in 0..self.jobs.len() {
            match self.jobs[index].direction {
                _ if !self.jobs[index].state.is_in_progress() => {}
                Direction::Export => self.check_export(index, context),
                Direction::Import => self.check_import(index, context),
            }
        }
    }

    /// Time has passed. To be called often: at least ten times a second while a job is in progress.
    pub fn tick(&mut self, context: &Context<'_>) {
        for index in 0..self.jobs.len() {
            if self.has_timed_out(index, context) {
                let description = &self.jobs[index].description;
                let line = format!("Timing out slot migration {description} after not receiving ack for too long");
                self.warn(line);
                self.fail(index, "Timed out after too long with no interaction", context);
                continue;
            }
            match self.jobs[index].direction {
                Direction::Export => self.proceed_with_export(index, context),
                Direction::Import => self.proceed_with_import(index, context),
            }
            let job = &mut self.jobs[index];
            if job.state.sends_acks() && job.next_ack_ms <= context.now_ms {
                job.next_ack_ms = context.now_ms.saturating_add(ACK_PERIOD_MS);
                let job = job.name;
                self.actions.push(Action::Send { job, message: Message::Ack });
            }
        }
        self.trim_log(context.settings.log_max_len);
    }

    fn has_timed_out(&self, index: usize, context: &Context<'_>) -> bool {
        let job = &self.jobs[index];
        // After the grant, the end of the pause decides.
        let waits = job.state.is_in_progress()
            && !job.claiming
            && !matches!(job.state, State::ExportFailoverGranted | State::ImportOccurringOnPrimary);
        let heard_s = if job.is_export() { job.acknowledged_s } else { job.heard_s };
        waits && context.now_s().saturating_sub(heard_s) > context.settings.repl_timeout_s
    }

    /// Drops the oldest finished jobs above the limit.
    pub(super) fn trim_log(&mut self, max_len: usize) {
        for index in (0..self.jobs.len()).rev() {
            if self.jobs.len() <= max_len {
                return;
            }
            if self.jobs[index].state.is_finished() {
                self.jobs.remove(index);
            }
        }
    }

    /// The index of the job with this name, if it is in progress.
    pub(super) fn in_progress(&self, name: JobName) -> Option<usize> {
        self.jobs.iter().position(|job| job.name == name && job.state.is_in_progress())
    }

    pub(super) fn notice(&mut self, line: String) {
        self.actions.push(Action::Log(Level::Notice, line));
    }

    pub(super) fn warn(&mut self, line: String) {
        self.actions.push(Action::Log(Level::Warning, line));
    }

    pub(super) fn send(&mut self, index: usize, message: Message) {
        self.actions.push(Action::Send { job: self.jobs[index].name, message });
    }

    pub(super) fn enter(&mut self, index: usize, state: State, context: &Context<'_>) {
        let job = &mut self.jobs[index];
        let line = format!(
            "Slot migration {} state transition: {} -> {}",
            job.description,
            job.state.as_str(),
            state.as_str()
        );
        (job.state, job.updated_s) = (state, context.now_s());
        self.notice(line);
    }

    /// Fails a job because of a message that does not fit its state.
    pub(super) fn fail_unexpected(&mut self, index: usize, what: &str, why: &str, context: &Context<'_>) {
        let description = &self.jobs[index].description;
        let line = format!("Received CLUSTER SYNCSLOTS {what} slot migration {description}, {why} Failing migration.");
        self.warn(line);
        self.fail(index, "Unexpected state machine transition", context);
    }

    /// Fails a job, unless its slots are being claimed: the result of the claim decides then.
    pub(super) fn fail(&mut self, index: usize, message: &str, context: &Context<'_>) {
        if self.jobs[index].claiming {
            return;
        }
        self.finish(index, State::Failed, Some(message.to_owned()), context);
    }

    pub(super) fn fail_all(&mut self, which: impl Fn(&Job) -> bool, message: &str, context: &Context<'_>) {
        for index in 0..self.jobs.len() {
            if self.jobs[index].state.is_in_progress() && which(&self.jobs[index]) {
                self.fail(index, message, context);
            }
        }
    }

    /// Ends the pause of writes, if there is one.
    pub(super) fn resume_writes(&mut self, index: usize) {
        let job = &mut self.jobs[index];
        if job.pause_end_ms.take().is_some() {
            let action = Action::ResumeWrites { job: job.name, slots: job.ranges.clone() };
            self.actions.push(action);
        }
    }

    /// Ends a job. An import that a primary ends without success first deletes what it received.
    pub(super) fn finish(&mut self, index: usize, state: State, message: Option<String>, context: &Context<'_>) {
        if state != State::Success && self.may_be_taken_over(index, context) {
            return self.end_later(index, state, message);
        }
        let job = &mut self.jobs[index];
        let (state, message) = job.ending.take().filter(|_| state != State::Success).unwrap_or((state, message));
        job.message = message;
        (job.claiming, job.awaits_replicas_since_s) = (false, None);
        let (name, slots) = (job.name, job.ranges.clone());
        let disconnects = job.state.is_in_progress() && !job.tracking_only;
        let is_granted = job.state == State::ExportFailoverGranted && state != State::Success;
        if is_granted && context.owner_of(&slots) == Some(context.topology.my_id()) {
            self.actions.push(Action::WithdrawGrant { job: name });
        }
        self.resume_writes(index);
        let job = &mut self.jobs[index];
        let cleans = job.is_import()
            && context.topology.is_primary()
            && job.state != State::ImportCleaningUp
            && !context.loading
            && state != State::Success
            && (self.receiving != Some(name) || slots.slots().any(|slot| context.topology.has_keys(slot)));
        if cleans {
            job.after_cleanup = state;
            self.cleanups += 1;
            job.cleanup = self.cleanups;
        }
        let number = job.cleanup;
        self.enter(index, if cleans { State::ImportCleaningUp } else { state }, context);
        if disconnects {
            self.actions.push(Action::Disconnect { job: name });
        }
        if cleans {
            let description = &self.jobs[index].description;
            let line = format!("Cleaning up slot migration {description} after {}", state.as_str());
            self.notice(line);
            self.actions.push(Action::DeleteKeys { job: name, number, slots });
            return;
        }
        let job = &self.jobs[index];
        let line = format!(
            "Slot migration {} finished. State: {}, Message: {}",
            job.description,
            state.as_str(),
            job.message.as_deref().unwrap_or("none")
        );
        let is_import = job.is_import();
        let level = if state == State::Failed { Level::Warning } else { Level::Notice };
        self.actions.push(Action::Log(level, line));
        if is_import {
            self.end_import(index, context);
        }
    }
}
