//! Access control: authentication, permissions of every kind, and their changes under load.

mod common;

use common::{Raw, Server, for_workers, wait_until};
use kvick_testing::{SetOnDrop, output};
use redis::cmd;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NO_KEY: &str = "-NOPERM No permissions to access a key\r\n";
const NO_CHANNEL: &str = "-NOPERM No permissions to access a channel\r\n";
const NO_DATABASE: &str = "-NOPERM No permissions to access database\r\n";
const OK: &str = "+OK\r\n";

/// The refusal of a command.
fn no_command(user: &str, command: &str) -> String {
    format!("-NOPERM User {user} has no permissions to run the '{command}' command\r\n")
}

/// Sends a line's words, which have no blanks in them, and checks the reply.
#[track_caller]
fn ask(raw: &mut Raw, line: &str, expected: &str) {
    raw.ask(&line.split(' ').collect::<Vec<_>>(), expected);
}

/// A connection that has authenticated as `user`, a new user with these rules.
fn become_user(server: &Server, user: &str, rules: &str) -> Raw {
    let mut raw = server.raw();
    ask(&mut raw, &format!("ACL SETUSER {user} on >pw {rules}"), OK);
    ask(&mut raw, &format!("AUTH {user} pw"), OK);
    raw
}

/// The replies to LIST-like commands, as one text.
fn listed(server: &Server, words: &[&str]) -> String {
    let mut request = cmd(words[0]);
    request.arg(&words[1..]);
    let found: redis::Value = request.query(&mut server.client()).expect("a reply");
    format!("{found:?}")
}

#[test]
fn login_needs_the_password() {
    const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    for_workers(&["--requirepass", "foobared"], |server| {
        let mut raw = server.raw();
        for line in ["GET k", "NOSUCH", "GET", "CONFIG NOSUCH", "MULTI", "ACL WHOAMI"] {
            ask(&mut raw, line, "-NOAUTH Authentication required.\r\n");
        }
        ask(&mut raw, "AUTH wrong", WRONG);
        ask(&mut raw, "AUTH nobody foobared", WRONG);
        ask(&mut raw, "AUTH a b c", "-ERR syntax error\r\n");
        ask(&mut raw, "HELLO 3 AUTH default wrong", WRONG);
        ask(&mut raw, "AUTH foobared", OK);
        ask(&mut raw, "ACL SETUSER bob >one >two ~* +@all", OK);
        ask(&mut raw, "AUTH bob one", WRONG);
        ask(&mut raw, "ACL SETUSER bob on", OK);
        for password in ["one", "two"] {
            ask(&mut raw, &format!("AUTH bob {password}"), OK);
        }
        ask(&mut raw, "ACL WHOAMI", "$3\r\nbob\r\n");
        ask(&mut raw, "RESET", "+RESET\r\n");
        ask(&mut raw, "ACL WHOAMI", "-NOAUTH Authentication required.\r\n");
        ask(&mut raw, "AUTH foobared", OK);
        // What the configuration and the rules say of the password is the same thing.
        ask(&mut raw, "CONFIG SET requirepass other", OK);
        ask(&mut server.raw(), "AUTH foobared", WRONG);
        ask(&mut server.raw(), "AUTH other", OK);
        ask(&mut raw, "ACL SETUSER default >more", OK);
        ask(&mut server.raw(), "AUTH default more", OK);
        ask(&mut raw, "ACL SETUSER default nopass", OK);
        ask(&mut server.raw(), "PING", "+PONG\r\n");
    });
}

