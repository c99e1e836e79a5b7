//! Slots of a cluster that are open, that is, migrated key by key. Dumps carry them, so that replicas know them.

/// The name of the auxiliary field.
pub const FIELD: &str = "cluster-slot-states";

/// The interface to the cluster.
pub trait OpenSlots: Send + Sync {
    /// The value of the field; `None` if no slot is open.
    fn field(&self) -> Option<String>;

    /// A dump has this value.
    fn loaded(&self, field: &str);
}
