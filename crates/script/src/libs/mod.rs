//! The libraries that scripts find beside Lua's own.

mod bit;
pub(crate) mod check;
pub(crate) mod cjson;
mod cmsgpack;
mod random;
mod structs;

pub(crate) use random::Random;

use crate::lua::Lua;

/// Adds the libraries to the table of globals at `world`.
pub(crate) fn install(lua: Lua<'_>, world: i32) {
    bit::install(lua);
    lua.raw_set_field(world, "bit");
    cjson::install(lua);
    lua.raw_set_field(world, "cjson");
    cmsgpack::install(lua);
    lua.raw_set_field(world, "cmsgpack");
    structs::install(lua);
    lua.raw_set_field(world, "struct");
    random::install(lua, world);
}
