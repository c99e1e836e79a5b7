//! Requests of clients that know nothing of the cluster: where they are executed.
//!
//! A client of a listener that forwards gets no redirections. Its requests are admitted as usual, with its own rights.
//! What this node owns, it executes. For everything else [`Engine::execute`] returns where to send the request, and the
//! worker sends it there and brings the replies into order.
//!
//! **Invariant**: while a client waits for replies of other nodes, only such requests of it are executed here whose
//! reply can be kept until its turn comes: those of data commands that do not wait. All others are executed once
//! nothing is outstanding.

use super::batch::{Request, ResolvedCommand};
use super::engine::Engine;
use super::invocation::Invocation;
use super::routing::{RequestSlot, Routed};
use super::transaction::is_exec;
use crate::queued::Transaction;
use crate::session::{Client, ReplyMode, WatchedElsewhere};
use kvick_commands::context::Error;
use kvick_commands::spec::Flags;
use kvick_commands::table::{Class, CommandInfo, FastPath};
use kvick_core::clients::ClientFlags;
use kvick_core::routing::{CROSS_SLOT, Decision};
use kvick_core::tracking::broadcast::OTHER_NODE;
use kvick_forward::encode::encode;
use kvick_forward::split;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::hash::slot_of;
use kvick_store::slot::{SLOTS, slot};

/// Which nodes execute a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// None yet: the client has to wait for its outstanding replies first.
    Nowhere,
    /// The owner of a slot.
    Slot(u16),
    /// The owners of the slots of its keys, each the part with its keys.
    Slots,
    /// All that own slots.
    Everywhere,
    /// One after the other: a scan of all keys.
    Scan,
    /// Those that have executed writes of the client, to wait for acknowledgements. Then this node executes it.
    Writers,
}

/// A transaction as other nodes get it.
pub struct TransactionBlock {
    /// The commands from MULTI to EXEC, in RESP.
    pub bytes: Vec<u8>,
    /// Their number.
    pub commands: u32,
    /// Whether none of them writes.
    pub reads: bool,
    /// Whether some of them may write.
    pub writes: bool,
    /// Whether the client caches the keys that they read.
    pub caches: bool,
}

/// A request with one key of another node, of a client without any state that concerns it.
pub struct Plain {
    /// Its command.
    pub command: &'static CommandInfo,
    /// The slot of its key.
    pub slot: u16,
    /// Whether it may write.
    pub writes: bool,
    /// Whether it only reads.
    pub reads: bool,
}

/// What a client expects of a request that is sent to other nodes.
pub struct Expected {
    /// Whether it receives the reply.
    pub wanted: bool,
    /// Whether it caches the keys that the request reads.
    pub caches: bool,
}

impl Client {
    /// Whether a command has to wait until the client has received the replies of other nodes.
    #[inline]
    pub(super) fn must_await_others(&self, command: &CommandInfo) -> bool {
        let Some(elsewhere) = &self.forwarding else { return false };
        let is_kept = command.data.is_some() && command.single_key.is_some();
        let may_run = is_kept && !command.spec.flags.contains(Flags::BLOCKING) || self.is_queueing(command);
        elsewhere.outstanding && !may_run
    }

    /// Notes that this node executes a command, which may write.
    #[inline]
    pub(super) fn note_write_here(&mut self, command: &CommandInfo) {
        let Some(elsewhere) = &mut self.forwarding else { return };
        let writes = match &self.transaction {
            Some(transaction) if is_exec(command) => transaction.queue.iter().any(|queued| may_write(queued.command)),
            _ => may_write(command),
        };
        elsewhere.wrote_here |= writes;
    }

    /// Notes that this node has executed requests on the fast path.
    pub(super) fn note_writes_here(&mut self, requests: &[Request]) {
        let writes =
            |request: &Request| matches!(request.resolved, ResolvedCommand::For(command, _) if may_write(command));
        if let Some(elsewhere) = &mut self.forwarding {
            elsewhere.wrote_here |= requests.iter().any(writes);
        }
    }

    /// The slot of the keys that it watches, here or elsewhere.
    fn watched_slot(&self) -> Option<u16> {
        let here = || self.watching.as_ref().and_then(|watching| watching.keys.first()).map(|key| slot(&key.key));
        self.watched_elsewhere().map(|watched| watched.slot).or_else(here)
    }

    /// The keys that it watches at another node.
    pub(super) fn watched_elsewhere(&self) -> Option<&WatchedElsewhere> {
        self.forwarding.as_ref()?.watched.as_deref()
    }

    /// Whether it watches keys at another node.
    pub fn watches_elsewhere(&self) -> bool {
        self.watched_elsewhere().is_some()
    }

    /// Notes that another node watches keys of a slot for it.
    pub fn note_watched_elsewhere<'a>(&mut self, slot: u16, keys: impl Iterator<Item = &'a [u8]>) {
        let Some(elsewhere) = &mut self.forwarding else { return };
        let watched = elsewhere.watched.get_or_insert_with(|| Box::new(WatchedElsewhere::new(slot)));
        keys.for_each(|key| watched.add(key));
        self.publish_transaction();
    }
}

