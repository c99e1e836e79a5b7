//! Connections: HELLO, authentication, database selection, limits before authentication, and the CLIENT commands.

mod common;

use common::segments::{first_parts_are_acknowledged, kernel_info};
use common::{Server, for_workers, wait_until};
use kvick_runtime::dial::{self, Route};
use redis::{Connection, RedisResult, Value, cmd};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const SECRET: &[&str] = &["--requirepass", "secret"];

/// The lines of CLIENT LIST, each as a map of its fields.
fn clients(connection: &mut Connection, options: &[&str]) -> Vec<HashMap<String, String>> {
    let list: String = cmd("CLIENT").arg("LIST").arg(options).query(connection).expect("a list");
    let field = |pair: &str| {
        let (name, value) = pair.split_once('=').expect("a field");
        (name.to_string(), value.to_string())
    };
    list.lines().map(|line| line.split(' ').map(field).collect()).collect()
}

fn id(connection: &mut Connection) -> u64 {
    cmd("CLIENT").arg("ID").query(connection).expect("a number")
}

fn named(server: &Server, name: &str) -> Connection {
    let mut connection = server.client();
    let () = cmd("CLIENT").arg("SETNAME").arg(name).query(&mut connection).expect("a name");
    connection
}

fn error<T: redis::FromRedisValue + std::fmt::Debug>(result: RedisResult<T>) -> String {
    let error = result.expect_err("an error");
    format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default())
}

#[test]
fn hello_selects_the_protocol() {
    for_workers(&[], |server| {
        let mut raw = server.raw();
        raw.request(&["HELLO", "3"]);
        raw.expect(
            "%7\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n$7\r\nversion\r\n$5\r\n9.1.2\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:",
        );
        raw.line();
        raw.expect("$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n");
        raw.ask(&["GET", "nothing"], "_\r\n");
        raw.ask(&["HELLO", "4"], "-NOPROTO unsupported protocol version\r\n");
        raw.ask(&["HELLO", "x"], "-ERR Protocol version is not an integer or out of range\r\n");
        raw.ask(&["HELLO", "2", "SETNAME"], "-ERR Syntax error in HELLO option 'SETNAME'\r\n");
        raw.ask(&["HELLO", "2", "SETNAME", "a b"], "-ERR Client names cannot contain spaces");
        raw.line();
        raw.ask(&["GET", "nothing"], "_\r\n");
        raw.ask(&["HELLO", "2", "SETNAME", "me"], "*14\r\n");
        raw.skip_to("modules");
        raw.expect("*0\r\n");
        raw.ask(&["GET", "nothing"], "$-1\r\n");
        raw.ask(&["CLIENT", "GETNAME"], "$2\r\nme\r\n");
    });
}

#[test]
fn hello_reports_availability_zone_and_redis_name_if_configured() {
    let server = Server::start(&["--availability-zone", "north", "--extended-redis-compatibility", "yes"]);
    let fields: HashMap<String, Value> = cmd("HELLO").arg(3).query(&mut server.client_resp3()).expect("a map");
    assert_eq!(fields["availability_zone"], Value::BulkString(b"north".to_vec()));
    assert_eq!(fields["server"], Value::BulkString(b"redis".to_vec()));
    assert_eq!(fields["version"], Value::BulkString(b"7.2.4".to_vec()));
}

