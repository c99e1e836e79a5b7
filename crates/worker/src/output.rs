//! Writes replies and enforces output limits.

use super::Worker;
use super::connection::{Connection, Output};
use super::sending::{Segment, write_segments};
use kvick_config::tables::replication::REPL_BACKLOG_SIZE;
use kvick_core::clients::ClientFlags;
use kvick_engine::services::{Services, WRITTEN_AT_ONCE};
use kvick_engine::session::Fate;
use kvick_resp::ReplyBuffer;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A range of the batch's replies that belongs to one connection. Several connections' runs may share a range.
#[derive(Clone, Copy)]
pub struct Run {
    /// The connection.
    pub token: usize,
    /// Offset at which its replies begin.
    pub start: usize,
    /// Offset at which they end.
    pub end: usize,
}

/// Maximum pending output, in bytes, of an unauthenticated client.
const UNAUTHENTICATED_OUTPUT_MAX: u64 = 1024;
/// Number of runs after which they are written before the batch continues.
pub const RUNS_MAX: usize = 64 * 1024;
/// Capacity for runs that is kept between batches.
const RUNS_KEPT: usize = 16 * 1024;
/// A scratch buffer that grew beyond this is freed.
const REPLIES_KEPT: usize = 512 * 1024;

/// DEBUG CLIENT-ENFORCE-REPLY-LIST: whether all output goes through the block lists that normally take only the bytes a
/// socket does not accept.
pub fn set_reply_list(server: &Services, on: bool) {
    server.written_at_once.store(if on { 0 } else { WRITTEN_AT_ONCE }, Ordering::Relaxed);
}

fn uses_reply_list(server: &Services) -> bool {
    server.written_at_once.load(Ordering::Relaxed) == 0
}

/// The segments of a run, in order.
fn segments_of<'a>(run: &Run, replies: &'a ReplyBuffer) -> impl Iterator<Item = Segment<'a>> {
    let parts = replies.shared(run.start..run.end);
    let (mut at, end) = (run.start, run.end);
    let with_shared = parts.iter().flat_map(move |part| {
        let before = std::mem::replace(&mut at, part.at);
        [Segment::Bytes(&replies.bytes[before..part.at]), Segment::Shared(&part.bytes, 0)]
    });
    let behind = parts.last().map_or(run.start, |part| part.at);
    with_shared.chain([Segment::Bytes(&replies.bytes[behind..end])])
}

/// The remainder of a connection's runs after `written` bytes of them were written.
fn unwritten<'a>(group: &'a [Run], replies: &'a ReplyBuffer, mut written: usize) -> impl Iterator<Item = Segment<'a>> {
    group.iter().flat_map(|run| segments_of(run, replies)).filter_map(move |segment| {
        let len = segment.bytes().len();
        let skipped = written.min(len);
        written -= skipped;
        (skipped < len).then(|| segment.skip(skipped))
    })
}

/// Appends the remainder of a connection's runs to its output.
fn keep_unwritten(output: &mut Output, group: &[Run], replies: &ReplyBuffer, written: usize) {
    for segment in unwritten(group, replies, written) {
        match segment {
            Segment::Bytes(bytes) => output.push(bytes),
            Segment::Shared(bytes, from) => output.push_shared(bytes.clone(), from),
        }
    }
}

impl Worker {
    /// Sends the batch's replies unless they must await fsync.
    pub(super) fn write_replies(&mut self) {
        kvick_runtime::logging::wait_until_written();
        self.engine.settle_tracking();
        let awaits_log = self.note_log() || self.server.aof.replies_await_fsync();
        let waits = awaits_log || self.has_retained_replies();
        if self.has_replies() && (!waits || self.runs.is_empty() || !self.retain_replies(awaits_log)) {
            self.write_out();
        }
    }

    /// Whether [`Worker::write_out`] has anything to do.
    #[inline]
    fn has_replies(&self) -> bool {
        !self.runs.is_empty() || !self.replies.is_empty() || self.closed_over_limit
    }

    /// Writes the batch's replies, each connection's with one call if the socket takes them.
    pub(super) fn write_out(&mut self) {
        if !self.has_replies() {
            return;
        }
        if let [run] = self.runs[..]
            && !self.closed_over_limit
            && self.replies.bytes.capacity() <= REPLIES_KEPT
        {
            return self.write_only(run);
        }
        let mut runs = std::mem::take(&mut self.runs);
        let mut replies = std::mem::take(&mut self.replies);
        self.writes += 1;
        if std::mem::take(&mut self.reached) > 0 {
            // A connection may have several runs, interleaved with those of others. The sort is stable, so each
            // connection's runs keep their order.
            runs.sort_by_key(|run| run.token);
        }
        let mut left = runs.len();
        for group in runs.chunk_by(|one, next| one.token == next.token) {
            left -= group.len();
            let Some(written) = self.write_group(group, &replies) else { continue };
            let output = &mut self.connections[group[0].token].output;
            match group {
                // A large reply is the last one, because the batch stops behind it; bytes that are not kept need no
                // copy.
                [only]
                    if left == 0
                        && replies.position() > REPLIES_KEPT
                        && only.end == replies.position()
                        && output.is_empty()
                        && replies.shared(only.start..only.end).is_empty() =>
                {
                    output.adopt(std::mem::take(&mut replies.bytes), only.start + written);
                }
                _ => keep_unwritten(output, group, &replies, written),
            }
            // The socket may have gained space since: a missed edge is not reported again.
            self.write_waiting(group[0].token);
        }
        self.runs = runs;
        self.runs.clear();
        self.runs.shrink_to(RUNS_KEPT);
        self.recycle_replies(replies);
    }

