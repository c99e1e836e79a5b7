//! Replication between processes, and the other effects that roles have on data.

use crate::data::{Entry, Message, SlotChange};
use crate::event::Event;
use crate::host::{Downstream, Reply};
use crate::network::{ConnId, End, Item, Purpose, Side};
use crate::world::World;
use kvick_cluster::state::{Action, SetSlot};
use std::rc::Rc;

/// Time between two attempts to connect to the primary.
const CONNECT_MS: u64 = 1000;

/// Time between two entries that keep the stream alive.
const HEARTBEAT_MS: u64 = 1000;

/// A link on which nothing was heard for so long is closed.
const SILENCE_MAX_MS: u64 = 20_000;

/// Longest time to wait for the reply to a request to synchronize.
const SYNCHRONIZE_MS_MAX: u64 = 10_000;

/// Longest time that a copy of all data takes.
const FULL_SYNC_MS_MAX: u64 = 800;

/// Longest time from the wish that writes be paused until they are.
const PAUSE_MS_MAX: u64 = 30;

impl World {
    /// Carries out an action that concerns the data.
    pub(crate) fn perform(&mut self, host: usize, action: Action) {
        let history = self.random.u64(..);
        let now = self.clock(host);
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        match action {
            Action::BecomePrimary => {
                process.data.rename(history);
                process.upstream.target = None;
                process.upstream.heard_ms = None;
                self.close_upstream(host);
            }
            Action::ReplicateFrom { ip, full_sync, new_primary, .. } => {
                let was_replica = process.upstream.target.is_some();
                let upstream = &mut process.upstream;
                if full_sync || !was_replica {
                    // The data is not that of the new primary, or was never streamed to this process.
                    upstream.heard_ms = None;
                } else if upstream.is_online {
                    upstream.heard_ms = Some(now.mono_ms);
                }
                upstream.target = Some((ip, full_sync));
                upstream.attempt_ms = 0;
                self.close_upstream(host);
                if new_primary {
                    self.close_downstream(host);
                }
                self.fail_waiting(host);
            }
            Action::TopologyChanged | Action::CheckSlotMigrations => {
                self.with_jobs(host, |jobs, context| jobs.topology_changed(context));
            }
            Action::FlushData => {
                process.data.clear(history);
                self.close_downstream(host);
                self.with_jobs(host, |jobs, context| jobs.flushed(context));
            }
            Action::HideKeys { slots, hidden: true } => process.hidden.insert_all(slots.view()),
            Action::HideKeys { slots, hidden: false } => process.hidden.remove_all(slots.view()),
            Action::DeleteKeys(slots) => {
                process.hidden.remove_all(slots.view());
                self.append(host, Entry::RemoveSlots(slots));
            }
            Action::PauseWrites { until_ms } => {
                process.pause_number += 1;
                process.pause_until_ms = until_ms;
                let number = process.pause_number;
                // A pause that ends in the same step goes on.
                let goes_on = std::mem::take(&mut process.resumed_step) == self.steps;
                process.pause_is_pending = !goes_on;
                process.paused_until_ms = goes_on.then_some(until_ms);
                let wait_ms = self.random.u64(0..=PAUSE_MS_MAX);
                let at_ms = self.now_ms + if goes_on { 0 } else { wait_ms };
                let life = self.hosts[host].life;
                self.queue.push(at_ms, Event::WritesPaused { host, life, number });
            }
            Action::ResumeWrites => {
                process.pause_number += 1;
                process.pause_is_pending = false;
                if process.paused_until_ms.is_some() {
                    process.resumed_step = self.steps;
                }
                self.resume_writes(host);
            }
            _ => {}
        }
    }

