//! Reads a dump and writes it again: `rewrite <from> <to> [version]`; the default version is 80.
//!
//! Redis's own versions can be read too, so this converts from Redis 7.4 to Valkey.

use kvick_rdb::{Event, Loaded, ReadOptions, Reader, Record, VERSION, ValueRef, VersionCheck, WriteOptions, Writer};
use std::error::Error;
use std::fs::File;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, from, to, version @ ..] = args.as_slice() else {
        return Err("usage: rewrite <from> <to> [version]".into());
    };
    let version = version.first().map_or(Ok(VERSION), |text| text.parse())?;
    let (keys, seconds) = rewrite(from, to, WriteOptions { version, ..WriteOptions::default() })?;
    println!("{keys} keys in {seconds:.2} s");
    Ok(())
}

fn rewrite(from: &str, to: &str, options: WriteOptions) -> Result<(u64, f64), Box<dyn Error>> {
    let began = Instant::now();
    let relaxed = ReadOptions { version_check: VersionCheck::Relaxed, ..ReadOptions::default() };
    let mut reader = Reader::new(File::open(from)?, relaxed)?;
    let mut writer = Writer::new(File::create(to)?, options)?;
    let (mut keys, mut database) = (0, 0);
    while let Some(event) = reader.next_event()? {
        match event {
            Event::Entry(record) => {
                let Loaded::Value(value) = &record.value else { continue };
                let (expiry_ms, usage) = (record.expiry_ms, record.usage);
                writer.record(&Record { key: reader.key(), value: ValueRef::from(value), expiry_ms, usage })?;
                keys += 1;
            }
            Event::SelectDb(number) => database = number,
            Event::ResizeDb { keys, volatile } => writer.select_db(database, keys, volatile)?,
            Event::Function(code) => writer.function(&code)?,
            Event::Aux { name, value } => writer.aux(&name, &value)?,
            _ => {}
        }
    }
    writer.finish()?;
    Ok((keys, began.elapsed().as_secs_f64()))
}
