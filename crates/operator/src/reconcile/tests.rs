//! Steps of small clusters.

use super::*;
use crate::backend::Member;
use crate::state::Peer;
use kvick_planner::Step as Planned;

const ALL: (u16, u16) = (0, 16383);

/// A node of a cluster: its number, its slots and its primary.
type Entry<'a> = (u16, &'a [(u16, u16)], Option<u16>);

/// What a node says that sees this cluster.
fn node(number: u16, shard: u32, cluster: &[Entry<'_>]) -> Node {
    let name = |number: u16| format!("id-{number}");
    let peer = |(id, slots, primary): &Entry<'_>| Peer {
        id: name(*id),
        host: "127.0.0.1".into(),
        port: 7000 + id,
        is_myself: *id == number,
        primary: primary.map(name),
        slots: slots.to_vec(),
        ..Peer::default()
    };
    let own = cluster.iter().find(|(id, ..)| *id == number).expect("the node itself");
    let facts = Facts {
        id: name(number),
        primary: own.2.map(name),
        is_synchronized: own.2.is_some(),
        offset: 1000,
        peers: cluster.iter().map(peer).collect(),
        is_up: true,
        ..Facts::default()
    };
    let member = Member {
        name: format!("node-{number}"),
        shard: ShardId(shard),
        host: "127.0.0.1".into(),
        port: 7000 + number,
        bus_port: 17000 + number,
        is_running: true,
        ..Member::default()
    };
    Node { member, facts: Some(facts) }
}

fn died(mut node: Node) -> Node {
    node.member.is_running = false;
    node.facts = None;
    node
}

fn state(at_s: u64, nodes: Vec<Node>) -> State {
    State { at: Duration::from_secs(at_s), nodes }
}

fn planned(action: Action) -> Plan {
    Plan { steps: vec![Planned { action, reason: "test".into() }], ..Plan::default() }
}

fn operations(state: &State, plan: &Plan, memory: &mut Memory) -> Vec<Operation> {
    step(state, plan, 0, memory).into_iter().map(|task| task.operation).collect()
}

#[test]
fn a_primary_without_a_replica_is_restarted_with_pauses() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], None)];
    let nodes = || vec![died(node(1, 1, &cluster)), node(2, 2, &cluster)];
    let mut memory = Memory::default();
    let restart = [Operation::Restart("node-1".into())];
    assert_eq!(operations(&state(10, nodes()), &Plan::default(), &mut memory), restart);
    assert_eq!(operations(&state(11, nodes()), &Plan::default(), &mut memory), []);
    assert_eq!(operations(&state(13, nodes()), &Plan::default(), &mut memory), restart);
}

#[test]
fn a_replica_takes_over_before_its_primary_restarts() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], Some(1))];
    let nodes = vec![died(node(1, 1, &cluster)), node(2, 1, &cluster)];
    let mut memory = Memory::default();
    let found = operations(&state(10, nodes), &Plan::default(), &mut memory);
    assert_eq!(found, [Operation::TakeOver("node-2".into())]);
    // Afterwards the old primary starts again, and is a replica.
    let cluster = [(1, &[][..], None), (2, &[ALL][..], None)];
    let nodes = vec![died(node(1, 1, &cluster)), node(2, 1, &cluster)];
    let found = operations(&state(11, nodes), &Plan::default(), &mut memory);
    assert_eq!(found, [Operation::Restart("node-1".into())]);
    let nodes = vec![node(1, 1, &cluster), node(2, 1, &cluster)];
    let found = operations(&state(20, nodes), &Plan::default(), &mut memory);
    assert_eq!(found, [Operation::Replicate("node-1".into(), "id-2".into())]);
}

#[test]
fn a_replica_that_ends_again_and_again_is_replaced() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], Some(1))];
    let nodes = || vec![node(1, 1, &cluster), died(node(2, 1, &cluster))];
    let mut memory = Memory::default();
    for attempt in 0..5 {
        let found = operations(&state(10 + 2 * attempt, nodes()), &Plan::default(), &mut memory);
        assert_eq!(found, [Operation::Restart("node-2".into())]);
    }
    let found = operations(&state(20, nodes()), &Plan::default(), &mut memory);
    assert_eq!(found, [Operation::Remove("node-2".into())]);
}

