//! Decisions of made-up slot maps.

use super::*;
use crate::routing::Presence;
use kvick_config::words::EndpointType;
use kvick_store::Keyspace;
use kvick_store::hash::KeyHasher;

const MINE: u16 = 1;
const THEIRS: u16 = 2;
const LEAVING: u16 = 3;
const ARRIVING: u16 = 4;
const NOBODYS: u16 = 5;

const ALL_THERE: Option<Presence> = Some(Presence { missing: false, existing: true, several: true });
const NONE_THERE: Option<Presence> = Some(Presence { missing: true, existing: false, several: false });
const SOME_THERE: Option<Presence> = Some(Presence { missing: true, existing: true, several: true });

fn address(name: &str) -> NodeAddress {
    NodeAddress { ip: format!("10.0.0.{name}"), tcp_port: 6379, tls_port: 6380, ..NodeAddress::default() }
}

fn node(name: &str) -> RouteNode {
    RouteNode::new([b'a'; 40], address(name), EndpointType::Ip)
}

/// Node 0, which this node is, and node 1 own slots.
fn map() -> SlotMap {
    let mut map = SlotMap::unassigned();
    map.state = ClusterState::Ok;
    map.nodes = vec![node("0"), node("1"), node("2")];
    map.myself = 0;
    for (slot, owner) in [(MINE, 0), (LEAVING, 0), (THEIRS, 1), (ARRIVING, 1)] {
        map.set_owner(slot, owner);
    }
    map.migrating.insert(LEAVING, 1);
    map.importing.insert(ARRIVING, 1);
    map
}

/// The map as seen by a replica of node 0.
fn replica() -> SlotMap {
    SlotMap { myself: 2, primary: Some(0), ..map() }
}

#[track_caller]
fn check(map: &SlotMap, slot: u16, query: Query, expected: &str) {
    let decision = map.route(slot, &query);
    let text = decision.error(slot, Viewer::default()).unwrap_or_else(|| format!("{decision:?}"));
    assert_eq!(text, expected, "slot {slot}, {query:?}");
}

fn query() -> Query {
    Query::default()
}

#[test]
fn stable_slots_are_served_by_their_owner() {
    let writes = Query { writes: true, ..query() };
    for map in [map(), SlotMap { allow_reads_when_down: true, ..map() }] {
        check(&map, MINE, writes, "Serve");
        check(&map, THEIRS, writes, "MOVED 2 10.0.0.1:6379");
        check(&map, THEIRS, Query { asking: true, readonly: true, ..query() }, "MOVED 2 10.0.0.1:6379");
        check(&map, NOBODYS, writes, "CLUSTERDOWN Hash slot not served");
    }
    check(&map(), u16::MAX, writes, "CLUSTERDOWN Hash slot not served");
}

#[test]
fn clients_of_a_migrating_slot_are_asked_elsewhere_for_missing_keys() {
    let map = map();
    check(&map, LEAVING, query(), "CheckKeys");
    check(&map, LEAVING, Query { presence: ALL_THERE, ..query() }, "Serve");
    check(&map, LEAVING, Query { presence: NONE_THERE, ..query() }, "ASK 3 10.0.0.1:6379");
    let again = "TRYAGAIN Multiple keys request during rehashing of slot";
    check(&map, LEAVING, Query { presence: SOME_THERE, ..query() }, again);
    check(&map, LEAVING, Query { leaves_database: true, ..query() }, again);
    check(&map, LEAVING, Query { migrates: true, ..query() }, "Serve");
    check(&map, LEAVING, Query { shard_channels: true, ..query() }, "Serve");
}

#[test]
fn importing_slots_serve_clients_that_were_sent_here() {
    let map = map();
    check(&map, ARRIVING, query(), "MOVED 4 10.0.0.1:6379");
    let asking = Query { asking: true, ..query() };
    check(&map, ARRIVING, asking, "CheckKeys");
    check(&map, ARRIVING, Query { presence: NONE_THERE, ..asking }, "Serve");
    check(&map, ARRIVING, Query { presence: ALL_THERE, ..asking }, "Serve");
    let again = "TRYAGAIN Multiple keys request during rehashing of slot";
    check(&map, ARRIVING, Query { presence: SOME_THERE, ..asking }, again);
    check(&map, ARRIVING, Query { migrates: true, ..query() }, "Serve");
}

#[test]
fn replicas_serve_reads_of_clients_that_sent_readonly() {
    let map = replica();
    let moved = "MOVED 1 10.0.0.0:6379";
    check(&map, MINE, query(), moved);
    check(&map, MINE, Query { readonly: true, ..query() }, "Serve");
    check(&map, MINE, Query { readonly: true, writes: true, ..query() }, moved);
    check(&map, MINE, Query { shard_channels: true, ..query() }, "Serve");
    check(&map, THEIRS, Query { readonly: true, ..query() }, "MOVED 2 10.0.0.1:6379");
    check(&map, LEAVING, query(), "MOVED 3 10.0.0.0:6379");
    check(&map, LEAVING, Query { readonly: true, presence: NONE_THERE, ..query() }, "ASK 3 10.0.0.1:6379");
    check(&map, LEAVING, Query { readonly: true, migrates: true, presence: ALL_THERE, ..query() }, "Serve");
}

