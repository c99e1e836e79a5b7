//! Commands for keys of any type: existence, expiry, renaming, and databases.
//!
//! - [`existence`]: EXISTS, TYPE, TOUCH, DEL, UNLINK.
//! - [`expiry`]: the EXPIRE family, the TTL family, and PERSIST.
//! - [`names`]: KEYS, SCAN, RANDOMKEY.
//! - [`relocate`]: RENAME, RENAMENX, COPY, MOVE.
//! - [`object`]: OBJECT, metadata of values.
//! - [`database`]: commands on databases: DBSIZE, FLUSHDB, FLUSHALL, SWAPDB.
//!
//! An expired key does not exist for these commands, except that DBSIZE counts it until it is deleted.

use kvick_resp::format::parse_i64;
use kvick_store::Db;

use crate::context::{Error, Handler};
use crate::spec::Command;

pub mod database;
pub mod existence;
pub mod expiry;
pub mod names;
pub mod object;
pub mod relocate;

/// All commands of the family.
pub static COMMANDS: &[Command<Handler>] = &[
    existence::DEL,
    existence::UNLINK,
    existence::EXISTS,
    existence::TYPE,
    existence::TOUCH,
    expiry::EXPIRE,
    expiry::PEXPIRE,
    expiry::EXPIREAT,
    expiry::PEXPIREAT,
    expiry::TTL,
    expiry::PTTL,
    expiry::EXPIRETIME,
    expiry::PEXPIRETIME,
    expiry::PERSIST,
    names::KEYS,
    names::SCAN,
    names::RANDOMKEY,
    relocate::RENAME,
    relocate::RENAMENX,
    relocate::COPY,
    relocate::MOVE,
    object::OBJECT,
    database::DBSIZE,
    database::FLUSHDB,
    database::FLUSHALL,
    database::SWAPDB,
];

const NO_SUCH_DATABASE: Error = Error::text("ERR DB index is out of range");

/// Parses the number of an existing database.
fn database_number(db: &Db<'_>, text: &[u8]) -> Result<usize, Error> {
    const NOT_32_BITS: Error = Error::text("ERR value is out of range, value must between -2147483648 and 2147483647");
    let number = parse_i64(text).ok_or(Error::NOT_INTEGER)?;
    existing_database(db, i32::try_from(number).map_err(|_| NOT_32_BITS)?)
}

fn existing_database(db: &Db<'_>, number: i32) -> Result<usize, Error> {
    let number = usize::try_from(number).map_err(|_| NO_SUCH_DATABASE)?;
    if number < db.keyspace().databases() { Ok(number) } else { Err(NO_SUCH_DATABASE) }
}
