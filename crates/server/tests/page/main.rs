//! The page for browsers: login, cookies, other sites, rights, limits, events.
//!
//! - `browser`: what a browser sends.
//! - `chromium`: the page in a real browser, by the tests in `tests/page`.

mod browser;
mod chromium;
#[path = "../common/mod.rs"]
mod common;

use browser::{Browser, exchange, start};
use common::authority::Authority;
use common::{for_workers, free_port, wait_until};
use redis::{Connection, cmd};
use serde_json::{Value, json};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::sync::Arc;

/// Runs a command in words.
#[track_caller]
fn ask<T: redis::FromRedisValue>(client: &mut Connection, line: &str) -> T {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(client).unwrap_or_else(|error| panic!("{line}: {error}"))
}

const PATHS: [&str; 5] = ["/ui", "/ui/", "/ui/app.js", "/ui/api/session", "/ui/api/events"];

#[test]
fn page_is_off_until_it_is_enabled() {
    let port = free_port();
    let server = common::Server::start(&["--metrics-port", &port.to_string()]);
    let browser = Browser::new(port);
    let login = json!({"user": "default", "password": ""});
    for path in PATHS {
        assert_eq!(browser.get(path).status, 404, "{path}");
    }
    assert_eq!(browser.post("/ui/api/login", &login).status, 404);
    ask::<()>(&mut server.client(), "CONFIG SET ui yes");
    assert_eq!(browser.get("/ui/").status, 200);
    let browser = browser.logged_in();
    let mut events = browser.events();
    events.next("sample");
    ask::<()>(&mut server.client(), "CONFIG SET ui no");
    events.next("end");
    assert_eq!(browser.post("/ui/api/commands", &json!({"commands": []})).status, 404);
}

#[test]
fn files_have_types_tags_and_a_policy() {
    let (_server, browser) = start(&[]);
    let redirect = browser.get("/ui");
    assert_eq!((redirect.status, redirect.header("location")), (308, Some("ui/")));
    for (path, content_type) in [
        ("/ui/", "text/html; charset=utf-8"),
        ("/ui/style.css", "text/css; charset=utf-8"),
        ("/ui/views/keyspace.js", "text/javascript; charset=utf-8"),
        ("/ui/vendor/uplot.js", "text/javascript; charset=utf-8"),
        ("/ui/icon.svg", "image/svg+xml"),
    ] {
        let reply = browser.get(path);
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(content_type)), "{path}");
        let policy = reply.header("content-security-policy").expect("a policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        let tag = reply.header("etag").expect("a tag");
        let again = browser.get_with(path, &format!("If-None-Match: {tag}\r\n"));
        assert_eq!((again.status, again.body.as_str()), (304, ""));
    }
    let html = browser.get("/ui/").body;
    assert!(
        !html.contains("<script>") && !html.contains("style=") && !html.contains("//"),
        "nothing inline or foreign"
    );
}

#[test]
fn sessions_need_a_login() {
    let (server, mut browser) = start(&[]);
    ask::<()>(&mut server.client(), "ACL SETUSER alice on >s3cret ~* +@all");
    ask::<()>(&mut server.client(), "ACL SETUSER bob off >s3cret ~* +@all");
    for (user, password) in [("alice", "wrong"), ("alice", ""), ("bob", "s3cret"), ("nobody", "s3cret")] {
        let refused = browser.log_in(user, password);
        assert_eq!((refused.status, refused.header("set-cookie")), (401, None), "{user}");
    }
    assert_eq!(browser.get("/ui/api/session").json()["user"], Value::Null);
    for path in ["/ui/api/events", "/ui/api/commands-table", "/ui/api/directives"] {
        assert_eq!(browser.get(path).status, 401, "{path}");
    }
    assert_eq!(browser.try_run(&[&["PING"]]).status, 401);
    let reply = browser.log_in("alice", "s3cret");
    assert_eq!(
        (reply.status, &reply.json()["user"], &reply.json()["may_write"]),
        (200, &json!("alice"), &json!(false))
    );
    let cookie = reply.header("set-cookie").expect("a cookie").to_owned();
    assert!(cookie.starts_with(&format!("kvick-page-{}=", browser.port)), "{cookie}");
    assert!(cookie.contains("; httponly") && cookie.contains("; samesite=strict") && !cookie.contains("secure"));
    assert_eq!(browser.run(&["ACL", "WHOAMI"]), "alice");
    // The server knows both connections by the address of the browser.
    let clients: String = ask(&mut server.client(), "CLIENT LIST");
    let own: Vec<&str> = clients.lines().filter(|line| line.contains("lib-name=kvick-page")).collect();
    assert!(own.len() == 2 && own.iter().all(|line| line.contains(" addr=127.0.0.1:") && line.contains("user=alice")));
    assert!(own.iter().all(|line| line.contains(&format!("laddr=127.0.0.1:{}", browser.port))), "{clients}");
    for guess in ["", "00", &"0".repeat(64)] {
        let stranger = Browser { cookie: format!("kvick-page-{}={guess}", browser.port), ..browser.clone() };
        assert_eq!(stranger.try_run(&[&["PING"]]).status, 401);
    }
    let left = browser.post("/ui/api/logout", &json!({}));
    assert!(left.status == 200 && left.header("set-cookie").is_some_and(|cookie| cookie.contains("max-age=0")));
    assert_eq!(browser.try_run(&[&["PING"]]).status, 401);
    wait_until("the connections are closed", || {
        !ask::<String>(&mut server.client(), "CLIENT LIST").contains("kvick-page")
    });
    let log = server.log();
    assert!(!log.contains("s3cret"), "{log}");
}

