//! Tests of databases: lookups, changes and expiry.

use super::*;
use crate::hash::KeyHasher;

const NOW_MS: i64 = 1_700_000_000_000;

/// Runs `run` with database 0 of a keyspace, under the global lock.
fn with_db<T>(keyspace: &'static Keyspace, run: impl FnOnce(&mut Db<'_>) -> T) -> T {
    with_db_at(keyspace, NOW_MS, WhenExpired::Drop, run)
}

fn with_db_at<T>(
    keyspace: &'static Keyspace,
    now_ms: i64,
    when_expired: WhenExpired,
    run: impl FnOnce(&mut Db<'_>) -> T,
) -> T {
    let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
    effects.begin(false, EventClass::all(), 0);
    let effects = &mut effects;
    let env = Env::command(now_ms, &access, &counters, effects).when_expired(when_expired);
    run(&mut Db::new(&mut keyspace.lock_global(), 0, env))
}

fn keyspace() -> &'static Keyspace {
    Keyspace::leak(2, 4, KeyHasher::with_secret(1, 2))
}

#[test]
fn integer_is_updated_in_place() {
    with_db(keyspace(), |db| {
        let key = db.key(b"counter");
        let add = |entry: Option<Entry<'_>>, n| entry.map_or(Some(0), |e| e.str()?.as_int()).map(|old| old + n);
        assert_eq!(db.update_int(key, |entry| add(entry, 5).ok_or(())), Ok(5));
        db.set_expiry(key, Some(NOW_MS + 10));
        let address = db.peek(key).map(|entry| entry.key().as_ptr());
        assert_eq!(db.update_int(key, |entry| add(entry, i64::MAX - 5).ok_or(())), Ok(i64::MAX));
        assert_eq!(db.update_int(key, |_| Err("refused")), Err("refused"));
        let entry = db.peek(key).expect("still there");
        assert_eq!((entry.expiry(), entry.encoding()), (Some(NOW_MS + 10), "int"));
        assert_eq!(entry.str().and_then(|value| value.as_int()), Some(i64::MAX));
        assert_eq!(Some(entry.key().as_ptr()), address);

        let text = db.key(b"text");
        db.append(text, b"41");
        assert_eq!(db.update_int(text, |entry| add(entry, 1).ok_or(())), Ok(42));
        assert_eq!(db.peek(text).map(|entry| entry.encoding()), Some("int"));
    });
}

#[test]
fn large_buffer_is_kept_unless_mostly_spare() {
    with_db(keyspace(), |db| {
        let key = db.key(b"large");
        for (capacity, kept) in [(100_000, true), (109_000, true), (120_000, false)] {
            let mut value = Vec::with_capacity(capacity);
            value.resize(100_000, b'x');
            let buffer = value.capacity();
            db.set_owned(key, value, Expiry::None);
            let memory = db.peek(key).map_or(0, |entry| entry.memory(0));
            assert_eq!(memory > buffer, kept, "{capacity}");
        }
    });
}

#[test]
fn key_is_visible_through_its_expiry_millisecond() {
    let keyspace = keyspace();
    let key = keyspace.key(b"k");
    with_db(keyspace, |db| db.set_bytes(key, b"v", Expiry::At(NOW_MS)));
    assert!(with_db(keyspace, |db| db.peek(key).is_some()));
    assert!(with_db_at(keyspace, NOW_MS + 1, WhenExpired::Drop, |db| db.peek(key).is_none()));
    assert_eq!(keyspace.len(0), 0);
}

#[test]
fn kept_expired_keys_are_hidden_until_overwritten() {
    let keyspace = keyspace();
    let key = keyspace.key(b"k");
    with_db(keyspace, |db| db.set_bytes(key, b"old", Expiry::At(NOW_MS)));
    with_db_at(keyspace, NOW_MS + 1, WhenExpired::Keep, |db| {
        assert!(db.get(key).is_none() && !db.remove(key, false));
        db.for_each(|_| panic!("seen by for_each"));
        assert_eq!(db.random_key(|| 0).as_deref(), Some(&b"k"[..]));
        assert_eq!(db.len(), 1);
        db.set_bytes(key, b"new", Expiry::None);
        assert_eq!((db.peek(key).and_then(|entry| entry.expiry()), db.len()), (None, 1));
    });
    with_db_at(keyspace, NOW_MS + 1, WhenExpired::Keep, |db| db.set_bytes(key, b"old", Expiry::At(NOW_MS)));
    with_db_at(keyspace, NOW_MS + 1, WhenExpired::Keep, |db| assert_eq!(db.update_int::<()>(key, |_| Ok(1)), Ok(1)));
    assert_eq!(keyspace.len(0), 1);
}

#[test]
fn import_source_sees_expired_keys() {
    let keyspace = keyspace();
    let key = keyspace.key(b"k");
    with_db_at(keyspace, NOW_MS, WhenExpired::Import, |db| {
        assert!(!db.is_due(NOW_MS - 1));
        db.set_bytes(key, b"v", Expiry::At(NOW_MS - 1));
        assert_eq!((db.peek(key).is_some(), db.len()), (false, 1));
    });
    with_db_at(keyspace, NOW_MS, WhenExpired::ImportSource, |db| {
        assert!(db.peek(key).is_some());
        let mut seen = 0;
        db.for_each(|_| seen += 1);
        db.scan(0, 10, |_| true, |_| seen += 1);
        assert_eq!(seen, 2);
    });
    with_db(keyspace, |db| assert!(db.is_due(NOW_MS - 1) && db.peek(key).is_none() && db.is_empty()));
}