#[test]
fn a_user_without_permissions_is_always_refused() {
    for_workers(&["--enable-debug-command", "yes"], |server| {
        let mut admin = server.raw();
        admin.send("SET secret s\r\nRPUSH seclist a\r\nRPUSH mylist 1\r\nSET weight_1 w\r\n");
        admin.expect("+OK\r\n:1\r\n:1\r\n+OK\r\n");
        // Any command, but only on keys of its own.
        let mut raw = become_user(server, "bob", "+@all ~my* &my*");
        for line in [
            "GET secret",
            "MGET mykey secret",
            "COPY secret mykey",
            "COPY mykey secret",
            "COPY secret mykey DB 1",
            "RENAME secret mykey",
            "MOVE secret 1",
            "LMOVE seclist mylist LEFT LEFT",
            "BLMOVE seclist mylist LEFT LEFT 0",
            "BLPOP mylist2 seclist 0",
            "SORT seclist",
            "SORT mylist STORE secret",
            "SORT mylist STORE by STORE secret",
            "SUNIONSTORE mykey secret",
            "ZUNIONSTORE mykey 2 mykey secret",
            "GEORADIUS mykey 0 0 1 km STORE secret",
            "DUMP secret",
            "RESTORE secret 0 x",
            "OBJECT ENCODING secret",
            "MEMORY USAGE secret",
            "MIGRATE 127.0.0.1 1 secret 0 10",
            "XREAD BLOCK 0 STREAMS mystream secret 0 0",
            "WATCH secret",
            "EXISTS secret",
            "TOUCH secret",
            "BITOP NOT mykey secret",
            "PFCOUNT secret",
            "LCS mykey secret",
        ] {
            ask(&mut raw, line, NO_KEY);
        }
        ask(&mut raw, "MIGRATE 127.0.0.1 1  0 10 KEYS mykey secret", NO_KEY);
        ask(
            &mut raw,
            "SORT mylist BY weight_*",
            "-ERR BY option of SORT denied due to insufficient ACL permissions.\r\n",
        );
        ask(
            &mut raw,
            "SORT_RO mylist GET weight_*",
            "-ERR GET option of SORT denied due to insufficient ACL permissions.\r\n",
        );
        ask(&mut raw, "SORT mylist BY nosort", "*1\r\n$1\r\n1\r\n");
        ask(&mut raw, "SUBSCRIBE other", NO_CHANNEL);
        ask(&mut raw, "PSUBSCRIBE *", NO_CHANNEL);
        ask(&mut raw, "PSUBSCRIBE my?", NO_CHANNEL);
        ask(&mut raw, "SSUBSCRIBE other", NO_CHANNEL);
        ask(&mut raw, "PUBLISH other x", NO_CHANNEL);
        ask(&mut raw, "SPUBLISH other x", NO_CHANNEL);
        // In a transaction nothing is queued either, and EXEC runs nothing.
        ask(&mut raw, "MULTI", OK);
        ask(&mut raw, "SET mykey v", "+QUEUED\r\n");
        ask(&mut raw, "GET secret", NO_KEY);
        ask(&mut raw, "EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n");
        ask(&mut raw, "EXISTS mykey", ":0\r\n");
        ask(&mut admin, "GET secret", "$1\r\ns\r\n");
    });
}

#[test]
fn subcommands_have_their_own_permissions() {
    for_workers(&[], |server| {
        let mut raw = become_user(server, "bob", "+@all -config +config|get -client|list -debug");
        ask(&mut raw, "CONFIG GET port-none", "*0\r\n");
        ask(&mut raw, "CONFIG SET maxmemory 1", &no_command("bob", "config|set"));
        ask(&mut raw, "CONFIG REWRITE", &no_command("bob", "config|rewrite"));
        ask(&mut raw, "CLIENT LIST", &no_command("bob", "client|list"));
        ask(&mut raw, "CLIENT NO-TOUCH off", OK);
        ask(&mut raw, "client SETNAME x", OK);
        let mut raw = become_user(server, "al", "+select|1 +acl|whoami");
        ask(&mut raw, "SELECT 1", OK);
        ask(&mut raw, "SELECT 0", &no_command("al", "select"));
        ask(&mut raw, "SELECT 01", &no_command("al", "select"));
        ask(&mut raw, "ACL LIST", &no_command("al", "acl|list"));
        ask(&mut raw, "ACL SETUSER al +@all", &no_command("al", "acl|setuser"));
    });
}