#[test]
fn new_nodes_join_and_removed_ones_are_forgotten() {
    let cluster = [(1, &[ALL][..], None), (9, &[][..], None)];
    let alone = [(2, &[][..], None)];
    let nodes = vec![node(1, 1, &cluster), node(2, 2, &alone)];
    let found = operations(&state(10, nodes), &Plan::default(), &mut Memory::default());
    let expected =
        [Operation::Meet("node-1".into(), "node-2".into()), Operation::Forget("node-1".into(), "id-9".into())];
    assert_eq!(found, expected);
}

#[test]
fn a_shard_is_removed_only_without_slots_and_keys() {
    let stop = planned(Action::Stop { shard: ShardId(2) });
    let cluster = [(1, &[ALL][..], None), (2, &[][..], None)];
    let mut last = node(2, 2, &cluster);
    last.facts.as_mut().expect("facts").keys = 1;
    let nodes = vec![node(1, 1, &cluster), last];
    assert_eq!(operations(&state(10, nodes), &stop, &mut Memory::default()), []);
    let nodes = vec![node(1, 1, &cluster), node(2, 2, &cluster)];
    let found = operations(&state(10, nodes), &stop, &mut Memory::default());
    let expected = [Operation::Forget("node-1".into(), "id-2".into()), Operation::Remove("node-2".into())];
    assert_eq!(found, expected);
    let cluster = [(1, &[(0, 100)][..], None), (2, &[(101, 16383)][..], None)];
    let nodes = vec![node(1, 1, &cluster), node(2, 2, &cluster)];
    assert_eq!(operations(&state(10, nodes), &stop, &mut Memory::default()), []);
}

#[test]
fn slots_are_assigned_only_if_they_stay_without_an_owner() {
    let assign = planned(Action::Assign { shard: ShardId(1), slots: vec![5, 6, 9] });
    let cluster = [(1, &[][..], None)];
    let mut memory = Memory::default();
    assert_eq!(operations(&state(10, vec![node(1, 1, &cluster)]), &assign, &mut memory), []);
    let found = operations(&state(11, vec![node(1, 1, &cluster)]), &assign, &mut memory);
    assert_eq!(found, [Operation::AddSlots("node-1".into(), vec![(5, 6), (9, 9)])]);
}

#[test]
fn a_new_shard_takes_slots_only_once_it_knows_their_owners() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], None)];
    let half = [(1, &[(0, 100)][..], None), (2, &[][..], None)];
    for (view, phase) in [(&half, kvick_planner::Phase::Starting), (&cluster, kvick_planner::Phase::Serving)] {
        let observation = state(10, vec![node(1, 1, &cluster), node(2, 2, view)]).observation(1);
        assert_eq!(observation.shard(ShardId(2)).expect("the shard").phase, phase);
        assert_eq!(observation.shard(ShardId(1)).expect("the shard").phase, kvick_planner::Phase::Serving);
    }
}

#[test]
fn a_new_shard_takes_slots_only_once_it_would_serve_them() {
    let phase = |cluster: &[Entry<'_>]| {
        let mut new = node(2, 2, cluster);
        new.facts.as_mut().expect("facts").is_up = false;
        state(10, vec![node(1, 1, cluster), new]).observation(1).shard(ShardId(2)).expect("the shard").phase
    };
    assert_eq!(phase(&[(1, &[ALL][..], None), (2, &[][..], None)]), kvick_planner::Phase::Starting);
    // Slots without an owner have to get one.
    assert_eq!(phase(&[(1, &[(0, 100)][..], None), (2, &[][..], None)]), kvick_planner::Phase::Serving);
    assert_eq!(phase(&[(1, &[][..], None), (2, &[][..], None)]), kvick_planner::Phase::Serving);
}

