//! Collecting all metrics while 100,000 clients are connected, without sockets.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use kvick_config::Values;
use kvick_config::tables::metrics::METRICS_CLIENTS_MAX;
use kvick_core::clients::ClientInfo;
use kvick_server::metrics::Collector;
use kvick_server::server::Server;
use std::sync::Arc;
use std::time::Duration;

const CLIENTS: usize = 100_000;

fn scrape(c: &mut Criterion) {
    kvick_runtime::clock::calibrate();
    let values = Values::defaults().expect("a current directory");
    let server = Server::leak(values, None, "bench".into(), kvick_server::commands::table());
    let collector = Collector::new(server).expect("few threads");
    for number in 0..CLIENTS {
        let peer = format!("10.0.{}.{}:{}", number >> 14 & 255, number >> 6 & 255, 1024 + number % 64);
        let id = server.clients.next_id();
        let client = ClientInfo::new(id, 0, number as i32, peer, "10.1.0.1:6379".into(), false, 0);
        client.names.lock().name = format!("client-{number}").into_bytes().into();
        server.clients.add(Arc::new(client));
    }
    let mut group = c.benchmark_group("scrape with 100,000 clients");
    group.sample_size(20);
    for shown in [0, 100, 10_000] {
        server.config.put(METRICS_CLIENTS_MAX, shown);
        eprintln!("metrics-clients-max {shown}: {} bytes", collector.page_within(Duration::ZERO).len());
        let id = BenchmarkId::new("metrics-clients-max", shown);
        group.bench_function(id, |b| b.iter(|| collector.page_within(Duration::ZERO)));
    }
    group.finish();
}

criterion_group!(benches, scrape);
criterion_main!(benches);