#[test]
fn key_patterns_may_be_read_only_or_write_only() {
    for_workers(&[], |server| {
        let mut raw = become_user(server, "bob", "+@all %R~r* %W~w* ~b*");
        ask(&mut raw, "SET w 1", OK);
        ask(&mut raw, "SET b 1", OK);
        ask(&mut raw, "GET r", "$-1\r\n");
        for line in ["GET w", "SET r 1", "SET w 1 GET", "COPY w b", "COPY b r", "GETDEL w", "INCR r", "GETEX r EX 1"] {
            ask(&mut raw, line, NO_KEY);
        }
        ask(&mut raw, "COPY r w", ":0\r\n");
        // EXISTS neither reads nor writes the value.
        ask(&mut raw, "EXISTS w r b", ":2\r\n");
        // Selectors do not add up.
        let mut raw = become_user(server, "al", "+get ~a (+set ~b)");
        ask(&mut raw, "GET a", "$-1\r\n");
        ask(&mut raw, "SET b 1", OK);
        ask(&mut raw, "SET a 1", NO_KEY);
        ask(&mut raw, "GET b", NO_KEY);
        ask(&mut raw, "DEL b", &no_command("al", "del"));
    });
}

#[test]
fn database_permissions_are_enforced() {
    for_workers(&[], |server| {
        let mut admin = server.raw();
        admin.send("SET k 0\r\nSELECT 1\r\nSET k 1\r\nSELECT 2\r\nSET k 2\r\n");
        admin.expect("+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n");
        let mut raw = become_user(server, "bob", "+@all ~* &* db=1,2");
        for line in ["GET k", "SET k x", "DBSIZE", "KEYS *", "SCAN 0", "RANDOMKEY", "FLUSHDB", "FLUSHALL", "SELECT 0"] {
            ask(&mut raw, line, NO_DATABASE);
        }
        for line in ["MOVE k 1", "COPY k j DB 1", "SWAPDB 0 1", "SWAPDB 1 0"] {
            ask(&mut raw, line, NO_DATABASE);
        }
        ask(&mut raw, "SELECT 1", OK);
        ask(&mut raw, "GET k", "$1\r\n1\r\n");
        for line in ["MOVE k 0", "COPY k j DB 0", "COPY k j DB 0 DB 2", "COPY k j DB 2 REPLACE DB 0"] {
            ask(&mut raw, line, NO_DATABASE);
        }
        ask(&mut raw, "COPY k j DB 2", ":1\r\n");
        // A database that is selected in a transaction counts from there on.
        ask(&mut raw, "MULTI", OK);
        ask(&mut raw, "SELECT 2", "+QUEUED\r\n");
        ask(&mut raw, "GET j", "+QUEUED\r\n");
        ask(&mut raw, "SELECT 0", NO_DATABASE);
        ask(&mut raw, "DISCARD", OK);
    });
}

#[test]
fn revoked_permissions_apply_to_queued_commands() {
    for_workers(&[], |server| {
        let mut admin = server.raw();
        let mut raw = become_user(server, "bob", "+@all ~* &*");
        // Queued while it was allowed.
        for line in ["SET k v", "SELECT 1", "GET k", "INCR n"] {
            if line == "SET k v" {
                ask(&mut raw, "MULTI", OK);
            }
            ask(&mut raw, line, "+QUEUED\r\n");
        }
        ask(&mut admin, "ACL SETUSER bob -set -select resetkeys ~n", OK);
        raw.request(&["EXEC"]);
        let changed = "-NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC \
                       call. This command is no longer allowed for the following reason: ";
        raw.expect("*4\r\n");
        raw.expect(&format!("{changed}no permission to execute the command or subcommand\r\n"));
        raw.expect(&format!("{changed}no permission to execute the command or subcommand\r\n"));
        raw.expect(&format!("{changed}no permission to touch the specified keys\r\n"));
        raw.expect(":1\r\n");
        ask(&mut admin, "GET n", "$1\r\n1\r\n");
        // Waited for while it was allowed.
        ask(&mut admin, "ACL SETUSER bob ~list +client|id", OK);
        ask(&mut raw, "CLIENT ID", &format!(":{}\r\n", id_of(server, "bob")));
        raw.request(&["BLPOP", "list", "0"]);
        wait_until("it waits", || listed(server, &["CLIENT", "LIST", "USER", "bob"]).contains("flags=b"));
        ask(&mut admin, "ACL SETUSER bob -blpop", OK);
        ask(&mut admin, "RPUSH list a", ":1\r\n");
        raw.expect(&no_command("bob", "blpop"));
        ask(&mut admin, "LLEN list", ":1\r\n");
        // Within a transaction that takes them.
        let mut raw = become_user(server, "al", "+@all ~* &*");
        ask(&mut raw, "MULTI", OK);
        ["SET a 1", "ACL SETUSER al -set", "SET a 2"].iter().for_each(|line| ask(&mut raw, line, "+QUEUED\r\n"));
        raw.request(&["EXEC"]);
        raw.expect(&format!("*3\r\n+OK\r\n+OK\r\n{changed}no permission to execute the command or subcommand\r\n"));
        ask(&mut raw, "GET a", "$1\r\n1\r\n");
        ask(&mut raw, "SET a 3", &no_command("al", "set"));
    });
}