#[test]
fn shards_that_are_removed_together_are_not_asked_to_forget_each_other() {
    let stop = |shard| Planned { action: Action::Stop { shard: ShardId(shard) }, reason: "test".into() };
    let plan = Plan { steps: vec![stop(2), stop(3)], ..Plan::default() };
    let cluster = [(1, &[ALL][..], None), (2, &[][..], None), (3, &[][..], None)];
    let nodes = vec![node(1, 1, &cluster), node(2, 2, &cluster), node(3, 3, &cluster)];
    let found = operations(&state(10, nodes), &plan, &mut Memory::default());
    let forget = |node: &str, id: &str| Operation::Forget(node.into(), id.into());
    let remove = |node: &str| Operation::Remove(node.into());
    let first = [forget("node-1", "id-2"), forget("node-3", "id-2"), remove("node-2")];
    assert_eq!(found, [&first[..], &[forget("node-1", "id-3"), remove("node-3")]].concat());
}

#[test]
fn a_shard_that_is_down_can_neither_give_nor_take_slots() {
    let cluster = [(1, &[(0, 100)][..], None), (2, &[(101, 16383)][..], None)];
    let nodes = vec![node(1, 1, &cluster), died(node(2, 2, &cluster))];
    let state = state(10, nodes);
    let observation = state.observation(1);
    let shard = observation.shard(ShardId(2)).expect("the shard");
    assert_eq!(shard.phase, kvick_planner::Phase::Starting);
    assert_eq!(observation.slots[200].owner, Some(ShardId(2)));
    let action = Action::Move { from: ShardId(1), to: ShardId(2), slots: vec![1], bytes: 0 };
    let found = operations(&state, &planned(action), &mut Memory::default());
    assert_eq!(found, [Operation::Restart("node-2".into())]);
}

fn outdated(mut node: Node) -> Node {
    node.member.is_outdated = true;
    node
}

#[test]
fn an_upgrade_replaces_replicas_first_and_one_at_a_time() {
    let cluster =
        [(1, &[(0, 100)][..], None), (2, &[][..], Some(1)), (3, &[(101, 16383)][..], None), (4, &[][..], Some(3))];
    let nodes = || vec![node(1, 1, &cluster), node(2, 1, &cluster), node(3, 2, &cluster), node(4, 2, &cluster)];
    let found = |nodes: Vec<Node>| operations(&state(10, nodes), &Plan::default(), &mut Memory::default());
    let all = || nodes().into_iter().map(outdated).collect::<Vec<_>>();
    assert_eq!(found(all()), [Operation::Replace("node-2".into())]);
    // The pod of node-2 is ending, or has not answered yet: nothing else is touched.
    let mut ending = all();
    ending[1].member.is_ending = true;
    assert_eq!(found(ending), []);
    let mut starting = all();
    starting[1] = Node { facts: None, ..node(2, 1, &cluster) };
    assert_eq!(found(starting), []);
    let mut next = all();
    next[1] = node(2, 1, &cluster);
    assert_eq!(found(next), [Operation::Replace("node-4".into())]);
}

#[test]
fn a_primary_is_never_replaced_before_its_replica_has_synchronized() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], Some(1))];
    let mut memory = Memory::default();
    let mut found = |at_s, change: &dyn Fn(&mut Node, &mut Node)| {
        let (mut primary, mut replica) = (outdated(node(1, 1, &cluster)), node(2, 1, &cluster));
        change(&mut primary, &mut replica);
        operations(&state(at_s, vec![primary, replica]), &Plan::default(), &mut memory)
    };
    let facts = |node: &mut Node| node.facts.take().expect("facts");
    // Its link is down, or it is still far behind.
    let nothing: [Operation; 0] = [];
    let unsynchronized =
        |_: &mut Node, replica: &mut Node| replica.facts = Some(Facts { is_synchronized: false, ..facts(replica) });
    assert_eq!(found(10, &unsynchronized), nothing);
    let behind = |primary: &mut Node, _: &mut Node| primary.facts = Some(Facts { offset: 9 << 20, ..facts(primary) });
    assert_eq!(found(20, &behind), nothing);
    // The primary is not replaced either when everything is fine: it hands over, once.
    assert_eq!(found(30, &|_, _| ()), [Operation::Failover("node-2".into())]);
    assert_eq!(found(32, &|_, _| ()), nothing);
    // Afterwards it is a replica.
    let cluster = [(1, &[][..], Some(2)), (2, &[ALL][..], None)];
    let nodes = vec![outdated(node(1, 1, &cluster)), node(2, 1, &cluster)];
    let found = operations(&state(33, nodes), &Plan::default(), &mut memory);
    assert_eq!(found, [Operation::Replace("node-1".into())]);
}

