//! The cost of running a script; the overhead around the script itself should be small.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kvick_resp::{Reply, Version};
use kvick_script::{Host, Identity, Kind, LogLevel, Propagation, Settings, Vm};

const DIGEST: &[u8; 40] = b"0123456789012345678901234567890123456789";

/// Answers every command at once.
struct Prompt;

impl Host for Prompt {
    fn call(&mut self, request: &[&[u8]], version: Version, out: &mut Vec<u8>) {
        let mut reply = Reply::new(out, version);
        match request[0] {
            b"get" => reply.bulk(b"0123456789"),
            b"set" => reply.ok(),
            b"lrange" => {
                reply.array(100);
                (0..100).for_each(|_| reply.bulk(b"element"));
            }
            _ => reply.int(7),
        }
    }

    fn may_call(&mut self, _: &[&[u8]]) -> Option<bool> {
        Some(true)
    }

    fn log(&mut self, _: LogLevel, _: &[u8]) {}

    fn set_propagation(&mut self, _: Propagation) {}

    fn interrupted(&mut self) -> Option<String> {
        None
    }
}

fn machine() -> Vm {
    let identity = Identity {
        server_name: "valkey".to_string(),
        version: "9.1.2".to_string(),
        redis_version: "7.2.4".to_string(),
    };
    Vm::new(Kind::Scripts, &identity, Settings::default()).unwrap()
}

fn scripts(c: &mut Criterion) {
    let json = r#"{"id":12345,"name":"somebody","tags":["a","b","c"],"nested":{"x":1.5,"y":null}}"#;
    let cases = [
        ("nothing", "return 1"),
        ("get", "return redis.call('get', KEYS[1])"),
        ("set", "return redis.call('set', KEYS[1], ARGV[1])"),
        ("incr_number", "return redis.call('incrby', KEYS[1], 5)"),
        ("lrange_100", "return redis.call('lrange', KEYS[1], 0, -1)"),
        ("ten_gets", "for i = 1, 10 do redis.call('get', KEYS[1]) end return 1"),
        ("loop_1000", "local n = 0 for i = 1, 1000 do n = n + i end return n"),
        ("gsub", "return (ARGV[1]:gsub('%d+', '<%0>'))"),
        ("gmatch", "local n = 0 for word in ARGV[1]:gmatch('[%a_]+') do n = n + #word end return n"),
        ("match", "return ARGV[1]:match('\"name\":\"(.-)\"')"),
        ("json", "return cjson.encode(cjson.decode(ARGV[1]))"),
    ];
    let mut group = c.benchmark_group("script");
    for (name, script) in cases {
        let mut vm = machine();
        vm.compile_script(DIGEST, script.as_bytes()).unwrap();
        let mut out = Vec::new();
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                let keys = std::iter::once(&b"key:000000000001"[..]);
                let arguments = std::iter::once(black_box(json.as_bytes()));
                let mut reply = Reply::new(&mut out, Version::Resp2);
                vm.run_script(DIGEST, keys, arguments, &mut Prompt, &mut reply).unwrap();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, scripts);
criterion_main!(benches);