/// The id of the only client of a user.
fn id_of(server: &Server, user: &str) -> String {
    let list = listed(server, &["CLIENT", "LIST", "USER", user]);
    list.split("id=").nth(1).and_then(|rest| rest.split(' ').next()).expect("a client").to_string()
}

#[test]
fn exec_itself_may_be_forbidden() {
    for_workers(&[], |server| {
        let mut raw = become_user(server, "bob", "+@all -exec ~*");
        ask(&mut raw, "MULTI", OK);
        ask(&mut raw, "SET k v", "+QUEUED\r\n");
        let expected = "-EXECABORT Transaction discarded because of: NOPERM User bob has no permissions to run the \
                        'exec' command\r\n";
        ask(&mut raw, "EXEC", expected);
        ask(&mut raw, "GET k", "$-1\r\n");
    });
}

#[test]
fn deleting_a_user_closes_its_connections() {
    for_workers(&[], |server| {
        let mut admin = server.raw();
        ask(&mut admin, "ACL DELUSER default", "-ERR The 'default' user cannot be removed\r\n");
        let mut clients: Vec<Raw> = (0..8).map(|_| become_user(server, "bob", "+@all ~* &*")).collect();
        clients[0].request(&["BLPOP", "list", "0"]);
        clients[1].request(&["SUBSCRIBE", "c"]);
        clients[1].skip_to(":1");
        ask(&mut clients[2], "MULTI", OK);
        ask(&mut admin, "ACL DELUSER bob nobody", ":1\r\n");
        assert!(!listed(server, &["CLIENT", "LIST"]).contains("user=bob"));
        clients.iter_mut().for_each(|client| client.expect_end());
        ask(&mut admin, "RPUSH list a", ":1\r\n");
        ask(&mut admin, "PUBLISH c x", ":0\r\n");
        // A user that deletes itself gets the reply.
        let mut raw = become_user(server, "bob", "+@all ~* &*");
        ask(&mut raw, "ACL DELUSER bob", ":1\r\n");
        raw.expect_end();
        // The rest of its transaction does not run.
        let mut raw = become_user(server, "bob", "+@all ~* &*");
        ask(&mut raw, "MULTI", OK);
        ["ACL DELUSER bob", "SET k v"].iter().for_each(|line| ask(&mut raw, line, "+QUEUED\r\n"));
        raw.request(&["EXEC"]);
        raw.skip_to(":1");
        assert!(raw.line().starts_with("-NOPERM"));
        raw.expect_end();
        ask(&mut admin, "EXISTS k", ":0\r\n");
    });
}

#[test]
fn subscribers_that_lose_channel_permissions_are_disconnected() {
    for_workers(&[], |server| {
        let mut admin = server.raw();
        let subscriptions = ["SUBSCRIBE my:1", "PSUBSCRIBE my:*", "SSUBSCRIBE my:2"];
        for (rules, goes) in [("resetchannels &my:*", false), ("&other", false), ("resetchannels &my:?", true)] {
            let mut clients: Vec<Raw> = Vec::new();
            for line in subscriptions {
                let mut raw = become_user(server, "bob", "+@all resetchannels &my:*");
                raw.send(format!("{line}\r\n"));
                raw.skip_to(":1");
                clients.push(raw);
            }
            ask(&mut admin, &format!("ACL SETUSER bob {rules}"), OK);
            // Of these the pattern alone is not allowed any more as it is written.
            let left = listed(server, &["CLIENT", "LIST", "USER", "bob"]).matches("user=bob").count();
            assert_eq!(left, if goes { 2 } else { 3 }, "{rules}");
            if goes {
                clients[1].expect_end();
            }
            ask(&mut admin, "PUBLISH my:1 x", if goes { ":1\r\n" } else { ":2\r\n" });
            ask(&mut admin, "ACL DELUSER bob", ":1\r\n");
            drop(clients);
        }
    });
}

