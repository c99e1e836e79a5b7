//! HOTKEYS: which accesses are counted, and what for.

use super::*;
use crate::batch::{Batch, Request, Source};
use kvick_commands::table::Resolved;
use kvick_config::tables::logging::{HOTKEYS_SAMPLING_PERCENTAGE, HOTKEYS_TOP_K, HOTKEYS_WINDOW_SECONDS};
use kvick_core::hot_keys::report::Report;
use kvick_core::hot_keys::summary::Metric;
use kvick_resp::{Args, Span};
use std::time::Instant;

impl Harness {
    /// Samples every command from now on.
    fn detect_hot_keys(&mut self) {
        self.configure(HOTKEYS_SAMPLING_PERCENTAGE, 100);
        self.configure(HOTKEYS_TOP_K, 16);
        self.ask(0, 0, "DEL absent", ":0\r\n");
        self.services.hot_keys.reset();
    }

    /// Ends the window.
    fn report(&self) -> Arc<Report> {
        self.services.hot_keys.end_window_if_due(Instant::now() + Duration::from_millis(1500));
        self.services.hot_keys.report().expect("a window has ended")
    }

    /// The keys of the window, each with its number of accesses.
    fn accesses(&self) -> String {
        let report = self.report();
        let shown = |key: &[u8], db: u32, accesses: u64| format!("{db}:{} {accesses}", String::from_utf8_lossy(key));
        let tops = report.top(Metric::Accesses).iter();
        tops.map(|hot| shown(&hot.key, hot.home.db, hot.observed.accesses)).collect::<Vec<_>>().join(", ")
    }
}

