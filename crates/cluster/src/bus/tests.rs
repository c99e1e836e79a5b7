//! The codec against messages that Valkey sent, and against arbitrary ones.

use super::frame::{EXTENSIONS_BYTES_MAX, PUBLISH_BYTES_MAX};
use super::*;
use crate::{NodeFlags, NodeId, SLOT_COUNT, Slots};
use proptest::prelude::*;

macro_rules! frame {
    ($name:literal) => {
        include_bytes!(concat!("../../tests/frames/", $name, ".bin")).as_slice()
    };
}

/// Messages of all types as Valkey sent them. `tests/frames/README.md` says how.
const FRAMES: [&[u8]; 12] = [
    frame!("meet"),
    frame!("ping"),
    frame!("pong"),
    frame!("pong-8.1"),
    frame!("fail"),
    frame!("failover-auth-request"),
    frame!("failover-auth-ack"),
    frame!("update"),
    frame!("mfstart"),
    frame!("publish"),
    frame!("publishshard"),
    frame!("module"),
];

fn id(text: &str) -> NodeId {
    text.parse().expect("a name")
}

fn full(frame: &[u8]) -> (Header<'_>, Body<'_>) {
    match Message::decode(frame).expect("a message") {
        Message::Full { header, body } => (header, body),
        Message::Light(_) => panic!("a light header"),
    }
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out).expect("a message that fits");
    out
}

#[test]
fn messages_of_valkey_are_written_as_they_were_read() {
    for frame in FRAMES {
        assert_eq!(split_frame(frame), Ok(Frame::Complete(frame)));
        let message = Message::decode(frame).expect("a message");
        assert!(encoded(&message) == frame, "{message:?}");
    }
}

#[test]
fn the_header_describes_the_sender() {
    let (header, body) = full(frame!("ping"));
    assert_eq!(body.message_type(), Some(MessageType::Ping));
    assert_eq!(header.sender, id("54864db64b3375163477bee318b41a3aac841ce6"));
    assert_eq!((header.port, header.secondary_port, header.bus_port), (24200, 0, 24202));
    assert_eq!((header.current_epoch, header.config_epoch), (4, 1));
    assert_eq!(header.slots.ranges().collect::<Vec<_>>(), [0..=5460]);
    assert_eq!((header.primary, header.ip, header.state), (None, "", ClusterState::Ok));
    let understands = NodeFlags::EXTENSIONS | NodeFlags::LIGHT_PUBLISH | NodeFlags::LIGHT_MODULE;
    assert_eq!(header.flags, NodeFlags::MYSELF | NodeFlags::PRIMARY | NodeFlags::MIGRATE_TO | understands);
    assert_eq!(header.message_flags, MessageFlags::PAUSED | MessageFlags::EXTENSIONS);
}

#[test]
fn extensions_are_all_that_valkey_sends() {
    let (_, body) = full(frame!("ping"));
    let extensions: Vec<_> = body.ping().expect("a ping").extensions.iter().collect();
    let expected = [
        Extension::Hostname("node-a.example.org"),
        Extension::HumanNodeName("Alpha-1"),
        Extension::ClientIpv4("10.1.2.3"),
        Extension::ClientIpv6("2001:db8::7"),
        Extension::ClientPort(7001),
        Extension::ClientTlsPort(7002),
        Extension::AvailabilityZone("eu-west-1a"),
        Extension::ForgottenNode { node: id("eedf03eab4ac7e8ca73c8b74443f0da82693d3ea"), ttl_seconds: 59 },
        Extension::ShardId(id("05f0924bd2d1d11041b1f67dabb1dc10b4344080")),
    ];
    assert_eq!(extensions, expected);
}

#[test]
fn gossip_describes_other_nodes() {
    let (_, body) = full(frame!("ping"));
    let gossip = body.ping().expect("a ping").gossip;
    assert_eq!(gossip.len(), 2);
    let entry = gossip.iter().next().expect("an entry");
    assert_eq!(entry.ip, "127.0.0.1");
    assert_eq!(entry.bus_port, entry.port + 2);
    assert_eq!(entry.secondary_port, 0);
    assert!(entry.pong_received > 1_700_000_000);
}