#[test]
fn a_password_is_required() {
    for_workers(SECRET, |server| {
        let mut raw = server.raw();
        raw.ask(&["GET", "key"], "-NOAUTH Authentication required.\r\n");
        raw.ask(&["CLIENT", "ID"], "-NOAUTH Authentication required.\r\n");
        raw.ask(&["HELLO", "3"], "-NOAUTH HELLO must be called with the client already authenticated");
        raw.line();
        let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
        for words in
            [&["AUTH", "secre"][..], &["AUTH", "secrets"], &["AUTH", "default", ""], &["AUTH", "you", "secret"]]
        {
            raw.ask(words, wrong);
        }
        raw.ask(&["HELLO", "3", "AUTH", "default", "x"], wrong);
        raw.ask(&["AUTH", "a", "b", "c"], "-ERR syntax error\r\n");
        raw.ask(&["GET", "key"], "-NOAUTH Authentication required.\r\n");
        raw.ask(&["AUTH", "secret"], "+OK\r\n");
        raw.ask(&["GET", "key"], "$-1\r\n");
        raw.ask(&["AUTH", "wrong"], wrong);
        raw.ask(&["GET", "key"], "$-1\r\n");
        raw.ask(&["RESET"], "+RESET\r\n");
        raw.ask(&["GET", "key"], "-NOAUTH Authentication required.\r\n");
    });
}

#[test]
fn requests_behind_auth_in_one_packet_are_authenticated() {
    for_workers(SECRET, |server| {
        let mut raw = server.raw();
        let sets: String = (0..20).map(|_| "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n").collect();
        raw.send(format!("GET k\r\nAUTH secret\r\n{sets}MGET a b c d e f g h i j k l\r\n"));
        raw.expect("-NOAUTH Authentication required.\r\n+OK\r\n");
        (0..20).for_each(|_| raw.expect("+OK\r\n"));
        raw.expect("*12\r\n");
        let url = format!("redis://:secret@127.0.0.1:{}/?protocol=resp3", server.port());
        let mut client = redis::Client::open(url).and_then(|client| client.get_connection()).expect("a connection");
        assert_eq!(cmd("GET").arg("k").query::<String>(&mut client).expect("a value"), "v");
    });
}

#[test]
fn auth_without_a_configured_password_is_an_error() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let text = error(cmd("AUTH").arg("x").query::<()>(&mut client));
    assert_eq!(
        text,
        "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
         configuration is correct?"
    );
    assert_eq!(cmd("AUTH").arg(&["default", "x"]).query(&mut client), Ok("OK".to_string()));
}

#[test]
fn unauthenticated_input_is_limited() {
    for_workers(SECRET, |server| {
        let mut many = server.raw();
        many.send("*11\r\n");
        many.expect("-ERR Protocol error: unauthenticated multibulk length\r\n");
        many.expect_end();
        let mut long = server.raw();
        long.send("*2\r\n$4\r\nAUTH\r\n$16385\r\n");
        long.expect("-ERR Protocol error: unauthenticated bulk length\r\n");
        long.expect_end();
        let mut allowed = server.raw();
        allowed.ask(&["AUTH", &"x".repeat(16384)], "-WRONGPASS ");
        allowed.line();
        allowed.ask(&["AUTH", "secret"], "+OK\r\n");
        allowed.ask(&["ECHO", &"x".repeat(16385)], "$16385\r\nxxx");
    });
}

#[test]
fn unauthenticated_limits_do_not_leak_between_connections() {
    for_workers(SECRET, |server| {
        let request = |key: &str| format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
        let (mut trusted, long) = (server.raw(), "x".repeat(20_000));
        trusted.ask(&["AUTH", "secret"], "+OK\r\n");
        let mut repeat = |key: &str| {
            for _ in 0..8 {
                trusted.send(request(key));
                trusted.expect("$-1\r\n");
            }
        };
        repeat(&long);
        let mut unauthenticated = server.raw();
        unauthenticated.send(request(&long));
        unauthenticated.expect("-ERR Protocol error: unauthenticated bulk length\r\n");
        unauthenticated.expect_end();
        // An argument that comes in two parts, the second of which looks like a request that others send.
        for before in [10, 100_000] {
            repeat("0123456789");
            let argument = "x".repeat(before) + &request("0123456789");
            let mut raw = server.raw();
            raw.ask(&["AUTH", "secret"], "+OK\r\n");
            raw.send(format!("*2\r\n$4\r\nECHO\r\n${}\r\n{}", argument.len(), &argument[..before]));
            let url = format!("redis://:secret@127.0.0.1:{}/", server.port());
            let mut other = redis::Client::open(url).and_then(|client| client.get_connection()).expect("a connection");
            wait_until("the first part is read", || {
                clients(&mut other, &[]).iter().any(|client| client["cmd"] == "auth" && client["qbuf"] != "0")
            });
            raw.send(&argument[before..]);
            raw.send("\r\n");
            raw.expect(&format!("${}\r\n{argument}\r\n", argument.len()));
            raw.send(request("0123456789"));
            raw.expect("$-1\r\n");
        }
        // The same where the next argument should begin.
        repeat("0123456789");
        let mut raw = server.raw();
        raw.ask(&["AUTH", "secret"], "+OK\r\n");
        raw.send(format!("*3\r\n$3\r\nSET\r\n$100000\r\n{}\r\n{}", "x".repeat(100_000), request("0123456789")));
        raw.expect("-ERR Protocol error: expected '$', got '*'\r\n");
        raw.expect_end();
    });
}