#[test]
fn requests_are_refused_while_the_cluster_is_down() {
    let down = SlotMap { state: ClusterState::Down(DownReason::Coverage), ..map() };
    let (text, writes) = ("CLUSTERDOWN The cluster is down", Query { writes: true, ..query() });
    for slot in [MINE, THEIRS, LEAVING, ARRIVING] {
        check(&down, slot, query(), text);
        check(&down, slot, Query { shard_channels: true, ..query() }, text);
    }
    check(&down, NOBODYS, query(), "CLUSTERDOWN Hash slot not served");
    let reads = SlotMap { allow_reads_when_down: true, allow_pubsubshard_when_down: true, ..down };
    check(&reads, MINE, query(), "Serve");
    check(&reads, THEIRS, query(), "MOVED 2 10.0.0.1:6379");
    check(&reads, MINE, writes, "CLUSTERDOWN The cluster is down and only accepts read commands");
    check(&reads, MINE, Query { shard_channels: true, ..query() }, "Serve");
}

#[test]
fn blocked_clients_stay_where_their_slot_is_served_or_imported() {
    let viewer = Viewer::default();
    let answer = |map: &SlotMap, slot, reads_here| map.route_blocked(slot, reads_here).error(slot, viewer);
    let moved = |text: &str| Some(format!("MOVED {text}:6379"));
    for slot in [MINE, LEAVING, ARRIVING] {
        assert_eq!(answer(&map(), slot, false), None);
    }
    assert_eq!(answer(&map(), THEIRS, true), moved("2 10.0.0.1"));
    assert_eq!(answer(&map(), NOBODYS, false).as_deref(), Some("CLUSTERDOWN Hash slot not served"));
    assert_eq!(answer(&replica(), MINE, false), moved("1 10.0.0.0"));
    assert_eq!(answer(&replica(), MINE, true), None);
    let down = SlotMap { state: ClusterState::Down(DownReason::Minority), allow_reads_when_down: true, ..map() };
    assert_eq!(answer(&down, MINE, true).as_deref(), Some("CLUSTERDOWN The cluster is down"));
}

#[test]
fn published_bits_are_the_slots_that_need_no_decision() {
    let keyspace = Keyspace::leak(1, 1, KeyHasher::random());
    let routing = Routing::default();
    let served = |routing: &Routing| (0..=SLOTS).filter(|slot| routing.serves(*slot)).collect::<Vec<_>>();
    assert_eq!((served(&routing), routing.generation()), (vec![], 0));
    let mut full = map();
    full.set_owner(SLOTS - 1, 0);
    routing.publish(full, &mut keyspace.lock_global());
    assert_eq!((served(&routing), routing.generation()), (vec![MINE, SLOTS - 1], 1));
    assert_eq!(routing.current().owner(THEIRS), 1);
    let previous = routing.publish(replica(), &mut keyspace.lock_global());
    assert_eq!((served(&routing), previous.owner(SLOTS - 1)), (vec![], 0));
    routing.publish(map(), &mut keyspace.lock_global());
    routing.publish(SlotMap { state: ClusterState::Down(DownReason::Starting), ..map() }, &mut keyspace.lock_global());
    assert_eq!(served(&routing), []);
}

#[test]
fn endpoints_depend_on_the_client_and_the_preferred_type() {
    let full = NodeAddress {
        hostname: "host".into(),
        client_ipv4: "1.1.1.1".into(),
        client_ipv6: "::1".into(),
        client_tcp_port: 1,
        client_tls_port: 2,
        ..address("9")
    };
    let all = |address: &NodeAddress, kind| {
        let node = RouteNode::new([b'a'; 40], address.clone(), kind);
        let viewers = [(false, false), (true, false), (false, true), (true, true)];
        viewers.map(|(tls, ipv6)| node.endpoint(Viewer { tls, ipv6 }).to_owned())
    };
    let plain = ["10.0.0.9:6379", "10.0.0.9:6380", "10.0.0.9:6379", "10.0.0.9:6380"];
    assert_eq!(all(&address("9"), EndpointType::Ip), plain);
    assert_eq!(all(&full, EndpointType::Ip), ["1.1.1.1:1", "1.1.1.1:2", "::1:1", "::1:2"]);
    assert_eq!(all(&full, EndpointType::Hostname), ["host:1", "host:2", "host:1", "host:2"]);
    assert_eq!(all(&address("9"), EndpointType::Hostname)[0], "?:6379");
    assert_eq!(all(&full, EndpointType::Unknown), [":1", ":2", ":1", ":2"]);
}

#[test]
fn slot_counters_add_up_and_are_reset() {
    let stats = slot_stats::SlotStats::default();
    let usage = slot_stats::SlotUsage { cpu_us: 1, bytes_in: 2, bytes_out: 3 };
    assert_eq!(stats.of(7), slot_stats::SlotUsage::default());
    for slot in [7, 7, 8, SLOTS] {
        stats.add(slot, usage);
    }
    assert_eq!(stats.of(7), slot_stats::SlotUsage { cpu_us: 2, bytes_in: 4, bytes_out: 6 });
    stats.reset(7);
    assert_eq!((stats.of(7), stats.of(8)), (slot_stats::SlotUsage::default(), usage));
    stats.reset_all();
    assert_eq!(stats.of(8), slot_stats::SlotUsage::default());
}
