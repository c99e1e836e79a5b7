//! The libraries available to scripts in addition to Lua's own.

mod bit;
pub(crate) mod check;
pub(crate) mod cjson;
mod cmsgpack;
pub(crate) mod patterns;
mod random;
mod structs;

use crate::lua::Lua;

/// Adds the libraries to the table of globals at `global`.
pub(crate) fn install(lua: Lua<'_>, global: i32) {
    bit::install(lua);
    lua.raw_set_field(global, "bit");
    cjson::install(lua);
    lua.raw_set_field(global, "cjson");
    cmsgpack::install(lua);
    lua.raw_set_field(global, "cmsgpack");
    structs::install(lua);
    lua.raw_set_field(global, "struct");
    patterns::install(lua, global);
    random::install(lua, global);
}
