//! The table `redis`, also called `server`: the interface of scripts to the server.

mod command;
mod control;

use crate::lua::Lua;
use crate::run;
use crate::settings::{Identity, Kind};

/// Adds the table, under its two names, to the table of globals at `global`.
pub(crate) fn install(lua: Lua<'_>, global: i32, kind: Kind, identity: &Identity) {
    lua.create_table(0, 32);
    command::install(lua);
    control::install(lua);
    install_log_and_versions(lua, identity);
    if kind == Kind::Scripts {
        control::install_for_scripts(lua);
        lua.push_function(run::handler);
        lua.push_value(-1);
        lua.raw_set_field(global, "__server__err__handler");
        lua.raw_set_field(global, "__redis__err__handler");
    }
    lua.push_value(-1);
    lua.raw_set_field(global, "server");
    lua.raw_set_field(global, "redis");
}

/// Adds to the table on the top of the stack the fields that are also available while libraries are loaded.
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

/// Encodes a version of three numbers as one number, with a byte for each.
fn version_number(version: &str) -> u32 {
    let numbers = version.split('.').chain(["0"; 3]).take(3);
    numbers.fold(0, |all, number| all << 8 | number.parse::<u32>().unwrap_or(0) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeHost, eval, machine, run};
    use crate::{LogLevel, Propagation, Settings};

    #[test]
    fn host_receives_log_messages() {
        let mut vm = machine(Kind::Scripts, Settings::default());
        let host = &mut FakeHost::default();
        let script =
            "redis.log(redis.LOG_WARNING, 'a', 1, {}, 'b') redis.set_repl(redis.REPL_AOF) redis.call('echo', 1.5)";
        assert_eq!(run(&mut vm, host, script, &[], &[]), "$-1\r\n");
        assert_eq!(host.lines, [(LogLevel::Warning, "a 1 b".to_string())]);
        assert_eq!(host.propagation, Some(Propagation { aof: true, replicas: false }));
        assert_eq!(host.commands, ["echo 1.5"]);
    }

    #[test]
    fn acl_permissions_are_checked() {
        assert_eq!(eval("return redis.acl_check_cmd('echo', 'x')"), ":1\r\n");
        assert_eq!(eval("return redis.acl_check_cmd('fail')"), "$-1\r\n");
        let error = eval("return redis.acl_check_cmd('nope')");
        assert!(error.starts_with("-ERR Invalid command passed to server.acl_check_cmd()"), "{error}");
    }

    #[test]
    fn versions_have_numeric_form() {
        assert_eq!(version_number("9.1.2"), 0x09_01_02);
        assert_eq!(version_number("7.2"), 0x07_02_00);
        assert_eq!(version_number("255.255.255.3"), 0xff_ff_ff);
        assert_eq!(eval("return {redis.VALKEY_VERSION_NUM, redis.REDIS_VERSION}"), "*2\r\n:590082\r\n$5\r\n7.2.4\r\n");
    }

    #[test]
    fn long_requests_are_accepted() {
        let script = "local t = {} for i = 1, 7000 do t[i] = i end return redis.call('echo', unpack(t)).err or 1";
        let error = eval(script);
        assert!(error.starts_with("-ERR Unknown command called from script"), "{error}");
    }
}