#[test]
fn requests_of_other_sites_are_refused() {
    let (server, browser) = start(&[]);
    let browser = browser.logged_in();
    let body = json!({"commands": [["PING"]]});
    let host = &browser.host;
    for headers in [
        String::new(),
        format!("Origin: http://{host}\r\n"),
        "X-Kvick-Page: 1\r\nOrigin: http://evil.example\r\n".to_owned(),
        "X-Kvick-Page: 1\r\nOrigin: null\r\n".to_owned(),
        "X-Kvick-Page: 1\r\nSec-Fetch-Site: cross-site\r\n".to_owned(),
    ] {
        for path in ["/ui/api/commands", "/ui/api/login", "/ui/api/logout", "/ui/api/subscriptions"] {
            assert_eq!(browser.post_with(path, &body, &headers).status, 403, "{path} {headers}");
        }
    }
    assert_eq!(browser.post_with("/ui/api/commands", &body, "X-Kvick-Page: 1\r\n").status, 200, "without an origin");
    assert_eq!(browser.get("/ui/api/commands").status, 405);
    // A name of another site that resolves to this server opens the page, but does not log in without a password.
    ask::<()>(&mut server.client(), "ACL SETUSER alice on >s3cret ~* +@all");
    let host = format!("evil.example:{}", browser.port);
    let own = format!("X-Kvick-Page: 1\r\nOrigin: http://{host}\r\n");
    let mut rebound = Browser { host, own, cookie: String::new(), ..browser };
    let refused = rebound.log_in("default", "");
    assert!(refused.status == 403 && refused.error().contains("without a password"), "{}", refused.body);
    assert_eq!(rebound.log_in("alice", "s3cret").status, 200);
}

#[test]
fn rights_of_the_user_hold() {
    for_workers(&[], |server| {
        let port = free_port();
        ask::<()>(&mut server.client(), &format!("CONFIG SET metrics-port {port}"));
        ask::<()>(&mut server.client(), "CONFIG SET ui yes");
        ask::<()>(&mut server.client(), "CONFIG SET ui-write yes");
        ask::<()>(
            &mut server.client(),
            "ACL SETUSER carol on >pw ~mine:* &mine:* +get +set +subscribe +unsubscribe +psubscribe",
        );
        ask::<()>(&mut server.client(), "SET mine:a 1");
        ask::<()>(&mut server.client(), "SET other 2");
        let mut browser = Browser::new(port);
        assert_eq!(browser.log_in("carol", "pw").status, 200);
        assert_eq!(browser.run(&["GET", "mine:a"]), "1");
        assert_eq!(browser.run(&["SET", "mine:b", "3"]), json!({"status": "OK"}));
        for denied in
            [&["GET", "other"][..], &["SET", "other", "x"], &["CONFIG", "GET", "*"], &["DEL", "mine:a"], &["INFO"]]
        {
            let error = browser.run(denied)["error"].as_str().unwrap_or_default().to_owned();
            assert!(error.starts_with("NOPERM"), "{denied:?}: {error}");
        }
        assert_eq!(ask::<String>(&mut server.client(), "GET other"), "2");
        let subscribe = |body: Value| browser.post("/ui/api/subscriptions", &body).json()["errors"].clone();
        assert_eq!(subscribe(json!({"channels": ["mine:x"]})), json!([]));
        let errors = subscribe(json!({"channels": ["other"], "patterns": ["*"], "shard_channels": ["mine:x"]}));
        let errors: Vec<&str> = errors.as_array().expect("errors").iter().filter_map(Value::as_str).collect();
        assert!(errors.len() == 3 && errors.iter().all(|error| error.starts_with("NOPERM")), "{errors:?}");
        let mut events = browser.events();
        let sample = events.next("sample");
        assert!(sample["replies"][0]["error"].as_str().is_some_and(|error| error.starts_with("NOPERM")), "{sample}");
        // Rights that change hold at once, and a deleted user has no session.
        ask::<()>(&mut server.client(), "ACL SETUSER carol -get");
        assert!(browser.run(&["GET", "mine:a"])["error"].is_string());
        ask::<()>(&mut server.client(), "ACL DELUSER carol");
        events.next("end");
        assert_eq!(browser.try_run(&[&["GET", "mine:a"]]).status, 401);
    });
}