#[test]
fn scan_deletes_expired_unless_kept() {
    let keyspace = keyspace();
    for name in [b"a", b"b", b"c"] {
        with_db(keyspace, |db| db.set_bytes(db.key(name), b"v", Expiry::At(NOW_MS)));
    }
    for (when_expired, left) in [(WhenExpired::Keep, 3), (WhenExpired::Drop, 0)] {
        with_db_at(keyspace, NOW_MS + 1, when_expired, |db| {
            assert_eq!(db.scan(0, 100, |_| true, |_| panic!("seen by scan")), 0);
            assert_eq!(db.len(), left);
        });
    }
}

#[test]
fn with_database_restores_the_selected_database() {
    with_db(keyspace(), |db| {
        let key = db.key(b"k");
        db.with_database(1, |db| db.set_bytes(key, b"v", Expiry::None));
        assert_eq!((db.number(), db.len()), (0, 0));
        db.swap(0, 1);
        assert!(db.peek(key).is_some());
        assert_eq!((db.flush(0, false), db.len()), (1, 0));
        let databases: Vec<_> = db.effects().events().iter().map(|event| event.database).collect();
        assert_eq!(databases, [1]);
    });
}

#[test]
fn keys_of_a_slot_are_counted_listed_and_flushed() {
    use crate::slot::{SLOTS, slot};
    let keyspace = Keyspace::leak(2, SLOTS.into(), KeyHasher::with_secret(1, 2).by_slot());
    let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
    let mut locked = keyspace.lock_global();
    let env = Env::command(1_700_000_000_000, &access, &counters, &mut effects);
    let mut db = Db::new(&mut locked, 0, env);
    for n in 0..1000 {
        db.set_bytes(db.key(format!("{{a}}{n}").as_bytes()), b"v", Expiry::None);
        db.set_bytes(db.key(format!("other{n}").as_bytes()), b"v", Expiry::None);
    }
    db.set_bytes(db.key(b"{a}expired"), b"v", Expiry::At(1));
    let a = slot(b"a");
    let others = keyspace.len(0) - 1001;
    assert_eq!((keyspace.slot_len(0, a), keyspace.slot_len_total(a), keyspace.slot_len(1, a)), (1001, 1001, 0));
    let listed: std::collections::BTreeSet<_> = db.keys_in_slot(a, usize::MAX).into_iter().collect();
    assert!(listed.len() == 1000 && listed.iter().all(|key| slot(key) == a));
    assert_eq!(
        (db.keys_in_slot(a, 7).len(), db.keys_in_slot(a, 0).len(), db.keys_in_slot(a + 1, 9).len() < 9),
        (7, 0, true)
    );
    assert_eq!(db.flush_slot(a, false, true), 1001);
    assert_eq!((db.keys_in_slot(a, 1).len(), keyspace.slot_len(0, a), keyspace.len(0)), (0, 0, others));
    assert_eq!(db.flush_slot(a, true, false), 0);
}

#[test]
fn hidden_keys_are_flushed_although_they_are_not_counted() {
    use crate::slot::{SLOTS, slot};
    let keyspace = Keyspace::leak(2, SLOTS.into(), KeyHasher::with_secret(1, 2).by_slot());
    let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
    let mut locked = keyspace.lock_global();
    let env = Env::command(1_700_000_000_000, &access, &counters, &mut effects);
    let mut db = Db::new(&mut locked, 0, env);
    db.set_bytes(db.key(b"{a}1"), b"v", Expiry::None);
    let a = slot(b"a");
    keyspace.set_hidden([usize::from(a)].into_iter(), true);
    assert_eq!((keyspace.len(0), keyspace.slot_len(0, a)), (0, 1));
    assert_eq!(db.flush(0, false), 0);
    keyspace.set_hidden([usize::from(a)].into_iter(), false);
    assert_eq!((keyspace.len(0), keyspace.slot_len(0, a)), (0, 0));
}

#[test]
fn keys_of_a_slot_are_listed_in_pieces_while_they_are_deleted() {
    use crate::slot::{SLOTS, slot};
    let keyspace = Keyspace::leak(1, SLOTS.into(), KeyHasher::with_secret(1, 2).by_slot());
    let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
    let mut locked = keyspace.lock_global();
    let env = Env::command(1_700_000_000_000, &access, &counters, &mut effects);
    let mut db = Db::new(&mut locked, 0, env);
    for n in 0..1000 {
        db.set_bytes(db.key(format!("{{a}}{n}").as_bytes()), b"v", Expiry::None);
    }
    let (mut position, mut pieces) = (Some(0), 0);
    while let Some(from) = position {
        let (keys, next) = db.keys_in_slot_from(slot(b"a"), from, 32);
        assert!(keys.len() < 100, "{} keys at once", keys.len());
        keys.iter().for_each(|key| assert!(db.remove(db.key(key), false)));
        (position, pieces) = (next, pieces + 1);
    }
    assert!(pieces > 10 && keyspace.len(0) == 0, "{pieces} pieces");
}
