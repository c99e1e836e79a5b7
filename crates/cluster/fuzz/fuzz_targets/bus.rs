//! Any bytes are divided into messages of the cluster bus or refused, and a message reads back as it was written.
//!
//! Signature and length are put before the input, so that the fuzzer need not guess them.

#![no_main]

use kvick_cluster::bus::{Frame, Message, split_frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    divide(bytes);
    let mut frame = b"RCmb".to_vec();
    frame.extend_from_slice(&(bytes.len() as u32 + 8).to_be_bytes());
    frame.extend_from_slice(bytes);
    divide(&frame);
    if let Ok(message) = Message::decode(&frame) {
        let mut again = Vec::new();
        message.encode(&mut again).expect("a message that was read can be written");
        assert_eq!(Message::decode(&again).as_ref(), Ok(&message));
    }
});

/// Divides bytes into messages, as a receiver does.
fn divide(mut bytes: &[u8]) {
    while let Ok(Frame::Complete(frame)) = split_frame(bytes) {
        assert!(frame.len() >= 16);
        let _ = Message::decode(frame);
        bytes = &bytes[frame.len()..];
    }
}