#[test]
fn malformed_requests_close_the_connection() {
    for_workers(&[], |server| {
        let cases = [
            ("*1\r\n+PING\r\n", "-ERR Protocol error: expected '$', got '+'\r\n"),
            ("*x\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
            ("*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
            ("SET \"k v\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
        ];
        for (request, reply) in cases {
            let mut raw = server.raw();
            raw.send(format!("PING\r\n{request}PING\r\n"));
            raw.expect("+PONG\r\n");
            raw.expect(reply);
            raw.expect_end();
        }
        let mut raw = server.raw();
        raw.send("PING\r\nQUIT\r\nPING\r\n");
        raw.expect("+PONG\r\n+OK\r\n");
        raw.expect_end();
    });
}

#[test]
fn each_connection_has_its_own_database() {
    for_workers(&["--databases", "3"], |server| {
        let mut raw = server.raw();
        raw.send("SET k zero\r\nSELECT 2\r\nGET k\r\nSET k two\r\nSELECT 0\r\nGET k\r\nSELECT 2\r\nGET k\r\n");
        raw.expect("+OK\r\n+OK\r\n$-1\r\n+OK\r\n+OK\r\n$4\r\nzero\r\n+OK\r\n$3\r\ntwo\r\n");
        raw.ask(&["SELECT", "3"], "-ERR DB index is out of range\r\n");
        raw.ask(&["SELECT", "-1"], "-ERR DB index is out of range\r\n");
        raw.ask(&["SELECT", "x"], "-ERR value is not an integer or out of range\r\n");
        raw.ask(
            &["SELECT", "2147483648"],
            "-ERR value is out of range, value must between -2147483648 and 2147483647\r\n",
        );
        raw.ask(&["GET", "k"], "$3\r\ntwo\r\n");
        raw.ask(&["RESET"], "+RESET\r\n");
        raw.ask(&["GET", "k"], "$4\r\nzero\r\n");
    });
}

#[test]
fn every_worker_lists_all_clients() {
    for_workers(&[], |server| {
        let mut all: Vec<Connection> = (0..8).map(|number| named(server, &format!("client-{number}"))).collect();
        let ids: Vec<u64> = all.iter_mut().map(id).collect();
        assert!(ids.is_sorted());
        for connection in &mut all {
            let own_id = id(connection);
            let list = clients(connection, &[]);
            assert_eq!(list.iter().map(|client| client["id"].parse().expect("a number")).collect::<Vec<u64>>(), ids);
            let me = list.iter().find(|client| client["id"] == own_id.to_string()).expect("its own line");
            assert_eq!(
                (me["cmd"].as_str(), me["flags"].as_str(), me["user"].as_str()),
                ("client|list", "N", "default")
            );
        }
        let last = ids[7].to_string();
        assert_eq!(clients(&mut all[0], &["ID", &last, "TYPE", "normal"])[0]["name"], "client-7");
        assert_eq!(clients(&mut all[0], &["NAME", "client-3"])[0]["id"], ids[3].to_string());
        assert_eq!(clients(&mut all[0], &["NOT-ID", &last, "SKIPME", "YES"]).len(), 6);
        assert_eq!(clients(&mut all[0], &["TYPE", "replica"]).len(), 0);
    });
}

#[test]
fn client_info_reflects_activity() {
    for_workers(&[], |server| {
        let mut raw = server.raw();
        raw.ask(&["CLIENT", "SETINFO", "LIB-NAME", "lib"], "+OK\r\n");
        raw.ask(&["CLIENT", "SETINFO", "lib-ver", "1.2"], "+OK\r\n");
        raw.ask(&["CLIENT", "SETINFO", "lib-ver", "1 2"], "-ERR lib-ver cannot contain spaces");
        raw.line();
        raw.ask(&["CLIENT", "NO-TOUCH", "ON"], "+OK\r\n");
        raw.ask(&["CLIENT", "NO-EVICT", "ON"], "+OK\r\n");
        raw.ask(&["CLIENT", "CAPA", "redirect", "flight"], "+OK\r\n");
        raw.ask(&["SELECT", "9"], "+OK\r\n");
        raw.ask(&["GET", "k"], "$-1\r\n");
        let described = || -> HashMap<String, String> { clients(&mut server.client(), &["LIB-NAME", "lib"]).remove(0) };
        let line = described();
        for (field, value) in [
            ("lib-ver", "1.2"),
            ("flags", "eT"),
            ("capa", "r"),
            ("db", "9"),
            ("cmd", "get"),
            ("resp", "2"),
            ("tot-cmds", "8"),
        ] {
            assert_eq!(line[field], value, "{field}");
        }
        raw.send("PING\r\nPING\r\n");
        raw.expect("+PONG\r\n+PONG\r\n");
        // Bytes sent are counted when they have been written, which the client may notice earlier.
        wait_until("all is counted", || {
            let later = described();
            let number = |line: &HashMap<String, String>, field: &str| line[field].parse::<u64>().expect("a number");
            let growth = |field: &str| number(&later, field) - number(&line, field);
            assert_eq!((growth("tot-cmds"), growth("tot-net-in")), (2, 12));
            growth("tot-net-out") >= 14
        });
        raw.ask(&["RESET"], "+RESET\r\n");
        let fresh = described();
        assert_eq!((fresh["flags"].as_str(), fresh["db"].as_str(), fresh["capa"].as_str()), ("N", "0", "r"));
    });
}

#[test]
fn a_client_that_prefers_replicas_recognises_a_primary() {
    for_workers(&[], |server| {
        let mut raw = server.raw();
        let flags = || clients(&mut server.client(), &["LIB-NAME", "Lettuce"])[0]["flags"].clone();
        raw.request(&["HELLO", "3"]);
        raw.skip_to("modules");
        raw.expect("*0\r\n");
        raw.ask(&["CLIENT", "SETINFO", "lib-name", "Lettuce"], "+OK\r\n");
        raw.ask(&["CLIENT", "SETINFO", "lib-ver", "6.5.0.RELEASE/5c5a1d2"], "+OK\r\n");
        raw.ask(&["ROLE"], "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
        raw.request(&["INFO", "replication"]);
        raw.skip_to("role:master");
        raw.skip_to("connected_slaves:0");
        // The last line of the section, and the end of the reply.
        raw.skip_until("repl_backlog_histlen:", |line| line.starts_with("repl_backlog_histlen:"));
        raw.expect("\r\n");
        raw.ask(&["READONLY"], "+OK\r\n");
        assert_eq!(flags(), "r");
        raw.ask(&["SET", "key", "value"], "+OK\r\n");
        raw.ask(&["READWRITE"], "+OK\r\n");
        assert_eq!(flags(), "N");
        raw.ask(&["READONLY"], "+OK\r\n");
        raw.ask(&["RESET"], "+RESET\r\n");
        assert_eq!(flags(), "N");
        raw.ask(&["READONLY", "now"], "-ERR wrong number of arguments for 'readonly' command\r\n");
    });
}

#[test]
fn client_kill_closes_connections() {
    for_workers(&[], |server| {
        let mut killer = server.client();
        let mut victims: Vec<_> = (0..6).map(|_| server.raw()).collect();
        let mut ids = Vec::new();
        for victim in &mut victims {
            victim.request(&["CLIENT", "ID"]);
            ids.push(victim.line().trim_start_matches(':').to_string());
        }
        let (first, rest) = ids.split_at(2);
        let killed: u32 = cmd("CLIENT").arg(&["KILL", "ID"]).arg(first).query(&mut killer).expect("a count");
        assert_eq!(killed, 2);
        assert_eq!(clients(&mut killer, &["SKIPME", "yes"]).len(), 4);
        let again: u32 = cmd("CLIENT").arg(&["KILL", "ID"]).arg(first).query(&mut killer).expect("a count");
        assert_eq!(again, 0);
        victims.drain(..2).for_each(|mut victim| victim.expect_end());
        let address = clients(&mut killer, &["ID", &rest[0]]).remove(0).remove("addr").expect("an address");
        assert_eq!(cmd("CLIENT").arg(&["KILL", &address]).query(&mut killer), Ok("OK".to_string()));
        victims.remove(0).expect_end();
        assert_eq!(error(cmd("CLIENT").arg(&["KILL", &address]).query::<()>(&mut killer)), "ERR No such client");
        let others: u32 = cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut killer).expect("a count");
        assert_eq!(others, 3);
        victims.iter_mut().for_each(|victim| victim.expect_end());
        let mut suicide = server.raw();
        suicide.send("CLIENT KILL TYPE normal SKIPME no\r\nPING\r\n");
        suicide.expect(":2\r\n");
        suicide.expect_end();
    });
}

#[test]
fn replies_can_be_switched_off_and_skipped() {
    for_workers(&[], |server| {
        let mut raw = server.raw();
        raw.send(
            "CLIENT REPLY OFF\r\nECHO 1\r\nNONSENSE\r\nCLIENT REPLY SKIP\r\nECHO 2\r\nCLIENT REPLY ON\r\nECHO 3\r\n",
        );
        raw.expect("+OK\r\n$1\r\n3\r\n");
        raw.send(
            "CLIENT REPLY SKIP\r\nECHO 4\r\nECHO 5\r\nCLIENT REPLY SKIP\r\nCLIENT REPLY SKIP\r\nECHO 6\r\nECHO 7\r\n",
        );
        raw.expect("$1\r\n5\r\n$1\r\n7\r\n");
        raw.send("CLIENT REPLY SKIP\r\nCLIENT REPLY ON\r\nCLIENT REPLY OFF\r\nRESET\r\nECHO 8\r\n");
        raw.expect("+OK\r\n+RESET\r\n$1\r\n8\r\n");
        raw.ask(&["CLIENT", "REPLY", "maybe"], "-ERR syntax error\r\n");
    });
}

#[test]
fn a_write_pause_delays_writes_until_unpause() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut writers: Vec<_> = (0..5).map(|_| server.raw()).collect();
        assert_eq!(cmd("CLIENT").arg(&["PAUSE", "100000", "WRITE"]).query(&mut control), Ok("OK".to_string()));
        for (number, writer) in writers.iter_mut().enumerate() {
            writer.send(format!("GET k{number}\r\nSET k{number}\r\nSET k{number} v\r\nGET k{number}\r\n"));
            writer.expect("$-1\r\n-ERR wrong number of arguments for 'set' command\r\n");
        }
        wait_until("all writers wait", || clients(&mut control, &["FLAGS", "b"]).len() == 5);
        let first = clients(&mut control, &["FLAGS", "b"]).remove(0).remove("id").expect("a number");
        assert_eq!(cmd("CLIENT").arg(&["UNBLOCK", &first]).query(&mut control), Ok(0));
        // A shorter pause does not shorten it.
        assert_eq!(cmd("CLIENT").arg(&["PAUSE", "1", "WRITE"]).query(&mut control), Ok("OK".to_string()));
        assert_eq!(cmd("GET").arg("k0").query(&mut control), Ok(None::<String>));
        assert_eq!(cmd("CLIENT").arg("UNPAUSE").query(&mut control), Ok("OK".to_string()));
        writers.iter_mut().for_each(|writer| writer.expect("+OK\r\n$1\r\nv\r\n"));
        assert_eq!(clients(&mut control, &["FLAGS", "b"]).len(), 0);
    });
}

