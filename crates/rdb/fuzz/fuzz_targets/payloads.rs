//! Fuzzes payloads: reading any bytes as a value never panics,
//! and the result is the same after dumping and restoring it.
//!
//! The checksum is not verified: the last ten bytes are the footer, in which the version is set.

#![no_main]

use kvick_rdb::{VERSION, ValueOptions, ValueRef, VersionCheck, WriteOptions, dump, restore};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((version, body)) = bytes.split_first() else { return };
    let version = if *version == 12 { 12 } else { VERSION };
    let payload = [body, &version.to_le_bytes(), &[0; 8]].concat();
    let options = ValueOptions::default();
    let Ok(value) = restore(&payload, VersionCheck::Relaxed, false, &options) else { return };
    let mut again = Vec::new();
    dump(ValueRef::from(&value), &WriteOptions::default(), &mut again).expect("this version expresses everything");
    restore(&again, VersionCheck::Strict, true, &options).expect("it was dumped");
});
