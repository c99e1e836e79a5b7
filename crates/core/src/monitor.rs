//! MONITOR: the line that shows an executed command.
//!
//! A line is formatted once for all monitors. It reaches their workers in the same way as published messages (see
//! [`crate::pubsub`]).

use crate::clients::{ClientFlags, ClientInfo};
use crate::commandlog::REDACTED;
use kvick_config::quoting::push_quoted;
use kvick_resp::Args;
use std::io::Write;

/// The source of a command.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// A client.
    Client(&'a ClientInfo),
    /// A script or a function.
    Script,
}

/// Appends the line of a command that was executed on database `db` at `unix_us`. Arguments whose bits are set in
/// `redacted` are hidden.
pub fn write_line(out: &mut Vec<u8>, unix_us: i64, db: usize, origin: Origin<'_>, args: Args<'_>, redacted: u32) {
    let (seconds, us) = (unix_us / 1_000_000, unix_us % 1_000_000);
    // Writing to a vector does not fail.
    let _ = write!(out, "+{seconds}.{us:06} [{db} ");
    let _ = match origin {
        Origin::Script => write!(out, "lua]"),
        Origin::Client(client) if client.flags().contains(ClientFlags::UNIX) => {
            write!(out, "unix:{}]", client.peer.strip_suffix(":0").unwrap_or(&client.peer))
        }
        Origin::Client(client) => write!(out, "{}]", client.peer),
    };
    for (index, arg) in args.iter().enumerate() {
        let hidden = u32::try_from(index).ok().and_then(|index| redacted.checked_shr(index)).unwrap_or(0) & 1 == 1;
        out.push(b' ');
        push_quoted(out, if hidden { REDACTED } else { arg });
    }
    out.extend_from_slice(b"\r\n");
}

/// Lines that are sent to the monitors together.
#[derive(Default)]
pub struct Lines {
    /// The lines so far.
    pub text: Vec<u8>,
    /// Groups that have begun and not yet ended.
    groups: usize,
}

impl Lines {
    /// Holds back the following lines until the group ends. Groups may be nested.
    pub fn begin_group(&mut self) {
        self.groups += 1;
    }

    /// Ends a group. The lines are released when the outermost group ends.
    pub fn end_group(&mut self) {
        self.groups = self.groups.saturating_sub(1);
    }

    /// Takes the lines that may be sent now, if any.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        (self.groups == 0 && !self.text.is_empty()).then(|| std::mem::take(&mut self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_resp::OwnedArgs;

    fn client(peer: &str) -> ClientInfo {
        ClientInfo::new(1, 0, -1, peer.into(), "127.0.0.1:2".into(), true, 0)
    }

    fn line(origin: Origin<'_>, args: &[&[u8]], redacted: u32) -> String {
        let mut out = Vec::new();
        write_line(&mut out, 1_700_000_000_000_042, 9, origin, OwnedArgs::new(args).args(), redacted);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn line_shows_time_database_client_and_arguments() {
        let client = client("127.0.0.1:1");
        let shown = line(Origin::Client(&client), &[b"set", b"a\"\xff\n", b""], 0);
        assert_eq!(shown, "+1700000000.000042 [9 127.0.0.1:1] \"set\" \"a\\\"\\xff\\n\" \"\"\r\n");
        assert_eq!(line(Origin::Script, &[b"get", b"k"], 0), "+1700000000.000042 [9 lua] \"get\" \"k\"\r\n");
    }

    #[test]
    fn unix_socket_client_is_shown_by_its_path() {
        let client = client("/tmp/socket:0");
        client.set_flags(ClientFlags::UNIX, true);
        assert!(line(Origin::Client(&client), &[b"ping"], 0).contains("[9 unix:/tmp/socket] \"ping\""));
    }

    #[test]
    fn only_secret_arguments_are_redacted() {
        let words = [&b"x"[..]; 40];
        let shown = line(Origin::Script, &words, 1 << 1 | 1 << 31);
        let hidden: Vec<usize> = shown
            .split(' ')
            .skip(3)
            .enumerate()
            .filter(|(_, word)| word.contains("(redacted)"))
            .map(|(at, _)| at)
            .collect();
        assert_eq!(hidden, [1, 31]);
    }

    #[test]
    fn lines_of_a_group_are_released_at_its_end() {
        let mut lines = Lines::default();
        assert_eq!(lines.take(), None);
        lines.begin_group();
        lines.begin_group();
        lines.text.extend(b"a");
        lines.end_group();
        assert_eq!(lines.take(), None);
        lines.end_group();
        assert_eq!((lines.take(), lines.take()), (Some(b"a".to_vec()), None));
    }
}
