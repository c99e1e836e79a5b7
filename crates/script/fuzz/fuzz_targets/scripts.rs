//! Any script ends, with one reply, and does no harm to those after it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    let reply = kvick_script_fuzz::run(script, b"argument", b"+OK\r\n");
    assert!(reply.ends_with(b"\r\n"), "{}", reply.escape_ascii());
    let after = "return {#KEYS, ARGV[1], type(redis.call), ('x'):upper(), type(rawget(_G, 'x')), cjson.null == nil}";
    let reply = kvick_script_fuzz::run(after.as_bytes(), b"a", b"");
    assert_eq!(
        reply,
        b"*6\r\n:0\r\n$1\r\na\r\n$8\r\nfunction\r\n$1\r\nX\r\n$3\r\nnil\r\n_\r\n",
        "{}",
        reply.escape_ascii()
    );
});
