//! `redis`, also known as `server`: how scripts reach the server.

mod command;
mod control;

use crate::lua::Lua;
use crate::vm::Identity;
use crate::{Kind, run};

/// Adds the table, under its two names, to the table of globals at `world`.
pub(crate) fn install(lua: Lua<'_>, world: i32, kind: Kind, identity: &Identity) {
    lua.create_table(0, 32);
    command::install(lua);
    control::install(lua);
    install_log_and_versions(lua, identity);
    if kind == Kind::Scripts {
        control::install_for_scripts(lua);
        lua.push_function(run::handler);
        lua.push_value(-1);
        lua.raw_set_field(world, "__server__err__handler");
        lua.raw_set_field(world, "__redis__err__handler");
    }
    lua.push_value(-1);
    lua.raw_set_field(world, "server");
    lua.raw_set_field(world, "redis");
}

/// Adds to the table on the top of the stack what libraries find also while they are loaded.
pub(crate) fn install_log_and_versions(lua: Lua<'_>, identity: &Identity) {
    lua.add_function("log", control::log);
    for (level, name) in ["LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"].into_iter().enumerate() {
        lua.push_number(level as f64);
        lua.raw_set_field(-2, name);
    }
    for (name, version) in [("REDIS_VERSION", &identity.redis_version), ("VALKEY_VERSION", &identity.version)] {
        lua.push_bytes(version);
        lua.raw_set_field(-2, name);
        lua.push_number(f64::from(version_number(version)));
        lua.push_bytes(name);
        lua.push_bytes("_NUM");
        lua.concat(2);
        lua.insert(-2);
        lua.raw_set(-3);
    }
    lua.push_bytes(&identity.server_name);
    lua.raw_set_field(-2, "SERVER_NAME");
}

/// A version of three numbers as one: a byte for each.
fn version_number(version: &str) -> u32 {
    let numbers = version.split('.').chain(["0"; 3]).take(3);
    numbers.fold(0, |all, number| all << 8 | number.parse::<u32>().unwrap_or(0) & 0xff)
}