/// Whether a command may write, so that WAIT concerns it.
pub fn may_write(command: &CommandInfo) -> bool {
    let flags = command.spec.flags;
    flags.contains(Flags::WRITE) || (command.class == Class::Script && !flags.contains(Flags::READONLY))
}

/// Whether a command concerns all nodes that own slots.
fn concerns_all(command: &CommandInfo) -> bool {
    command.spec.name == "scan" && command.container.is_none() || split::everywhere(&command.full_name).is_some()
}

/// The slot that an administrative command is about: the owner of the slot executes it. `None` for other commands, and
/// if the argument is not a slot.
fn administered_slot(command: &CommandInfo, args: Args<'_>) -> Option<u16> {
    if !is_about_slot(command) {
        return None;
    }
    parse_i64(args.get(2)?).and_then(|slot| u16::try_from(slot).ok()).filter(|slot| *slot < SLOTS)
}

fn is_about_slot(command: &CommandInfo) -> bool {
    matches!(command.full_name.as_str(), "cluster|countkeysinslot" | "cluster|getkeysinslot" | "cluster|flushslot")
}

/// Whether a command waits for acknowledgements of the client's writes.
fn awaits_writes(command: &CommandInfo) -> bool {
    command.container.is_none() && matches!(command.spec.name, "wait" | "waitaof")
}

/// Why a command is refused whose effect would be incomplete.
fn refusal(command: &CommandInfo) -> Option<Error> {
    Some(match command.full_name.as_str() {
        "cluster|slot-stats" => Error::text(
            "ERR 'cluster|slot-stats' is about a single node, and requests are forwarded: ask each node after CLIENT \
             CAPA direct",
        ),
        _ => return None,
    })
}

/// Whether a node can execute a command for a client of another one, in a transaction.
fn may_be_sent(command: &CommandInfo) -> bool {
    matches!(command.class, Class::Data | Class::Script)
        || matches!(command.full_name.as_str(), "publish" | "spublish" | "ping" | "echo" | "time" | "unwatch")
        || awaits_writes(command)
}

impl Engine {
    /// Routes a request of a client whose requests are forwarded.
    pub(super) fn route_forwarded(
        &self,
        client: &Client,
        command: &CommandInfo,
        args: Args<'_>,
        flags: Flags,
    ) -> Routed {
        let Some(routing) = self.routing_for(client) else { return Routed::Here };
        let slot = self.slot_of_request(client, command, args);
        if client.is_queueing(command) {
            return if slot == RequestSlot::Several { Routed::Refused(Error::text(CROSS_SLOT)) } else { Routed::Here };
        }
        let watched_elsewhere = client.watched_elsewhere().map(|watched| watched.slot);
        let (is_watch, exec) = (command.full_name == "watch", is_exec(command));
        let slot = match slot {
            RequestSlot::Several if split::is_divisible(&command.full_name) => {
                return Routed::Elsewhere(Destination::Slots);
            }
            RequestSlot::Several => return Routed::Refused(Error::text(CROSS_SLOT)),
            RequestSlot::One(slot) => Some(slot),
            RequestSlot::None if exec => watched_elsewhere,
            RequestSlot::None => administered_slot(command, args),
        };
        if exec && let Some(error) = self.refused_transaction(client, slot) {
            return Routed::Refused(error);
        }
        let Some(slot) = slot else {
            return match refusal(command) {
                Some(error) => Routed::Refused(error),
                _ if awaits_writes(command)
                    && client.forwarding.as_ref().is_some_and(|own| own.acknowledged.is_none()) =>
                {
                    Routed::Elsewhere(Destination::Writers)
                }
                _ if command.full_name == "scan" => Routed::Elsewhere(Destination::Scan),
                _ if !exec && concerns_all(command) => Routed::Elsewhere(Destination::Everywhere),
                _ => Routed::Here,
            };
        };
        if command.full_name == "sunsubscribe" {
            return Routed::Here;
        }
        if command.full_name == "ssubscribe" && client.forwarding.as_ref().is_some_and(|elsewhere| elsewhere.subscribes)
        {
            return Routed::Here;
        }
        if is_watch && client.watched_slot().is_some_and(|watched| watched != slot) {
            return Routed::Refused(Error::text(CROSS_SLOT));
        }
        let stays = watched_elsewhere.is_none() || !(is_watch || exec);
        if routing.serves(slot) && stays {
            return Routed::Here;
        }
        let query = self.query(client, command, args, flags);
        let map = routing.current();
        match map.route(slot, &query) {
            Decision::Serve if stays => Routed::Here,
            // That the cluster is down, for this node, may soon be over: the owner is asked, which has to agree.
            decision @ Decision::Unbound => {
                let error = decision.error(slot, client.info.viewer()).unwrap_or_default();
                Routed::Refused(Error::new(error))
            }
            _ => Routed::Elsewhere(Destination::Slot(slot)),
        }
    }