#[test]
fn bodies_have_their_fields() {
    let (header, body) = full(frame!("fail"));
    assert!(matches!(body, Body::Fail(node) if node != header.sender));
    let (header, body) = full(frame!("failover-auth-request"));
    assert_eq!((body, header.message_flags), (Body::FailoverAuthRequest, MessageFlags::FORCE_ACK));
    assert!(header.flags.contains(NodeFlags::REPLICA));
    assert!(header.primary.is_some());
    let (header, body) = full(frame!("failover-auth-ack"));
    assert_eq!((body, header.message_flags), (Body::FailoverAuthAck, MessageFlags::PAUSED));
    assert_eq!(full(frame!("mfstart")).1, Body::ManualFailoverStart);
    let (_, body) = full(frame!("update"));
    let Body::Update(update) = body else { panic!("{body:?}") };
    assert_eq!(update.node, id("54864db64b3375163477bee318b41a3aac841ce6"));
    assert_eq!((update.config_epoch, update.slots.ranges().collect::<Vec<_>>()), (6, vec![0..=5460]));
}

#[test]
fn light_headers_have_no_sender() {
    let publish = Publish { channel: b"news", message: b"hello" };
    assert_eq!(Message::decode(frame!("publish")), Ok(Message::Light(LightBody::Publish(publish))));
    let publish = Publish { channel: b"bar", message: b"shard hello" };
    assert_eq!(Message::decode(frame!("publishshard")), Ok(Message::Light(LightBody::PublishShard(publish))));
    let module_id = 0x92f7_1aa6_6a1d_c400_u64.to_le_bytes();
    let module = ModuleMessage { module_id, kind: 7, payload: b"hello module" };
    assert_eq!(Message::decode(frame!("module")), Ok(Message::Light(LightBody::Module(module))));
}

#[test]
fn frames_need_the_rest_of_their_message() {
    let frame = frame!("fail");
    for received in 0..LIGHT_HEADER_BYTES {
        assert_eq!(split_frame(&frame[..received]), Ok(Frame::Incomplete(LIGHT_HEADER_BYTES - received)));
    }
    for received in LIGHT_HEADER_BYTES..frame.len() {
        assert_eq!(split_frame(&frame[..received]), Ok(Frame::Incomplete(frame.len() - received)));
    }
    let two = [frame, frame!("publish")].concat();
    assert_eq!(split_frame(&two), Ok(Frame::Complete(frame)));
}

#[test]
fn lengths_that_cannot_be_are_refused_early() {
    assert_eq!(split_frame(b"RCx"), Err(FrameError::Signature));
    let check = |frame: &[u8], total: usize| {
        let mut start = frame[..LIGHT_HEADER_BYTES].to_vec();
        start[4..8].copy_from_slice(&(total as u32).to_be_bytes());
        split_frame(&start).err()
    };
    assert_eq!(check(frame!("ping"), HEADER_BYTES - 1), Some(FrameError::TooShort(HEADER_BYTES as u32 - 1)));
    assert_eq!(check(frame!("publish"), LIGHT_HEADER_BYTES - 1), Some(FrameError::TooShort(15)));
    assert_eq!(check(frame!("publish"), LIGHT_HEADER_BYTES), None);
    assert_eq!(check(frame!("fail"), 2297), Some(FrameError::TooLong(2297)));
    assert_eq!(check(frame!("mfstart"), 2257), Some(FrameError::TooLong(2257)));
    assert_eq!(check(frame!("update"), 4353), Some(FrameError::TooLong(4353)));
    let ping_max = HEADER_BYTES + 2 * GOSSIP_ENTRY_BYTES + EXTENSIONS_BYTES_MAX;
    assert_eq!(check(frame!("ping"), ping_max), None);
    assert_eq!(check(frame!("ping"), ping_max + 1), Some(FrameError::TooLong(ping_max as u32 + 1)));
    assert_eq!(check(frame!("module"), PUBLISH_BYTES_MAX), None);
    assert_eq!(check(frame!("module"), u32::MAX as usize), Some(FrameError::TooLong(u32::MAX)));
}

#[test]
fn lengths_must_match_the_content() {
    for frame in FRAMES {
        let with_total = |mut bytes: Vec<u8>| {
            let total = bytes.len() as u32;
            bytes[4..8].copy_from_slice(&total.to_be_bytes());
            Message::decode(&bytes).err()
        };
        assert_eq!(with_total([frame, &[0]].concat()), Some(DecodeError::TrailingBytes(1)));
        assert_eq!(with_total(frame[..frame.len() - 1].to_vec()), Some(DecodeError::Truncated));
        assert_eq!(Message::decode(&frame[..frame.len() - 1]), Err(DecodeError::Length));
    }
}

