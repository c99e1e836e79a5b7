//! Tests of the write log: records, followers, the backlog, replica-only and AOF-only records.

use super::*;

fn record(words: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, words.iter().map(|w| w.as_bytes()));
    out
}

fn append(log: &WriteLog, database: usize, records: &[Vec<u8>]) {
    let (databases, record_count) = ((database, database), records.len());
    log.append(&Batch { databases, records: &[&records.concat()], record_count, replica_only: &[], aof_only: &[] });
}

#[test]
fn follower_reads_records_appended_after_it_started() {
    let log = WriteLog::default();
    append(&log, 0, &[record(&["SET", "before", "1"])]);
    assert_eq!(log.offset(), 0);
    let mut follower = log.follow(Audience::All);
    append(&log, 0, &[record(&["SET", "a", "1"])]);
    append(&log, 0, &[record(&["SET", "b", "1"])]);
    append(&log, 3, &[record(&["DEL", "a"]), record(&["DEL", "b"])]);
    let expected = [
        record(&["SELECT", "0"]),
        record(&["SET", "a", "1"]),
        record(&["SET", "b", "1"]),
        record(&["MULTI"]),
        record(&["SELECT", "3"]),
        record(&["DEL", "a"]),
        record(&["DEL", "b"]),
        record(&["EXEC"]),
    ];
    assert_eq!(follower.lag(), expected.concat().len() as u64);
    assert_eq!(follower.read(), Ok(expected.concat()));
    assert_eq!((follower.read(), follower.lag()), (Ok(Vec::new()), 0));
}

#[test]
fn records_of_any_size_round_trip_and_are_released() {
    let log = WriteLog::default();
    let mut follower = log.follow(Audience::All);
    let mut expected = record(&["SELECT", "0"]);
    for n in 0..200 {
        let value = "v".repeat(n * n * 11 % (3 * BLOCK_BYTES));
        let record = record(&["SET", "key", &value]);
        append(&log, 0, std::slice::from_ref(&record));
        expected.extend(record);
        if n % 7 == 0 {
            assert!(follower.read() == Ok(std::mem::take(&mut expected)), "after {n}");
        }
    }
    assert!(follower.read() == Ok(expected));
    append(&log, 0, &[record(&["SET", "key", &"v".repeat(BLOCK_BYTES)])]);
    assert!(log.0.inner.lock().blocks.len() <= 2, "what was read is kept");
}

#[test]
fn data_only_followers_skip_replica_only_records() {
    let log = WriteLog::default();
    let (mut all, mut data) = (log.follow(Audience::All), log.follow(Audience::DataOnly));
    let (set, publish, ping) = (record(&["SET", "a", "1"]), record(&["PUBLISH", "c", "m"]), record(&["PING"]));
    append(&log, 0, std::slice::from_ref(&set));
    log.append_replica_only(&[b"PING"]);
    let both = [&publish[..], &set].concat();
    let replica_only = 0..publish.len();
    let replica_only = std::slice::from_ref(&replica_only);
    log.append(&Batch { databases: (0, 0), records: &[&both], record_count: 2, replica_only, aof_only: &[] });
    log.append_replica_only(&[b"PING"]);
    let (select, multi, exec) = (record(&["SELECT", "0"]), record(&["MULTI"]), record(&["EXEC"]));
    assert_eq!(all.read(), Ok([&select[..], &set, &ping, &multi, &publish, &set, &exec, &ping].concat()));
    assert_eq!(data.read(), Ok([&select[..], &set, &multi, &set, &exec].concat()));
    assert_eq!(data.offset(), log.offset());
}

#[test]
fn a_replica_appends_nothing_of_its_own() {
    let log = WriteLog::default();
    let mut all = log.follow(Audience::All);
    log.set_repeats(true);
    append(&log, 0, &[record(&["SET", "a", "1"])]);
    log.append_replica_only(&[b"PING"]);
    assert_eq!(log.offset(), 0);
    log.append_raw(&record(&["PING"]), true);
    log.set_repeats(false);
    log.append_replica_only(&[b"PING"]);
    assert_eq!(all.read(), Ok(record(&["PING"]).repeat(2)));
}

