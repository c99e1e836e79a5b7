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
        "A container for client connection commands.",
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
        "Returns help about the subcommands.",
    ),
    client_help,
);

fn client_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    help::reply(
        cx,
        "client",
        &[
            "CACHING (YES|NO)",
            "    Set whether the keys of the next command are tracked, with OPTIN or OPTOUT.",
            "CAPA <option> [options...]",
            "    Declare a client capability. REDIRECT: the client follows redirections to another server.",
            "GETNAME",
            "    Return the name of this connection.",
            "GETREDIR",
            "    Return the ID of the client that invalidations are sent to, 0 if it is this one, -1 without \
             tracking.",
            "ID",
            "    Return the ID of this connection.",
            "IMPORT-SOURCE (ON|OFF)",
            "    Mark this connection as an import source: it sees expired keys in import mode.",
            "INFO",
            "    Return information about this connection, as in CLIENT LIST.",
            "KILL <ip:port>",
            "    Close the connection from this address.",
            "KILL <option> <value> [<option> <value> [...]]",
            "    Close connections that match all of the filters below, this one only with SKIPME NO.",
            "LIST [options ...]",
            "    Return a line per connection, optionally only for those that match all filters:",
            "    * ID <client-id> [<client-id>...]",
            "    * TYPE (NORMAL|PRIMARY|REPLICA|PUBSUB)",
            "    * ADDR (<ip:port>|<unixsocket>:0), LADDR (<ip:port>|<unixsocket>:0), IP <ip>",
            "      The client's address, the local address, the client's IP address without the port.",
            "    * USER <username>, NAME <client-name>, LIB-NAME <lib-name>, LIB-VER <lib-version>",
            "    * MAXAGE <seconds>, IDLE <seconds>",
            "      Connected, or idle, for at least this time.",
            "    * FLAGS <flags>, CAPA <capa>",
            "      Clients that have all of these letters in this field.",
            "    * DB <db-id>",
            "    * SKIPME (YES|NO)",
            "      Whether to exclude this connection.",
            "    All but MAXAGE, IDLE and SKIPME can be negated with the prefix NOT-.",
            "NO-EVICT (ON|OFF)",
            "    Exempt this connection from client eviction.",
            "NO-TOUCH (ON|OFF)",
            "    Do not update the LRU and LFU data of keys that this connection accesses.",
            "PAUSE <timeout> [WRITE|ALL]",
            "    Suspend all commands, or those that may write, for <timeout> milliseconds.",
            "REPLY (ON|OFF|SKIP)",
            "    Reply to all commands, to none, or to all but the next one.",
            "SETINFO (LIB-NAME <name>|LIB-VER <version>)",
            "    Set information about the client library.",
            "SETNAME <name>",
            "    Set the name of this connection.",
            "TRACKING (ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]]",
            "         [OPTIN] [OPTOUT] [NOLOOP]",
            "    Send invalidations of keys that this connection has read, or that have a prefix.",
            "TRACKINGINFO",
            "    Return the client-side caching state of this connection.",
            "UNBLOCK <clientid> [TIMEOUT|ERROR]",
            "    Unblock a client that is blocked by a command.",
            "UNPAUSE",
            "    Resume command processing.",
        ],
    );
    Ok(())
}
