//! Backups of a server or of all shards of a cluster, over the network.
//!
//! A backup is a directory, or a prefix in a bucket, with one dump (RDB) per shard and a manifest. The dumps come from
//! full synchronizations, as replicas get them: no access to the files of the servers is needed, and append-only files
//! are never touched. All shards are asked at the same moment; the manifest says how far apart their snapshots are.
//!
//! - [`access`]: how to reach servers; [`shards`]: which there are.
//! - [`fetch`]: a dump from a server.
//! - [`create`]: a backup; [`verify`]: whether it is complete and valid; [`restore`]: its keys, into any cluster.
//! - [`manifest`]: what a backup consists of.
//! - [`storage`]: where it is kept, in a directory or in a bucket of object storage ([`bucket`]).
//!
//! `docs/backup.md` explains how to use it.

pub mod access;
pub mod bucket;
mod checking;
pub mod cli;
pub mod create;
pub mod fetch;
pub mod manifest;
pub mod restore;
pub mod shards;
pub mod storage;
mod target;
pub mod verify;
