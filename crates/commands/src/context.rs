//! What a data command is given: its database under the right locks, its arguments, and where to reply.

use std::borrow::Cow;

pub use kvick_resp::{Args, Reply};
use kvick_store::{Db, Key};

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
}

/// Settings that commands go by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `proto-max-bulk-len`: the longest string, in bytes.
    pub proto_max_bulk_len: u64,
    /// `hll-sparse-max-bytes`.
    pub hll_sparse_max_bytes: usize,
    /// `lazyfree-lazy-user-del`.
    pub lazy_user_del: bool,
    /// `lazyfree-lazy-user-flush`.
    pub lazy_user_flush: bool,
    /// `lazyfree-lazy-expire`: for keys whose time has come.
    pub lazy_expire: bool,
    /// `lazyfree-lazy-server-del`: for keys that a command overwrites or renames over.
    pub lazy_server_del: bool,
    /// Whether `maxmemory-policy` keeps access frequencies instead of times.
    pub lfu: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            proto_max_bulk_len: 512 * 1024 * 1024,
            hll_sparse_max_bytes: 3000,
            lazy_user_del: true,
            lazy_user_flush: true,
            lazy_expire: true,
            lazy_server_del: true,
            lfu: false,
        }
    }
}

impl<'a> Context<'a> {
    /// The key at argument `index`, which the arity guarantees.
    pub fn key<'k>(&self, args: Args<'k>, index: usize) -> Key<'k> {
        self.db.key(args.get(index).unwrap_or_default())
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