#[test]
fn a_primary_whose_data_would_be_lost_is_not_replaced() {
    let cluster = [(1, &[ALL][..], None)];
    let mut only = outdated(node(1, 1, &cluster));
    only.member.restarts_empty = true;
    assert_eq!(operations(&state(10, vec![only.clone()]), &Plan::default(), &mut Memory::default()), []);
    only.member.restarts_empty = false;
    let found = operations(&state(10, vec![only]), &Plan::default(), &mut Memory::default());
    assert_eq!(found, [Operation::Replace("node-1".into())]);
}

#[test]
fn an_upgrade_waits_until_nothing_else_is_under_way() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], None)];
    let nodes = || vec![outdated(node(1, 1, &cluster)), node(2, 2, &cluster)];
    let mut moving = nodes();
    moving[0].facts.as_mut().expect("facts").exports =
        vec![crate::state::Export { to: "id-2".into(), slots: vec![1], state: "snapshotting".into(), left_bytes: 0 }];
    assert_eq!(operations(&state(10, moving), &Plan::default(), &mut Memory::default()), []);
    let found = operations(&state(10, nodes()), &Plan::default(), &mut Memory::default());
    assert_eq!(found, [Operation::Replace("node-1".into())]);
}

#[test]
fn a_replica_without_data_does_not_take_over() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], Some(1))];
    let mut empty = node(2, 1, &cluster);
    empty.facts.as_mut().expect("facts").offset = 0;
    let nodes = vec![died(node(1, 1, &cluster)), empty];
    let found = operations(&state(10, nodes), &Plan::default(), &mut Memory::default());
    assert_eq!(found, [Operation::Restart("node-1".into())]);
}

#[test]
fn a_pod_that_restarts_itself_is_left_alone_but_its_replica_takes_over() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], Some(1))];
    let mut crashed = died(node(1, 1, &cluster));
    crashed.member.restarts_itself = true;
    let nodes = vec![crashed.clone(), node(2, 1, &cluster)];
    let found = operations(&state(10, nodes), &Plan::default(), &mut Memory::default());
    assert_eq!(found, [Operation::TakeOver("node-2".into())]);
    let alone = operations(&state(10, vec![crashed]), &Plan::default(), &mut Memory::default());
    assert_eq!(alone, []);
}

#[test]
fn nodes_that_have_all_moved_meet_again_at_their_new_addresses() {
    let cluster = [(1, &[(0, 100)][..], None), (2, &[(101, 16383)][..], None)];
    let moved = |mut node: Node, host: &str| {
        node.member.hostname = format!("{}.example", node.member.name);
        node.member.host = host.into();
        node
    };
    let nodes = vec![moved(node(1, 1, &cluster), "127.0.0.8"), moved(node(2, 2, &cluster), "127.0.0.9")];
    let found = operations(&state(10, nodes), &Plan::default(), &mut Memory::default());
    let meet = |node: &str, other: &str| Operation::Meet(node.into(), other.into());
    assert_eq!(found, [meet("node-1", "node-2"), meet("node-2", "node-1")]);
}

#[test]
fn a_node_that_is_away_is_known_by_its_host_name_and_not_forgotten() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], None), (3, &[][..], None)];
    let named = |number: u16, mut node: Node| {
        node.member.hostname = format!("host-{number}");
        for peer in node.facts.iter_mut().flat_map(|facts| &mut facts.peers) {
            // Only one of the two knows the host name.
            if number == 2 {
                peer.hostname = format!("host-{}", peer.port - 7000);
            }
        }
        node
    };
    let mut away = died(named(3, node(3, 3, &cluster)));
    away.member.host.clear();
    let nodes = vec![named(1, node(1, 1, &cluster)), named(2, node(2, 2, &cluster)), away];
    let found = operations(&state(10, nodes), &Plan::default(), &mut Memory::default());
    assert_eq!(found, [Operation::Restart("node-3".into())]);
}