#[test]
fn a_full_pause_ends_after_its_timeout() {
    for_workers(&[], |server| {
        let (mut one, mut other) = (server.raw(), server.raw());
        other.ask(&["PING"], "+PONG\r\n");
        let began = Instant::now();
        one.ask(&["CLIENT", "PAUSE", "150"], "+OK\r\n");
        one.ask(&["CLIENT", "PAUSE", "10", "WRITE"], "+OK\r\n");
        other.ask(&["PING"], "+PONG\r\n");
        assert!(began.elapsed() >= Duration::from_millis(145), "{:?}", began.elapsed());
        one.ask(&["CLIENT", "PAUSE", "-1"], "-ERR timeout is negative\r\n");
        one.ask(&["CLIENT", "PAUSE", "9223372036854775807"], "-ERR timeout is out of range\r\n");
        one.ask(&["CLIENT", "PAUSE", "1", "READ"], "-ERR CLIENT PAUSE mode must be WRITE or ALL\r\n");
    });
}

#[test]
fn a_line_that_arrives_at_once_may_be_long() {
    let server = Server::start(&[]);
    let mut raw = server.raw();
    let word = "x".repeat(20_000);
    raw.send(format!("DEL {word} {word} {word}\r\nPING\r\n"));
    raw.expect(":0\r\n+PONG\r\n");
    raw.send(b"GETX \"\\xff\\x00z\"\r\n");
    let expected = b"-ERR unknown command 'GETX', with args beginning with: '\xff' \r\n";
    assert_eq!(raw.bytes(expected.len()), expected);
}

