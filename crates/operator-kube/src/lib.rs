//! Runs the shards of a cluster as pods of Kubernetes, and has the command line of `kvick-operator`.
//!
//! A `KvickCluster` ([`spec`]) describes a cluster. The [`controller`] runs a loop for each one ([`cluster`]): it asks
//! the nodes what they do, plans, reconciles and acts with the code of `kvick-operator`, the same that runs local
//! processes. What is special here is the backend ([`pods`]), the objects that it creates ([`objects`]), and what
//! the cluster's status says ([`status`]). [`watch`] keeps what the API server reports, [`backup`] has the CronJob of
//! backups, [`acl`] the users of a cluster, and [`metrics`] the figures of the operator itself. [`manifests`] and
//! [`helm`] print all that a Kubernetes cluster needs for the operator.

pub mod acl;
pub mod backup;
pub mod cli;
pub mod cluster;
pub mod controller;
pub mod helm;
pub mod lease;
pub mod manifests;
pub mod metrics;
pub mod objects;
pub mod pods;
pub mod spec;
pub mod status;
pub mod watch;
