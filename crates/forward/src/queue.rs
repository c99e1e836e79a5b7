//! The order of one client's replies.

use super::gather::Gather;
use std::collections::VecDeque;

/// The replies that a client has yet to receive, in the order of its requests.
#[derive(Default)]
pub struct ReplyQueue {
    /// Number of the first reply in the queue.
    first: u64,
    entries: VecDeque<Entry>,
    /// Bytes of replies that wait for earlier ones.
    bytes: usize,
}

enum Entry {
    /// The request has not been answered.
    Waiting,
    /// Its parts have not all been answered.
    Gathering(Box<Gather>),
    /// The reply; empty if the client does not want it.
    Ready(Vec<u8>),
}

impl ReplyQueue {
    /// Whether all replies have been passed on.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of replies to come.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of the next reply to be passed on.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The number of the reply to the next request.
    pub fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Memory of replies that wait for earlier ones, in bytes.
    pub fn memory(&self) -> usize {
        self.bytes + self.entries.capacity() * size_of::<Entry>()
    }

    /// Adds a request; returns the number of its reply.
    #[inline]
    pub fn expect(&mut self) -> u64 {
        self.push(Entry::Waiting)
    }

    /// Adds a request whose parts are answered separately.
    pub fn expect_parts(&mut self, gather: Gather) -> u64 {
        self.push(Entry::Gathering(Box::new(gather)))
    }

    /// Adds a request that is already answered.
    pub fn push_ready(&mut self, reply: Vec<u8>) {
        self.bytes += reply.len();
        self.push(Entry::Ready(reply));
    }

    fn push(&mut self, entry: Entry) -> u64 {
        self.entries.push_back(entry);
        self.first + self.entries.len() as u64 - 1
    }

    /// Passes on the reply number `number`, or to part `part` of that request: appends to `out` what the client may
    /// receive now. `wanted`: whether the client receives this reply at all. Numbers that are not waited for are
    /// ignored.
    #[inline]
    pub fn answer(&mut self, number: u64, part: u32, wanted: bool, reply: &[u8], out: &mut Vec<u8>) {
        let Some(index) = number.checked_sub(self.first).map(|index| index as usize) else { return };
        if let (0, Some(Entry::Waiting)) = (index, self.entries.front()) {
            if wanted {
                out.extend_from_slice(reply);
            }
            self.pop();
            return self.release(out);
        }
        let Some(entry) = self.entries.get_mut(index) else { return };
        let ready = match entry {
            Entry::Waiting if wanted => reply.to_vec(),
            Entry::Waiting => Vec::new(),
            Entry::Gathering(gather) => match gather.add(part, reply) {
                Some(merged) if wanted => merged,
                Some(_) => Vec::new(),
                None => return,
            },
            Entry::Ready(_) => return,
        };
        self.bytes += ready.len();
        *entry = Entry::Ready(ready);
        self.release(out);
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.first += 1;
        Some(entry)
    }

    /// Passes on the replies at the front.
    #[inline]
    fn release(&mut self, out: &mut Vec<u8>) {
        while let Some(Entry::Ready(reply)) = self.entries.front() {
            out.extend_from_slice(reply);
            self.bytes -= reply.len();
            self.pop();
        }
        if self.entries.is_empty() && self.entries.capacity() > 64 {
            self.entries = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Merge;
    use proptest::prelude::*;

    proptest! {
        /// Whatever order the nodes answer in, a client receives its replies in the order of its requests.
        #[test]
        fn replies_are_in_the_order_of_requests(order in Just((0..20u64).collect::<Vec<_>>()).prop_shuffle()) {
            let (mut queue, mut out) = (ReplyQueue::default(), Vec::new());
            for number in 0..20 {
                if number % 5 == 4 {
                    queue.push_ready(vec![number as u8]);
                } else {
                    prop_assert_eq!(queue.expect(), number);
                }
            }
            for number in order {
                queue.answer(number, 0, number % 7 != 0, &[number as u8], &mut out);
            }
            let expected: Vec<u8> = (0..20).filter(|number| number % 5 == 4 || number % 7 != 0).collect();
            prop_assert!(queue.is_empty() && queue.bytes == 0);
            prop_assert_eq!(out, expected);
        }
    }

    #[test]
    fn parts_are_merged_before_their_reply_is_passed_on() {
        let (mut queue, mut out) = (ReplyQueue::default(), Vec::new());
        let sum = queue.expect_parts(Gather::new(Merge::Sum, 3));
        let next = queue.expect();
        queue.answer(next, 0, true, b"+next\r\n", &mut out);
        queue.answer(sum, 2, true, b":2\r\n", &mut out);
        queue.answer(sum, 0, true, b":40\r\n", &mut out);
        assert!(out.is_empty());
        queue.answer(sum, 1, true, b":0\r\n", &mut out);
        assert_eq!(String::from_utf8_lossy(&out), ":42\r\n+next\r\n");
    }
}
