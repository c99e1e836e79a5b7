//! Fuzzes what another node sends over a link: any bytes give the same answers in one piece and in several, answer
//! requests in order and at most once, and never panic or take more memory than they have.
//!
//! The first byte determines what was asked, the second the lengths of the pieces; the rest is what the node sends.

#![no_main]

use kvick_forward::{Answer, Content, Gather, Link, Merge, Push, ReplyQueue, Request, Setup, Subscription, Ticket};
use libfuzzer_sys::fuzz_target;

/// Number of requests on the link.
const REQUESTS: u64 = 6;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[asked, step], received)) = bytes.split_first_chunk::<2>() else { return };
    let whole = answers(asked, received, received.len().max(1));
    assert_eq!(answers(asked, received, 1 + usize::from(step)), whole);
    let numbers: Vec<u64> = whole.iter().filter_map(|(number, _)| *number).collect();
    assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[0] != pair[1]));
    for (number, reply) in &whole {
        if number.is_some() {
            merge(asked, reply);
        }
    }
    let _ = Push::parse(received);
});

/// What arrives, each with the number of the request that it answers.
fn answers(asked: u8, received: &[u8], step: usize) -> Vec<(Option<u64>, Vec<u8>)> {
    let setup = Setup { bytes: b"HELLO".to_vec(), required: vec![true; usize::from(asked & 1)] };
    let mut link = Link::new(setup);
    for reply in 0..REQUESTS {
        if asked >> (reply % 4) & 2 != 0 {
            link.subscribe(Subscription { channel: b"c".to_vec(), begins: reply % 2 == 0 });
        }
        let commands = 1 + u32::from(asked >> 6) * (reply as u32 % 2);
        let content = Content::Encoded(b"GET c");
        link.push(Request { content, commands, asking: asked & 32 != 0, reads: true }, ticket(reply));
        let unsent = link.unsent().len();
        link.advance(unsent);
    }
    let (mut found, mut given) = (Vec::new(), 0);
    for piece in received.chunks(step) {
        link.inbox().extend_from_slice(piece);
        given += piece.len();
        loop {
            let answer = match link.next_answer() {
                Ok(Some(answer)) => answer,
                Ok(None) => break,
                Err(_) => return found,
            };
            found.push(match answer {
                Answer::Reply(ticket, reply, request) => {
                    assert_eq!(request, b"GET c");
                    (Some(ticket.reply), reply.to_vec())
                }
                Answer::Redirected(unanswered, redirect) => {
                    assert_eq!(unanswered.bytes, b"GET c");
                    (Some(unanswered.ticket.reply), format!("{redirect:?}").into_bytes())
                }
                Answer::Subscribed(subscription, error) => (None, format!("{subscription:?} {error:?}").into_bytes()),
                Answer::Waited(reply) => (None, reply.to_vec()),
                Answer::Push(push) => (None, format!("{push:?}").into_bytes()),
            });
        }
        assert!(link.memory() < 64 * 1024 + 4 * given);
    }
    found
}

fn ticket(reply: u64) -> Ticket {
    let (wanted, caches, writes) = (true, false, false);
    Ticket { connection: 0, client: 1, reply, part: 0, wanted, caches, writes, attempts: 0, slot: Some(1) }
}

/// Merges a reply with itself in every way, as that to a part of a request.
fn merge(asked: u8, reply: &[u8]) {
    let order = vec![u32::from(asked & 1), 0, 1];
    let merges = [
        Merge::Sum,
        Merge::Same,
        Merge::Concatenation,
        Merge::Elements(order),
        Merge::All,
        Merge::Any(asked.into()),
        Merge::Scan(5461),
    ];
    for merge in merges {
        let (mut queue, mut out) = (ReplyQueue::default(), Vec::new());
        let number = queue.expect_parts(Gather::new(merge, 2));
        queue.answer(number, 1, true, reply, &mut out);
        assert!(out.is_empty());
        queue.answer(number, 0, true, reply, &mut out);
        assert!(queue.is_empty() && !out.is_empty());
    }
}