#[test]
fn denials_are_logged_and_counted() {
    for_workers(&[], |server| {
        let mut admin = server.raw();
        let mut raw = become_user(server, "bob", "+@all -config ~my* resetchannels &my* db=0");
        ask(&mut raw, "GET secret", NO_KEY);
        ask(&mut raw, "GET secret", NO_KEY);
        ask(&mut raw, "CONFIG GET x", &no_command("bob", "config|get"));
        ask(&mut raw, "PUBLISH other x", NO_CHANNEL);
        ask(&mut raw, "SELECT 3", NO_DATABASE);
        ask(&mut raw, "MULTI", OK);
        ask(&mut raw, "GET secret", NO_KEY);
        raw.request(&["AUTH", "bob", "wrong-password"]);
        raw.expect("+QUEUED\r\n");
        let log: Vec<redis::Value> = cmd("ACL").arg("LOG").query(&mut server.client()).expect("entries");
        let shown: Vec<String> = log.iter().map(|entry| format!("{entry:?}")).collect();
        let has = |at: usize, words: &[&str]| {
            words.iter().for_each(|word| assert!(shown[at].contains(word), "{word} in {}", shown[at]));
        };
        assert_eq!(shown.len(), 5);
        has(0, &["\"key\"", "\"multi\"", "\"secret\""]);
        has(1, &["\"database\"", "\"toplevel\"", "\"3\""]);
        has(2, &["\"channel\"", "\"other\""]);
        has(3, &["\"command\"", "\"config|get\"", "user=bob", "cmd=config|get"]);
        has(4, &["\"key\"", "int(2)", "\"secret\"", "\"bob\""]);
        ask(
            &mut server.raw(),
            "AUTH bob wrong-password",
            "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
        );
        let log = listed(server, &["ACL", "LOG", "1"]);
        assert!(log.contains("\"auth\"") && log.contains("\"AUTH\"") && !log.contains("wrong-password"), "{log}");
        let info: String = cmd("INFO").arg("stats").query(&mut server.client()).expect("a text");
        for (name, count) in [("auth", 1), ("cmd", 1), ("key", 3), ("channel", 1), ("tls_cert", 0), ("db", 1)] {
            assert!(info.contains(&format!("acl_access_denied_{name}:{count}\r\n")), "{name} in {info}");
        }
        ask(&mut admin, "ACL LOG RESET", OK);
        ask(&mut admin, "ACL LOG", "*0\r\n");
        ask(&mut admin, "CONFIG RESETSTAT", OK);
        let info: String = cmd("INFO").arg("stats").query(&mut server.client()).expect("a text");
        assert!(info.contains("acl_access_denied_key:0\r\n"));
    });
}

