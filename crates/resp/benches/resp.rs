//! The cost of parsing pipelined requests and of writing replies.

use std::fmt::Write;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvick_resp::{Args, Limits, Parsed, Parser, Reply, Version};

/// `count` requests with keys like `key:000000123456`, preceded by `command` and followed by `value`.
fn pipeline(count: usize, command: &str, value: Option<&str>) -> Vec<u8> {
    let mut text = String::new();
    for i in 0..count {
        let key = format!("key:{:012}", i * 7919 % 1_000_000);
        let args = [Some(command), Some(&key), value].into_iter().flatten();
        write!(text, "*{}\r\n", args.clone().count()).unwrap();
        args.for_each(|arg| write!(text, "${}\r\n{arg}\r\n", arg.len()).unwrap());
    }
    text.into_bytes()
}

fn parse(c: &mut Criterion) {
    let value = "x".repeat(100);
    let inputs = [
        ("set/16", 16, pipeline(16, "SET", Some("xxx"))),
        ("get/16", 16, pipeline(16, "GET", None)),
        ("get/1", 1, pipeline(1, "GET", None)),
        ("set_100_bytes/64", 64, pipeline(64, "SET", Some(&value))),
    ];
    let mut group = c.benchmark_group("parse");
    for (name, requests, input) in inputs {
        let (mut parser, mut spans, mut big) = (Parser::new(), Vec::new(), Vec::new());
        let limits = Limits::default();
        group.throughput(Throughput::Elements(requests));
        group.bench_function(name, |b| {
            b.iter(|| {
                let (mut pos, mut bytes) = (0, 0);
                let input = black_box(&input[..]);
                spans.clear();
                loop {
                    let first = spans.len();
                    if parser.parse(input, &mut pos, &mut spans, &mut big, &limits) != Parsed::Request {
                        break;
                    }
                    let args = Args::new(input, &spans[first..], &big);
                    bytes += args[0].len() + args[1].len();
                }
                bytes
            });
        });
    }
    group.finish();
}

fn reply(c: &mut Criterion) {
    let mut group = c.benchmark_group("reply");
    group.throughput(Throughput::Elements(64));
    let mut bench = |name: &str, write: &dyn Fn(&mut Reply<'_>, u64)| {
        let mut out = Vec::with_capacity(64 * 1024);
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                let mut reply = Reply::new(&mut out, Version::Resp2);
                (0..64).for_each(|i| write(&mut reply, black_box(i)));
                reply.position()
            });
        });
    };
    let value = "x".repeat(100);
    bench("ok", &|reply, _| reply.ok());
    bench("int", &|reply, i| reply.int(i as i64 * 7919));
    bench("bulk_3_bytes", &|reply, _| reply.bulk(black_box(b"xxx")));
    bench("bulk_100_bytes", &|reply, _| reply.bulk(black_box(value.as_bytes())));
    bench("bulk_int", &|reply, i| reply.bulk_int(i as i64 * 7919));
    bench("double_whole", &|reply, i| reply.double(i as f64 * 7919.0));
    bench("double", &|reply, i| reply.double(i as f64 * 0.1));
    group.finish();
}

criterion_group!(benches, parse, reply);
criterion_main!(benches);