#[test]
fn only_reading_is_possible_without_ui_write() {
    let (server, browser) = start(&["--enable-debug-command", "yes"]);
    let browser = browser.logged_in();
    ask::<()>(&mut server.client(), "SET k v");
    let refusal = |command: &[&str]| browser.run(command)["refused"].as_str().map(str::to_owned);
    for command in [
        &["SET", "k", "w"][..],
        &["set", "k", "w"],
        &["FLUSHALL"],
        &["CONFIG", "SET", "maxmemory", "1"],
        &["config", "set", "maxmemory", "1"],
        &["CONFIG", "REWRITE"],
        &["EVAL", "return server.call('SET', 'k', 'w')", "0"],
        &["FCALL", "f", "0"],
        &["SHUTDOWN"],
        &["DEBUG", "SLEEP", "1"],
        &["CLIENT", "KILL", "TYPE", "normal"],
        &["ACL", "SETUSER", "x"],
        &["ACL", "LOG", "RESET"],
        &["SCRIPT", "FLUSH"],
        &["GETDEL", "k"],
        &["GETEX", "k", "PERSIST"],
        &["SORT", "k", "STORE", "x"],
        &["BITFIELD", "k", "SET", "u8", "0", "1"],
        &["PUBLISH", "a", "b"],
        &["REPLICAOF", "NO", "ONE"],
        &["KEYS", "*"],
    ] {
        assert!(refusal(command).is_some(), "{command:?}");
    }
    for command in [
        &["MULTI"][..],
        &["SUBSCRIBE", "a"],
        &["MONITOR"],
        &["BLPOP", "k", "0"],
        &["XREAD", "BLOCK", "0", "STREAMS", "s", "$"],
        &["HELLO", "2"],
        &["RESET"],
        &["QUIT"],
        &["SELECT", "1"],
        &["CLIENT", "REPLY", "OFF"],
        &["SYNC"],
    ] {
        assert!(refusal(command).is_some(), "{command:?}");
        ask::<()>(&mut server.client(), "CONFIG SET ui-write yes");
        assert!(refusal(command).is_some(), "{command:?} with ui-write");
        ask::<()>(&mut server.client(), "CONFIG SET ui-write no");
    }
    for command in [
        &["GET", "k"][..],
        &["INFO"],
        &["CONFIG", "GET", "maxmemory"],
        &["CLIENT", "LIST"],
        &["SLOWLOG", "GET"],
        &["EVAL_RO", "return 1", "0"],
        &["NOSUCHCOMMAND"],
        &["CONFIG", "NOSUCH"],
    ] {
        assert_eq!(refusal(command), None, "{command:?}");
    }
    assert_eq!(ask::<String>(&mut server.client(), "GET k"), "v");
    ask::<()>(&mut server.client(), "CONFIG SET ui-write yes");
    assert_eq!(browser.run(&["SET", "k", "w"]), json!({"status": "OK"}));
    // One refused command does not keep the others from running, and the order stays.
    let replies = browser.try_run(&[&["GET", "k"], &["MULTI"], &["GET", "none"]]).json()["replies"].clone();
    assert!(replies[0] == "w" && replies[1]["refused"].is_string() && replies[2].is_null(), "{replies}");
}

