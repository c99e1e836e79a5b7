//! Tests of migration jobs: a source and a target that exchange what their jobs want, step by step, with faults.

mod commands;
mod faults;
mod replicas;
mod runs;
mod world;

use super::*;
pub(super) use world::*;
