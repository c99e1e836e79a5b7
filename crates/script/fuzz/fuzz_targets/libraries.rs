//! Any bytes are read by a library or refused, and what was read is read again after it was written.
//!
//! The first byte chooses the library; the rest is what it reads.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// Scripts that answer 1 if all is well.
const SCRIPTS: [&str; 4] = [
    // Numbers that JSON lacks cannot be written, and the order of fields may be another.
    "local ok, value = pcall(cjson.decode, ARGV[1])
     if not ok then return 1 end
     local ok, text = pcall(cjson.encode, value)
     return (not ok or #cjson.encode(cjson.decode(text)) == #text) and 1 or 2",
    // What is nested too deeply becomes nil, which is no key and no value of a map, and has an array become one. That
    // takes other room once, and stays what it is.
    "local read = {pcall(cmsgpack.unpack, ARGV[1])}
     if not read[1] or read[2] == nil then return 1 end
     local packed = cmsgpack.pack(read[2])
     local ok, value = pcall(cmsgpack.unpack, packed)
     if not ok then return 1 end
     local again = cmsgpack.pack(value)
     return #cmsgpack.pack(cmsgpack.unpack(again)) == #again and 1 or 2",
    "local format, data = ARGV[1]:match('^(%C*)%c?(.*)$')
     pcall(struct.unpack, format, data)
     pcall(struct.unpack, format, data, 3)
     pcall(struct.size, format)
     pcall(struct.pack, format, 1, 2.5, 'abc', -4, 'd', 6)
     return 1",
    "pcall(cmsgpack.unpack_one, ARGV[1], #ARGV[1] / 2)
     pcall(cmsgpack.unpack_limit, ARGV[1], 3, 1)
     pcall(loadstring, ARGV[1])
     pcall(string.format, ARGV[1], 1, 'a', 2.5, -7)
     pcall(redis.error_reply, ARGV[1])
     pcall(redis.status_reply, ARGV[1])
     return 1",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, input)) = bytes.split_first() else { return };
    let script = SCRIPTS[usize::from(*choice) % SCRIPTS.len()];
    let reply = kvick_script_fuzz::run(script.as_bytes(), input, b"");
    let ended = reply.starts_with(b"-ERR ended") || reply.starts_with(b"-ERR Error running script, not enough memory");
    assert!(reply == b":1\r\n" || ended, "{}", reply.escape_ascii());
});
