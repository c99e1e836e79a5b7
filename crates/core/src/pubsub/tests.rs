//! Tests of publish and subscribe.

use super::*;
use kvick_resp::Version;

/// Messages put into inboxes, with their workers.
type Sent = Vec<(usize, Arc<Publication>)>;

fn at(worker: usize, token: usize) -> Place {
    Place { worker, token }
}

/// Publishes a message and appends the deliveries to `sent`; returns the number of receivers, and the workers.
fn publish(pubsub: &PubSub, sent: &mut Sent, address: Address, channel: &str, payload: &str) -> (usize, Vec<usize>) {
    let before = sent.len();
    let put = |worker, message| sent.push((worker, message));
    let receivers = pubsub.publish(address, channel.as_bytes(), payload.as_bytes(), put);
    let mut workers: Vec<usize> = sent[before..].iter().map(|(worker, _)| *worker).collect();
    workers.sort_unstable();
    (receivers, workers)
}

/// What the connections of a worker receive of the sent messages: tokens and bytes.
fn received(pubsub: &PubSub, sent: &Sent, worker: usize) -> Vec<(usize, String)> {
    let (subscribers, mut received) = (pubsub.subscribers(worker), Vec::new());
    for (_, message) in sent.iter().filter(|(to, _)| *to == worker) {
        for audience in message.audiences() {
            let mut bytes = Vec::new();
            message.write(audience, Version::Resp2, &mut bytes);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let receivers = subscribers.of(audience, 0..usize::MAX).filter(|(_, stamp)| *stamp < message.horizon);
            received.extend(receivers.map(|(token, _)| (token, text.clone())));
        }
    }
    received
}

#[test]
fn message_is_put_once_per_worker_with_subscribers() {
    let pubsub = PubSub::new(3);
    let mut clients: Vec<_> = (0..4).map(|_| Subscriptions::default()).collect();
    pubsub.subscribe(Kind::Channel, b"c", at(0, 10), &mut clients[0]);
    pubsub.subscribe(Kind::Pattern, b"c*", at(0, 11), &mut clients[1]);
    pubsub.subscribe(Kind::Channel, b"c", at(2, 10), &mut clients[2]);
    pubsub.subscribe(Kind::Shard, b"c", at(1, 10), &mut clients[3]);
    let mut sent = Sent::new();
    assert_eq!(publish(&pubsub, &mut sent, Address::Channel, "c", "1"), (3, vec![0, 2]));
    assert_eq!(publish(&pubsub, &mut sent, Address::Channel, "c", "2"), (3, vec![0, 2]));
    assert_eq!(publish(&pubsub, &mut sent, Address::Channel, "cc", "3"), (1, vec![0]));
    assert_eq!(publish(&pubsub, &mut sent, Address::Shard, "c", "4"), (1, vec![1]));
    assert_eq!(publish(&pubsub, &mut sent, Address::Shard, "cc", "5"), (0, vec![]));
    let message = |n| format!("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n{n}\r\n");
    let matched = |channel: &str, n| {
        format!("*4\r\n$8\r\npmessage\r\n$2\r\nc*\r\n${}\r\n{channel}\r\n$1\r\n{n}\r\n", channel.len())
    };
    let expected =
        [(10, message(1)), (11, matched("c", 1)), (10, message(2)), (11, matched("c", 2)), (11, matched("cc", 3))];
    assert_eq!(received(&pubsub, &sent, 0), expected);
    assert_eq!(received(&pubsub, &sent, 1), [(10, "*3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\n4\r\n".to_owned())]);
    assert_eq!(received(&pubsub, &sent, 2), [(10, message(1)), (10, message(2))]);
}

#[test]
fn only_earlier_subscriptions_receive_a_message() {
    let (pubsub, mut sent) = (PubSub::new(1), Sent::new());
    let (mut early, mut late) = (Subscriptions::default(), Subscriptions::default());
    pubsub.subscribe(Kind::Channel, b"c", at(0, 1), &mut early);
    assert_eq!(publish(&pubsub, &mut sent, Address::Channel, "c", "1").0, 1);
    pubsub.subscribe(Kind::Channel, b"c", at(0, 2), &mut late);
    assert_eq!(publish(&pubsub, &mut sent, Address::Channel, "c", "2").0, 2);
    pubsub.unsubscribe(Kind::Channel, b"c", at(0, 1), &mut early);
    pubsub.subscribe(Kind::Channel, b"c", at(0, 1), &mut early);
    let tokens: Vec<usize> = received(&pubsub, &sent, 0).into_iter().map(|(token, _)| token).collect();
    assert_eq!(tokens, [2], "who left and came back has missed what was published before");
}

#[test]
fn name_is_removed_with_its_last_subscriber() {
    let pubsub = PubSub::new(2);
    let (mut one, mut other) = (Subscriptions::default(), Subscriptions::default());
    for (kind, name) in [(Kind::Channel, "a"), (Kind::Channel, "b"), (Kind::Pattern, "a"), (Kind::Shard, "a")] {
        pubsub.subscribe(kind, name.as_bytes(), at(0, 1), &mut one);
        pubsub.subscribe(kind, name.as_bytes(), at(0, 1), &mut one);
    }
    pubsub.subscribe(Kind::Channel, b"a", at(1, 1), &mut other);
    let sizes = || [Kind::Channel, Kind::Pattern, Kind::Shard].map(|kind| pubsub.directory().size(kind));
    assert_eq!((sizes(), one.total_with(Kind::Channel), one.total_with(Kind::Shard)), ([2, 1, 1], 3, 1));
    assert_eq!(pubsub.directory().count(Kind::Channel, b"a"), 2);
    assert_eq!(one.names(Kind::Channel).iter().map(|name| &**name).collect::<Vec<_>>(), [b"a", b"b"]);
    pubsub.unsubscribe_all(at(0, 1), &mut one);
    assert!(one.is_empty());
    assert_eq!(sizes(), [1, 0, 0]);
    assert_eq!(publish(&pubsub, &mut Sent::new(), Address::Channel, "a", "1"), (1, vec![1]));
    pubsub.unsubscribe(Kind::Channel, b"nothing", at(1, 1), &mut other);
    pubsub.unsubscribe(Kind::Channel, b"a", at(1, 1), &mut other);
    assert!(sizes() == [0; 3] && !pubsub.directory().has_listeners());
}