    pub(crate) fn writes_paused(&mut self, host: usize, number: u64) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        if process.pause_number != number {
            return;
        }
        process.paused_until_ms = Some(process.pause_until_ms);
        process.pause_is_pending = false;
        self.with_cluster(host, |cluster, facts| cluster.writes_paused(facts));
    }

    fn resume_writes(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        process.paused_until_ms = None;
        for request in std::mem::take(&mut process.paused_requests) {
            // The actions of this batch go first: the role may be another one.
            self.queue.push(self.now_ms, Event::Request { host, request });
        }
    }

    /// Appends an entry to the stream of a host, and sends it to its replicas.
    pub(crate) fn append(&mut self, host: usize, entry: Entry) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let end = process.append(entry.clone());
        let replicas: Vec<ConnId> = process.online_replicas().map(|replica| replica.conn).collect();
        for conn in replicas {
            self.send_item(conn, 0, Item::Replication(Box::new(Message::Entry(end, entry.clone()))));
        }
        self.feed_exports(host, &entry);
    }

    /// What is due on the replication links.
    pub(crate) fn replication_tick(&mut self, host: usize) {
        let now_ms = self.clock(host).mono_ms;
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        if process.paused_until_ms.is_some_and(|until_ms| now_ms >= until_ms) {
            self.resume_writes(host);
        }
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let is_silent = process.upstream.is_online
            && process.upstream.heard_ms.is_some_and(|heard_ms| now_ms.saturating_sub(heard_ms) > SILENCE_MAX_MS);
        // A connection whose other end has lost its power in the meantime.
        let is_stuck = process.upstream.conn.is_some()
            && !process.upstream.is_online
            && now_ms.saturating_sub(process.upstream.attempt_ms) > SYNCHRONIZE_MS_MAX;
        if is_silent || is_stuck {
            self.close_upstream(host);
        }
        self.connect_upstream(host, now_ms);
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let is_source = process.upstream.target.is_none() && process.online_replicas().next().is_some();
        let is_due = now_ms.saturating_sub(process.heartbeat_ms) >= HEARTBEAT_MS;
        if is_source && is_due && !process.is_paused(now_ms) {
            process.heartbeat_ms = now_ms;
            self.append(host, Entry::Ping);
        }
    }

    fn connect_upstream(&mut self, host: usize, now_ms: u64) {
        let life = self.hosts[host].life;
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let upstream = &mut process.upstream;
        let is_recent = upstream.attempt_ms != 0 && now_ms.saturating_sub(upstream.attempt_ms) < CONNECT_MS;
        let Some((ip, _)) = upstream.target.as_ref().filter(|_| upstream.conn.is_none() && !is_recent) else { return };
        upstream.attempt_ms = now_ms;
        let Some(target) = self.by_ip.get(ip).copied().filter(|target| *target != host) else { return };
        let opener = End { host, life, link: None, closed: false };
        let acceptor = End { host: target, life: 0, link: None, closed: false };
        let conn = self.net.add(Purpose::Replication, opener, acceptor);
        upstream.conn = Some(conn);
        self.begin_open(conn, Some(target));
    }

    /// The connection to the primary is open: asks for what is missing.
    pub(crate) fn replication_connected(&mut self, host: usize, conn: ConnId) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        if process.upstream.conn != Some(conn) {
            return;
        }
        // Another node may have the address by now. Its data must not replace that of this shard.
        let expected = process.cluster.my_primary();
        let target = self.net.get(conn).and_then(|conn| self.cluster(conn.ends[1].host)).map(|cluster| cluster.my_id());
        if target != expected {
            self.close_upstream(host);
            return;
        }
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let full = process.upstream.target.as_ref().is_none_or(|(_, full)| *full);
        let position = (!full).then_some((process.data.history, process.data.offset));
        self.send_item(conn, 1, Item::Replication(Box::new(Message::Synchronize(position))));
    }

    pub(crate) fn replication_closed(&mut self, host: usize, conn: ConnId) {
        let now_ms = self.clock(host).mono_ms;
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        if process.upstream.conn == Some(conn) {
            if process.upstream.is_online {
                process.upstream.heard_ms = Some(now_ms);
            }
            process.upstream.conn = None;
            process.upstream.is_online = false;
        }
        process.downstream.retain(|replica| replica.conn != conn);
        self.check_waiting(host);
    }

    /// Closes the link to the primary.
    pub(crate) fn close_upstream(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        process.upstream.is_online = false;
        if let Some(conn) = process.upstream.conn.take() {
            self.close_end(conn, 0);
        }
    }

    /// Closes the links to all replicas.
    fn close_downstream(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        for replica in std::mem::take(&mut process.downstream) {
            self.close_end(replica.conn, 1);
        }
    }

    pub(crate) fn receive_replication(&mut self, host: usize, conn: ConnId, side: Side, message: Message) {
        if side == 1 {
            self.receive_from_replica(host, conn, message);
        } else {
            self.receive_from_primary(host, conn, message);
        }
    }

    fn receive_from_replica(&mut self, host: usize, conn: ConnId, message: Message) {
        let life = self.hosts[host].life;
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        match message {
            Message::Synchronize(position) => {
                let has_data = process.upstream.target.is_none() || process.upstream.is_online;
                if !has_data || process.cluster.waits_for_takeover() {
                    self.close_end(conn, 1);
                    return;
                }
                process.downstream.retain(|replica| replica.conn != conn);
                let entries = position.and_then(|(history, offset)| process.data.entries_from(history, offset));
                let is_online = entries.is_some();
                process.downstream.push(Downstream { conn, is_online, acknowledged: 0 });
                match entries {
                    Some(entries) => {
                        let history = process.data.history;
                        self.send_item(conn, 0, Item::Replication(Box::new(Message::Continue(history))));
                        for (end, entry) in entries {
                            self.send_item(conn, 0, Item::Replication(Box::new(Message::Entry(end, entry))));
                        }
                    }
                    None => {
                        let at_ms = self.now_ms + self.random.u64(1..=FULL_SYNC_MS_MAX);
                        self.queue.push(at_ms, Event::FullSync { host, life, conn });
                    }
                }
            }
            Message::Acknowledge(offset) => {
                if let Some(replica) = process.downstream.iter_mut().find(|replica| replica.conn == conn) {
                    replica.acknowledged = offset;
                }
                self.check_waiting(host);
                self.check_awaiting(host);
            }
            _ => {}
        }
    }

    /// The copy for a replica is ready.
    pub(crate) fn send_full_sync(&mut self, host: usize, conn: ConnId) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let mut data = process.data.copy();
        data.imports = process.migrations.unfinished_imports();
        let data = Rc::new(data);
        let open_slots = process.cluster.open_slots_field();
        let Some(replica) = process.downstream.iter_mut().find(|replica| replica.conn == conn) else { return };
        replica.is_online = true;
        self.send_item(conn, 0, Item::Replication(Box::new(Message::Full(data, open_slots))));
    }

    fn receive_from_primary(&mut self, host: usize, conn: ConnId, message: Message) {
        let now_ms = self.clock(host).mono_ms;
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        if process.upstream.conn != Some(conn) {
            return;
        }
        process.upstream.heard_ms = match message {
            Message::Entry(..) if !process.upstream.is_online => return,
            _ => Some(now_ms),
        };
        match message {
            Message::Continue(history) => {
                if process.data.history != history {
                    process.data.rename(history);
                }
                self.upstream_online(host);
            }
            Message::Full(data, open_slots) => {
                process.data = (*data).clone();
                self.upstream_online(host);
                self.close_downstream(host);
                self.load_imports(host);
                if let Some(field) = open_slots {
                    self.with_cluster(host, |cluster, facts| cluster.restore_open_slots(&field, facts));
                }
            }
            Message::Entry(end, entry) => {
                if end != process.data.offset + crate::data::ENTRY_BYTES {
                    self.oracle.violate(format!("host {host}: the stream has a gap before offset {end}"));
                    return;
                }
                let change = match &entry {
                    Entry::SetSlot { slot, change } => Some((*slot, *change)),
                    _ => None,
                };
                self.append(host, entry.clone());
                self.track_job(host, &entry);
                if let Some((slot, change)) = change {
                    self.change_slot(host, slot, change, true);
                }
            }
            _ => return,
        }
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let offset = process.data.offset;
        self.send_item(conn, 1, Item::Replication(Box::new(Message::Acknowledge(offset))));
    }

    fn upstream_online(&mut self, host: usize) {
        if let Some(process) = self.hosts[host].process.as_mut() {
            process.upstream.is_online = true;
            if let Some((_, full)) = process.upstream.target.as_mut() {
                *full = false;
            }
        }
    }

    /// Executes SETSLOT.
    pub(crate) fn change_slot(&mut self, host: usize, slot: u16, change: SlotChange, from_primary: bool) -> bool {
        let result = self.with_cluster(host, |cluster, facts| {
            let change = match &change {
                SlotChange::Migrating(id) => SetSlot::Migrating(id.as_bytes()),
                SlotChange::Importing(id) => SetSlot::Importing(id.as_bytes()),
                SlotChange::Node(id) => SetSlot::Node(id.as_bytes()),
            };
            cluster.set_slot(slot, change, from_primary, facts)
        });
        result.is_some_and(|result| result.is_ok())
    }

    /// Replies and commands that have waited for replicas.
    pub(crate) fn check_waiting(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let (requests, changes) = (std::mem::take(&mut process.waiting), std::mem::take(&mut process.waiting_changes));
        for (offset, request) in requests {
            let Some(process) = self.hosts[host].process.as_mut() else { return };
            if !process.is_acknowledged(offset) {
                process.waiting.push((offset, request));
                continue;
            }
            let everywhere = self.is_everywhere(host, &request);
            self.reply(host, request, Reply::Done { everywhere });
        }
        for (offset, slot, change) in changes {
            let Some(process) = self.hosts[host].process.as_mut() else { return };
            if process.is_acknowledged(offset) {
                self.change_slot(host, slot, change, false);
            } else {
                process.waiting_changes.push((offset, slot, change));
            }
        }
    }

    /// This node is a replica now: nobody will acknowledge its writes.
    fn fail_waiting(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        process.waiting.clear();
        process.waiting_changes.clear();
    }
}
