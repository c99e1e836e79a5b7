//! Any bytes read as the value of a payload never panic, and what comes of them survives being dumped and restored.
//!
//! The sum is left unchecked: the last ten bytes are the footer, the version is set here.

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