#[test]
fn forget_lasts_because_every_node_that_knows_a_removed_one_is_asked_each_time() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], None), (9, &[][..], None)];
    let nodes = |cluster: &[Entry<'_>]| vec![node(1, 1, cluster), node(2, 2, cluster)];
    let forget = |node: &str| Operation::Forget(node.into(), "id-9".into());
    let mut memory = Memory::default();
    let found = operations(&state(10, nodes(&cluster)), &Plan::default(), &mut memory);
    assert_eq!(found, [forget("node-1"), forget("node-2")]);
    // Gossip of a node that was away has brought it back to one of them.
    let mut again = nodes(&cluster[..2]);
    again[1] = node(2, 2, &cluster);
    let found = operations(&state(100, again), &Plan::default(), &mut memory);
    assert_eq!(found, [forget("node-2")]);
}

#[test]
fn slots_of_a_node_that_lost_its_data_go_to_its_replica_or_are_empty() {
    // Node 1 has come back with another ID, so `id-8` does not exist any more.
    let cluster = [(8, &[ALL][..], None), (1, &[][..], None), (2, &[][..], Some(8))];
    let nodes = vec![node(1, 1, &cluster), node(2, 1, &cluster)];
    let found = operations(&state(10, nodes), &Plan::default(), &mut Memory::default());
    assert!(found.contains(&Operation::TakeOver("node-2".into())), "{found:?}");
    assert!(!found.iter().any(|operation| matches!(operation, Operation::Forget(..))), "{found:?}");
    let cluster = [(8, &[ALL][..], None), (1, &[][..], None)];
    let assign = planned(Action::Assign { shard: ShardId(1), slots: (0..16384).collect() });
    let mut memory = Memory::default();
    for at_s in [10, 13] {
        let found = operations(&state(at_s, vec![node(1, 1, &cluster)]), &assign, &mut memory);
        assert_eq!(found, [Operation::Forget("node-1".into(), "id-8".into())]);
    }
    // While another node does not answer, it may be that one.
    let nodes = vec![node(1, 1, &cluster), died(node(8, 2, &[(8, &[ALL][..], None)]))];
    let found = operations(&state(20, nodes), &Plan::default(), &mut Memory::default());
    assert_eq!(found, [Operation::Restart("node-8".into())]);
}

#[test]
fn a_replica_takes_over_from_a_lost_machine_once_it_does_not_hear_from_it() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], Some(1))];
    let lost = Member { is_lost: true, ..node(1, 1, &cluster).member };
    let nodes = |is_synchronized| {
        let mut replica = node(2, 1, &cluster);
        replica.facts.as_mut().expect("facts").is_synchronized = is_synchronized;
        vec![Node { member: lost.clone(), facts: None }, replica]
    };
    let mut memory = Memory::default();
    assert_eq!(operations(&state(10, nodes(true)), &Plan::default(), &mut memory), []);
    let found = operations(&state(11, nodes(false)), &Plan::default(), &mut memory);
    assert_eq!(found, [Operation::TakeOver("node-2".into())]);
    // A machine that is not heard of, but whose node answers, is not lost.
    let answers = vec![Node { member: lost, ..node(1, 1, &cluster) }, node(2, 1, &cluster)];
    assert_eq!(operations(&state(20, answers), &Plan::default(), &mut memory), []);
}

#[test]
fn no_replica_takes_over_from_a_lost_machine_while_another_one_hears_from_it() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], Some(1)), (3, &[][..], Some(1))];
    let lost = Member { is_lost: true, ..node(1, 1, &cluster).member };
    let nodes = |is_synchronized: [bool; 2]| {
        let mut nodes = vec![Node { member: lost.clone(), facts: None }, node(2, 1, &cluster), node(3, 1, &cluster)];
        for (node, is_synchronized) in nodes[1..].iter_mut().zip(is_synchronized) {
            node.facts.as_mut().expect("facts").is_synchronized = is_synchronized;
        }
        nodes[2].facts.as_mut().expect("facts").offset = 2000;
        nodes
    };
    let mut memory = Memory::default();
    for heard in [[true, true], [true, false], [false, true]] {
        assert_eq!(operations(&state(10, nodes(heard)), &Plan::default(), &mut memory), [], "{heard:?}");
    }
    let found = operations(&state(11, nodes([false, false])), &Plan::default(), &mut memory);
    assert_eq!(found, [Operation::TakeOver("node-3".into())], "the one with more data");
}

