//! Counts what requests use, by slot: see [`kvick_core::routing::slot_stats`].
//!
//! A request is counted as a whole: a transaction or a script includes its commands. A blocked request is counted when
//! it is served. While nothing is counted, this costs one test per request.

use super::engine::Engine;
use super::invocation::Invocation;
use super::routing::{RequestSlot, slot_of_command};
use super::transaction::is_exec;
use crate::session::Client;
use kvick_commands::table::{Class, CommandInfo};
use kvick_core::commandlog::Executed;
use kvick_core::routing::Routing;
use kvick_core::routing::slot_stats::SlotUsage;
use kvick_resp::Args;
use kvick_runtime::clock;

/// Bytes of the MULTI that precedes an EXEC.
const MULTI_BYTES: u64 = b"*1\r\n$5\r\nmulti\r\n".len() as u64;

/// Bytes of a request as it was received.
pub(super) fn request_bytes(args: Args<'_>) -> u64 {
    let bytes = if args.is_inline() {
        // The words, the blanks between them and the line end.
        args.iter().map(<[u8]>::len).sum::<usize>() + args.len() + 1
    } else {
        Executed::bytes_of(args)
    };
    bytes as u64
}

impl Engine {
    /// The routing, if slots are counted.
    #[inline]
    fn counted(&self) -> Option<&'static Routing> {
        self.server.routing.as_ref().filter(|routing| routing.slot_stats.is_enabled())
    }

    /// Whether slots are counted.
    #[inline]
    pub(super) fn counts_slots(&self) -> bool {
        self.counted().is_some()
    }

    /// The slot for which a request that is about to run is counted, if any.
    #[inline]
    pub(super) fn counted_slot(&mut self, client: &Client, command: &CommandInfo, args: Args<'_>) -> Option<u16> {
        self.counted()?;
        // Set when the script ends.
        self.script_slot = None;
        self.effects.take_logged_bytes();
        match self.slot_of_request(client, command, args) {
            RequestSlot::One(slot) => Some(slot),
            RequestSlot::None | RequestSlot::Several => None,
        }
    }

    /// Counts a request that ran for `ticks` and got a reply of `reply_bytes`, 0 if replies are not sent. `slot` is its
    /// [`counted_slot`](Self::counted_slot).
    #[inline]
    pub(super) fn count_slot(&mut self, slot: Option<u16>, invocation: Invocation<'_>, ticks: u64, reply_bytes: usize) {
        if let Some(routing) = self.counted() {
            self.add_usage(routing, slot, invocation, ticks, reply_bytes);
        }
    }

    #[cold]
    fn add_usage(
        &mut self,
        routing: &Routing,
        slot: Option<u16>,
        Invocation { command, args }: Invocation<'_>,
        ticks: u64,
        reply_bytes: usize,
    ) {
        // A script that may access several slots is not counted.
        let slot = if command.class == Class::Script { self.script_slot } else { slot };
        let logged = self.effects.take_logged_bytes() * self.server.replication.replicas.count();
        let Some(slot) = slot else { return };
        let multi = if is_exec(command) { MULTI_BYTES } else { 0 };
        routing.slot_stats.add(
            slot,
            SlotUsage {
                cpu_us: clock::ticks_to_us(ticks),
                bytes_in: request_bytes(args) + multi,
                bytes_out: (reply_bytes + logged) as u64,
            },
        );
    }

    /// Counts the bytes of a request that is queued in a transaction.
    #[inline]
    pub(super) fn count_queued(&self, command: &CommandInfo, args: Args<'_>) {
        if let Some(routing) = self.counted()
            && let RequestSlot::One(slot) = slot_of_command(command, args)
        {
            routing.slot_stats.add(slot, SlotUsage { bytes_in: request_bytes(args), ..SlotUsage::default() });
        }
    }
}