#[test]
fn replies_keep_types_and_bytes() {
    let (server, browser) = start(&["--ui-write", "yes"]);
    let browser = browser.logged_in();
    let post = |body: Value| browser.post("/ui/api/commands", &body);
    let bytes = json!({"hex": "00ff0d0a"});
    let reply =
        post(json!({"commands": [["SET", bytes, bytes], ["GET", bytes], ["HSET", "h", "é", "ü"], ["HGETALL", "h"],
        ["ZADD", "z", "1.5", "m"], ["ZRANGE", "z", "0", "-1", "WITHSCORES"], ["SADD", "s", "a"], ["SMEMBERS", "s"],
        ["GET", "h"]]}));
    let replies = reply.json()["replies"].clone();
    assert_eq!(replies[1], bytes);
    assert_eq!(replies[3], json!({"map": [["é", "ü"]]}));
    assert_eq!(replies[5], json!([["m", {"double": "1.5"}]]));
    assert_eq!(replies[7], json!({"set": ["a"]}));
    assert!(replies[8]["error"].as_str().is_some_and(|error| error.starts_with("WRONGTYPE")));
    assert_eq!(ask::<usize>(&mut server.client(), "DBSIZE"), 4);
    // Each request names its database, and a wrong one runs nothing.
    assert_eq!(post(json!({"database": 3, "commands": [["DBSIZE"]]})).json()["replies"], json!([0]));
    assert_eq!(post(json!({"database": 0, "commands": [["DBSIZE"]]})).json()["replies"], json!([4]));
    let wrong = post(json!({"database": 99, "commands": [["FLUSHALL"], ["DBSIZE"]]})).json()["replies"].clone();
    assert!(wrong[0]["error"].is_string() && wrong[1]["error"].is_string(), "{wrong}");
    assert_eq!(browser.run(&["DBSIZE"]), 4);
}

#[test]
fn requests_and_replies_are_limited() {
    let (server, browser) = start(&["--ui-write", "yes"]);
    let browser = browser.logged_in();
    cmd("SET").arg("big").arg("x".repeat(3 << 20)).exec(&mut server.client()).expect("OK");
    let replies = browser.try_run(&[&["GET", "big"], &["STRLEN", "big"], &["GETRANGE", "big", "0", "2"]]).json();
    assert_eq!(replies["replies"], json!([{"too_large": 1 << 20}, 3 << 20, "xxx"]));
    let replies = browser.try_run(&[&["GETRANGE", "big", "0", "999999"][..]; 4]).json()["replies"].clone();
    assert!(replies[0].is_string() && replies[3]["too_large"].is_number(), "all replies together are limited, too");
    let many = vec![&["PING"][..]; 65];
    assert_eq!(browser.try_run(&many).status, 400);
    assert_eq!(browser.try_run(&many[..64]).status, 200);
    assert_eq!(browser.try_run(&[&[]]).status, 400);
    assert_eq!(browser.post("/ui/api/commands", &json!({"commands": [["ECHO", "x".repeat(70_000)]]})).status, 413);
    for body in [
        json!([]),
        json!({}),
        json!({"commands": [[1]]}),
        json!({"commands": [[{"hex": "0"}]]}),
        json!({"commands": [], "x": 1}),
    ] {
        assert_eq!(browser.post("/ui/api/commands", &body).status, 400, "{body}");
    }
    let channels: Vec<String> = (0..65).map(|number| number.to_string()).collect();
    assert_eq!(browser.post("/ui/api/subscriptions", &json!({"channels": channels})).status, 400);
    // Many requests while one runs: those beyond the queue are refused, and the others answered.
    ask::<()>(&mut server.client(), "CONFIG SET lua-time-limit 100");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let slow = "local t = redis.call('TIME') while redis.call('TIME')[1] - t[1] < 2 do end return 1";
        let slow = scope.spawn(|| browser.run(&["EVAL", slow, "0"]));
        wait_until("the script runs", || {
            let listed = cmd("CLIENT").arg("LIST").query::<String>(&mut server.client());
            listed.is_err_and(|error| error.to_string().contains("BUSY"))
        });
        let others: Vec<_> = (0..30).map(|_| scope.spawn(|| browser.try_run(&[&["PING"]]).status)).collect();
        let statuses = others.into_iter().map(|thread| thread.join().expect("a status")).collect();
        assert_eq!(slow.join().expect("a reply"), 1);
        statuses
    });
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    assert_eq!(browser.run(&["PING"]), json!({"status": "PONG"}), "the connection is in step");
}

