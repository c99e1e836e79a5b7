//! The arguments that determine the hash slot of a request: its keys, and the names of shard channels.

use super::{KeyPositions, Spec};
use kvick_resp::Args;

impl Spec {
    /// Whether requests may name keys or shard channels, so that they belong to a slot.
    #[inline]
    pub fn has_slot(&self) -> bool {
        !self.keys.is_empty() || self.find_keys.is_some()
    }

    /// The arguments that determine the slot. Empty if there are none or the arguments are malformed; the command then
    /// accesses no key.
    pub fn slot_positions(&self, args: Args<'_>) -> KeyPositions {
        let found = match self.find_keys {
            Some(find) => find(args),
            None => {
                let mut found = KeyPositions::new();
                self.keys.iter().try_for_each(|spec| spec.collect(args, &mut found)).map(|()| found)
            }
        };
        found.unwrap_or_default()
    }
}
