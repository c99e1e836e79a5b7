//! Any bytes that a command answers become a value or an error, and that a reply again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for script in ["return redis.pcall('x')", "redis.setresp(3) return redis.call('x')"] {
        let reply = kvick_script_fuzz::run(script.as_bytes(), b"", bytes);
        assert!(reply.ends_with(b"\r\n"), "{}", reply.escape_ascii());
    }
});
