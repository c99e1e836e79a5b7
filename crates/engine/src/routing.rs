//! Cluster routing of requests: whether this node executes a request or redirects its client, and what happens to
//! clients when a new slot map is published.
//!
//! A request belongs to the slot of its keys, or of the shard channels that it names. If this node owns the slot and
//! nothing is happening to it, one bit admits the request (`Engine::is_served`). Otherwise [`SlotMap::route`] decides,
//! together with all other reasons to reject a request. While a slot is open, that is, migrated key by key, the
//! decision depends on which of the keys exist: such a request is admitted provisionally, and decided once it holds the
//! locks of its keys (`Engine::redirect_open`).
//!
//! Maps are published under the global lock, and the generation of the map is part of an admission's ground. So a
//! request runs under the map by which it was admitted, or is admitted again.

use super::blocking::Blocked;
use super::engine::Engine;
use super::invocation::Invocation;
use super::transaction::{is_exec, selected_by};
use crate::forwarding::Destination;
use crate::services::Services;
use crate::session::Client;
use kvick_commands::context::Error;
use kvick_commands::spec::Flags;
use kvick_commands::table::{Class, CommandInfo};
use kvick_core::Core;
use kvick_core::clients::ClientFlags;
use kvick_core::pubsub::Kind;
use kvick_core::routing::{CROSS_SLOT, Decision, Presence, Query, Routing, SlotMap};
use kvick_core::stats::WorkerStats;
use kvick_replication::migration::active_keys::ActiveKeys;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_script::ScriptFlags;
use kvick_store::Locked;
use kvick_store::hash::slot_of;
use kvick_store::slot::{SLOTS, slot};

/// The slots that a request concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestSlot {
    /// None: any node executes it.
    None,
    /// One.
    One(u16),
    /// Several, which no node executes.
    Several,
}

impl RequestSlot {
    fn with(self, other: RequestSlot) -> RequestSlot {
        match (self, other) {
            (RequestSlot::None, slot) | (slot, RequestSlot::None) => slot,
            (one, other) if one == other => one,
            _ => RequestSlot::Several,
        }
    }
}

/// The slots whose keys a script may access.
pub(super) enum ScriptSlot {
    /// All that this node serves.
    Any,
    /// Any one: that of the first key it accesses.
    NotYet,
    /// Only this one.
    One(u16),
}

/// The result of routing a request.
pub(super) enum Routed {
    /// This node executes it.
    Here,
    /// It depends on which of its keys exist.
    Open,
    /// The client gets this error.
    Refused(Error),
    /// Other nodes execute it for the client.
    Elsewhere(Destination),
}

/// The slot of a command's keys and shard channels.
pub(super) fn slot_of_command(command: &CommandInfo, args: Args<'_>) -> RequestSlot {
    if !command.spec.has_slot() {
        return RequestSlot::None;
    }
    let mut common = RequestSlot::None;
    for position in command.spec.slot_positions(args) {
        let Some(name) = args.get(position.index) else { continue };
        common = common.with(RequestSlot::One(slot(name)));
        if common == RequestSlot::Several {
            break;
        }
    }
    common
}

/// Whether a command also accesses a database other than `db`, the one that is selected, as far as its arguments show.
fn leaves_database(command: &CommandInfo, args: Args<'_>, db: usize) -> bool {
    match command.spec.name {
        "move" => true,
        "copy" => {
            let words: Vec<&[u8]> = args.iter().skip(3).collect();
            let other = |pair: &[&[u8]]| {
                pair[0].eq_ignore_ascii_case(b"db")
                    && parse_i64(pair[1]).and_then(|db| usize::try_from(db).ok()) != Some(db)
            };
            words.windows(2).any(other)
        }
        _ => false,
    }
}

/// Collects which keys of one or more commands exist, in locked partitions. Keys that MIGRATE is sending count as
/// existing, also if they were deleted meanwhile.
struct Existence<'a> {
    active_keys: &'a ActiveKeys,
    presence: Presence,
    first: Option<&'a [u8]>,
}

impl<'a> Existence<'a> {
    fn new(active_keys: &'a ActiveKeys) -> Self {
        Existence { active_keys, presence: Presence::default(), first: None }
    }

    fn add(&mut self, command: &CommandInfo, args: Args<'a>, db: usize, locked: &Locked, now_ms: i64) {
        let keyspace = locked.keyspace();
        // Only keys are locked, not what merely determines the slot.
        for position in command.spec.key_positions(args).unwrap_or_default() {
            let Some(key) = args.get(position.index) else { continue };
            let first = *self.first.get_or_insert(key);
            self.presence.several |= first != key;
            match locked.kind_at(db, keyspace.key(key), now_ms) {
                Some(_) => self.presence.existing = true,
                None if self.active_keys.is_in_flight(db, key) => self.presence.existing = true,
                None => self.presence.missing = true,
            }
        }
    }
}

