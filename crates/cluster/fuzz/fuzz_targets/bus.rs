//! Any bytes are divided into messages of the cluster bus or refused, and a message reads back as it was written.
//!
//! The input is tried as it is, behind a signature with its length, and as what follows a full header that a node sent,
//! so that the fuzzer need not guess 2,256 bytes.

#![no_main]

use kvick_cluster::bus::{Frame, HEADER_BYTES, Message, split_frame};
use libfuzzer_sys::fuzz_target;

const PING: &[u8] = include_bytes!("../../tests/frames/ping.bin");

fuzz_target!(|bytes: &[u8]| {
    divide(bytes);
    decode([&[0; 8], bytes].concat());
    // Type, number of gossip entries and number of extensions, then what follows the header.
    if let Some(([kind, gossip, extensions], body)) = bytes.split_first_chunk() {
        let mut frame = [&PING[..HEADER_BYTES], body].concat();
        frame[12..14].copy_from_slice(&u16::from(*kind).to_be_bytes());
        frame[14..16].copy_from_slice(&u16::from(*gossip).to_be_bytes());
        frame[2214..2216].copy_from_slice(&u16::from(*extensions).to_be_bytes());
        decode(frame);
    }
});

/// Decodes a frame after its signature and length have been set, and checks that it reads back.
fn decode(mut frame: Vec<u8>) {
    let length = frame.len() as u32;
    frame[..4].copy_from_slice(b"RCmb");
    frame[4..8].copy_from_slice(&length.to_be_bytes());
    divide(&frame);
    if let Ok(message) = Message::decode(&frame) {
        let mut again = Vec::new();
        message.encode(&mut again).expect("a message that was read can be written");
        assert_eq!(Message::decode(&again).as_ref(), Ok(&message));
    }
}

/// Divides bytes into messages, as a receiver does.
fn divide(mut bytes: &[u8]) {
    while let Ok(Frame::Complete(frame)) = split_frame(bytes) {
        assert!(frame.len() >= 16);
        let _ = Message::decode(frame);
        bytes = &bytes[frame.len()..];
    }
}
