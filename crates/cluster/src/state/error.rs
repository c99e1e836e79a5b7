//! Errors of CLUSTER subcommands, with Valkey's texts.

use std::fmt;

/// Why a CLUSTER subcommand was refused. Its text is that of the reply, without the code `ERR`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommandError {
    /// No node has this name.
    UnknownNode(String),
    /// SETSLOT: no node has this name.
    UnknownSlotNode(String),
    /// MEET: not an IP address.
    InvalidAddress {
        /// What was given as IP address.
        ip: String,
        /// The port.
        port: u16,
    },
    /// A slot to be added has an owner.
    SlotBusy(u16),
    /// A slot to be removed has no owner.
    SlotUnassigned(u16),
    /// A slot was given twice.
    SlotTwice(u16),
    /// FLUSHSLOTS: there are keys.
    FlushWithKeys,
    /// FORGET: this node itself.
    ForgetMyself,
    /// FORGET: the primary of this replica.
    ForgetPrimary,
    /// REPLICATE: this node itself.
    ReplicateMyself,
    /// REPLICATE: the node is a replica.
    ReplicateReplica,
    /// REPLICATE: this primary has slots or keys.
    ReplicateNotEmpty,
    /// REPLICAS: the node is not a primary.
    NotPrimary,
    /// FAILOVER: this node is a primary.
    FailoverOnPrimary,
    /// FAILOVER: the primary of this replica is not known.
    FailoverUnknownPrimary,
    /// FAILOVER: the primary has failed or is not connected.
    FailoverPrimaryDown,
    /// SET-CONFIG-EPOCH: negative.
    InvalidEpoch(i64),
    /// SET-CONFIG-EPOCH: other nodes are known.
    EpochWithNodes,
    /// SET-CONFIG-EPOCH: the node has an epoch.
    EpochNotZero,
    /// RESET: this primary has keys.
    ResetWithKeys,
    /// SETSLOT on a replica.
    SetSlotOnReplica,
    /// SETSLOT while slots are imported atomically.
    SlotImportInProgress,
    /// SETSLOT while slots are exported atomically.
    SlotExportInProgress,
    /// SETSLOT MIGRATING of a slot that another node owns.
    NotOwner(u16),
    /// SETSLOT IMPORTING of a slot that this node owns.
    AlreadyOwner(u16),
    /// SETSLOT: the other node is this one.
    TargetIsMyself,
    /// SETSLOT: the other node is a replica.
    TargetNotPrimary,
    /// SETSLOT NODE: keys of the slot are left.
    SlotHasKeys(u16),
    /// DEBUG CLUSTERLINK KILL: this node itself.
    LinksToMyself,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use CommandError::*;
        match self {
            UnknownNode(name) => write!(f, "Unknown node {name}"),
            UnknownSlotNode(name) => write!(f, "I don't know about node {name}"),
            InvalidAddress { ip, port } => write!(f, "Invalid node address specified: {ip}:{port}"),
            SlotBusy(slot) => write!(f, "Slot {slot} is already busy"),
            SlotUnassigned(slot) => write!(f, "Slot {slot} is already unassigned"),
            SlotTwice(slot) => write!(f, "Slot {slot} specified multiple times"),
            FlushWithKeys => f.write_str("DB must be empty to perform CLUSTER FLUSHSLOTS."),
            ForgetMyself => f.write_str("I tried hard but I can't forget myself..."),
            ForgetPrimary => f.write_str("Can't forget my master!"),
            ReplicateMyself => f.write_str("Can't replicate myself"),
            ReplicateReplica => f.write_str("I can only replicate a master, not a replica."),
            ReplicateNotEmpty => f.write_str("To set a master the node must be empty and without assigned slots."),
            NotPrimary => f.write_str("The specified node is not a master"),
            FailoverOnPrimary => f.write_str("You should send CLUSTER FAILOVER to a replica"),
            FailoverUnknownPrimary => f.write_str("I'm a replica but my master is unknown to me"),
            FailoverPrimaryDown => f.write_str("Master is down or failed, please use CLUSTER FAILOVER FORCE"),
            InvalidEpoch(epoch) => write!(f, "Invalid config epoch specified: {epoch}"),
            EpochWithNodes => {
                f.write_str("The user can assign a config epoch only when the node does not know any other node.")
            }
            EpochNotZero => f.write_str("Node config epoch is already non-zero"),
            ResetWithKeys => f.write_str("CLUSTER RESET can't be called with master nodes containing keys"),
            SetSlotOnReplica => f.write_str("Please use SETSLOT only with masters."),
            SlotImportInProgress => f.write_str("Slot import in progress."),
            SlotExportInProgress => f.write_str("Slot export in progress."),
            NotOwner(slot) => write!(f, "I'm not the owner of hash slot {slot}"),
            AlreadyOwner(slot) => write!(f, "I'm already the owner of hash slot {slot}"),
            TargetIsMyself => f.write_str("Target node is myself"),
            TargetNotPrimary => f.write_str("Target node is not a master"),
            SlotHasKeys(slot) => write!(
                f,
                "Can't assign hashslot {slot} to a different node while I still hold keys for this hash slot."
            ),
            LinksToMyself => f.write_str("Cannot free cluster link(s) to myself"),
        }
    }
}

impl std::error::Error for CommandError {}