    /// Keeps the buffer of written replies unless it is large.
    #[inline]
    fn recycle_replies(&mut self, replies: ReplyBuffer) {
        // The reply of a client closed for its output is larger than normal.
        let is_usual = !std::mem::take(&mut self.closed_over_limit);
        if replies.bytes.capacity() <= REPLIES_KEPT && is_usual {
            self.replies = replies;
            self.replies.clear();
        }
        self.publish_reply_buffer();
    }

    /// Writes the batch's replies when all belong to one connection.
    #[inline]
    fn write_only(&mut self, run: Run) {
        let replies = std::mem::take(&mut self.replies);
        self.writes += 1;
        self.reached = 0;
        self.runs.clear();
        if let Some(written) = self.write_group(&[run], &replies) {
            keep_unwritten(&mut self.connections[run.token].output, &[run], &replies, written);
            self.write_waiting(run.token);
        }
        self.recycle_replies(replies);
    }

    /// Writes a connection's part of the replies. Returns the bytes taken if the socket did not take all and the rest
    /// must be kept.
    #[inline]
    fn write_group(&mut self, group: &[Run], replies: &ReplyBuffer) -> Option<usize> {
        let stats = &self.engine.stats;
        let token = group[0].token;
        let connection = self.connections.get_mut(token)?;
        let total: usize = group.iter().map(|run| replies.len_of(run.start..run.end)).sum();
        let hard_bytes = connection.output_limit(&self.engine.runtime_config).hard_bytes;
        let waiting = (connection.output.len() + total) as u64;
        if hard_bytes > 0 && waiting > hard_bytes {
            // The reply exceeds the limit: the client receives none of it, regardless of how much the socket would
            // take.
            self.close_over_limit(token, waiting);
            return None;
        }
        let mut written = 0;
        let at_once = self.server.written_at_once.load(Ordering::Relaxed);
        if total > 0 && connection.output.is_empty() && connection.client.fate != Fate::Close {
            let result = match group {
                [only] if total == only.end - only.start => {
                    connection.socket.write(&replies.bytes[only.start..only.end.min(only.start + at_once)])
                }
                _ => write_segments(&mut connection.socket, &mut self.pages, unwritten(group, replies, 0), at_once),
            };
            match result {
                Ok(n) => {
                    stats.writes.add(1);
                    stats.bytes_out.add(n as u64);
                    connection.client.info.bytes_out.add(n as u64);
                    written = n;
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => {
                    self.close(token);
                    return None;
                }
            }
        }
        if written < total {
            return Some(written);
        }
        self.after_write(token);
        None
    }

    /// Whether a connection has anything to write. The poll reports writability along with input.
    pub(super) fn has_pending_output(&self, token: usize) -> bool {
        let Some(connection) = self.connections.get(token) else { return false };
        let is_settled = connection.has_written_all() && connection.above_soft_since.is_none();
        !is_settled || connection.client.feed.is_some() || connection.client.fate != Fate::Open
    }

    /// Writes pending output.
    pub(super) fn write_waiting(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if !connection.has_written_all() {
            if uses_reply_list(self.server) {
                self.enforce_output_limit(token);
            }
            let Some(connection) = self.connections.get_mut(token) else { return };
            let Connection { output, socket, client, .. } = connection;
            let Ok(written) = socket.flush().and_then(|()| output.flush(socket, &mut self.pages, WRITTEN_AT_ONCE))
            else {
                return self.close(token);
            };
            self.engine.stats.writes.add(1);
            self.engine.stats.bytes_out.add(written as u64);
            client.info.bytes_out.add(written as u64);
            connection.publish_output();
            if !connection.output.is_empty() && written >= WRITTEN_AT_ONCE {
                connection.unwritten = true;
                self.queue(token);
            }
        }
        self.after_write(token);
        let is_fed = self.connections.get(token).is_some_and(|connection| connection.client.feed.is_some());
        if is_fed {
            self.feed(token);
        }
    }

    /// Closes a connection that is finished or exceeds its output limit.
    #[inline]
    fn after_write(&mut self, token: usize) {
        let Some(connection) = self.connections.get(token) else { return };
        match connection.client.fate {
            Fate::Close => return self.close(token),
            Fate::CloseAfterReply if connection.has_written_all() => return self.close(token),
            _ if Self::is_doomed(connection) => return self.close(token),
            _ => {}
        }
        if connection.socket.pending_output() > 0 {
            connection.publish_output();
        }
        if !connection.output.is_empty() || connection.above_soft_since.is_some() {
            self.enforce_output_limit(token);
        }
        self.account_client(token);
    }

    /// Closes a connection whose pending output exceeds the hard limit, or has exceeded the soft limit for too long.
    pub(super) fn enforce_output_limit(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let mut limit = connection.output_limit(&self.engine.runtime_config);
        let mut waiting = connection.waiting();
        if uses_reply_list(self.server) {
            waiting = waiting.max(connection.output.memory() as u64);
        }
        if connection.client.feed.is_some() {
            // Output up to the backlog size is retained anyway.
            let kept = self.server.config.read(REPL_BACKLOG_SIZE);
            for bytes in [&mut limit.hard_bytes, &mut limit.soft_bytes].into_iter().filter(|bytes| **bytes > 0) {
                *bytes = kept.max(*bytes);
            }
        }
        if waiting > UNAUTHENTICATED_OUTPUT_MAX && connection.client.is_unauthenticated(self.server) {
            limit.hard_bytes = UNAUTHENTICATED_OUTPUT_MAX;
        }
        let above = |bytes: u64| bytes > 0 && waiting > bytes;
        connection.above_soft_since =
            above(limit.soft_bytes).then(|| connection.above_soft_since.unwrap_or_else(Instant::now));
        let too_long =
            connection.above_soft_since.is_some_and(|since| since.elapsed().as_secs() > limit.soft_seconds.into());
        if above(limit.hard_bytes) || too_long {
            self.close_over_limit(token, waiting);
        }
    }

    /// Closes a connection whose pending output is too large.
    #[cold]
    fn close_over_limit(&mut self, token: usize, waiting: u64) {
        let Some(connection) = self.connections.get(token) else { return };
        let info = &connection.client.info;
        info.set_flags(ClientFlags::CLOSE_ASAP, true);
        self.closed_over_limit = true;
        self.engine.stats.output_limit_disconnections.add(1);
        kvick_runtime::logging::warning(format_args!(
            "Client id={} addr={} scheduled to be closed ASAP for overcoming of output buffer limits. ({waiting} bytes \
             were waiting)",
            info.id, info.peer
        ));
        self.close(token);
    }

    /// Tries once more to write all pending output before the process exits.
    pub(super) fn flush_everything(&mut self) {
        self.release_synced();
        for (_, connection) in &mut self.connections {
            let Connection { output, socket, .. } = connection;
            // The process is exiting: output that cannot be written now is lost with the connection.
            let _ = socket.flush().and_then(|()| output.flush(socket, &mut self.pages, usize::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_resp::SharedBytes;
    use kvick_resp::Version;
    use proptest::prelude::*;

    fn bytes_of<'a>(segments: impl Iterator<Item = Segment<'a>>) -> Vec<u8> {
        segments.flat_map(|segment| segment.bytes().to_vec()).collect()
    }

    #[test]
    fn what_is_left_of_several_runs_begins_where_the_socket_ended() {
        let mut replies = ReplyBuffer::default();
        replies.bytes.extend_from_slice(b"abcdefgh");
        // The second run is a message that other connections receive too, from an earlier position.
        let group = [(4, 6), (0, 3), (6, 8)].map(|(start, end)| Run { token: 0, start, end });
        let whole = b"efabcgh";
        for written in 0..=whole.len() {
            assert_eq!(bytes_of(unwritten(&group, &replies, written)), whole[written..]);
        }
    }

    proptest! {
        #[test]
        fn replies_with_shared_strings_are_split_anywhere(
            // Whether the string is shared, its length, and whether a run ends behind the reply.
            words in proptest::collection::vec((any::<bool>(), 0usize..40, any::<bool>()), 1..12),
            written in 0usize..600,
        ) {
            let (mut replies, mut copied, mut runs, mut start) = (ReplyBuffer::default(), Vec::new(), Vec::new(), 0);
            for (number, (shares, len, ends)) in words.iter().enumerate() {
                let value = SharedBytes::new(vec![b'a' + number as u8; *len]);
                let mut reply = replies.reply(Version::Resp2);
                if *shares { reply.bulk_shared(&value) } else { reply.bulk(&value) }
                kvick_resp::Reply::new(&mut copied, Version::Resp2).bulk(&value);
                if *ends || number + 1 == words.len() {
                    runs.push(Run { token: 0, start, end: replies.position() });
                    start = replies.position();
                }
            }
            let lens: Vec<usize> = runs.iter().map(|run| replies.len_of(run.start..run.end)).collect();
            prop_assert_eq!(lens.iter().sum::<usize>(), copied.len());
            prop_assert_eq!(replies.len(), copied.len());
            let written = written.min(copied.len());
            prop_assert_eq!(bytes_of(unwritten(&runs, &replies, written)), &copied[written..]);
            let mut output = Output::default();
            keep_unwritten(&mut output, &runs, &replies, written);
            prop_assert_eq!(output.len(), copied.len() - written);
            // The replies of the first run are also those of a shorter buffer.
            let first = runs[0];
            replies.truncate(first.end);
            prop_assert_eq!(replies.len(), lens[0]);
            prop_assert_eq!(bytes_of(unwritten(&[first], &replies, 0)), &copied[..lens[0]]);
        }
    }
}
