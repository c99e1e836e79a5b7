//! Runs the shards of a cluster: the planner decides, the operator acts.
//!
//! Once a second [`run`] asks the [`backend`] which nodes exist, [`observe`] asks each node what it does, the planner
//! makes a plan, [`reconcile`] turns plan and state into operations, and [`execute`] carries them out with the commands
//! of a Valkey cluster. [`reconcile`] is pure: it depends only on what was observed, so an operator that was restarted
//! continues where the last one stopped. What must outlive the operator is kept by the backend: which nodes belong to
//! which shard, and which shards are leaving.
//!
//! [`local`] is the backend of `kvick-operator local`: processes of this machine. The crate
//! `kvick-operator-kube` has the backend for pods, and the program.

pub mod backend;
pub mod config;
pub mod execute;
pub mod local;
pub mod observe;
pub mod reconcile;
pub mod run;
pub mod state;
pub mod view;
