//! The dispatch path: from a parsed request to its reply, without a socket.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvick_commands::table::Resolved;
use kvick_config::Values;
use kvick_engine::batch::ResolvedCommand;
use kvick_engine::engine::Engine;
use kvick_engine::session::Client;
use kvick_resp::{OwnedArgs, ReplyBuffer};
use kvick_server::server::Server;
use std::hint::black_box;

fn dispatch(c: &mut Criterion) {
    kvick_runtime::clock::calibrate();
    let values = Values::defaults().expect("a current directory");
    let server = Server::leak(values, None, "bench".into(), kvick_server::commands::table());
    let participant = server.keyspace.global_lock.join().expect("few threads");
    let mut engine =
        Engine::new(server, kvick_core::executor::Executor::Worker(0), server.stats[0].clone(), participant);
    let mut client = Client::detached();
    let mut out = ReplyBuffer::default();
    let mut group = c.benchmark_group("dispatch");
    group.throughput(Throughput::Elements(1));
    let lines =
        ["SET key:000000000001 abc", "GET key:000000000001", "INCR counter", "PING", "MGET key:000000000001 counter"];
    for line in lines {
        let owned = OwnedArgs::new(line.split(' '));
        group.bench_function(line, |b| {
            b.iter(|| {
                out.clear();
                let args = black_box(owned.args());
                let Resolved::Command(command) = server.catalogue.resolve(args) else { return };
                let hash = command.single_key.and_then(|at| args.get(at)).map(|key| server.keyspace.key(key).hash);
                engine.execute(&mut client, args, ResolvedCommand::For(command, hash), &mut out);
            })
        });
        assert!(!out.bytes.starts_with(b"-"), "{line} answered {}", String::from_utf8_lossy(&out.bytes));
    }
    group.finish();
}

criterion_group!(benches, dispatch);
criterion_main!(benches);
