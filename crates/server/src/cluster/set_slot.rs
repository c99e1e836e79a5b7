//! SETSLOT on a primary with replicas: they get the command first, so that the new state survives the primary.

use super::ClusterNode;
use kvick_cluster::state::SetSlot;
use kvick_commands::context::Error;
use kvick_commands::timeout::is_over;
use kvick_core::clients::ClientInfo;
use kvick_core::inbox::Served;
use kvick_engine::session::Session;
use kvick_replication::replicas::Stage;
use kvick_resp::{Args, Reply, Version};
use kvick_runtime::clock;
use kvick_store::{Kind, Locked, Waiter};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The time that replicas have, unless the command sets another one, in milliseconds.
const TIMEOUT_MS: i64 = 2000;

/// The last version of a replica that does not execute the command.
const VERSION_WITHOUT_SETSLOT: u32 = 0x0007_02ff;

/// A command that waits for replicas.
pub struct PendingSetSlot {
    client: Arc<ClientInfo>,
    ticket: u64,
    version: Version,
    slot: u16,
    change: Change,
    /// The end of the command in the replication stream.
    offset: u64,
    /// The number of replicas that must have executed it.
    replicas: usize,
    /// Deadline as Unix time in milliseconds.
    until_ms: i64,
}

/// An owned [`SetSlot`].
#[derive(Clone)]
enum Change {
    Migrating(Vec<u8>),
    Importing(Vec<u8>),
    Stable,
    Node(Vec<u8>),
}

impl Change {
    fn of(change: SetSlot<'_>) -> Self {
        match change {
            SetSlot::Migrating(node) => Change::Migrating(node.to_vec()),
            SetSlot::Importing(node) => Change::Importing(node.to_vec()),
            SetSlot::Stable => Change::Stable,
            SetSlot::Node(node) => Change::Node(node.to_vec()),
        }
    }

    fn borrowed(&self) -> SetSlot<'_> {
        match self {
            Change::Migrating(node) => SetSlot::Migrating(node),
            Change::Importing(node) => SetSlot::Importing(node),
            Change::Stable => SetSlot::Stable,
            Change::Node(node) => SetSlot::Node(node),
        }
    }
}

impl ClusterNode {
    /// Sends the command to the replicas and, if any are online, lets the client wait until these have executed it.
    /// Returns whether it waits; if not, the command is to be executed now.
    pub fn replicate_first(
        &'static self,
        cx: &mut Session<'_>,
        args: Args<'_>,
        slot: u16,
        change: SetSlot<'_>,
        timeout_ms: Option<i64>,
    ) -> Result<bool, Error> {
        let server = self.server;
        if server.replication.upstream.is_replica() || cx.in_transaction {
            return Ok(false);
        }
        let is_eligible = |version: u32| version > VERSION_WITHOUT_SETSLOT;
        let all = server.replication.replicas.all();
        let online = all
            .iter()
            .filter(|replica| replica.stage() == Stage::Online && is_eligible(replica.version.load(Ordering::Relaxed)));
        let replicas = online.count();
        let words: Vec<&[u8]> = args.iter().collect();
        let log = &server.keyspace.log;
        // A replica that is away receives it from the backlog. Otherwise a slot that was closed meanwhile would stay
        // open on it.
        log.append_replica_only(&words);
        if replicas == 0 {
            return Ok(false);
        }
        let offset = log.offset();
        log.append_replica_only(&[b"REPLCONF", b"GETACK", b"*"]);
        server.on_log_appended(None);
        let waiter = Waiter::new(Kind::String, false, 0, Box::new(()));
        let timeout_ms = timeout_ms.filter(|ms| *ms != 0).unwrap_or(TIMEOUT_MS);
        self.queue.lock().set_slots.push(PendingSetSlot {
            client: cx.client.info.clone(),
            ticket: waiter.ticket(),
            version: cx.client.version,
            slot,
            change: Change::of(change),
            offset,
            replicas,
            until_ms: clock::unix_ms().saturating_add(timeout_ms),
        });
        self.queued.notify_one();
        *cx.waits = Some(waiter);
        Ok(true)
    }

    /// Executes the commands that replicas have executed, and refuses those that have waited for too long.
    pub(super) fn continue_set_slots(&'static self, global: &mut Locked) {
        let (server, now_ms) = (self.server, clock::unix_ms());
        let pending = std::mem::take(&mut self.queue.lock().set_slots);
        for command in pending {
            if server.clients.get(command.client.id).is_none() {
                continue;
            }
            let acked = server.replication.replicas.count_acked(command.offset, false);
            if acked < command.replicas && !is_over(command.until_ms, now_ms) {
                self.queue.lock().set_slots.push(command);
                continue;
            }
            let result = if acked < command.replicas {
                Err("NOREPLICAS Not enough good replicas to write.".to_owned())
            } else {
                let change = command.change.borrowed();
                let changed =
                    self.change(global, |cluster, facts| cluster.set_slot(command.slot, change, false, facts));
                changed.map_err(|error| format!("ERR {error}"))
            };
            let mut reply = Vec::new();
            let mut writer = Reply::new(&mut reply, command.version);
            match result {
                Ok(()) => writer.ok(),
                Err(error) => writer.error(error),
            }
            server.answer(Served { client: command.client, ticket: command.ticket, reply, is_last: false });
        }
    }
}
