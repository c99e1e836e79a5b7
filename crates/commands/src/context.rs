//! The context of a data command: its database, locked as the command requires, its settings, and its reply.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use kvick_resp::OwnedArgs;
pub use kvick_resp::{Args, Reply};
use kvick_store::{Db, EncodingLimits, Key, Kind, WrongType};

/// The handler of a data command: reads its arguments, accesses the database, and writes one reply. If it returns an
/// error, it must not have written a reply.
pub type Handler = fn(&mut Context<'_>, Args<'_>) -> Result<(), Error>;

/// The context of one execution of a data command.
pub struct Context<'a> {
    /// The selected database.
    pub db: Db<'a>,
    /// The reply.
    pub reply: Reply<'a>,
    /// The settings that commands use.
    pub settings: &'a Settings,
    /// The receiver of the reply.
    pub receiver: Receiver,
    /// Whether the command may block. False in transactions and scripts, where it replies at once.
    pub may_block: bool,
    /// Whether a script calls the command. Members of sets are then returned in a deterministic order.
    pub in_script: bool,
    /// Whether the command comes from a log, and therefore is executed exactly as given.
    pub from_log: bool,
    /// Whether the user may read all keys, including those that the command does not name.
    pub reads_every_key: bool,
    /// Set by a command that blocks: it found nothing and will run again when one of its keys has changed.
    pub block: Option<Block>,
    /// Set by a command that fails: details for the log at level `verbose`, beyond the error text.
    pub log_message: Option<String>,
}

/// The kind of receiver of a reply, which determines the maximum length of the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receiver {
    /// A normal client.
    Client,
    /// A client with subscriptions.
    Subscriber,
    /// The server itself; replies are not limited.
    Server,
}

/// How a command blocks. It runs again, in order of arrival, whenever one of its keys holds a value of its kind. If it
/// replies, it is done; if it asks to block again, it keeps its place in the queue. On timeout the client receives a
/// null array.
pub struct Block {
    /// The keys to block on, as argument indices; they are among the keys that the command's specifications name.
    pub keys: Vec<usize>,
    /// The kind of value to wait for.
    pub kind: Kind,
    /// Whether to run again also if the key is deleted or changes to another kind (XREADGROUP, which then replies with
    /// an error).
    pub wakes_on_deletion: bool,
    /// Blocked commands with the same number other than 0 wait for the same thing on their keys: if one of them finds
    /// nothing, the others are not tried (the members of a consumer group).
    pub group: u64,
    /// Unix time in ms of the timeout; `None` for no timeout. Ignored if a command blocks again.
    pub until_ms: Option<i64>,
    /// The command to run again, if it differs from the original (XREAD with `$`). Its keys have the same indices.
    pub rewritten: Option<OwnedArgs>,
}

/// An order of strings other than that of their bytes.
pub trait Collation: Send + Sync + fmt::Debug {
    /// A key whose bytes have the order of the strings.
    fn sort_key(&self, text: &[u8]) -> Vec<u8>;
}

/// The settings that commands use.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `locale-collate`: how SORT compares strings.
    pub collation: Option<Arc<dyn Collation>>,
    /// `proto-max-bulk-len`: the longest string, in bytes.
    pub proto_max_bulk_len: u64,
    /// `hll-sparse-max-bytes`.
    pub hll_sparse_max_bytes: usize,
    /// `rdb-version-check relaxed`: whether payloads of newer versions and of other projects are accepted.
    pub rdb_version_relaxed: bool,
    /// `lazyfree-lazy-user-del`.
    pub lazy_user_del: bool,
    /// `rdbcompression`.
    pub rdb_compression: bool,
    /// `lazyfree-lazy-user-flush`.
    pub lazy_user_flush: bool,
    /// `lazyfree-lazy-expire`: for expired keys.
    pub lazy_expire: bool,
    /// `lazyfree-lazy-server-del`: for keys that a command overwrites, or replaces by a rename.
    pub lazy_server_del: bool,
    /// Whether `maxmemory-policy` uses access frequencies instead of access times.
    pub lfu: bool,
    /// The limits of the compact encodings.
    pub encoding: EncodingLimits,
    /// Maximum bytes of a reply, by [`Receiver`]. A client whose reply exceeds it is disconnected, as
    /// `client-output-buffer-limit` requires.
    pub reply_bytes_max: [usize; 3],
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            collation: None,
            proto_max_bulk_len: 512 * 1024 * 1024,
            hll_sparse_max_bytes: 3000,
            rdb_version_relaxed: false,
            rdb_compression: true,
            lazy_user_del: true,
            lazy_user_flush: true,
            lazy_expire: true,
            lazy_server_del: true,
            lfu: false,
            encoding: EncodingLimits::DEFAULT,
            reply_bytes_max: [usize::MAX; 3],
        }
    }
}

