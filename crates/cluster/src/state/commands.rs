//! CLUSTER subcommands that change the state, except for SETSLOT.

use super::epoch::Collisions;
use super::links::normalize_ip;
use super::settle::Todo;
use super::{Action, Cluster, CommandError, Facts, LinkDirections, NodeKey, log};
use crate::Epoch;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::slots::{SLOT_COUNT, Slots};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// How CLUSTER FAILOVER is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailoverMode {
    /// With the primary's help: no write is lost.
    Coordinated,
    /// Without the primary, by a vote of the others (FORCE).
    Force,
    /// Without the primary and without a vote (TAKEOVER).
    Takeover,
}

/// What CLUSTER BUMPEPOCH did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BumpedEpoch {
    /// The node has a new config epoch.
    Bumped(Epoch),
    /// It had the highest already.
    Still(Epoch),
}

/// How long slots of an atomic migration are defended, in milliseconds. They are claimed a second after the source was
/// asked for them at the latest, and the source resumes writes two seconds after that at the earliest.
const TAKEOVER_DEFENDED_MS: u64 = 500;

impl Cluster {
    /// CLUSTER MEET: starts a handshake. `client` describes the client in the log line, here and below.
    pub fn meet(
        &mut self,
        ip: &str,
        port: u16,
        bus_port: u16,
        client: &str,
        facts: &Facts<'_>,
    ) -> Result<(), CommandError> {
        let Some(normal_ip) = normalize_ip(ip) else {
            return Err(CommandError::InvalidAddress { ip: ip.to_owned(), port });
        };
        self.start_handshake(&normal_ip, port, bus_port, facts);
        log!(self, Notice, "Cluster meet {ip}:{port} (user request from '{client}').");
        Ok(())
    }

    /// CLUSTER FORGET. Succeeds if the node was forgotten a short time ago.
    pub fn forget(&mut self, name: &[u8], client: &str, facts: &Facts<'_>) -> Result<(), CommandError> {
        let Some(key) = self.find_by_name(name) else {
            let forgotten = parse_name(name).is_some_and(|id| self.is_blacklisted(&id, facts.ms()));
            return if forgotten { Ok(()) } else { Err(unknown_node(name)) };
        };
        if key == self.myself {
            return Err(CommandError::ForgetMyself);
        }
        if self.me().is_replica() && self.me().replica_of == Some(key) {
            return Err(CommandError::ForgetPrimary);
        }
        let id = self.nodes[key].id;
        log!(self, Notice, "Cluster forget {id} (user request from '{client}').");
        let until_ms = facts.ms().saturating_add(self.settings.blacklist_ttl_seconds.saturating_mul(1000));
        self.blacklist_node(id, until_ms, facts.ms());
        self.remove_node(key, facts);
        self.todo(Todo::STATE | Todo::SAVE);
        Ok(())
    }

    /// CLUSTER REPLICATE with a node.
    pub fn replicate(&mut self, name: &[u8], facts: &Facts<'_>) -> Result<(), CommandError> {
        let key = self.find_by_name(name).ok_or_else(|| unknown_node(name))?;
        if key == self.myself {
            return Err(CommandError::ReplicateMyself);
        }
        if self.nodes[key].is_replica() {
            return Err(CommandError::ReplicateReplica);
        }
        if self.me().is_primary() && (self.me().slot_count > 0 || facts.has_keys) {
            return Err(CommandError::ReplicateNotEmpty);
        }
        if self.me().replica_of == Some(key) {
            return Ok(());
        }
        // Either this node is empty, or it has another history: in both cases the data must be copied.
        self.set_primary(key, true, true);
        self.todo(Todo::STATE | Todo::SAVE | Todo::BROADCAST);
        Ok(())
    }

    /// CLUSTER REPLICATE NO ONE: a replica becomes a primary without data, in a shard of its own.
    pub fn replicate_no_one(&mut self, client: &str) {
        if self.me().is_primary() {
            return;
        }
        log!(self, Notice, "Stop replication and turning myself into empty primary (request from '{client}').");
        self.make_primary(self.myself);
        self.out.push(Action::FlushData);
        self.close_all_slots();
        self.reset_manual_failover();
        self.move_to_new_shard();
        self.todo(Todo::STATE | Todo::SAVE | Todo::BROADCAST);
    }