#[test]
fn guesses_of_passwords_are_limited() {
    let (server, mut browser) = start(&[]);
    ask::<()>(&mut server.client(), "ACL SETUSER alice on >s3cret ~* +@all");
    let statuses: Vec<u16> = (0..12).map(|number| browser.log_in("alice", &number.to_string()).status).collect();
    assert_eq!(statuses, [[401; 10].as_slice(), &[429; 2]].concat());
    assert_eq!(browser.log_in("alice", "s3cret").status, 429, "also with the right password");
    let denied: Vec<Value> =
        ask::<Vec<redis::Value>>(&mut server.client(), "ACL LOG").iter().map(|_| Value::Null).collect();
    assert!(!denied.is_empty(), "failed logins are in the log");
}

#[test]
fn sessions_are_limited_and_count_as_clients() {
    let (server, browser) = start(&["--maxclients", "40"]);
    let sessions: Vec<Browser> = (0..17).map(|_| browser.clone().logged_in()).collect();
    let statuses: Vec<u16> = sessions.iter().map(|session| session.try_run(&[&["PING"]]).status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 16);
    assert_eq!(statuses[0], 401, "the first session made room");
    ask::<()>(&mut server.client(), "CONFIG SET maxclients 33");
    let refused = browser.clone().log_in("default", "");
    assert!(refused.status == 403 && refused.error().contains("max number of clients"), "{}", refused.body);
}

#[test]
fn events_carry_figures_and_messages() {
    for_workers(&[], |server| {
        let port = free_port();
        ask::<()>(&mut server.client(), &format!("CONFIG SET metrics-port {port}"));
        ask::<()>(&mut server.client(), "CONFIG SET ui yes");
        ask::<()>(&mut server.client(), "CONFIG SET notify-keyspace-events KEA");
        let browser = Browser::new(port).logged_in();
        let mut events = browser.events();
        let sample = events.next("sample");
        let info = sample["replies"][0]["text"].as_str().expect("INFO");
        assert!(info.contains("total_commands_processed:") && info.contains("kvick_worker_0:"), "{info}");
        assert!(sample["replies"][1]["map"].is_array() && sample["lost"] == 0 && sample["may_write"] == false);
        let body =
            json!({"channels": ["news", {"hex": "ff"}], "patterns": ["__keyevent@*__:*"], "shard_channels": ["shard"]});
        assert_eq!(browser.post("/ui/api/subscriptions", &body).json()["errors"], json!([]));
        assert_eq!(events.next("messages")[0]["push"][0], "subscribe", "confirmations are messages");
        let mut client = server.client();
        let mut expect = |published: &str, message: Value| {
            ask::<()>(&mut client, published);
            wait_until("the message arrives", || {
                events.next("messages").as_array().expect("messages").contains(&json!({"push": message}))
            });
        };
        expect("PUBLISH news hello", json!(["message", "news", "hello"]));
        expect("SPUBLISH shard hello", json!(["smessage", "shard", "hello"]));
        expect("SET k v", json!(["pmessage", "__keyevent@*__:*", "__keyevent@0__:set", "k"]));
        cmd("PUBLISH").arg(&[0xff_u8][..]).arg(&[0xfe_u8][..]).exec(&mut server.client()).expect("OK");
        let bytes = json!({"push": ["message", {"hex": "ff"}, {"hex": "fe"}]});
        wait_until("bytes arrive", || events.next("messages").as_array().expect("messages").contains(&bytes));
        cmd("PUBLISH").arg("news").arg("x".repeat(100_000)).exec(&mut server.client()).expect("OK");
        let too_large = json!({"too_large": 8192});
        wait_until("its size", || events.next("messages").as_array().expect("messages").contains(&too_large));
        // Other commands go on meanwhile, and new subscriptions replace the former ones.
        assert_eq!(browser.run(&["PING"]), json!({"status": "PONG"}));
        assert_eq!(browser.post("/ui/api/subscriptions", &json!({})).json()["errors"], json!([]));
        wait_until("nobody is subscribed", || ask::<u64>(&mut server.client(), "PUBLISH news x") == 0);
    });
}

#[test]
fn a_further_stream_replaces_the_oldest() {
    let (_server, browser) = start(&[]);
    let browser = browser.logged_in();
    let mut streams: Vec<_> = (0..5).map(|_| browser.events()).collect();
    streams[0].next("end");
    streams[4].next("sample");
}

