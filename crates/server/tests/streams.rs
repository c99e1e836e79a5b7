//! Streams and consumer groups end to end: blocking consumers, polling consumers on one connection, and the requests
//! that client libraries send when they connect.

mod common;

use common::for_workers;
use common::groups::Work;
use std::time::Duration;

const WORK: Work = Work {
    entries: 20_000,
    burst: 20,
    every: Duration::ZERO,
    waiting: 32,
    polling: 32,
    pause: Duration::ZERO,
    apart: true,
};

#[test]
fn each_of_two_groups_gets_every_entry_once() {
    for_workers(&[], |server| WORK.run(server).check(server));
}

#[test]
fn blocking_and_polling_consumers_share_a_group() {
    for_workers(&[], |server| Work { apart: false, ..WORK }.run(server).check(server));
}
