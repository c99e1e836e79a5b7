//! EVAL in the Lua debugger: the debugging client talks over its own connection while its script runs.
//!
//! In both [modes](Mode) the script runs like any other, on its worker and in the server's interpreter. The debugger
//! reads its commands from a [`Console`], which uses the connection until the session ends. Then the connection is
//! closed, which tells the client that the session has ended.
//!
//! - [`Mode::Sync`]: the script counts as a long script. After `busy-reply-threshold` other clients get BUSY errors,
//!   and the script can be killed.
//! - [`Mode::Beside`]: the process is [forked](kvick_scripting::debugging). The child runs the script without
//!   propagating its effects, and exits. The server drops the connection without closing the session.

use super::connection::Connection;
use super::engine::Engine;
use super::script_call::{ScriptCall, Yield};
use crate::session::{Client, Fate};
use kvick_commands::context::Error;
use kvick_config::shapes::KeyspaceEvents;
use kvick_core::admission::Reasons;
use kvick_core::runtime_config::RuntimeConfig;
use kvick_net::socket::Socket;
use kvick_resp::{Args, Reply};
use kvick_runtime::logging;
use kvick_script::{Console, Debugger, Failure, Heard};
use kvick_scripting::Scripting;
use kvick_scripting::debugging::{self, Forked, Mode};
use kvick_store::{EventClass, Locked, Reach};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Bytes per read.
const READ: usize = 4096;
/// Maximum time for which a client may take none of its output.
const UNREAD_AT_MOST: Duration = Duration::from_secs(5);
/// Maximum wait for input before checking whether the session is to continue.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The client whose EVAL is being executed, as the debugger's console.
pub(super) struct Seat<'a>(pub(super) &'a mut dyn Yield);

impl Console for Seat<'_> {
    fn send(&mut self, bytes: &[u8]) {
        // A write fails if the client does not read or is gone; the next read detects that.
        let _ = self.0.connection().map(|connection| say(connection, bytes));
    }

    /// No input is read after the script has ended.
    fn receive(&mut self, _: &mut Vec<u8>) -> Heard {
        Heard::Nobody
    }
}

