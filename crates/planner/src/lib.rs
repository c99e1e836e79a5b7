//! Plans the capacity of a cluster, without I/O and without a clock of its own.
//!
//! An [`Observation`] has the load of shards and slots at one moment. [`Planner::plan`] returns what to begin now: a
//! [`Plan`] of independent [`Step`]s, each with its reason. Whoever runs the shards observes them about once a second,
//! and carries the steps out. A step that was not carried out is planned again, so failures need no special case.
//!
//! - [`estimate`] divides the busy time of shards among their slots.
//! - [`forecast`] extrapolates the load to the time when new capacity will be ready.
//! - [`sizing`] computes how many shards a load needs, [`placement`] which slots move where.
//! - [`planner`] decides when to grow and when to shrink.
//! - [`simulation`] is a model of a cluster, with load curves, to judge the decisions.
//!
//! What always holds: a slot that moves is not moved again before it has arrived; a shard is stopped only when it owns
//! no slots; the number of shards stays within the policy's limits.

pub mod estimate;
pub mod forecast;
pub mod observation;
pub mod placement;
pub mod plan;
pub mod planner;
pub mod policy;
pub mod simulation;
pub mod sizing;

pub use observation::{Migration, Observation, Phase, Shard, ShardId, Slot};
pub use plan::{Action, Figures, Plan, Step, ranges};
pub use planner::Planner;
pub use policy::Policy;