#[test]
fn backlog_serves_reconnecting_followers() {
    let log = WriteLog::default();
    assert!(log.follow_from(0, Audience::All).is_none(), "nothing is kept");
    log.keep_backlog(100_000);
    let at = log.offset();
    for n in 0..5000 {
        append(&log, 0, &[record(&["SET", "key", &format!("{n:050}")])]);
    }
    assert!(log.follow_from(at, Audience::All).is_none(), "it is too long ago");
    let kept = log.backlog();
    assert!((100_000..100_000 + 2 * BLOCK_BYTES as u64).contains(&(kept.end - kept.start)));
    let mut back = log.follow_from(kept.start, Audience::All).expect("kept");
    assert!(log.follow_from(kept.end + 1, Audience::All).is_none(), "it is of another history");
    assert_eq!(back.read().map(|bytes| bytes.len() as u64), Ok(kept.end - kept.start));
    drop(back);
    assert!(log.has_readers());
    log.keep_backlog(0);
    assert!(!log.has_readers());
}

#[test]
fn unread_records_count_as_memory_beyond_the_backlog() {
    let log = WriteLog::default();
    assert_eq!(log.excess(), 0);
    log.keep_backlog(BLOCK_BYTES as u64);
    let mut follower = log.follow(Audience::All);
    let value = "v".repeat(BLOCK_BYTES);
    (0..8).for_each(|_| append(&log, 0, &[record(&["SET", "a", &value])]));
    assert!(log.excess() >= 6 * BLOCK_BYTES, "{}", log.excess());
    let mut held = Vec::new();
    while let Ok(Some(piece)) = follower.next(u64::MAX) {
        held.push(piece);
    }
    append(&log, 0, &[record(&["SET", "a", &value])]);
    assert!(log.excess() >= 6 * BLOCK_BYTES, "{}", log.excess());
    drop(held);
    assert!(log.excess() <= 3 * BLOCK_BYTES, "{}", log.excess());
}

#[test]
fn new_history_disconnects_followers() {
    let log = WriteLog::default();
    let mut follower = log.follow(Audience::All);
    append(&log, 0, &[record(&["SET", "a", "1"])]);
    log.reset(7000);
    assert_eq!(follower.read(), Err(CutOff));
    assert_eq!((log.offset(), log.has_readers()), (7000, false));
    let mut follower = log.follow(Audience::DataOnly);
    let raw = record(&["SET", "b", "1"]);
    log.append_raw(&raw, false);
    log.append_raw(&record(&["PING"]), true);
    assert_eq!(follower.read(), Ok(raw));
}

#[test]
fn log_is_inactive_without_followers() {
    let log = WriteLog::default();
    let (one, two) = (log.follow(Audience::All), log.follow(Audience::All));
    drop(one);
    assert!(log.has_readers());
    drop(two);
    assert!(!log.has_readers());
}

#[test]
fn aof_only_records_reach_only_data_only_followers() {
    let log = WriteLog::default();
    log.keep_backlog(1000);
    let (set, file) = (record(&["SET", "a", "1"]), record(&["SET", "file", "1"]));
    let both = [&set[..], &set].concat();
    let aof_only = [(set.len(), file.clone()), (2 * set.len(), file.clone())];
    let batch = Batch { databases: (0, 0), records: &[&both], record_count: 2, replica_only: &[], aof_only: &aof_only };
    let exclusive = Batch { records: &[], record_count: 0, aof_only: &[(0, file.clone())], ..batch };
    let (select, multi, exec) = (record(&["SELECT", "0"]), record(&["MULTI"]), record(&["EXEC"]));
    // No follower would read them.
    log.append(&exclusive);
    assert_eq!(log.offset(), 0);
    let (mut all, mut data) = (log.follow(Audience::All), log.follow(Audience::DataOnly));
    log.append(&batch);
    log.append_replica_only(&[b"PING"]);
    log.append(&exclusive);
    let (ping, mut late) = (record(&["PING"]), log.follow(Audience::DataOnly));
    let bare = [&multi[..], &exec].concat();
    assert_eq!(all.read(), Ok([&multi[..], &select, &set, &set, &exec, &ping, &bare].concat()));
    let expected = [&multi[..], &select, &set, &file, &set, &file, &exec, &multi, &file, &exec].concat();
    // In small pieces too.
    let mut read = Vec::new();
    for until in 0..=log.offset() {
        while let Ok(Some(piece)) = data.next(until) {
            read.extend_from_slice(&piece);
        }
    }
    assert_eq!(read, expected);
    assert_eq!((late.read(), data.lag()), (Ok(Vec::new()), 0));
    log.append(&batch);
    drop((data, late));
    drop(all);
    assert!(log.0.inner.lock().aof_only.is_empty(), "what nobody will read is kept");
}