impl Seat<'_> {
    /// Waits a moment for input and appends it to `into`. Returns the number of bytes, or `None` if the input has
    /// ended.
    pub(super) fn listen(&mut self, into: &mut Vec<u8>) -> Option<usize> {
        let connection = self.0.connection()?;
        let start = into.len();
        into.resize(start + READ, 0);
        let read = match connection.socket.read(&mut into[start..]) {
            Ok(0) => None,
            Ok(n) => Some(n),
            Err(error) if is_passing(&error) => {
                wait(&connection.socket, libc::POLLIN, LOOK_EVERY);
                Some(0)
            }
            Err(_) => None,
        };
        into.truncate(start + read.unwrap_or(0));
        read
    }

    /// Whether the peer has closed the connection.
    pub(super) fn is_deserted(&mut self) -> bool {
        self.0.connection().is_none_or(|connection| wait(&connection.socket, libc::POLLRDHUP, Duration::ZERO))
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Waits until a socket is ready. Returns whether it is ready or has failed.
fn wait(socket: &Socket, for_what: libc::c_short, at_most: Duration) -> bool {
    let mut poll = libc::pollfd { fd: socket.fd(), events: for_what, revents: 0 };
    let ms = libc::c_int::try_from(at_most.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the array has one entry, which outlives the call.
    unsafe { libc::poll(&mut poll, 1, ms) > 0 }
}

/// Writes all of `bytes`, after pending output.
fn say(connection: &mut Connection, bytes: &[u8]) -> io::Result<()> {
    let Connection { socket, output, .. } = connection;
    let mut rest = bytes;
    while !output.is_empty() || !rest.is_empty() || socket.pending_output() > 0 {
        let written = match output.is_empty() {
            false => output.flush(socket, usize::MAX).map(|written| (written, 0)),
            true if rest.is_empty() => socket.flush().map(|()| (0, 0)),
            true => socket.write(rest).map(|written| (written, written)),
        };
        let (moved, of_rest) = match written {
            Ok(written) => written,
            Err(error) if is_passing(&error) => (0, 0),
            Err(error) => return Err(error),
        };
        rest = &rest[of_rest..];
        if moved == 0
            && (!output.is_empty() || !rest.is_empty() || socket.pending_output() > 0)
            && !wait(socket, libc::POLLOUT, UNREAD_AT_MOST)
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

impl Engine {
    /// Runs the script of an EVAL in the debugger. The caller holds the turn.
    pub(super) fn debug_script_call(
        &mut self,
        client: &mut Client,
        mode: Mode,
        (script_call, args): (ScriptCall, Args<'_>),
        (locked, yielder): (&mut Locked, &mut dyn Yield),
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if self.in_transaction {
            return Err(Error::text("ERR EVAL cannot be debugged inside a transaction"));
        }
        if yielder.connection().is_none_or(|connection| connection.awaiting_fsync > 0) {
            return Err(Error::text("ERR EVAL cannot be debugged while replies to other commands are held back"));
        }
        match mode {
            Mode::Sync => {
                logging::notice(format_args!("Synchronous debugging eval session started"));
                let result = self.debug_here(client, (script_call, args), (locked, yielder), out);
                logging::notice(format_args!("Synchronous debugging eval session ended"));
                client.fate = Fate::CloseAfterReply;
                result
            }
            Mode::Beside => {
                if !locked.is_global() {
                    locked.add_global(self.participant);
                }
                let mute = Arc::new(self.mute_tunables());
                let copied = self.server.scripting.sessions.copy();
                let copied = copied.map_err(|error| {
                    Error::new(format!("ERR Fork() failed: can't run EVAL in debugging mode: {error}"))
                })?;
                match copied {
                    Forked::Server => {
                        client.fate = Fate::Close;
                        let connection = yielder.connection();
                        if let Some(Socket::Tls(stream)) = connection.map(|connection| &mut connection.socket) {
                            stream.abandon();
                        }
                        Ok(())
                    }
                    Forked::Session => self.debug_in_copy(client, mute, (script_call, args), (locked, yielder)),
                }
            }
        }
    }

    /// Settings under which a forked process leaves no trace of its commands.
    fn mute_tunables(&self) -> RuntimeConfig {
        let mut runtime_config = RuntimeConfig::read(&self.server.config.values(), self.runtime_config.generation);
        runtime_config.keyspace_events = KeyspaceEvents::empty();
        runtime_config.heard_events = EventClass::empty();
        runtime_config.slow_ticks = u64::MAX;
        runtime_config.large_request_bytes = usize::MAX;
        runtime_config.large_reply_bytes = usize::MAX;
        runtime_config
    }

    /// Runs the script in this forked process and exits.
    fn debug_in_copy(
        &mut self,
        client: &mut Client,
        mute: Arc<RuntimeConfig>,
        request: (ScriptCall, Args<'_>),
        (locked, yielder): (&mut Locked, &mut dyn Yield),
    ) -> ! {
        let Some(connection) = yielder.connection() else { debugging::leave() };
        debugging::prepare_child(connection.socket.fd());
        self.runtime_config = mute;
        self.is_copy = true;
        self.effects.begin_group();
        self.effects.set_reach(Reach::Nobody);
        self.server.admission.set(Reasons::MONITORED, false);
        let mut reply = Vec::new();
        if let Err(error) = self.debug_here(client, request, (locked, &mut *yielder), &mut reply) {
            Reply::new(&mut reply, client.version).error(error.0.as_bytes());
        }
        Seat(&mut *yielder).send(&reply);
        if let Some(Connection { socket: Socket::Tls(stream), .. }) = yielder.connection() {
            stream.send_close_notify();
        }
        debugging::leave()
    }

    /// Runs the script for a whole debugger session. An error from outside the script has not been answered.
    fn debug_here(
        &mut self,
        client: &mut Client,
        (script_call, args): (ScriptCall, Args<'_>),
        (locked, yielder): (&mut Locked, &mut dyn Yield),
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let scripting: &'static Scripting = &self.server.scripting;
        let mut interpreters = scripting.interpreters().ok_or(super::script_call::SCRIPT_IN_SCRIPT)?;
        let mut debugger = Debugger::new(&args[1]);
        let run = self.find_code(script_call, args, &mut interpreters).and_then(|(code, request)| {
            self.check_flags(client, script_call, code.flags())?;
            let session = Some(&mut debugger);
            let code = (&code, session);
            Ok(self.run_code(client, script_call, code, request, &mut interpreters, (&mut *locked, &mut *yielder), out))
        });
        debugger.end(&mut Seat(yielder));
        match run {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => Err(self.note_failure(&failure)),
            Err(error) => Err(error),
        }
    }

    /// The error that a script ended with. It is counted here unless it was counted for a command.
    fn note_failure(&mut self, failure: &Failure) -> Error {
        self.error_is_counted = failure.is_counted();
        Error::new(failure.to_string())
    }
}