#[test]
fn what_later_versions_add_is_ignored() {
    let mut bytes = frame!("mfstart").to_vec();
    bytes[12..14].copy_from_slice(&11_u16.to_be_bytes());
    let (_, body) = full(&bytes);
    assert_eq!(body, Body::Unknown { number: 11, data: b"" });
    assert_eq!(body.message_type(), None);
    assert_eq!(encoded(&Message::decode(&bytes).expect("a message")), bytes);
    bytes[8..10].copy_from_slice(&2_u16.to_be_bytes());
    assert_eq!(Message::decode(&bytes), Err(DecodeError::Version(2)));

    let mut bytes = frame!("publish").to_vec();
    bytes[12..14].copy_from_slice(&0x8000_u16.to_be_bytes());
    assert_eq!(Message::decode(&bytes), Err(DecodeError::LightType(0)));

    let (header, _) = full(frame!("pong"));
    let extensions = [Extension::Unknown { number: 9, data: &[1; 16] }, Extension::ClientPort(1)];
    let ping = Ping { gossip: Gossip::NONE, extensions: extensions.as_slice().into() };
    let bytes = encoded(&Message::Full { header, body: Body::Pong(ping) });
    assert_eq!(full(&bytes).1.ping().expect("a ping").extensions.iter().collect::<Vec<_>>(), extensions);
}

#[test]
fn strange_properties_do_not_hide_the_message() {
    let (header, _) = full(frame!("pong"));
    let data = b"two words\0\0\0\0\0\0\0";
    let extensions = [0, 1, 2, 3, 6, 8].map(|number| Extension::Unknown { number, data });
    let ping = Ping { gossip: Gossip::NONE, extensions: extensions.as_slice().into() };
    let bytes = encoded(&Message::Full { header: header.clone(), body: Body::Pong(ping) });
    assert_eq!(full(&bytes).1.ping().expect("a ping").extensions.iter().collect::<Vec<_>>(), extensions);

    let extensions = [Extension::Hostname("two words")];
    let ping = Ping { gossip: Gossip::NONE, extensions: extensions.as_slice().into() };
    let mut out = b"before".to_vec();
    let message = Message::Full { header, body: Body::Pong(ping) };
    assert_eq!(message.encode(&mut out), Err(EncodeError::Extension));
    assert_eq!(out, b"before");
}

#[test]
fn rubbish_behind_an_address_is_ignored() {
    let mut bytes = frame!("ping").to_vec();
    let address = HEADER_BYTES + 48;
    bytes[address + 20] = b'9';
    let (_, body) = full(&bytes);
    assert_eq!(body.ping().expect("a ping").gossip.iter().next().map(|entry| entry.ip), Some("127.0.0.1"));
    bytes[address + 3] = b' ';
    assert_eq!(Message::decode(&bytes), Err(DecodeError::Address));
    bytes[HEADER_BYTES] = b'X';
    assert_eq!(Message::decode(&bytes), Err(DecodeError::NodeId));
}

fn ids() -> impl Strategy<Value = NodeId> {
    any::<[u8; 20]>().prop_map(NodeId::from_random)
}

fn slots() -> impl Strategy<Value = Slots> {
    prop::collection::vec((0..SLOT_COUNT, 0..300u16), 0..4)
        .prop_map(|ranges| ranges.iter().flat_map(|(first, length)| *first..(first + length).min(SLOT_COUNT)).collect())
}

/// The parts of which a test builds a message, owned.
#[derive(Debug)]
struct Parts {
    ids: Vec<NodeId>,
    slots: Vec<Slots>,
    numbers: [u64; 3],
    ports: [u16; 4],
    flags: u8,
    ip: String,
    words: Vec<String>,
    bytes: Vec<u8>,
}

fn parts() -> impl Strategy<Value = Parts> {
    (
        prop::collection::vec(ids(), 4),
        prop::collection::vec(slots(), 2),
        any::<[u64; 3]>(),
        any::<[u16; 4]>(),
        any::<u8>(),
        "[0-9a-f.:]{0,45}",
        prop::collection::vec("[a-zA-Z0-9.:-]{0,40}", 4),
        prop::collection::vec(any::<u8>(), 0..40),
    )
        .prop_map(|(ids, slots, numbers, ports, flags, ip, words, bytes)| Parts {
            ids,
            slots,
            numbers,
            ports,
            flags,
            ip,
            words,
            bytes,
        })
}