#[test]
fn passwords_do_not_appear_in_logs() {
    for_workers(&["--slowlog-log-slower-than", "0", "--loglevel", "debug"], |server| {
        let mut raw = server.raw();
        ask(&mut raw, "ACL SETUSER bob on >hush +@all ~*", OK);
        ask(&mut raw, "ACL GETUSER hush-name", "$-1\r\n");
        ask(&mut raw, "ACL DELUSER hush-name", ":0\r\n");
        ask(&mut raw, "AUTH bob hush", OK);
        ask(&mut raw, "AUTH bob hush-wrong", "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
        ask(&mut raw, "CONFIG SET requirepass hush", OK);
        ask(&mut raw, "CONFIG SET requirepass  primaryauth hush", OK);
        raw.request(&["HELLO", "2", "AUTH", "bob", "hush"]);
        raw.skip_to("*0");
        let seen = listed(server, &["SLOWLOG", "GET", "-1"]);
        assert!(seen.contains("(redacted)") && seen.contains("SETUSER"), "{seen}");
        assert!(!seen.contains("hush"), "{seen}");
        assert!(!server.log().contains("hush"));
    });
}

#[test]
fn users_are_defined_in_the_configuration_file() {
    let data_dir = tempfile::tempdir().expect("a directory");
    let file = data_dir.path().join("kvick.conf");
    let line = "user al on nopass ~a* resetchannels -@all +get (~x resetchannels db=1 -@all +set)";
    let bob = "user bob on #30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4 ~b* resetchannels +@all \
               -@dangerous";
    for workers in ["1", "4"] {
        fs::write(&file, "user bob on >pw ~b* +@all -@dangerous\nuser default on nopass ~* &* +@all\n")
            .expect("a file");
        let server = Server::start_with_file(&file, &["--io-threads", workers]);
        let mut raw = server.raw();
        ask(&mut raw, "AUTH bob pw", OK);
        ask(&mut raw, "GET a", NO_KEY);
        ask(&mut raw, "KEYS *", &no_command("bob", "keys"));
        let mut raw = server.raw();
        raw.ask(&["ACL", "SETUSER", "al", "on", "nopass", "~a*", "+get", "(~x", "db=1", "+set)"], OK);
        ask(&mut raw, "CONFIG REWRITE", OK);
        let text = fs::read_to_string(&file).expect("the file");
        assert!(text.contains(line) && text.contains(bob), "{text}");
        assert_eq!(text.matches("user default ").count(), 1, "{text}");
        ask(
            &mut raw,
            "ACL SAVE",
            "-ERR This instance is not configured to use an ACL file. You may want to specify users via the ACL \
             SETUSER command and then issue a CONFIG REWRITE (assuming you have a configuration file set) in order to \
             store users in the configuration.\r\n",
        );
    }
}

#[test]
fn invalid_users_prevent_startup() {
    let data_dir = tempfile::tempdir().expect("a directory");
    let (file, users) = (data_dir.path().join("kvick.conf"), data_dir.path().join("users.acl"));
    fs::write(&users, "user bob on\nuser bob off\n").expect("a file");
    let cases = [
        ("user bob on\nuser bob off", "Duplicate user found"),
        ("user bob on >hush what", "Error in user declaration 'what': Syntax error"),
        ("user bob on \">hush x\" (+get", "Unmatched parenthesis"),
        ("user bob +nosuch", "Error loading ACL rule '+nosuch' for the user named 'bob'"),
        (&format!("aclfile {}", users.display()), "WARNING: Duplicate user 'bob' found on line 2."),
        (&format!("aclfile {}\nuser bob on", users.display()), "not in both"),
        ("aclfile /nowhere/at/all", "opening file '/nowhere/at/all': No such file or directory"),
    ];
    for (lines, error) in cases {
        fs::write(&file, format!("port 0\nunixsocket {}\n{lines}\n", data_dir.path().join("s").display()))
            .expect("a file");
        let run = output(std::process::Command::new(env!("CARGO_BIN_EXE_kvick-server")).arg(&file));
        let said = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
        assert_eq!(run.status.code(), Some(1), "{lines}: {said}");
        assert!(said.contains(error) && !said.contains("hush"), "{lines}: {said}");
    }
}

#[test]
fn users_are_defined_in_an_acl_file() {
    let data_dir = tempfile::tempdir().expect("a directory");
    let file = data_dir.path().join("users.acl");
    let path = file.to_str().expect("a plain name").to_string();
    for workers in ["1", "4"] {
        fs::write(&file, "user bob on nopass ~* &* +@all\nuser al on nopass ~* &* +@all\n").expect("a file");
        let server = Server::start(&["--io-threads", workers, "--aclfile", &path, "--requirepass", "ignored"]);
        let mut admin = server.raw();
        // The file has the last word on the default user, even if it says nothing.
        ask(&mut admin, "ACL WHOAMI", "$7\r\ndefault\r\n");
        ask(&mut admin, "ACL SETUSER eve on +get", OK);
        ask(&mut admin, "ACL SAVE", OK);
        let saved = "user al on nopass ~* &* +@all\nuser bob on nopass ~* &* +@all\nuser default on nopass ~* &* \
                     +@all\nuser eve on resetchannels -@all +get\n";
        assert_eq!(fs::read_to_string(&file).expect("the file"), saved);
        let login = |name: &str| {
            let mut raw = server.raw();
            ask(&mut raw, &format!("AUTH {name} x"), OK);
            raw
        };
        let (mut bob, mut al) = (login("bob"), login("al"));
        fs::write(&file, "user bob on nopass ~b* +@all\nwrong\nuser x +nosuch").expect("a file");
        let error = format!(
            "-ERR {path}:2 should start with user keyword followed by the username. {path}:3: Error in applying \
             operation '+nosuch': Unknown command or category name in ACL. WARNING: ACL errors detected, no change to \
             the previously active ACL rules was performed\r\n"
        );
        ask(&mut admin, "ACL LOAD", &error);
        ask(&mut al, "GET k", "$-1\r\n");
        fs::write(&file, "user bob on nopass ~b* +@all\n").expect("a file");
        ask(&mut admin, "ACL LOAD", OK);
        al.expect_end();
        ask(&mut bob, "GET k", NO_KEY);
        ask(&mut bob, "GET b", "$-1\r\n");
        assert!(!listed(&server, &["ACL", "USERS"]).contains("eve"));
    }
}

#[test]
fn acl_rules_use_original_names_of_renamed_commands() {
    for_workers(&["--rename-command", "GET", "fetch", "--rename-command", "SET", ""], |server| {
        let mut raw = become_user(server, "bob", "+get ~*");
        ask(&mut raw, "FETCH k", "$-1\r\n");
        ask(&mut raw, "GET k", "-ERR unknown command 'GET', with args beginning with: 'k' \r\n");
        ask(&mut raw, "STRLEN k", &no_command("bob", "strlen"));
        let mut admin = server.raw();
        ask(
            &mut admin,
            "ACL SETUSER bob +fetch",
            "-ERR Error in ACL SETUSER modifier '+fetch': Unknown command or category name in ACL\r\n",
        );
        ask(&mut admin, "ACL SETUSER bob +set", OK);
        ask(&mut admin, "ACL DRYRUN bob FETCH k", OK);
        ask(&mut admin, "ACL DRYRUN bob GET k", "-ERR Command 'GET' not found\r\n");
    });
}

#[test]
fn acl_genpass_generates_any_length() {
    for_workers(&[], |server| {
        let mut client = server.client();
        let mut make = |bits: &str| cmd("ACL").arg("GENPASS").arg(bits).query::<String>(&mut client);
        for (bits, digits) in [("1", 1), ("5", 2), ("128", 32), ("4096", 1024)] {
            let password = make(bits).expect("a password");
            assert!(password.len() == digits && password.bytes().all(|digit| digit.is_ascii_hexdigit()), "{password}");
        }
        assert_ne!(make("128"), make("128"));
        ["0", "-1", "4097", "x"].into_iter().for_each(|bits| assert!(make(bits).is_err(), "{bits}"));
    });
}

#[test]
fn permission_changes_are_atomic_under_load() {
    // While a user writes as fast as it can, its right to is taken away; from the reply on nothing changes.
    for_workers(&[], |server| {
        let mut admin = server.client();
        let mut set = |rules: &[&str]| {
            let mut request = cmd("ACL");
            request.arg("SETUSER").arg("bob").arg(rules);
            request.exec(&mut admin).expect("a change");
            cmd("GET").arg("n").query::<Option<u64>>(&mut admin).expect("a number")
        };
        set(&["on", "nopass", "~n", "-@all", "+incr"]);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = SetOnDrop(&stop);
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut client = server.client();
                    cmd("AUTH").arg("bob").arg("x").exec(&mut client).expect("logged in");
                    while !stop.load(Ordering::Relaxed) {
                        let mut pipe = redis::pipe();
                        for _ in 0..20 {
                            pipe.cmd("INCR").arg("n").ignore();
                        }
                        // Refusals are what is expected half of the time.
                        let _ = pipe.exec(&mut client);
                    }
                });
            }
            for _ in 0..100 {
                let before = set(&["-incr"]);
                assert_eq!(set(&[]), before, "somebody wrote without the right to");
                set(&["+incr"]);
            }
        });
    });
}