    /// Why EXEC is refused: one node cannot execute the whole transaction. `slot` is that of its keys.
    fn refused_transaction(&self, client: &Client, slot: Option<u16>) -> Option<Error> {
        let transaction = client.transaction.as_deref()?;
        let routing = self.routing_for(client)?;
        if transaction.aborted {
            return None;
        }
        if let (Some(watched), Some(slot)) = (client.watched_slot(), slot)
            && watched != slot
        {
            return Some(Error::text(CROSS_SLOT));
        }
        let is_sent = client.watches_elsewhere() || slot.is_some_and(|slot| !routing.serves(slot));
        let refused = |command: &CommandInfo| {
            concerns_all(command)
                || is_about_slot(command)
                || (awaits_writes(command) && slot.is_none())
                || (is_sent && !may_be_sent(command))
        };
        let queued = transaction.queue.iter().map(|queued| queued.command).find(|command| refused(command))?;
        Some(Error::new(format!(
            "ERR '{}' cannot be part of this transaction, because requests are forwarded",
            queued.full_name
        )))
    }

    /// Whether requests of a client may be sent to the owner of their only key without being admitted one by one: they
    /// would take the fast path if this node owned the key. What else that takes is [`plain`](Self::plain).
    pub fn sends_plainly(&self, client: &Client) -> bool {
        let flags = client.info.flags();
        let is_unlimited = matches!(self.fast_path_for(client), Some((_, i64::MAX)));
        is_unlimited && client.forwarding.is_some() && !flags.contains(ClientFlags::READONLY)
    }

    /// The slot of a request that is sent so, unless this node serves it or its requests are held back.
    #[inline]
    pub fn plain(&self, request: &Request) -> Option<Plain> {
        let ResolvedCommand::For(command, Some(hash)) = request.resolved else { return None };
        let (FastPath::Key(_), _) = command.fast_path? else { return None };
        let (slot, pause) = (slot_of(hash), &self.server.pause);
        let is_served = self.server.routing.as_ref().is_none_or(|routing| routing.serves(slot));
        let is_sent = !is_served && !pause.may_concern_all_slots() && !pause.slots.holds(slot);
        let (writes, is_read) = (may_write(command), command.spec.flags.contains(Flags::READONLY));
        is_sent.then_some(Plain { command, slot, writes, reads: is_read && !writes })
    }

    /// Counts requests that were sent so, the last of which has this command.
    pub fn note_plain(&mut self, client: &mut Client, last: &'static CommandInfo, count: u64) {
        self.stats.requests.add(count);
        self.stats.forwarded.add(count);
        client.last_command = last.id;
        client.commands += count;
        if let Some(elsewhere) = &mut client.forwarding {
            elsewhere.outstanding = true;
        }
    }

    /// Counts and shows a request that is sent to other nodes.
    pub fn send_elsewhere(&mut self, client: &mut Client, command: &'static CommandInfo, args: Args<'_>) -> Expected {
        self.monitor(client, Invocation { command, args });
        self.send_monitor_lines();
        self.stats.requests.add(1);
        self.stats.forwarded.add(1);
        let previous = std::mem::replace(&mut client.last_command, command.id);
        let caches = client.tracking.is_some() && {
            self.end_caching(client, previous);
            client.info.tracks_reads()
        };
        client.commands += 1;
        client.end_asking();
        let (is_wanted, next) = match client.reply_mode {
            ReplyMode::Skip => (false, ReplyMode::On),
            ReplyMode::SkipNext => (true, ReplyMode::Skip),
            mode => (mode == ReplyMode::On, mode),
        };
        client.reply_mode = next;
        Expected { wanted: is_wanted, caches }
    }

    /// Another node reports that a key has changed, for clients in broadcasting mode.
    pub fn note_change(&mut self, key: Box<[u8]>) {
        self.changed.add(key, OTHER_NODE);
    }

    /// Ends a client's transaction, which other nodes are to execute.
    pub fn take_transaction(&mut self, client: &mut Client) -> TransactionBlock {
        let transaction: Transaction = client.transaction.take().map(|boxed| *boxed).unwrap_or_default();
        self.unwatch(client);
        client.publish_transaction();
        let mut bytes = b"*1\r\n$5\r\nMULTI\r\n".to_vec();
        transaction.queue.iter().for_each(|queued| encode(queued.request.args(), &mut bytes));
        bytes.extend_from_slice(b"*1\r\n$4\r\nEXEC\r\n");
        let is_read = |command: &CommandInfo| command.spec.flags.contains(Flags::READONLY);
        TransactionBlock {
            bytes,
            commands: transaction.len() as u32 + 2,
            caches: client.info.tracks_reads(),
            reads: transaction.queue.iter().all(|queued| is_read(queued.command)),
            writes: transaction.queue.iter().any(|queued| may_write(queued.command)),
        }
    }
}
