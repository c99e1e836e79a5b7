//! DEBUG PROTOCOL: a reply of each type, for tests of clients.

use kvick_commands::context::Error;
use kvick_engine::session::Session;
use kvick_resp::{Args, Version};

const TYPES: &str = "string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false";

/// Replies with a value of the named type.
pub fn reply(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let name = args[2].to_ascii_lowercase();
    let version = cx.reply.version();
    let reply = &mut cx.reply;
    match name.as_slice() {
        b"string" => reply.bulk(b"Hello World"),
        b"integer" => reply.int(12345),
        // Valkey's value: close to pi, but not pi.
        #[allow(clippy::approx_constant)]
        b"double" => reply.double(3.141),
        b"bignum" => reply.big_number(b"1234567999999999999999999999999999999"),
        b"null" => reply.null(),
        b"array" => {
            reply.array(3);
            (0..3).for_each(|n| reply.int(n));
        }
        b"set" => {
            reply.set(3);
            (0..3).for_each(|n| reply.int(n));
        }
        b"map" => {
            reply.map(3);
            for n in 0..3 {
                reply.int(n);
                reply.boolean(n == 1);
            }
        }
        b"attrib" => {
            if reply.attribute(1) {
                reply.bulk(b"key-popularity");
                reply.array(2);
                reply.bulk(b"key:123");
                reply.int(90);
            }
            reply.bulk(b"Some real reply following the attribute");
        }
        b"push" if version == Version::Resp2 => {
            return Err(Error::text("ERR RESP2 is not supported by this command"));
        }
        b"push" => {
            reply.push(2);
            reply.bulk(b"server-cpu-usage");
            reply.int(42);
            reply.bulk(b"Some real reply following the push reply");
        }
        b"true" => reply.boolean(true),
        b"false" => reply.boolean(false),
        b"verbatim" => reply.verbatim(b"This is a verbatim\nstring", "txt"),
        _ => {
            return Err(Error::new(format!("ERR Wrong protocol type name. Please use one of the following: {TYPES}")));
        }
    }
    Ok(())
}
