//! COMMAND, as clients that route requests and tools that show documentation use it.

mod common;

use common::Server;
use redis::{Value, cmd};
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn command_count_and_list_agree() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let all: Vec<Vec<Value>> = cmd("COMMAND").query(&mut client).expect("commands");
    assert_eq!(cmd("COMMAND").arg("COUNT").query(&mut client), Ok(all.len()));
    let names: BTreeSet<String> = cmd("COMMAND").arg("LIST").query(&mut client).expect("names");
    for command in &all {
        assert_eq!(command.len(), 10);
        let name: String = redis::from_redis_value(command[0].clone()).expect("a name");
        assert!(names.contains(&name), "{name}");
    }
    assert!(names.contains("client|id"));
    let docs: BTreeMap<String, Value> = cmd("COMMAND").arg("DOCS").query(&mut client).expect("documentation");
    assert_eq!(docs.len(), all.len());
    let filtered = |words: &[&str], client: &mut redis::Connection| -> BTreeSet<String> {
        cmd("COMMAND").arg("LIST").arg("FILTERBY").arg(words).query(client).expect("names")
    };
    let named: Vec<String> = filtered(&["PATTERN", "CLIENT|NO-*"], &mut client).into_iter().collect();
    assert_eq!(named, ["client|no-evict", "client|no-touch"]);
    let connection = filtered(&["ACLCAT", "Connection"], &mut client);
    assert!(connection.contains("hello") && connection.contains("client|kill") && !connection.contains("get"));
    assert!(filtered(&["MODULE", "any"], &mut client).is_empty());
}

#[test]
fn command_info_has_valkeys_shape() {
    let server = Server::start(&[]);
    let mut raw = server.raw();
    let get = "*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*3\r\n+@read\r\n+@string\r\n\
        +@fast\r\n*0\r\n*1\r\n*6\r\n$5\r\nflags\r\n*2\r\n+RO\r\n+access\r\n$12\r\nbegin_search\r\n*4\r\n$4\r\n\
        type\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:1\r\n$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\n\
        range\r\n$4\r\nspec\r\n*6\r\n$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n*0\r\n";
    raw.ask(&["COMMAND", "INFO", "nothing", "GET"], &format!("*2\r\n$-1\r\n{get}"));
    raw.request(&["HELLO", "3"]);
    raw.skip_to("modules");
    raw.expect("*0\r\n");
    raw.ask(&["COMMAND", "INFO", "nothing"], "*1\r\n_\r\n");
}

#[test]
fn keys_are_found_in_requests() {
    let server = Server::start(&[]);
    let mut raw = server.raw();
    raw.ask(&["COMMAND", "GETKEYS", "mset", "a", "1", "b", "2"], "*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    raw.ask(&["COMMAND", "GETKEYSANDFLAGS", "set", "k", "v"], "*1\r\n*2\r\n$1\r\nk\r\n*2\r\n+OW\r\n+update\r\n");
    // As in Valkey, requests that the command will refuse have keys too, for which their users need rights.
    raw.ask(&["COMMAND", "GETKEYS", "xread", "streams", "a", "b", "0"], "*1\r\n$1\r\na\r\n");
    raw.ask(&["COMMAND", "GETKEYS", "blmpop", "0", "+1", "k", "left"], "*1\r\n$1\r\nk\r\n");
    raw.ask(&["COMMAND", "GETKEYS", "eval", "x", "1x", "k"], "*1\r\n$1\r\nk\r\n");
    raw.ask(&["COMMAND", "GETKEYS", "eval", "x", "0", "k"], "*0\r\n");
    raw.ask(&["COMMAND", "GETKEYS", "pfmerge", "k"], "*1\r\n$1\r\nk\r\n");
    let cases: [(&[&str], &str); 6] = [
        (&["zinterstore", "d", "0", "k"], "Invalid arguments specified for command"),
        (&["ping"], "The command has no key arguments"),
        (&["nonsense"], "Invalid command specified"),
        (&["client", "nonsense"], "Invalid command specified"),
        (&["get"], "Invalid number of arguments specified for command"),
        (&["msetex", "5", "a", "b"], "Invalid arguments specified for command"),
    ];
    for (request, error) in cases {
        raw.ask(&[&["COMMAND", "GETKEYS"], request].concat(), &format!("-ERR {error}\r\n"));
    }
}
