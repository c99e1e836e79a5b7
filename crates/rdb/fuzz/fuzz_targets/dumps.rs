//! Fuzzes dumps: reading any bytes ends at their end or with an error within them, and never panics.

#![no_main]

use kvick_rdb::{ReadOptions, Reader, VersionCheck};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let options = ReadOptions {
        version_check: VersionCheck::Relaxed,
        checksum: false,
        skip_modules: true,
        ..ReadOptions::default()
    };
    let ended = Reader::new(bytes, options).and_then(|mut reader| {
        while reader.next_event()?.is_some() {}
        Ok(())
    });
    if let Err(error) = ended {
        assert!(error.offset <= bytes.len() as u64);
    }
});