#[test]
fn each_key_of_a_command_is_counted_once() {
    for_executors(1, |mut harness, other| {
        harness.ask(0, 0, "GET before", "$-1\r\n");
        harness.detect_hot_keys();
        harness.ask(0, 0, "MSET a 1 b 2", OK);
        harness.ask(other, 0, "GET a", "$1\r\n1\r\n");
        harness.ask(other, 0, "GET absent", "$-1\r\n");
        harness.select(0, 3);
        harness.ask(other, 0, "DEL a", ":0\r\n");
        harness.ask(other, 0, "RPUSH list x", ":1\r\n");
        harness.ask(other, 0, "GET list", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n");
        harness.ask(other, 0, "OBJECT REFCOUNT list", ":1\r\n");
        assert_eq!(harness.accesses(), "0:a 2, 3:list 2, 3:a 1, 0:absent 1, 0:b 1");
        assert_eq!(harness.services.hot_keys.report().map(|report| report.samples), Some(7));
    });
}

#[test]
fn commands_in_transactions_and_scripts_are_counted_as_if_alone() {
    for_executors(1, |mut harness, other| {
        harness.detect_hot_keys();
        harness.ask(other, 0, "WATCH watched", OK);
        harness.exec(other, 0, &["INCR n", "INCR n"]);
        harness.run(other, 0, "EVAL \"return server.call('INCR', KEYS[1])\" 2 n unused");
        assert_eq!(harness.accesses(), "0:n 3");
    });
}

#[test]
fn blocked_commands_are_counted_when_they_are_served() {
    for_executors(2, |mut harness, other| {
        harness.detect_hot_keys();
        harness.ask(0, 0, "BLPOP list 0", WAITS);
        harness.ask(other, 1, "RPUSH list a", ":1\r\n");
        assert_eq!(harness.delivered(), [(0, bulks(&["list", "a"]))]);
        assert_eq!(harness.accesses(), "0:list 2");
    });
}

#[test]
fn what_a_command_used_is_divided_among_its_keys() {
    for_executors(1, |mut harness, other| {
        harness.detect_hot_keys();
        harness.ask(other, 0, "SET large xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", OK);
        harness.ask(other, 0, "MGET a b", "*2\r\n$-1\r\n$-1\r\n");
        let report = harness.report();
        let of = |metric, name: &str| {
            let found = report.top(metric).iter().find(|hot| *hot.key == *name.as_bytes());
            found.map_or(0, |hot| hot.observed.of(metric))
        };
        assert_eq!(*report.top(Metric::Bytes)[0].key, *b"large");
        // *3 $4 MGET $1 a $1 b, and *2 $-1 $-1.
        assert_eq!([of(Metric::Bytes, "a"), of(Metric::Bytes, "b")], [(4 + 10 + 14 + 14) / 2; 2]);
        assert!(of(Metric::Cpu, "large") > 0);
        assert_eq!(of(Metric::Cpu, "a"), of(Metric::Cpu, "b"));
    });
}

#[test]
fn a_flush_forgets_the_keys_of_its_database() {
    for_executors(1, |mut harness, other| {
        harness.detect_hot_keys();
        harness.ask(other, 0, "SET a 1", OK);
        harness.ask(other, 0, "FLUSHDB", OK);
        harness.ask(other, 0, "SET a 2", OK);
        let flushes = harness.services.keyspace.flushes(0);
        let report = harness.report();
        let current = report.top(Metric::Accesses).iter().filter(|hot| hot.home.flushes == flushes);
        let counts: Vec<u64> = current.map(|hot| hot.observed.accesses).collect();
        assert_eq!((counts, report.top(Metric::Accesses).len()), (vec![1], 2));
    });
}

/// A batch of these requests with their input.
fn batch_of(lines: &[&str], services: &'static Services) -> (Batch, Vec<u8>) {
    let (mut batch, mut input) = (Batch::default(), Vec::new());
    for line in lines {
        let (from, first) = (input.len(), batch.spans.len());
        for word in words(line) {
            batch.spans.push(Span { start: input.len() - from, len: word.len() });
            input.extend_from_slice(word.as_bytes());
        }
        let (source, spans) = (Source::Shared(from, input.len()), first..batch.spans.len());
        let args = Args::new(&input[from..], &batch.spans[spans.clone()], &[]);
        let Resolved::Command(command) = services.catalogue.resolve(args) else { panic!("{line}") };
        let key = command.single_key.and_then(|index| args.get(index));
        let resolved = ResolvedCommand::For(command, key.map(|key| services.keyspace.key(key).hash));
        batch.requests.push(Request { connection: 0, source, spans, resolved, db: 0 });
    }
    (batch, input)
}

#[test]
fn the_fast_path_samples_like_the_slow_path() {
    for percentage in [100, 30] {
        let mut harness = Harness::new(1, 1);
        harness.configure(HOTKEYS_WINDOW_SECONDS, 1);
        harness.detect_hot_keys();
        harness.configure(HOTKEYS_SAMPLING_PERCENTAGE, percentage);
        let (engine, Connected { client, .. }) = (&mut harness.executors[0], &mut harness.clients[0]);
        let mut out = ReplyBuffer::contiguous(Vec::new());
        engine.update_clock();
        engine.begin_batch();
        assert!(engine.enter());
        let rounds = 200;
        for _ in 0..rounds {
            let (batch, input) = batch_of(&["GET k", "GET k", "INCR k", "GET other"], engine.server);
            let mut rest = &batch.requests[..];
            while !rest.is_empty() {
                // A command that takes long, because the thread has lost its core, ends the fast path.
                let done = engine.take_fast_path(client, rest, &batch, &input, usize::MAX, &mut out);
                assert!(done > 0);
                rest = &rest[done..];
            }
        }
        engine.leave();
        engine.settle_turn();
        let report = harness.report();
        let [k, other] = report.top(Metric::Accesses) else { panic!("two keys") };
        assert_eq!((&*k.key, &*other.key), (&b"k"[..], &b"other"[..]));
        let expected = rounds * u64::from(percentage) / 100;
        let tolerance = |expected: u64| if percentage == 100 { 0 } else { expected / 2 };
        let near = |accesses: u64, expected: u64| accesses.abs_diff(expected) <= tolerance(expected);
        assert!(near(k.observed.accesses, 3 * expected), "{}", k.observed.accesses);
        assert!(near(other.observed.accesses, expected), "{}", other.observed.accesses);
        if percentage == 100 {
            // *2 $3 GET $5 other and $-1.
            assert_eq!(other.observed.bytes, rounds * (4 + 9 + 11 + 5));
        }
        assert!(report.top(Metric::Cpu).iter().all(|hot| hot.observed.ticks > 0));
    }
}
