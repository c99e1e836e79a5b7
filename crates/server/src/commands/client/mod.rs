//! CLIENT: inspection and control of connections.
//!
//! - [`names`]: a client's ID and names.
//! - [`list`]: the lines of CLIENT LIST and CLIENT INFO.
//! - [`filter`]: the filters of CLIENT LIST and CLIENT KILL.
//! - [`arguments`]: their documentation.
//! - [`kill`]: closing connections.
//! - [`modes`]: per-connection modes: replies, eviction, access clocks, capabilities.
//! - [`pause`]: pausing and unblocking clients.
//! - [`tracking`]: client-side caching.
//!
//! Any worker can read another connection's [`ClientInfo`](kvick_core::clients::ClientInfo); to act upon the connection
//! it sends a message to the connection's worker.

mod arguments;
pub mod filter;
pub mod kill;
pub mod list;
pub mod modes;
pub mod names;
pub mod pause;
pub mod tracking;

use super::help;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[CLIENT];

/// CLIENT
pub const CLIENT: Command<SessionHandler> = Command::container(
    Spec::new("client", -2).flags(&[Flags::KEEPS_CACHING]).doc(
        Group::Connection,
        "2.4.0",
        "Depends on subcommand.",
        "Commands about connections.",
    ),
    &[
        tracking::CACHING,
        modes::CAPA,
        names::GETNAME,
        tracking::GETREDIR,
        HELP,
        names::ID,
        modes::IMPORT_SOURCE,
        list::INFO,
        kill::KILL,
        list::LIST,
        modes::NO_EVICT,
        modes::NO_TOUCH,
        pause::PAUSE,
        modes::REPLY,
        names::SETINFO,
        names::SETNAME,
        tracking::TRACKING,
        tracking::TRACKINGINFO,
        pause::UNBLOCK,
        pause::UNPAUSE,
    ],
);

/// The arguments `ON` and `OFF`.
const ON_OFF: &[Arg] = &[Arg::one_of("enabled", &[Arg::word("on", "ON"), Arg::word("off", "OFF")])];

/// Reads `ON` or `OFF`.
fn on_or_off(word: &[u8]) -> Result<bool, Error> {
    if word.eq_ignore_ascii_case(b"on") {
        Ok(true)
    } else if word.eq_ignore_ascii_case(b"off") {
        Ok(false)
    } else {
        Err(Error::SYNTAX)
    }
}

/// CLIENT HELP
pub const HELP: Command<SessionHandler> = Command::new(
    Spec::new("help", 2).flags(&[Flags::LOADING, Flags::STALE]).acl(&[Categories::CONNECTION]).doc(
        Group::Connection,
        "5.0.0",
        "O(1)",
        "Lists the subcommands.",
    ),
    client_help,
);

fn client_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    help::reply(
        cx,
        "client",
        &[
            "CACHING (YES|NO)",
            "    Tell whether this connection caches what the next command reads, where tracking is OPTIN or OPTOUT.",
            "CAPA <option> [options...]",
            "    Tell the server what the client is able to do: REDIRECT, follow a redirection to another server.",
            "GETNAME",
            "    The name of this connection.",
            "GETREDIR",
            "    The number of the connection that invalidations are sent to, 0 if it is this one, -1 without \
             tracking.",
            "ID",
            "    The number of this connection.",
            "IMPORT-SOURCE (ON|OFF)",
            "    Let this connection see expired keys while the server is in import mode.",
            "INFO",
            "    What CLIENT LIST says of this connection.",
            "KILL <ip:port>",
            "    End the connection that comes from this address.",
            "KILL <option> <value> [<option> <value> [...]]",
            "    End the connections to which all the filters below apply, this one only with SKIPME NO.",
            "LIST [options ...]",
            "    A line for each connection, or for each to which all the filters apply:",
            "    * ID <client-id> [<client-id>...]",
            "    * TYPE (NORMAL|PRIMARY|REPLICA|PUBSUB)",
            "    * ADDR (<ip:port>|<unixsocket>:0), LADDR (<ip:port>|<unixsocket>:0), IP <ip>",
            "      The client's address, the server's that it connected to, the client's without the port.",
            "    * USER <username>, NAME <client-name>, LIB-NAME <lib-name>, LIB-VER <lib-version>",
            "    * MAXAGE <seconds>, IDLE <seconds>",
            "      Connected, or without a request, for at least so long.",
            "    * FLAGS <flags>, CAPA <capa>",
            "      Having all of these letters in the field of that name.",
            "    * DB <db-id>",
            "    * SKIPME (YES|NO)",
            "      Whether to leave this connection out.",
            "    All but MAXAGE, IDLE and SKIPME also exist with NOT- in front.",
            "NO-EVICT (ON|OFF)",
            "    Keep this connection when connections are closed to free memory.",
            "NO-TOUCH (ON|OFF)",
            "    Have this connection's commands leave the access times of keys alone.",
            "PAUSE <timeout> [WRITE|ALL]",
            "    Hold up all commands, or those that may write, for so many milliseconds.",
            "REPLY (ON|OFF|SKIP)",
            "    Reply to all commands, to none, or not to the next.",
            "SETINFO (LIB-NAME <name>|LIB-VER <version>)",
            "    Tell the server which library the client uses.",
            "SETNAME <name>",
            "    Name this connection.",
            "TRACKING (ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]]",
            "         [OPTIN] [OPTOUT] [NOLOOP]",
            "    Have this connection, or another one, told when keys change that it has read or that have a prefix.",
            "TRACKINGINFO",
            "    How this connection is told of changes.",
            "UNBLOCK <clientid> [TIMEOUT|ERROR]",
            "    End the waiting of a client that a command blocks.",
            "UNPAUSE",
            "    End a pause.",
        ],
    );
    Ok(())
}