/// What handlers may know about the execution of their command. See the fields of the same names in [`Context`].
#[derive(Clone, Copy)]
pub struct Circumstances {
    /// The receiver of the reply.
    pub receiver: Receiver,
    /// Whether the command may block.
    pub may_block: bool,
    /// Whether a script calls the command.
    pub in_script: bool,
    /// Whether the command comes from a log.
    pub from_log: bool,
    /// Whether the user may read all keys.
    pub reads_every_key: bool,
}

impl<'a> Context<'a> {
    /// The context of a command that is about to run.
    #[inline]
    pub fn new(db: Db<'a>, reply: Reply<'a>, settings: &'a Settings, circumstances: Circumstances) -> Self {
        let Circumstances { receiver, may_block, in_script, from_log, reads_every_key } = circumstances;
        Context {
            db,
            reply,
            settings,
            receiver,
            may_block,
            in_script,
            from_log,
            reads_every_key,
            block: None,
            log_message: None,
        }
    }

    /// The key at argument `index`. The arity guarantees that the argument exists.
    pub fn key<'k>(&self, args: Args<'k>, index: usize) -> Key<'k> {
        self.db.key(args.get(index).unwrap_or_default())
    }

    /// The reply position beyond which the reply will not be sent. Commands whose replies can be much larger than the
    /// data they read stop at this position.
    pub fn reply_end_max(&self) -> usize {
        self.reply.position().saturating_add(self.settings.reply_bytes_max[self.receiver as usize])
    }
}

impl From<WrongType> for Error {
    fn from(_: WrongType) -> Error {
        Error::WRONG_TYPE
    }
}

/// An error reply: error code and text, without the leading dash. It may quote words of the request, which are not
/// always text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Cow<'static, [u8]>);

impl Error {
    /// The value has the wrong type.
    pub const WRONG_TYPE: Error = Error::text("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// Invalid combination of options.
    pub const SYNTAX: Error = Error::text("ERR syntax error");
    /// The argument is not a 64-bit integer.
    pub const NOT_INTEGER: Error = Error::text("ERR value is not an integer or out of range");
    /// The argument is not a floating-point number.
    pub const NOT_FLOAT: Error = Error::text("ERR value is not a valid float");
    /// The key does not exist.
    pub const NO_KEY: Error = Error::text("ERR no such key");

    /// An error with a constant text.
    pub const fn text(text: &'static str) -> Error {
        Error(Cow::Borrowed(text.as_bytes()))
    }

    /// An error with a text composed at run time.
    pub fn new(text: impl Into<String>) -> Error {
        Error(Cow::Owned(text.into().into_bytes()))
    }

    /// An error that another part of the server has formed.
    pub fn raw(text: impl Into<Vec<u8>>) -> Error {
        Error(Cow::Owned(text.into()))
    }

    /// An error that quotes words of the request between parts of its text: each up to its first zero byte, as in
    /// Valkey.
    pub fn quoting(parts: &[&[u8]]) -> Error {
        Error(Cow::Owned(
            parts.iter().flat_map(|part| part.split(|byte| *byte == 0).next()).flatten().copied().collect(),
        ))
    }

    /// The error of a container for an unknown subcommand, or for one with a wrong number of arguments.
    pub fn bad_subcommand(container: &str, word: &[u8]) -> Error {
        const SHOWN_MAX: usize = 128;
        let word = &word[..word.len().min(SHOWN_MAX)];
        let text = b"ERR unknown subcommand or wrong number of arguments for '";
        Error::quoting(&[text, word, b"'. Try ", container.as_bytes(), b" HELP."])
    }

    /// The reply, without the leading dash.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}
