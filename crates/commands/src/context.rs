//! What a data command is given: its database under the right locks, its arguments, and where to reply.

use std::borrow::Cow;

use kvick_resp::OwnedArgs;
pub use kvick_resp::{Args, Reply};
use kvick_store::{Db, Key, Kind, WrongType};

/// A data command: reads its arguments, works on the database, writes one reply. On an error it must have written none.
pub type Handler = fn(&mut Context<'_>, Args<'_>) -> Result<(), Error>;

/// Everything a data command works with.
pub struct Context<'a> {
    /// The selected database.
    pub db: Db<'a>,
    /// Where the reply goes.
    pub reply: Reply<'a>,
    /// The argument that [`Spec::takes`](crate::spec::Spec::takes) names, when it was large enough to be read into a
    /// buffer of its own: to be used instead of the argument, which then reads as empty.
    pub taken: Option<Vec<u8>>,
    /// Settings that commands go by.
    pub settings: &'a Settings,
    /// Who gets the reply.
    pub receiver: Receiver,
    /// Whether the command may wait: not inside of a transaction or a script, where one that finds nothing says so.
    pub may_block: bool,
    /// Whether a script calls it, which should be told the members of sets in the same order every time.
    pub in_script: bool,
    /// Whether the command comes from a log: then it is taken as it stands there.
    pub from_log: bool,
    /// Whether the command may read keys that it does not name, whichever it comes across.
    pub reads_every_key: bool,
    /// Set by a command that found nothing and wants to be run again when one of its keys has changed.
    pub block: Option<Block>,
    /// Set by a command that fails: what the log is told, at its level `verbose`, beyond what the error says.
    pub remark: Option<String>,
}

/// Who gets a reply, as far as that bounds how long it may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receiver {
    /// A client like others.
    Client,
    /// A client that is subscribed to something.
    Subscriber,
    /// The server itself, for which no reply is too long.
    Server,
}

/// How a command waits. It is run again, in its turn, whenever a key that it waits for holds a value of its kind; when it
/// then replies it is done, and when it asks to wait again it keeps its place. Once the time is up the client is sent a
/// null array.
pub struct Block {
    /// The keys to wait for, as indices of arguments: some of those that the command's key specs name.
    pub keys: Vec<usize>,
    /// The kind of value waited for.
    pub kind: Kind,
    /// Whether to be run again also when the key goes or becomes of another kind (XREADGROUP, which then says so).
    pub heeds_loss: bool,
    /// Those who wait with the same number other than 0 look for the same in their keys: when one of them finds nothing
    /// there, so will the others, and they need not be asked (the members of a consumer group).
    pub rivals: u64,
    /// Unix time in ms at which the wait ends; `None` for never. What a second run says is ignored.
    pub until_ms: Option<i64>,
    /// The command to run again, where it is not the one that came (XREAD with `$`). Its keys stand at the same indices.
    pub rewritten: Option<OwnedArgs>,
}

/// Settings that commands go by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `proto-max-bulk-len`: the longest string, in bytes.
    pub proto_max_bulk_len: u64,
    /// `hll-sparse-max-bytes`.
    pub hll_sparse_max_bytes: usize,
    /// `rdb-version-check relaxed`: whether payloads of newer versions, and of other projects', are taken.
    pub rdb_version_relaxed: bool,
    /// `lazyfree-lazy-user-del`.
    pub lazy_user_del: bool,
    /// `rdbcompression`.
    pub rdb_compression: bool,
    /// `lazyfree-lazy-user-flush`.
    pub lazy_user_flush: bool,
    /// `lazyfree-lazy-expire`: for keys whose time has come.
    pub lazy_expire: bool,
    /// `lazyfree-lazy-server-del`: for keys that a command overwrites or renames over.
    pub lazy_server_del: bool,
    /// Whether `maxmemory-policy` keeps access frequencies instead of times.
    pub lfu: bool,
    /// `list-max-listpack-size`: elements in a block, or with -1 to -5 its bytes: 4, 8, 16, 32, 64 KiB.
    pub list_max_listpack_size: i32,
    /// `list-compress-depth`: blocks at each end that are not compressed; 0 when none is.
    pub list_compress_depth: u32,
    /// `hash-max-listpack-entries`.
    pub hash_max_listpack_entries: usize,
    /// `hash-max-listpack-value`, in bytes.
    pub hash_max_listpack_value: usize,
    /// `set-max-intset-entries`.
    pub set_max_intset_entries: usize,
    /// `set-max-listpack-entries`.
    pub set_max_listpack_entries: usize,
    /// `set-max-listpack-value`, in bytes.
    pub set_max_listpack_value: usize,
    /// `zset-max-listpack-entries`.
    pub zset_max_listpack_entries: usize,
    /// `zset-max-listpack-value`, in bytes.
    pub zset_max_listpack_value: usize,
    /// `stream-node-max-bytes`; 0 for no limit.
    pub stream_node_max_bytes: usize,
    /// `stream-node-max-entries`; 0 for no limit.
    pub stream_node_max_entries: usize,
    /// A reply of more bytes is never sent: its client is cut off, as `client-output-buffer-limit` says. By
    /// [`Receiver`].
    pub reply_bytes_max: [usize; 3],
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            proto_max_bulk_len: 512 * 1024 * 1024,
            hll_sparse_max_bytes: 3000,
            rdb_version_relaxed: false,
            rdb_compression: true,
            lazy_user_del: true,
            lazy_user_flush: true,
            lazy_expire: true,
            lazy_server_del: true,
            lfu: false,
            list_max_listpack_size: -2,
            list_compress_depth: 0,
            hash_max_listpack_entries: 512,
            hash_max_listpack_value: 64,
            set_max_intset_entries: 512,
            set_max_listpack_entries: 128,
            set_max_listpack_value: 64,
            zset_max_listpack_entries: 128,
            zset_max_listpack_value: 64,
            stream_node_max_bytes: 4096,
            stream_node_max_entries: 100,
            reply_bytes_max: [usize::MAX; 3],
        }
    }
}

impl<'a> Context<'a> {
    /// The key at argument `index`, which the arity guarantees.
    pub fn key<'k>(&self, args: Args<'k>, index: usize) -> Key<'k> {
        self.db.key(args.get(index).unwrap_or_default())
    }

    /// The position of the reply beyond which it is not worth going on, as it will not be sent. Commands whose replies
    /// may be much larger than what they read look at it.
    pub fn reply_end_max(&self) -> usize {
        self.reply.position().saturating_add(self.settings.reply_bytes_max[self.receiver as usize])
    }
}

impl From<WrongType> for Error {
    fn from(_: WrongType) -> Error {
        Error::WRONG_TYPE
    }
}

/// An error reply: code word and text, without the leading dash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(pub Cow<'static, str>);

impl Error {
    /// Wrong type of value.
    pub const WRONG_TYPE: Error = Error::text("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// Options that make no sense.
    pub const SYNTAX: Error = Error::text("ERR syntax error");
    /// Not a 64-bit integer.
    pub const NOT_INTEGER: Error = Error::text("ERR value is not an integer or out of range");
    /// Not a floating-point number.
    pub const NOT_FLOAT: Error = Error::text("ERR value is not a valid float");
    /// No such key.
    pub const NO_KEY: Error = Error::text("ERR no such key");

    /// A fixed text.
    pub const fn text(text: &'static str) -> Error {
        Error(Cow::Borrowed(text))
    }

    /// A text made up at run time.
    pub fn new(text: impl Into<String>) -> Error {
        Error(Cow::Owned(text.into()))
    }
}