#[test]
fn console_and_configuration_have_their_texts() {
    let (_server, browser) = start(&["--rename-command", "FLUSHALL", "wipe"]);
    let browser = browser.logged_in();
    let table = browser.get("/ui/api/commands-table").json();
    let find = |name: &str| {
        table["commands"].as_array().expect("commands").iter().find(|command| command["name"] == name).cloned()
    };
    let get = find("get").expect("GET");
    assert!(get["arguments"] == "key" && get["reads"] == true && get["group"] == "string", "{get}");
    assert!(find("config set").is_some_and(|command| command["reads"] == false));
    assert!(find("config").is_some_and(|command| command["is_container"] == true));
    assert!(find("command").is_some_and(|command| command["is_container"] == false));
    assert!(find("flushall").is_none() && find("wipe").is_some_and(|command| command["reads"] == false));
    assert!(browser.run(&["WIPE"])["refused"].is_string(), "a renamed command is the same command");
    let directives = browser.get("/ui/api/directives").json();
    let find = |name: &str| {
        let list = directives["directives"].as_array().expect("directives");
        list.iter().find(|directive| directive["name"] == name).cloned().expect("a directive")
    };
    assert!(find("port")["text"].as_str().is_some_and(|text| text.contains("TCP port")));
    assert!(find("requirepass")["secret"] == true && find("user")["in_file_only"] == true);
}

/// An address of this machine that is not a loopback address.
fn outer_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing, but selects the address that packets would come from.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[test]
fn protected_mode_refuses_logins_of_other_machines() {
    let Some(outer) = outer_address() else {
        println!("Not run: this machine has only loopback addresses");
        return;
    };
    let port = free_port();
    let args = ["--metrics-port", &port.to_string(), "--ui", "yes", "--metrics-bind", &format!("{outer} 127.0.0.1")];
    let server = common::Server::start(&args);
    ask::<()>(&mut server.client(), "ACL SETUSER alice on >s3cret ~* +@all");
    let log_in = |user: &str, password: &str| {
        let body = json!({"user": user, "password": password}).to_string();
        let length = body.len();
        let mut stream = TcpStream::connect((outer, port)).expect("the endpoint");
        exchange(
            &mut stream,
            &format!(
                "POST /ui/api/login HTTP/1.0\r\nHost: {outer}:{port}\r\nX-Kvick-Page: 1\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            ),
        )
    };
    for (user, password) in [("default", ""), ("alice", "s3cret")] {
        let refused = log_in(user, password);
        assert!(refused.status == 403 && refused.error().contains("protected mode"), "{}", refused.body);
    }
    ask::<()>(&mut server.client(), "CONFIG SET requirepass other");
    assert_eq!(log_in("alice", "s3cret").status, 200);
    assert_eq!(log_in("default", "").status, 401);
}

#[test]
fn over_tls_the_cookie_is_secure_and_no_other_port_is_needed() {
    let authority = Authority::new("authority");
    let own = authority.certify("server");
    let port = free_port();
    let socket = authority.data_dir.path().join("socket");
    let file = |path: &std::path::Path| path.display().to_string();
    let server = common::Server::start(&[
        "--metrics-port",
        &port.to_string(),
        "--metrics-tls",
        "yes",
        "--ui",
        "yes",
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        &file(&own.certificate),
        "--tls-key-file",
        &file(&own.key),
        "--tls-ca-cert-file",
        &file(&authority.file()),
        "--unixsocket",
        &file(&socket),
    ]);
    // The page does not depend on the ports of the server.
    ask::<()>(&mut server.client(), "CONFIG SET port 0");
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(authority.file()).expect("a certificate");
    let certificate = rustls::pki_types::pem::PemObject::from_pem_slice(&pem).expect("a certificate");
    roots.add(certificate).expect("an authority");
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut tcp = TcpStream::connect(("127.0.0.1", port)).expect("the endpoint");
    let body = json!({"user": "default", "password": ""}).to_string();
    let request = format!(
        "POST /ui/api/login HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: https://localhost:{port}\r\n\
        X-Kvick-Page: 1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let reply = exchange(&mut rustls::Stream::new(&mut client, &mut tcp), &request);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let cookie = reply.header("set-cookie").expect("a cookie");
    assert!(cookie.starts_with(&format!("__host-kvick-page-{port}=")) && cookie.contains("; secure"), "{cookie}");
}