#[test]
fn multipath_connections_are_accepted_if_enabled() {
    for setting in ["yes", "no"] {
        let server = Server::start(&["--mptcp", setting]);
        let address = ([127, 0, 0, 1], server.port()).into();
        let route = Route { is_multipath: true, ..Route::default() };
        let Ok(mut stream) = dial::connect(address, route, Duration::from_secs(10)) else {
            return println!("this kernel has no Multipath TCP");
        };
        stream.write_all(b"PING\r\n").expect("a connection");
        let mut reply = [0; 7];
        stream.read_exact(&mut reply).expect("a reply");
        assert_eq!(&reply, b"+PONG\r\n");
        assert_eq!(is_multipath(&stream), setting == "yes");
        // Other clients connect with TCP.
        let () = cmd("PING").query(&mut server.client()).expect("a reply");
    }
    let primary = Server::start(&["--mptcp", "yes"]);
    for args in [&["--repl-mptcp", "yes"][..], &[]] {
        let replica = Server::start(args);
        let mut client = replica.client();
        let () = cmd("REPLICAOF").arg("127.0.0.1").arg(primary.port()).query(&mut client).expect("a primary");
        wait_until("the link is up", || {
            let info: String = cmd("INFO").arg("replication").query(&mut client).expect("a page");
            info.contains("master_link_status:up")
        });
    }
}

#[test]
fn the_first_part_of_a_request_is_acknowledged_before_the_rest_arrives() {
    for_workers(&[], |server| {
        let mut client = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        let socket = client.try_clone().expect("the same socket");
        first_parts_are_acknowledged(server, &mut client, &socket);
    });
}

/// Whether both ends use Multipath TCP: otherwise the kernel has no information about its paths.
fn is_multipath(stream: &TcpStream) -> bool {
    const SOL_MPTCP: libc::c_int = 284;
    const MPTCP_INFO: libc::c_int = 1;
    kernel_info(stream, SOL_MPTCP, MPTCP_INFO).is_some()
}
