//! The number of time series does not depend on the number of clients. The clients here have no sockets.

use kvick_config::Values;
use kvick_config::tables::metrics::METRICS_CLIENTS_MAX;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_server::metrics::Collector;
use kvick_server::server::Server;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const CLIENTS: usize = 100_000;
const SHOWN: usize = 100;
const METRICS_OF_CLIENTS: usize = 13;

/// Adds clients up to this number. Each differs from all others in whatever a client can choose.
fn connect(server: &Server, count: usize) {
    for number in server.clients.count()..count {
        let peer = format!("10.0.{}.{}:{}", number >> 8 & 255, number & 255, 1024 + number);
        let id = server.clients.next_id();
        let client = ClientInfo::new(id, 0, number as i32, peer, "10.1.0.1:6379".into(), false, number as i64);
        let mut names = client.names.lock();
        names.name = format!("client-{number}").into_bytes().into();
        names.user = format!("user-{number}").into_bytes().into();
        names.lib_name = format!("library-{number}").into_bytes().into();
        names.lib_ver = format!("version-{number}").into_bytes().into();
        drop(names);
        client.set_flags(ClientFlags::from_bits_truncate(1 << (number % 30)) - ClientFlags::BLOCKED, true);
        client.db.store(number, Ordering::Relaxed);
        client.protocol.store(number as u8, Ordering::Relaxed);
        client.command.store(number as u32, Ordering::Relaxed);
        client.worker.store(number, Ordering::Relaxed);
        server.clients.add(Arc::new(client));
    }
}

/// The time series of a page: names with labels.
fn series(collector: &Collector) -> BTreeSet<String> {
    let page = collector.page_within(Duration::ZERO);
    let lines = std::str::from_utf8(&page).expect("text").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').expect("a value").0.to_owned()).collect()
}

/// How many values the label with the most values has, by metric.
fn label_values(series: &BTreeSet<String>) -> BTreeMap<&str, usize> {
    let mut values: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for (name, labels) in series.iter().filter_map(|line| line.strip_suffix("\"}")?.split_once('{')) {
        for (label, value) in labels.split("\",").filter_map(|label| label.split_once("=\"")) {
            values.entry((name, label)).or_default().insert(value);
        }
    }
    let mut most = BTreeMap::new();
    for ((name, _), values) in values {
        let count = most.entry(name).or_insert(0);
        *count = values.len().max(*count);
    }
    most
}

#[test]
fn a_hundred_thousand_clients_have_as_many_time_series_as_a_hundred() {
    let values = Values::defaults().expect("a current directory");
    let server = Server::leak(values, None, "test".into(), kvick_server::commands::table());
    let collector = Collector::new(server).expect("few threads");
    let none = series(&collector);
    connect(server, SHOWN);
    assert_eq!(series(&collector), none, "by default, clients have no time series of their own");
    server.config.put(METRICS_CLIENTS_MAX, SHOWN as u32);
    let few = series(&collector);
    assert_eq!(few.len(), none.len() + SHOWN * METRICS_OF_CLIENTS);

    connect(server, CLIENTS);
    let many = series(&collector);
    assert_eq!(many, few);
    for (name, values) in label_values(&many) {
        let is_of_clients = name.starts_with("redis_connected_client_");
        assert!(if is_of_clients { values == SHOWN } else { values < SHOWN }, "{name} has {values} values of a label");
    }
    server.config.put(METRICS_CLIENTS_MAX, 0);
    assert_eq!(series(&collector), none);
}
