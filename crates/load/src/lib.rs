//! A load generator for servers that speak RESP.
//!
//! The parts, from the inside out:
//!
//! * What and when: [`schedule`] (arrival times), [`keys`], [`values`], [`commands`] (templates), [`workload`] (the
//!   mix), [`check`] (writes that are read back). All of them are pure.
//! * The wire: [`reply`] (incremental reader), [`transport`] (sockets, TLS), [`stamps`] (times of arrival),
//!   [`connection`], [`topology`] (slots).
//! * [`driver`] is the loop of one thread, and [`metrics`] what it records. [`run`] starts the threads and adds up.
//! * [`search`] and [`processes`] use several runs or processes. [`result`] is what is kept, and [`report`], [`plot`],
//!   [`compare`] and [`view`] show it.
//!
//! `docs/load.md` explains how to use it and what it measures.

pub mod check;
pub mod cli;
pub mod client;
pub mod commands;
pub mod compare;
pub mod config;
pub mod connection;
pub mod driver;
pub mod keys;
pub mod metrics;
pub mod pages;
pub mod plot;
pub mod processes;
pub mod reply;
pub mod report;
pub mod result;
pub mod run;
pub mod schedule;
pub mod search;
pub mod source;
pub mod stamps;
pub mod topology;
pub mod transport;
pub mod values;
pub mod view;
pub mod workload;
