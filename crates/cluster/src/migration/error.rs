//! Why a command of slot migration is refused.

use super::SlotRange;
use std::fmt;

/// Why a command is refused. Its text is the error reply without the leading `ERR `.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the texts say what each one means")]
pub enum CommandError {
    Syntax,
    InvalidSlot,
    NoEndSlot,
    NoRanges,
    StartAfterEnd(u16, u16),
    SlotUnowned(u16),
    SeveralShards,
    RangesOverlap(SlotRange, SlotRange),
    NotPrimary,
    ManualImport,
    ManualMigration,
    NotOwner,
    AlreadyExporting(u16),
    JobsOverlap,
    InvalidNodeName(String),
    UnknownNodeName(String),
    TargetIsMyself,
    NothingToCancel,
    UnknownSource,
    SourceIsMyself,
    AlreadyImporting,
    StillDeleting,
    OwnersDisagree,
    NoSuchJob,
    OnlyForMigrationClients(&'static str),
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use CommandError::*;
        match self {
            Syntax => f.write_str("syntax error"),
            InvalidSlot => f.write_str("Invalid or out of range slot"),
            NoEndSlot => f.write_str("No end slot for final slot range"),
            NoRanges => f.write_str("No slot ranges specified"),
            StartAfterEnd(first, last) => {
                write!(f, "Start slot number {first} is greater than end slot number {last}.")
            }
            SlotUnowned(slot) => write!(f, "Slot {slot} has no node served."),
            SeveralShards => f.write_str("Requested slots span multiple shards"),
            RangesOverlap(range, previous) => {
                write!(f, "Slot range {range} overlaps with previous range {previous}.")
            }
            NotPrimary => f.write_str("Slot migration can only be used on primary nodes."),
            ManualImport => f.write_str("Slots are being manually imported"),
            ManualMigration => f.write_str("Slots are being manually migrated"),
            NotOwner => f.write_str("Slots are not served by this node."),
            AlreadyExporting(slot) => write!(f, "I am already migrating slot {slot}."),
            JobsOverlap => f.write_str("Slot ranges in migrations overlap"),
            InvalidNodeName(name) => write!(f, "Invalid node name: {name}"),
            UnknownNodeName(name) => write!(f, "Unknown node name: {name}"),
            TargetIsMyself => f.write_str("Target node can not be this node."),
            NothingToCancel => f.write_str("No migrations ongoing"),
            UnknownSource => f.write_str("Target node does not know the source node"),
            SourceIsMyself => f.write_str("Source node is target node itself"),
            AlreadyImporting => f.write_str("Slot is already being imported on the target by a different migration"),
            StillDeleting => f.write_str("Target node is still deleting its old keys of a slot"),
            OwnersDisagree => f.write_str("Target node does not agree about current slot ownership"),
            NoSuchJob => f.write_str("No such slot migration job"),
            OnlyForMigrationClients(name) => {
                write!(f, "CLUSTER SYNCSLOTS {name} should only be used by slot migration clients")
            }
        }
    }
}

impl std::error::Error for CommandError {}