    /// CLUSTER RESET.
    pub fn reset(&mut self, hard: bool, client: &str, facts: &Facts<'_>) -> Result<(), CommandError> {
        if self.me().is_primary() && facts.has_keys {
            return Err(CommandError::ResetWithKeys);
        }
        log!(self, Notice, "Cluster reset (user request from '{client}').");
        self.close_all_slots();
        self.reset_manual_failover();
        for slot in 0..SLOT_COUNT {
            self.unassign_slot(slot);
        }
        for key in self.nodes.keys() {
            if key != self.myself {
                self.remove_node(key, facts);
            }
        }
        self.blacklist.clear();
        self.taken.clear();
        self.forget_handed_over();
        self.left_behind = Slots::EMPTY;
        self.check_migrations = true;
        if hard {
            self.current_epoch = 0;
            self.last_vote_epoch = 0;
            self.nodes[self.myself].config_epoch = 0;
            log!(self, Notice, "configEpoch set to 0 via CLUSTER RESET HARD");
            let id = self.random.node_id();
            self.nodes.rename(self.myself, id);
            log!(self, Notice, "Node hard reset, now I'm {id}");
        }
        self.move_to_new_shard();
        if self.me().is_replica() {
            self.make_primary(self.myself);
            self.out.push(Action::FlushData);
        }
        self.takeover_deadline_ms = None;
        self.collisions = Collisions::default();
        self.todo(Todo::STATE | Todo::SAVE | Todo::SYNC);
        Ok(())
    }

    /// CLUSTER FAILOVER. `from_primary` says that the request came on the replication link. A primary that shuts down
    /// sends it so to all replicas, with the name of the one that is meant; the others ignore it.
    pub fn failover(
        &mut self,
        mode: FailoverMode,
        replica: Option<&[u8]>,
        from_primary: bool,
        client: &str,
        facts: &Facts<'_>,
    ) -> Result<(), CommandError> {
        if replica.is_some_and(|name| name != self.me().id.as_bytes()) {
            return Ok(());
        }
        if self.me().is_primary() {
            return Err(CommandError::FailoverOnPrimary);
        }
        let primary = self.me().replica_of.ok_or(CommandError::FailoverUnknownPrimary)?;
        let down = self.nodes[primary].is_failed() || self.nodes[primary].link.is_none();
        if mode == FailoverMode::Coordinated && down {
            return Err(CommandError::FailoverPrimaryDown);
        }
        self.reset_manual_failover();
        self.manual.deadline_ms = Some(facts.ms().saturating_add(self.settings.manual_failover_timeout_ms));
        match mode {
            FailoverMode::Takeover => {
                log!(self, Notice, "Taking over the primary (user request from '{client}').");
                self.bump_epoch_without_consensus();
                self.replace_primary(facts);
            }
            FailoverMode::Force => {
                let origin = if from_primary { "primary" } else { "user" };
                log!(self, Notice, "Forced failover {origin} request accepted ({origin} request from '{client}').");
                self.start_manual_election();
                self.todo(Todo::MANUAL_FAILOVER);
            }
            FailoverMode::Coordinated => {
                log!(self, Notice, "Manual failover user request accepted (user request from '{client}').");
                self.send_failover_start(primary, facts);
            }
        }
        Ok(())
    }

    /// CLUSTER ADDSLOTS and ADDSLOTSRANGE. Either all slots are added or none.
    pub fn add_slots(&mut self, ranges: &[RangeInclusive<u16>]) -> Result<(), CommandError> {
        let slots = self.check_slots(ranges, false)?;
        for slot in slots.iter() {
            self.importing.remove(&slot);
            self.assign_slot(self.myself, slot);
        }
        self.todo(Todo::STATE | Todo::SAVE | Todo::SYNC);
        Ok(())
    }

    /// CLUSTER DELSLOTS and DELSLOTSRANGE. Either all slots are removed from their owners or none.
    pub fn del_slots(&mut self, ranges: &[RangeInclusive<u16>]) -> Result<(), CommandError> {
        let slots = self.check_slots(ranges, true)?;
        for slot in slots.iter() {
            self.importing.remove(&slot);
            self.unassign_slot(slot);
        }
        self.todo(Todo::STATE | Todo::SAVE | Todo::SYNC);
        Ok(())
    }

    /// CLUSTER FLUSHSLOTS.
    pub fn flush_slots(&mut self, facts: &Facts<'_>) -> Result<(), CommandError> {
        if facts.has_keys {
            return Err(CommandError::FlushWithKeys);
        }
        self.unassign_all_of(self.myself);
        self.todo(Todo::STATE | Todo::SAVE | Todo::SYNC);
        Ok(())
    }

    /// CLUSTER BUMPEPOCH.
    pub fn bump_epoch(&mut self) -> BumpedEpoch {
        let bumped = self.bump_epoch_without_consensus();
        let epoch = self.me().config_epoch;
        if bumped { BumpedEpoch::Bumped(epoch) } else { BumpedEpoch::Still(epoch) }
    }

