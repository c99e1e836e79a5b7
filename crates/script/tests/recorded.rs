//! Scripts and the replies that Valkey 9.1 gives to them.
//!
//! Each file in `recorded` holds scripts of one line, and under each, indented, its reply to a client of RESP2 and, if
//! that differs, to one of RESP3: as bytes, of which those that are not printable are escaped.

use kvick_resp::{Reply, Version};
use kvick_script::{Host, Identity, Kind, LogLevel, Propagation, Settings, Vm};

const DIGEST: &[u8; 40] = b"0123456789012345678901234567890123456789";

/// As much of a server as the scripts ask for.
struct Server;

impl Host for Server {
    fn call(&mut self, request: &[&[u8]], version: Version, out: &mut Vec<u8>) {
        let mut reply = Reply::new(out, version);
        match (request[0].to_ascii_lowercase().as_slice(), request.len()) {
            (b"echo", 2) => reply.bulk(request[1]),
            (b"ping", 1) => reply.simple("PONG"),
            (b"echo", _) => reply.error("ERR Wrong number of args calling command from script"),
            (b"multi" | b"subscribe" | b"auth" | b"eval", _) => {
                reply.error("ERR This Valkey command is not allowed from script");
            }
            _ => reply.error("ERR Unknown command called from script"),
        }
    }

    fn may_call(&mut self, request: &[&[u8]]) -> Option<bool> {
        (request[0] == b"echo").then_some(true)
    }

    fn log(&mut self, _: LogLevel, _: &[u8]) {}

    fn set_propagation(&mut self, _: Propagation) {}

    fn interrupted(&mut self) -> Option<String> {
        None
    }
}

/// Runs a script in a machine of its own and answers the bytes of its reply.
fn reply(script: &str, version: Version) -> String {
    let identity = Identity {
        server_name: "valkey".to_string(),
        version: "9.1.2".to_string(),
        redis_version: "7.2.4".to_string(),
    };
    let mut vm = Vm::new(Kind::Scripts, &identity, Settings::default()).unwrap();
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, version);
    let outcome = vm
        .compile_script(DIGEST, script.as_bytes())
        .and_then(|()| vm.run_script(DIGEST, std::iter::empty(), std::iter::empty(), &mut Server, &mut reply));
    if let Err(failure) = outcome {
        reply.error(failure.text());
    }
    escaped(&out)
}

fn escaped(bytes: &[u8]) -> String {
    let escape = |byte: &u8| match byte {
        b'\r' => "\\r".to_string(),
        b'\n' => "\\n".to_string(),
        b'\\' => "\\\\".to_string(),
        b' '..0x7f => char::from(*byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    bytes.iter().map(escape).collect()
}

/// Runs the scripts of a file.
fn check(recorded: &str) {
    let mut failures = Vec::new();
    let mut count = 0;
    for case in recorded.split("\n\n").skip(1) {
        let mut lines = case.lines();
        let script = lines.next().unwrap_or_default();
        let replies: Vec<&str> = lines.filter_map(|line| line.strip_prefix("  ")).collect();
        let [resp2, resp3] = match *replies {
            [both] => [both, both],
            [resp2, resp3] => [resp2, resp3],
            _ => panic!("{script}: no reply"),
        };
        for (version, expected) in [(Version::Resp2, resp2), (Version::Resp3, resp3)] {
            count += 1;
            let got = reply(script, version);
            if got != expected {
                failures.push(format!("{script}\n  recorded: {expected}\n  got:      {got}"));
                break;
            }
        }
    }
    assert!(count > 100, "the file was read");
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
}

macro_rules! recorded {
    ($($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                check(include_str!(concat!("recorded/", stringify!($name), ".txt")));
            }
        )*
    };
}

recorded!(api, bit, cjson, cmsgpack, conversion, language, math);

/// `struct` is a keyword.
#[test]
fn structs() {
    check(include_str!("recorded/struct.txt"));
}