impl Engine {
    /// The routing, if the server is in cluster mode and the client's requests are subject to it.
    #[inline]
    pub(super) fn routing_for(&self, client: &Client) -> Option<&'static Routing> {
        let routing = self.server.routing.as_ref()?;
        (!client.is_obeyed() && !client.info.is_from_log()).then_some(routing)
    }

    /// Whether this node certainly executes a request, as far as slots are concerned. `hash` is that of its only key.
    #[inline]
    pub(super) fn is_served(&self, command: &CommandInfo, hash: Option<u64>, args: Args<'_>) -> bool {
        let Some(routing) = &self.server.routing else { return true };
        match hash {
            Some(hash) => routing.serves(slot_of(hash)),
            None => match slot_of_command(command, args) {
                RequestSlot::None => true,
                RequestSlot::One(slot) => routing.serves(slot),
                RequestSlot::Several => false,
            },
        }
    }

    /// The slot of a request: EXEC has that of the transaction's commands.
    pub(super) fn slot_of_request(&self, client: &Client, command: &CommandInfo, args: Args<'_>) -> RequestSlot {
        match &client.transaction {
            Some(transaction) if is_exec(command) => {
                transaction.queue.iter().fold(RequestSlot::None, |common, queued| {
                    common.with(slot_of_command(queued.command, queued.request.args()))
                })
            }
            _ => slot_of_command(command, args),
        }
    }

    /// Whether a command has to wait because its slot is about to move to another node, or moves too slowly. A script
    /// without keys, and a command that deletes all keys, may write to any slot.
    pub(super) fn is_slot_paused(
        &self,
        client: &Client,
        command: &CommandInfo,
        args: Args<'_>,
        may_write: bool,
    ) -> bool {
        let slots = &self.server.pause.slots;
        let is_paused = match self.slot_of_request(client, command, args) {
            RequestSlot::One(slot) if may_write => slots.holds(slot),
            RequestSlot::One(slot) => slots.holds_reads(slot),
            RequestSlot::None if !may_write => false,
            RequestSlot::None => {
                command.spec.flags.contains(Flags::WRITE) || command.class == Class::Script || is_exec(command)
            }
            RequestSlot::Several => false,
        };
        if is_paused {
            slots.count_wait();
        }
        is_paused
    }

    /// Routes a request. `flags` are its own, or those of everything that it would execute.
    pub(super) fn route(&self, client: &Client, command: &CommandInfo, args: Args<'_>, flags: Flags) -> Routed {
        let Some(routing) = self.routing_for(client) else { return Routed::Here };
        if client.forwarding.is_some() {
            return self.route_forwarded(client, command, args, flags);
        }
        let slot = match self.slot_of_request(client, command, args) {
            RequestSlot::None => return Routed::Here,
            RequestSlot::Several => return Routed::Refused(Error::text(CROSS_SLOT)),
            RequestSlot::One(slot) if routing.serves(slot) => return Routed::Here,
            RequestSlot::One(slot) => slot,
        };
        let mut query = self.query(client, command, args, flags);
        if client.is_queueing(command) {
            // EXEC will look at the keys.
            query.presence = Some(Presence::default());
        }
        let map = routing.current();
        match map.route(slot, &query) {
            Decision::CheckKeys => Routed::Open,
            decision => match decision.error(slot, client.info.viewer()) {
                Some(error) => Routed::Refused(Error::new(error)),
                None => Routed::Here,
            },
        }
    }

    pub(super) fn query(&self, client: &Client, command: &CommandInfo, args: Args<'_>, flags: Flags) -> Query {
        let mut db = client.db;
        let leaves = match &client.transaction {
            Some(transaction) if is_exec(command) => transaction.queue.iter().any(|queued| {
                let args = queued.request.args();
                db = selected_by(queued.command, args, self.server.keyspace.databases()).unwrap_or(db);
                leaves_database(queued.command, args, db)
            }),
            Some(transaction) => leaves_database(command, args, transaction.db()),
            None => leaves_database(command, args, db),
        };
        Query {
            writes: flags.contains(Flags::WRITE),
            shard_channels: flags.contains(Flags::PUBSUB),
            readonly: client.info.flags().contains(ClientFlags::READONLY),
            asking: client.is_asking() || flags.contains(Flags::ASKING),
            migrates: command.spec.name == "migrate",
            leaves_database: leaves,
            presence: None,
        }
    }

    /// Routes a request for an open slot under the locks of its keys; returns the error, if the client gets one.
    #[cold]
    pub(super) fn redirect_open(
        &mut self,
        client: &Client,
        invocation: Invocation<'_>,
        locked: &Locked,
    ) -> Option<Error> {
        let routing = self.routing_for(client)?;
        let Invocation { command, args } = invocation;
        let RequestSlot::One(slot) = self.slot_of_request(client, command, args) else { return None };
        let flags = self.flags_asked(client, command, args);
        let mut query = self.query(client, command, args, flags);
        let mut existence = Existence::new(&self.server.migration.active_keys);
        let mut db = client.db;
        match &client.transaction {
            Some(transaction) if is_exec(command) => {
                for queued in &transaction.queue {
                    let args = queued.request.args();
                    db = selected_by(queued.command, args, self.server.keyspace.databases()).unwrap_or(db);
                    existence.add(queued.command, args, db, locked, self.now_ms);
                }
            }
            _ => existence.add(command, args, db, locked, self.now_ms),
        }
        query.presence = Some(existence.presence);
        routing.current().route(slot, &query).error(slot, client.info.viewer()).map(Error::new)
    }

    /// The slots whose keys a script may access. `key` is the first that it declares.
    pub(super) fn slot_of_script(&self, client: &Client, key: Option<&[u8]>, flags: Option<ScriptFlags>) -> ScriptSlot {
        // Scripts without a shebang line are older than this rule.
        let is_free = flags.is_none_or(|flags| flags.allow_cross_slot_keys);
        match key {
            _ if is_free || self.routing_for(client).is_none() => ScriptSlot::Any,
            None => ScriptSlot::NotYet,
            Some(key) => ScriptSlot::One(slot(key)),
        }
    }

    /// Whether a script may call a command, whose keys are locked; the error if not. `allowed` is the slot that the
    /// script may access.
    pub(super) fn route_in_script(
        &self,
        client: &Client,
        invocation: Invocation<'_>,
        locked: &Locked,
        allowed: &mut ScriptSlot,
    ) -> Result<(), Error> {
        const NOT_LOCAL: Error = Error::text("ERR Attempted to access a non local key in a cluster node");
        let Some(routing) = self.routing_for(client) else { return Ok(()) };
        let Invocation { command, args } = invocation;
        let slot = match slot_of_command(command, args) {
            RequestSlot::None => return Ok(()),
            RequestSlot::Several => return Err(NOT_LOCAL),
            RequestSlot::One(slot) => slot,
        };
        if !routing.serves(slot) {
            let mut query = self.query(client, command, args, command.spec.flags);
            let mut existence = Existence::new(&self.server.migration.active_keys);
            existence.add(command, args, client.db, locked, self.now_ms);
            query.presence = Some(existence.presence);
            let name = &command.full_name;
            match routing.current().route(slot, &query) {
                Decision::Serve | Decision::CheckKeys => {}
                Decision::Down => {
                    return Err(Error::new(format!(
                        "ERR Can not execute a command '{name}' while the cluster is down"
                    )));
                }
                Decision::DownForWrites => {
                    return Err(Error::new(format!(
                        "ERR Can not execute a write command '{name}' while the cluster is down and readonly"
                    )));
                }
                _ => return Err(NOT_LOCAL),
            }
        }
        match *allowed {
            ScriptSlot::Any => {}
            ScriptSlot::NotYet => *allowed = ScriptSlot::One(slot),
            ScriptSlot::One(allowed) if allowed == slot => {}
            ScriptSlot::One(_) => {
                return Err(Error::text("ERR Script attempted to access keys that do not hash to the same slot"));
            }
        }
        Ok(())
    }
}

