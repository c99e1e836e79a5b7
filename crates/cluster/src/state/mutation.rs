//! Rules that are broken on purpose, to see whether the simulator finds that. Without the feature `mutations` none can
//! be chosen, and the checks cost nothing.

use super::Cluster;

/// A rule that is broken.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// A node votes more than once in an epoch.
    DoubleVote,
    /// A vote leaves the node before it is saved.
    UnsavedVote,
    /// The config epoch goes back when a primary becomes a replica.
    EpochGoesBack,
    /// Claims are accepted whatever their epoch is.
    OldClaims,
    /// One vote wins an election.
    NoMajority,
    /// A primary announces its offset for a manual failover before writes are paused.
    EarlyOffset,
}

impl Cluster {
    /// Whether a rule is broken.
    #[cfg(feature = "mutations")]
    pub(super) fn breaks(&self, rule: Mutation) -> bool {
        self.settings.mutation == Some(rule)
    }

    /// Whether a rule is broken: never.
    #[cfg(not(feature = "mutations"))]
    pub(super) const fn breaks(&self, _rule: Mutation) -> bool {
        false
    }
}