    /// CLUSTER SET-CONFIG-EPOCH.
    pub fn set_config_epoch(&mut self, epoch: i64) -> Result<(), CommandError> {
        let new = u64::try_from(epoch).map_err(|_| CommandError::InvalidEpoch(epoch))?;
        if self.nodes.len() > 1 {
            return Err(CommandError::EpochWithNodes);
        }
        if self.me().config_epoch != 0 {
            return Err(CommandError::EpochNotZero);
        }
        self.nodes[self.myself].config_epoch = new;
        log!(self, Notice, "configEpoch set to {new} via CLUSTER SET-CONFIG-EPOCH");
        self.current_epoch = self.current_epoch.max(new);
        self.todo(Todo::STATE | Todo::SAVE);
        Ok(())
    }

    /// CLUSTER COUNT-FAILURE-REPORTS.
    pub fn count_failure_reports(&mut self, name: &[u8], facts: &Facts<'_>) -> Result<usize, CommandError> {
        let key = self.find_by_name(name).ok_or_else(|| unknown_node(name))?;
        Ok(self.failure_reports(key, facts.ms()))
    }

    /// DEBUG CLUSTERLINK KILL.
    pub fn kill_links(
        &mut self,
        name: &[u8],
        directions: LinkDirections,
        facts: &Facts<'_>,
    ) -> Result<(), CommandError> {
        let key = self.find_by_name(name).ok_or_else(|| unknown_node(name))?;
        if key == self.myself {
            return Err(CommandError::LinksToMyself);
        }
        if directions != LinkDirections::From {
            self.close_link(self.nodes[key].link, facts.ms());
        }
        if directions != LinkDirections::To {
            self.close_link(self.nodes[key].inbound, facts.ms());
        }
        Ok(())
    }

    /// Takes slots over at once, with a new config epoch and without a vote, and tells all nodes: the end of an atomic
    /// slot migration on its target.
    pub fn take_over_slots(&mut self, ranges: &[RangeInclusive<u16>], facts: &Facts<'_>) {
        let epoch = self.take_next_epoch();
        log!(self, Notice, "New configEpoch set to {epoch}");
        let mut slots = Slots::EMPTY;
        ranges.iter().for_each(|range| slots.insert_range(range.clone()));
        let mut sources: BTreeMap<NodeKey, Slots> = BTreeMap::new();
        for slot in slots.iter() {
            if let Some(source) = self.owner(slot) {
                sources.entry(source).or_default().insert(slot);
            }
        }
        self.reassign(slots.view(), self.myself);
        for (source, taken) in sources {
            let defended_ms = TAKEOVER_DEFENDED_MS.min(self.settings.node_timeout_ms / 2);
            self.note_taken(source, taken.view(), facts.ms().saturating_add(defended_ms));
            self.ask_for_claim(source, facts);
        }
        self.update_state(facts);
        self.todo(Todo::SAVE | Todo::SYNC | Todo::BROADCAST);
    }

    /// Whether all these slots can be added, or removed.
    fn check_slots(&self, ranges: &[RangeInclusive<u16>], remove: bool) -> Result<Slots, CommandError> {
        let mut slots = Slots::EMPTY;
        for slot in ranges.iter().cloned().flatten().filter(|slot| *slot < SLOT_COUNT) {
            match self.owner(slot) {
                None if remove => return Err(CommandError::SlotUnassigned(slot)),
                Some(_) if !remove => return Err(CommandError::SlotBusy(slot)),
                _ => {}
            }
            if !slots.insert(slot) {
                return Err(CommandError::SlotTwice(slot));
            }
        }
        Ok(slots)
    }

    /// Puts this node into a shard of its own.
    fn move_to_new_shard(&mut self) {
        let shard_id = self.random.node_id();
        self.nodes.set_shard(self.myself, shard_id);
        log!(self, Notice, "Moving myself to a new shard {shard_id}.");
        self.todo(Todo::SAVE);
    }

    /// The node with this name, as an argument of a command has it.
    pub(super) fn find_by_name(&self, name: &[u8]) -> Option<NodeKey> {
        self.nodes.find(&parse_name(name)?)
    }

    /// The flags of the node with this ID, if it is known.
    pub fn node_flags(&self, name: &[u8]) -> Option<NodeFlags> {
        self.find_by_name(name).map(|key| self.nodes[key].flags)
    }
}

fn parse_name(name: &[u8]) -> Option<NodeId> {
    NodeId::new(name.try_into().ok()?).ok()
}

pub(super) fn unknown_node(name: &[u8]) -> CommandError {
    CommandError::UnknownNode(String::from_utf8_lossy(name).into_owned())
}