#[test]
fn a_takeover_waits_ten_seconds_for_replicas_that_run_but_do_not_answer() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], Some(1)), (3, &[][..], Some(1))];
    let silent = Node { facts: None, ..node(3, 1, &cluster) };
    let nodes = |third: Node| vec![died(node(1, 1, &cluster)), node(2, 1, &cluster), third];
    let take_over = |name: &str| [Operation::TakeOver(name.into())];
    let mut memory = Memory::default();
    let mut found = |at_s, third: Node| operations(&state(at_s, nodes(third)), &Plan::default(), &mut memory);
    let nothing: [Operation; 0] = [];
    assert_eq!(found(10, silent.clone()), nothing);
    assert_eq!(found(19, silent.clone()), nothing);
    assert_eq!(found(20, silent.clone()), take_over("node-2"));
    // Its answer ends the wait.
    let mut ahead = node(3, 1, &cluster);
    ahead.facts.as_mut().expect("facts").offset = 2000;
    memory = Memory::default();
    let mut found = |at_s, third: Node| operations(&state(at_s, nodes(third)), &Plan::default(), &mut memory);
    assert_eq!(found(30, silent.clone()), nothing);
    assert_eq!(found(31, ahead), take_over("node-3"));
    // A replica that has ended, is ending, or is on a lost machine too is not waited for.
    let away: [&dyn Fn(&mut Member); 3] =
        [&|member| member.is_running = false, &|member| member.is_ending = true, &|member| member.is_lost = true];
    for change in away {
        let mut third = silent.clone();
        change(&mut third.member);
        let found = operations(&state(40, nodes(third)), &Plan::default(), &mut Memory::default());
        assert!(found.contains(&take_over("node-2")[0]), "{found:?}");
    }
}

#[test]
fn a_second_failure_of_a_primary_has_a_wait_of_its_own() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], Some(1)), (3, &[][..], Some(1))];
    let silent = Node { facts: None, ..node(3, 1, &cluster) };
    let mut memory = Memory::default();
    let mut found = |at_s, first: Node, third: Node| {
        operations(&state(at_s, vec![first, node(2, 1, &cluster), third]), &Plan::default(), &mut memory)
    };
    assert_eq!(found(10, died(node(1, 1, &cluster)), silent.clone()), []);
    assert_eq!(found(15, node(1, 1, &cluster), node(3, 1, &cluster)), []);
    assert_eq!(found(22, died(node(1, 1, &cluster)), silent), [], "not since the first time");
}

#[test]
fn spares_are_started_taken_first_and_replaced() {
    let cluster = [(1, &[ALL][..], None), (2, &[][..], None)];
    let spare = |mut node: Node| {
        node.member.is_spare = true;
        node
    };
    let mut memory = Memory::default();
    let mut steps = |nodes: Vec<Node>, plan: &Plan, spares| {
        let tasks = step(&state(10, nodes), plan, spares, &mut memory);
        tasks.into_iter().map(|task| task.operation).collect::<Vec<_>>()
    };
    let alone = [(1, &[ALL][..], None)];
    assert_eq!(steps(vec![node(1, 1, &alone)], &Plan::default(), 1), [Operation::StartSpare]);
    let nodes = || vec![node(1, 1, &cluster), spare(node(2, 2, &cluster))];
    assert_eq!(state(10, nodes()).shards().len(), 1);
    assert_eq!(steps(nodes(), &Plan::default(), 1), []);
    let grow = planned(Action::Start { shards: 2 });
    let expected = [Operation::UseSpare("node-2".into()), Operation::StartShard, Operation::StartSpare];
    assert_eq!(steps(nodes(), &grow, 1), expected);
    assert_eq!(steps(nodes(), &Plan::default(), 0), [Operation::Remove("node-2".into())]);
    // A spare that does not answer is of no use yet.
    let silent = vec![node(1, 1, &cluster), Node { facts: None, ..spare(node(2, 2, &cluster)) }];
    assert_eq!(steps(silent, &planned(Action::Start { shards: 1 }), 1), [Operation::StartShard]);
}
