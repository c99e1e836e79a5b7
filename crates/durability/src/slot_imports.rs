//! Slots that are being imported from other nodes, as dumps and the append-only file record them. Their keys are hidden
//! until the import has ended.

use kvick_rdb::aof::commands;

/// A slot import that has not ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotImport {
    /// The job's name.
    pub name: [u8; 40],
    /// The first and the last slot of each range.
    pub ranges: Vec<(u16, u16)>,
}

/// The interface to slot migration.
pub trait SlotImports: Send + Sync {
    /// The imports that have not ended.
    fn unfinished(&self) -> Vec<SlotImport>;

    /// A dump is about to be loaded.
    fn load_began(&self);

    /// The dump that is being loaded has this import.
    fn loaded(&self, import: SlotImport);
}

/// A server without slot migration.
pub(crate) struct NoSlotImports;

impl SlotImports for NoSlotImports {
    fn unfinished(&self) -> Vec<SlotImport> {
        Vec::new()
    }

    fn load_began(&self) {}

    fn loaded(&self, _: SlotImport) {}
}

impl SlotImport {
    /// Appends the request that begins the import when it is replayed. The source does not matter then.
    pub(crate) fn establish(&self, out: &mut Vec<u8>) {
        let numbers: Vec<String> =
            self.ranges.iter().flat_map(|range| [range.0, range.1]).map(|n| n.to_string()).collect();
        let mut words: Vec<&[u8]> = vec![b"CLUSTER", b"SYNCSLOTS", b"ESTABLISH", b"NAME", &self.name, b"SLOTSRANGE"];
        words.extend(numbers.iter().map(String::as_bytes));
        commands::request(out, &words);
    }
}
