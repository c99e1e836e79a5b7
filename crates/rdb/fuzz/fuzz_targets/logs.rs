//! Fuzzes manifests and commands: reading any bytes never panics; an accepted
//! manifest is the same after writing and reading it again; commands are read no
//! further than the bytes, and are the same after writing and reading them again.

#![no_main]

use kvick_rdb::aof::{Item, Manifest, Reader, commands};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // A manifest of only comments is accepted, but is empty when written.
    let written = Manifest::parse(bytes).map(|manifest| manifest.to_bytes()).unwrap_or_default();
    if !written.is_empty() {
        let again = Manifest::parse(&written).expect("it was written by a manifest");
        assert_eq!(again.to_bytes(), written);
    }
    let mut reader = Reader::new(bytes, 0);
    loop {
        let start = reader.offset();
        let request: Vec<Vec<u8>> = match reader.next_item() {
            Ok(Some(Item::Request(args))) => args.iter().map(<[u8]>::to_vec).collect(),
            Ok(Some(_)) => continue,
            Ok(None) => break assert_eq!(start, bytes.len() as u64),
            Err(error) => break assert!(error.offset >= start && error.offset <= bytes.len() as u64),
        };
        assert!(reader.offset() > start && reader.offset() <= bytes.len() as u64);
        let mut written = Vec::new();
        commands::request(&mut written, &request.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let mut again = Reader::new(&written[..], 0);
        let Ok(Some(Item::Request(args))) = again.next_item() else { panic!("it was written as a request") };
        assert!(args.iter().eq(request.iter().map(Vec::as_slice)));
    }
});