/// Calls `check` with a message of each type made of these parts.
fn each_message(parts: &Parts, mut check: impl FnMut(&Message<'_>)) {
    let Parts { ids, slots, numbers, ports, flags, ip, words, bytes } = parts;
    let extensions = [
        Extension::Hostname(&words[0]),
        Extension::HumanNodeName(&words[1]),
        Extension::ForgottenNode { node: ids[2], ttl_seconds: numbers[1] },
        Extension::ShardId(ids[1]),
        Extension::ClientIpv4(&words[2]),
        Extension::ClientIpv6(ip),
        Extension::ClientPort(ports[1]),
        Extension::ClientTlsPort(ports[2]),
        Extension::AvailabilityZone(&words[3]),
        Extension::Unknown { number: 9 + ports[3] / 2, data: &bytes[..bytes.len() / 8 * 8] },
    ];
    let count = usize::from(*flags) % (extensions.len() + 1);
    let entry = GossipEntry {
        node: ids[3],
        ping_sent: numbers[0] as u32,
        pong_received: numbers[1] as u32,
        ip,
        port: ports[1],
        bus_port: ports[2],
        flags: NodeFlags::from_bits_retain(ports[0]),
        secondary_port: ports[3],
    };
    let entries = [entry, GossipEntry { node: ids[0], ip: "", ..entry }, entry];
    let ping = Ping { gossip: entries[..usize::from(flags % 4)].into(), extensions: extensions[..count].into() };
    let mut message_flags = MessageFlags::from_bits_retain(*flags);
    // Set whenever there are extensions.
    message_flags.insert(MessageFlags::EXTENSIONS);
    let header = Header {
        current_epoch: numbers[0],
        config_epoch: numbers[1],
        replication_offset: numbers[2],
        sender: ids[0],
        slots: slots[0].view(),
        primary: (flags % 2 == 0).then_some(ids[1]),
        ip,
        port: ports[0],
        secondary_port: ports[1],
        bus_port: ports[2],
        flags: NodeFlags::from_bits_retain(ports[3]),
        state: if flags % 3 == 0 { ClusterState::Ok } else { ClusterState::Fail },
        message_flags,
    };
    let publish = Publish { channel: &bytes[..bytes.len() / 2], message: bytes };
    let module = ModuleMessage { module_id: numbers[0].to_le_bytes(), kind: *flags, payload: bytes };
    let bodies = [
        Body::Ping(ping),
        Body::Pong(ping),
        Body::Meet(ping),
        Body::Fail(ids[1]),
        Body::Publish(publish),
        Body::FailoverAuthRequest,
        Body::FailoverAuthAck,
        Body::Update(Update { node: ids[2], config_epoch: numbers[2], slots: slots[1].view() }),
        Body::ManualFailoverStart,
        Body::Module(module),
        Body::PublishShard(publish),
        Body::Unknown { number: 11 + ports[0] / 4, data: bytes },
    ];
    for body in bodies {
        check(&Message::Full { header: header.clone(), body });
    }
    for body in [LightBody::Publish(publish), LightBody::Module(module), LightBody::PublishShard(publish)] {
        check(&Message::Light(body));
    }
}

proptest! {
    #[test]
    fn messages_read_back(parts in parts()) {
        each_message(&parts, |message| {
            let bytes = encoded(message);
            assert_eq!(split_frame(&bytes), Ok(Frame::Complete(bytes.as_slice())));
            let decoded = Message::decode(&bytes).expect("a message");
            assert_eq!(&decoded, message);
            assert!(encoded(&decoded) == bytes);
        });
    }

    #[test]
    fn arbitrary_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        let _ = split_frame(&bytes);
        let _ = Message::decode(&bytes);
    }

    #[test]
    fn mutated_messages_are_harmless(
        which in 0..FRAMES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = FRAMES[which].to_vec();
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()).max(LIGHT_HEADER_BYTES));
        }
        // Half of the changes hit something other than the slots.
        for (at, byte) in changes {
            let length = bytes.len();
            let at = if byte % 2 == 0 { at.index(length) } else { at.index(length.min(80)) };
            bytes[at] = byte;
        }
        let _ = split_frame(&bytes);
        let total = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&total.to_be_bytes());
        if let Ok(message) = Message::decode(&bytes) {
            let again = encoded(&message);
            assert_eq!(Message::decode(&again).as_ref(), Ok(&message));
        }
    }
}