/// Minimum time for which [`Slow`] keeps its keys locked.
const LOCKED: Duration = Duration::from_millis(200);
/// Maximum time until a request arrives on a machine that is not too busy.
const ARRIVAL: Duration = Duration::from_millis(20);

/// A client and its request, which locks the keys `locked` and `other` for [`LOCKED`].
struct Slow {
    client: Raw,
    request: Vec<String>,
}

impl Slow {
    /// Measures how many keys the request has to name.
    fn new(client: Raw) -> Slow {
        let mut slow = Slow { client, request: Vec::new() };
        slow.fill();
        let mut keys = 64;
        loop {
            let words = ["SINTERCARD".into(), keys.to_string(), "locked".into()];
            slow.request = words.into_iter().chain(vec!["other".into(); keys - 1]).collect();
            let began = Instant::now();
            slow.begin();
            slow.end();
            if began.elapsed() >= LOCKED {
                return slow;
            }
            keys *= 2;
        }
    }

    /// Replaces all data by the two keys.
    fn fill(&mut self) {
        self.client.ask(&["FLUSHALL"], OK);
        let members = (0..1000).map(|n| format!("member:{n}")).collect::<Vec<_>>();
        for key in ["locked", "other"] {
            let request = ["SADD", key].into_iter().chain(members.iter().map(String::as_str));
            self.client.ask(&request.collect::<Vec<_>>(), ":1000\r\n");
        }
    }