/// Makes a slot map the current one, and redirects the clients that wait for keys of slots that this node no longer
/// serves. Subscribers of shard channels in slots that its shard has lost are unsubscribed by their workers. `global`
/// is the global lock; `stats` counts the answers.
pub fn publish(services: &'static Services, map: SlotMap, global: &mut Locked, stats: &WorkerStats) {
    let Some(routing) = &services.routing else { return };
    let previous = routing.publish(map, global);
    let current = routing.current();
    for slot in 0..SLOTS {
        if previous.owner(slot) != current.owner(slot) && previous.is_mine(slot) != current.is_mine(slot) {
            routing.slot_stats.reset(slot);
        }
    }
    let lost = (0..SLOTS).any(|slot| previous.is_mine(slot) && !current.is_mine(slot));
    if lost && services.pubsub.directory().size(Kind::Shard) > 0 {
        services.announce_lost_slots();
    }
    redirect_blocked(services, global, stats);
}

/// Answers the clients that wait for keys of slots that this node no longer serves. In Valkey a periodic check does
/// this.
pub(super) fn redirect_blocked(core: &Core, global: &mut Locked, stats: &WorkerStats) {
    let Some(routing) = &core.routing else { return };
    let map = routing.current();
    for client in core.clients.all() {
        let Some(waiter) = client.waiter.lock().clone() else { continue };
        let Some(blocked) = Blocked::of(&waiter) else { continue };
        let Some(slot) = blocked.slot() else { continue };
        let reads_here = client.flags().contains(ClientFlags::READONLY) && !blocked.writes();
        let error = map.route_blocked(slot, reads_here).error(slot, client.viewer());
        if let Some(error) = error
            && blocked.leave(&waiter, global)
        {
            core.answer(blocked.end(&waiter, Some(&error), core, stats));
        }
    }
}