    /// Sends the request, and waits until it runs.
    fn begin(&mut self) {
        self.client.request(&self.request.iter().map(String::as_str).collect::<Vec<_>>());
        std::thread::sleep(ARRIVAL);
    }

    /// Waits for its reply.
    fn end(&mut self) {
        self.client.expect(":1000\r\n");
    }
}

/// Requests that change the number of members of `locked`. The last line of each waits for locks, in its own way.
const WAITING: [&[&str]; 4] = [
    &["SADD locked one"],
    &["SMOVE locked moved member:1"],
    &["MULTI", "SADD locked two", "EXEC"],
    &["EVAL redis.call('sadd',KEYS[1],'three') 1 locked"],
];

/// Has a user's request wait for the locks of a slow command, and `change` be made meanwhile. Checks that the request
/// changes nothing after that, until `undo`; `check` gets its reply.
fn assert_nothing_changes_after(change: &str, undo: &str, check: impl Fn(&str)) {
    let server = Server::start(&["--io-threads", "4"]);
    // Connections are assigned to the workers in turn. These get one each, and so do the later ones in each round.
    let (mut slow, [mut admin, _, _]) = (Slow::new(server.raw()), std::array::from_fn(|_| server.raw()));
    for lines in WAITING {
        slow.fill();
        ask(&mut admin, "ACL SETUSER bob on nopass ~* +@all", OK);
        let [_, _, mut bob, _] = std::array::from_fn(|_| server.raw());
        ask(&mut bob, "AUTH bob x", OK);
        let (last, first) = lines.split_last().expect("a request");
        for line in first {
            ask(&mut bob, line, if *line == "MULTI" { OK } else { "+QUEUED\r\n" });
        }
        slow.begin();
        bob.request(&last.split(' ').collect::<Vec<_>>());
        std::thread::sleep(ARRIVAL);
        // Counts at the very moment of the change.
        ask(&mut admin, "MULTI", OK);
        ask(&mut admin, change, "+QUEUED\r\n");
        ask(&mut admin, "SCARD locked", "+QUEUED\r\n");
        ask(&mut admin, "EXEC", "*2\r\n+OK\r\n");
        let members = admin.line();
        slow.end();
        std::thread::sleep(ARRIVAL);
        println!("{lines:?}");
        ask(&mut admin, "SCARD locked", &format!("{members}\r\n"));
        ask(&mut admin, undo, OK);
        let reply = bob.line();
        check(if reply == "*1" { bob.line() } else { reply }.as_str());
    }
}

#[test]
fn a_request_waiting_for_locks_is_checked_again_after_a_revocation() {
    // A reply other than a refusal is right if the request ran before the change, as it may on a busy machine.
    assert_nothing_changes_after("ACL SETUSER bob -@all", "ACL SETUSER bob", |reply| println!("{reply}"));
}

#[test]
fn a_request_waiting_for_locks_respects_a_pause_that_begins_meanwhile() {
    let check = |reply: &str| assert!(!reply.starts_with('-'), "{reply}");
    assert_nothing_changes_after("CLIENT PAUSE 10000 WRITE", "CLIENT UNPAUSE", check);
}
