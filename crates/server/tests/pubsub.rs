//! Publish and subscribe, and keyspace events: which clients get which messages, in which order, and output limits.

mod common;

use common::{Raw, Server, for_workers, wait_until};
use kvick_testing::SetOnDrop;
use redis::{Connection, cmd};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A connection that reads messages quickly, without regard to their protocol.
struct Listener {
    stream: BufReader<TcpStream>,
}

impl Listener {
    /// A connection that has sent this request and read what confirms it.
    fn new(server: &Server, words: &[&str]) -> Listener {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let mut listener = Listener { stream: BufReader::new(stream) };
        listener.stream.get_mut().write_all(&request(words)).expect("a connection that takes bytes");
        words.iter().skip(1).for_each(|_| _ = listener.message());
        listener
    }

    /// The parts of the next message.
    fn message(&mut self) -> Vec<String> {
        let parts = self.number(&["*", ">"]);
        (0..parts).map(|_| self.part()).collect()
    }

    fn part(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a line");
        let Some(len) = line.strip_prefix('$') else { return line.trim_end().to_owned() };
        let mut bytes = vec![0; len.trim_end().parse::<usize>().expect("a length") + 2];
        self.stream.read_exact(&mut bytes).expect("that many bytes");
        String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned()
    }

    fn number(&mut self, kinds: &[&str]) -> usize {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a line");
        let digits = kinds.iter().find_map(|kind| line.strip_prefix(kind)).unwrap_or_else(|| panic!("got {line:?}"));
        digits.trim_end().parse().expect("a number")
    }

    /// The last part of the next message.
    fn payload(&mut self) -> String {
        self.message().pop().expect("a message with parts")
    }
}

fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
    bytes.into_bytes()
}

/// An array or push of bulk strings and integers, which are those that begin with a colon.
fn frame(kind: char, parts: &[&str]) -> String {
    let mut text = format!("{kind}{}\r\n", parts.len());
    for part in parts {
        match part.strip_prefix(':') {
            Some(_) => text += &format!("{part}\r\n"),
            None => text += &format!("${}\r\n{part}\r\n", part.len()),
        }
    }
    text
}

fn publish(control: &mut Connection, channel: &str, message: &str) -> usize {
    cmd("PUBLISH").arg(channel).arg(message).query(control).expect("a number")
}

fn set(control: &mut Connection, setting: &str, value: &str) {
    let () = cmd("CONFIG").arg("SET").arg(setting).arg(value).query(control).expect("OK");
}

/// The value of a field of INFO.
fn info(control: &mut Connection, field: &str) -> usize {
    let page: String = cmd("INFO").arg("everything").query(control).expect("a page");
    let line = page.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("the field");
    line.parse().expect("a number")
}

/// The numbers of channels, patterns, shard channels and subscribed clients.
fn known(control: &mut Connection) -> [usize; 4] {
    ["pubsub_channels", "pubsub_patterns", "pubsubshard_channels", "pubsub_clients"].map(|field| info(control, field))
}

#[test]
fn each_name_is_confirmed_with_the_number_of_subscriptions() {
    for_workers(&[], |server| {
        for (kind, hello) in [('*', None), ('>', Some("3"))] {
            let mut client = server.raw();
            if let Some(version) = hello {
                client.request(&["HELLO", version]);
                client.skip_to("*0");
            }
            let null = if kind == '>' { "_\r\n" } else { "$-1\r\n" };
            client.request(&["SUBSCRIBE", "a", "b", "a"]);
            for (name, count) in [("a", ":1"), ("b", ":2"), ("a", ":2")] {
                client.expect(&frame(kind, &["subscribe", name, count]));
            }
            client.ask(&["PSUBSCRIBE", "x*"], &frame(kind, &["psubscribe", "x*", ":3"]));
            client.ask(&["SSUBSCRIBE", "s"], &frame(kind, &["ssubscribe", "s", ":1"]));
            client.ask(&["UNSUBSCRIBE", "nothing"], &frame(kind, &["unsubscribe", "nothing", ":3"]));
            client.request(&["UNSUBSCRIBE"]);
            client.expect(&frame(kind, &["unsubscribe", "a", ":2"]));
            client.expect(&frame(kind, &["unsubscribe", "b", ":1"]));
            client.ask(&["PUNSUBSCRIBE"], &frame(kind, &["punsubscribe", "x*", ":0"]));
            client.ask(&["SUNSUBSCRIBE"], &frame(kind, &["sunsubscribe", "s", ":0"]));
            for word in ["unsubscribe", "punsubscribe", "sunsubscribe"] {
                client.ask(&[word], &format!("{}{null}:0\r\n", frame(kind, &[word]).replacen('1', "3", 1)));
            }
            client.ask(&["PING"], "+PONG\r\n");
        }
    });
}

#[test]
fn channels_patterns_and_shard_channels_get_their_own_messages() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut both = Listener::new(server, &["SUBSCRIBE", "news.tech"]);
        both.stream.get_mut().write_all(&request(&["PSUBSCRIBE", "news.*"])).expect("bytes");
        assert_eq!(both.message(), ["psubscribe", "news.*", ":2"]);
        let mut pattern = Listener::new(server, &["PSUBSCRIBE", "n?ws.[st]*", "other"]);
        let mut shard = Listener::new(server, &["SSUBSCRIBE", "news.tech"]);
        assert_eq!(publish(&mut control, "news.tech", "1"), 3);
        assert_eq!(publish(&mut control, "news.art", "2"), 1);
        assert_eq!(publish(&mut control, "old.tech", "3"), 0);
        let sent: usize = cmd("SPUBLISH").arg("news.tech").arg("4").query(&mut control).expect("a number");
        assert_eq!(sent, 1);
        assert_eq!(publish(&mut control, "news.sport", "5"), 2);
        assert_eq!(both.message(), ["message", "news.tech", "1"]);
        assert_eq!(both.message(), ["pmessage", "news.*", "news.tech", "1"]);
        assert_eq!(both.message(), ["pmessage", "news.*", "news.art", "2"]);
        assert_eq!(both.message(), ["pmessage", "news.*", "news.sport", "5"]);
        assert_eq!(pattern.message(), ["pmessage", "n?ws.[st]*", "news.tech", "1"]);
        assert_eq!(pattern.message(), ["pmessage", "n?ws.[st]*", "news.sport", "5"]);
        assert_eq!(shard.message(), ["smessage", "news.tech", "4"]);
    });
}

#[test]
fn pubsub_reports_subscriptions() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let _one = Listener::new(server, &["SUBSCRIBE", "a", "b"]);
        let _two = Listener::new(server, &["SUBSCRIBE", "b"]);
        let _three = Listener::new(server, &["PSUBSCRIBE", "x*", "y*"]);
        let _four = Listener::new(server, &["PSUBSCRIBE", "x*"]);
        let _five = Listener::new(server, &["SSUBSCRIBE", "s"]);
        let mut channels: Vec<String> = cmd("PUBSUB").arg("CHANNELS").query(&mut control).expect("channels");
        channels.sort();
        assert_eq!(channels, ["a", "b"]);
        let matching: Vec<String> = cmd("PUBSUB").arg("CHANNELS").arg("[b-z]").query(&mut control).expect("channels");
        assert_eq!(matching, ["b"]);
        let counts: Vec<(String, usize)> =
            cmd("PUBSUB").arg("NUMSUB").arg(&["a", "b", "c", "s"]).query(&mut control).expect("counts");
        assert_eq!(counts.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 2, 0, 0]);
        assert_eq!(cmd("PUBSUB").arg("NUMPAT").query::<usize>(&mut control), Ok(2));
        let shards: Vec<String> = cmd("PUBSUB").arg("SHARDCHANNELS").query(&mut control).expect("channels");
        assert_eq!(shards, ["s"]);
        let counts: Vec<(String, usize)> =
            cmd("PUBSUB").arg("SHARDNUMSUB").arg(&["s", "a"]).query(&mut control).expect("counts");
        assert_eq!(counts.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(known(&mut control), [2, 2, 1, 5]);
    });
}

#[test]
fn resp2_subscribers_may_run_few_commands() {
    for_workers(&[], |server| {
        let mut client = server.raw();
        client.ask(&["SUBSCRIBE", "a"], &frame('*', &["subscribe", "a", ":1"]));
        let refused = |what: &str| {
            format!(
                "-ERR Can't execute '{what}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed \
                 in this context\r\n"
            )
        };
        client.ask(&["GET", "key"], &refused("get"));
        client.ask(&["PUBLISH", "a", "x"], &refused("publish"));
        client.ask(&["CLIENT", "ID"], &refused("client|id"));
        client.ask(&["GET"], "-ERR wrong number of arguments for 'get' command\r\n");
        client.ask(&["PING"], &frame('*', &["pong", ""]));
        client.ask(&["PING", "there"], &frame('*', &["pong", "there"]));
        client.ask(&["RESET"], "+RESET\r\n");
        client.ask(&["PING"], "+PONG\r\n");
        client.ask(&["SSUBSCRIBE", "s"], &frame('*', &["ssubscribe", "s", ":1"]));
        client.ask(&["GET", "key"], &refused("get"));
        client.ask(&["SUNSUBSCRIBE", "s"], &frame('*', &["sunsubscribe", "s", ":0"]));
        client.ask(&["GET", "key"], "$-1\r\n");
        client.ask(&["SUBSCRIBE", "a"], &frame('*', &["subscribe", "a", ":1"]));
        client.ask(&["QUIT"], "+OK\r\n");
        client.expect_end();
    });
}

#[test]
fn messages_to_the_publisher_follow_the_reply_to_publish() {
    for_workers(&[], |server| {
        let mut client = server.raw();
        client.request(&["HELLO", "3"]);
        client.skip_to("*0");
        let mut pipeline = request(&["SUBSCRIBE", "a"]);
        let mut expected = frame('>', &["subscribe", "a", ":1"]);
        for n in 0..300 {
            let message = format!("message {n}");
            pipeline.extend(request(&["PUBLISH", "a", &message]));
            pipeline.extend(request(&["ECHO", &message]));
            expected += ":1\r\n";
            expected += &frame('>', &["message", "a", &message]);
            expected += &format!("${}\r\n{message}\r\n", message.len());
        }
        pipeline.extend(request(&["UNSUBSCRIBE", "a"]));
        pipeline.extend(request(&["PUBLISH", "a", "nobody"]));
        expected += &frame('>', &["unsubscribe", "a", ":0"]);
        expected += ":0\r\n";
        client.send(pipeline);
        client.expect(&expected);
        client.ask(&["PING"], "+PONG\r\n");
    });
}

#[test]
fn silenced_replies_do_not_silence_messages() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut client = server.raw();
        client.request(&["HELLO", "3"]);
        client.skip_to("*0");
        client.send(request(&["CLIENT", "REPLY", "OFF"]));
        client.ask(&["SUBSCRIBE", "a"], &frame('>', &["subscribe", "a", ":1"]));
        client.request(&["PING"]);
        assert_eq!(publish(&mut control, "a", "x"), 1);
        client.expect(&frame('>', &["message", "a", "x"]));
        client.ask(&["UNSUBSCRIBE", "a"], &frame('>', &["unsubscribe", "a", ":0"]));
        client.ask(&["CLIENT", "REPLY", "ON"], "+OK\r\n");
        client.send([request(&["CLIENT", "REPLY", "SKIP"]), request(&["SUBSCRIBE", "b"])].concat());
        client.expect(&frame('>', &["subscribe", "b", ":1"]));
        client.ask(&["PING"], "+PONG\r\n");
    });
}

#[test]
fn subscribers_get_messages_in_one_order() {
    const PUBLISHERS: usize = 4;
    const EACH: usize = 2000;
    for_workers(&[], |server| {
        let listeners: Vec<Listener> = (0..6)
            .map(|n| Listener::new(server, if n % 2 == 0 { &["SUBSCRIBE", "c"] } else { &["PSUBSCRIBE", "c*"] }))
            .collect();
        let received: Vec<Vec<String>> = std::thread::scope(|scope| {
            for publisher in 0..PUBLISHERS {
                scope.spawn(move || {
                    let mut raw = server.raw();
                    for chunk in 0..EACH / 50 {
                        let numbers = chunk * 50..(chunk + 1) * 50;
                        let sent = numbers.flat_map(|n| request(&["PUBLISH", "c", &format!("{publisher} {n}")]));
                        raw.send(sent.collect::<Vec<u8>>());
                        raw.expect(&":6\r\n".repeat(50));
                    }
                });
            }
            let readers: Vec<_> = listeners
                .into_iter()
                .map(|mut listener| {
                    scope.spawn(move || (0..PUBLISHERS * EACH).map(|_| listener.payload()).collect::<Vec<_>>())
                })
                .collect();
            readers.into_iter().map(|reader| reader.join().expect("no panic")).collect()
        });
        for publisher in 0..PUBLISHERS {
            let prefix = format!("{publisher} ");
            let numbers = received[0].iter().filter_map(|message| message.strip_prefix(&prefix)?.parse::<usize>().ok());
            assert!(numbers.eq(0..EACH), "the messages of publisher {publisher}");
        }
        assert!(received.iter().all(|messages| *messages == received[0]), "one order for all");
    });
}

#[test]
fn messages_arrive_only_between_subscribe_and_unsubscribe() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut steady = Listener::new(server, &["SUBSCRIBE", "c"]);
        let mut raw = server.raw();
        for n in 0..200 {
            publish(&mut control, "c", &format!("before {n}"));
            raw.ask(&["SUBSCRIBE", "c"], &frame('*', &["subscribe", "c", ":1"]));
            assert_eq!(publish(&mut control, "c", &format!("{n}")), 2);
            raw.expect(&frame('*', &["message", "c", &n.to_string()]));
            raw.ask(&["UNSUBSCRIBE", "c"], &frame('*', &["unsubscribe", "c", ":0"]));
            assert_eq!(publish(&mut control, "c", "after"), 1);
            raw.ask(&["PING"], "+PONG\r\n");
            for expected in [format!("before {n}"), n.to_string(), "after".to_owned()] {
                assert_eq!(steady.payload(), expected);
            }
        }
    });
}

#[test]
fn thousands_of_subscribers_get_every_message() {
    const SUBSCRIBERS: usize = 2000;
    const MESSAGES: usize = 20;
    for_workers(&[], |server| {
        let mut listeners: Vec<Listener> =
            (0..SUBSCRIBERS).map(|_| Listener::new(server, &["SUBSCRIBE", "all"])).collect();
        let mut raw = server.raw();
        let messages: Vec<String> = (0..MESSAGES).map(|n| format!("message {n}")).collect();
        raw.send(messages.iter().flat_map(|message| request(&["PUBLISH", "all", message])).collect::<Vec<u8>>());
        raw.expect(&format!(":{SUBSCRIBERS}\r\n").repeat(MESSAGES));
        for listener in &mut listeners {
            for message in &messages {
                assert_eq!(listener.payload(), *message);
            }
        }
        let mut control = server.client();
        assert_eq!(known(&mut control), [1, 0, 0, SUBSCRIBERS]);
        drop(listeners);
        wait_until("nobody is subscribed", || known(&mut control) == [0; 4]);
    });
}

#[test]
fn delayed_messages_are_delivered_in_order() {
    const SUBSCRIBERS: usize = 1100;
    const MESSAGES: usize = 500;
    for_workers(&["--client-output-buffer-limit", "pubsub 0 0 0"], |server| {
        let listeners: Vec<Listener> = (0..SUBSCRIBERS).map(|_| Listener::new(server, &["SUBSCRIBE", "c"])).collect();
        std::thread::scope(|scope| {
            for mut listener in listeners {
                scope.spawn(move || (0..MESSAGES).for_each(|n| assert_eq!(listener.payload(), n.to_string())));
            }
            let mut raw = server.raw();
            raw.send((0..MESSAGES).flat_map(|n| request(&["PUBLISH", "c", &n.to_string()])).collect::<Vec<u8>>());
            raw.expect(&format!(":{SUBSCRIBERS}\r\n").repeat(MESSAGES));
            raw.ask(&["PING"], "+PONG\r\n");
        });
    });
}

#[test]
fn a_subscriber_that_does_not_read_is_closed_at_its_limit() {
    for_workers(&["--client-output-buffer-limit", "pubsub 200000 0 0"], |server| {
        let mut control = server.client();
        let _slow = Listener::new(server, &["SUBSCRIBE", "c"]);
        let mut quick = Listener::new(server, &["SUBSCRIBE", "c"]);
        let message = "x".repeat(20_000);
        wait_until("the slow one is cut off", || {
            let receivers = publish(&mut control, "c", &message);
            assert_eq!(quick.payload().len(), message.len());
            receivers == 1
        });
        assert_eq!(info(&mut control, "client_output_buffer_limit_disconnections"), 1);
        assert_eq!(info(&mut control, "pubsub_clients"), 1);
        // The limit is that of the class: clients without subscriptions may have more pending output.
        let () = cmd("SET").arg("large").arg("x".repeat(400_000)).query(&mut control).expect("OK");
        let large: String = cmd("GET").arg("large").query(&mut control).expect("a value");
        assert_eq!(large.len(), 400_000);
    });
}

#[test]
fn reset_kill_and_disconnect_end_subscriptions() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut reset = server.raw();
        reset.ask(&["SUBSCRIBE", "a"], &frame('*', &["subscribe", "a", ":1"]));
        reset.ask(&["PSUBSCRIBE", "p*"], &frame('*', &["psubscribe", "p*", ":2"]));
        reset.ask(&["SSUBSCRIBE", "s"], &frame('*', &["ssubscribe", "s", ":1"]));
        assert_eq!(known(&mut control), [1, 1, 1, 1]);
        let listed = |control: &mut Connection, kind: &str| -> String {
            cmd("CLIENT").arg("LIST").arg("TYPE").arg(kind).query(control).expect("a list")
        };
        let line = listed(&mut control, "pubsub");
        assert!(line.contains(" flags=P ") && line.contains(" sub=1 psub=1 ssub=1 "), "{line}");
        assert_eq!(listed(&mut control, "normal").lines().count(), 1);
        reset.ask(&["RESET"], "+RESET\r\n");
        assert_eq!(known(&mut control), [0; 4]);
        assert_eq!(listed(&mut control, "pubsub"), "");

        let mut killed = server.raw();
        killed.ask(&["SUBSCRIBE", "a"], &frame('*', &["subscribe", "a", ":1"]));
        let _gone = Listener::new(server, &["PSUBSCRIBE", "a*"]);
        let kill: usize = cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").query(&mut control).expect("a number");
        assert_eq!(kill, 2);
        killed.expect_end();
        wait_until("the killed are forgotten", || known(&mut control) == [0; 4]);
        assert_eq!(publish(&mut control, "a", "x"), 0);
        reset.ask(&["PING"], "+PONG\r\n");
    });
}

#[test]
fn idle_subscribers_are_not_timed_out() {
    let server = Server::start(&["--timeout", "1", "--io-threads", "2"]);
    let mut listener = Listener::new(&server, &["SUBSCRIBE", "c"]);
    let mut idle = server.raw();
    idle.ask(&["PING"], "+PONG\r\n");
    idle.expect_end();
    let mut control = server.client();
    assert_eq!(publish(&mut control, "c", "still here"), 1);
    assert_eq!(listener.payload(), "still here");
}

/// The events that commands cause, as messages of the channels of keys and events.
fn events_of(server: &Server, classes: &str, run: impl FnOnce(&mut Raw), count: usize) -> Vec<String> {
    let mut control = server.client();
    set(&mut control, "notify-keyspace-events", classes);
    let mut listener = Listener::new(server, &["PSUBSCRIBE", "__key*__:*"]);
    run(&mut server.raw());
    publish(&mut control, "__key__:", "end");
    let messages = std::iter::from_fn(|| {
        let message = listener.message();
        (message[3] != "end").then(|| format!("{} {}", message[2], message[3]))
    });
    let messages: Vec<String> = messages.collect();
    assert_eq!(messages.len(), count, "{messages:?}");
    let () = cmd("FLUSHALL").query(&mut control).expect("OK");
    messages
}

#[test]
fn events_are_published_on_the_channels_of_keys_and_of_events() {
    for_workers(&[], |server| {
        let run = |client: &mut Raw| {
            client.ask(&["SELECT", "3"], "+OK\r\n");
            client.ask(&["SET", "k", "v"], "+OK\r\n");
        };
        assert_eq!(events_of(server, "K$", run, 1), ["__keyspace@3__:k set"]);
        assert_eq!(events_of(server, "E$", run, 1), ["__keyevent@3__:set k"]);
        assert_eq!(events_of(server, "KE$", run, 2), ["__keyspace@3__:k set", "__keyevent@3__:set k"]);
        assert_eq!(events_of(server, "En$", run, 2), ["__keyevent@3__:new k", "__keyevent@3__:set k"]);
        assert_eq!(events_of(server, "A", run, 0), [""; 0]);
        assert_eq!(events_of(server, "KEl", run, 0), [""; 0]);
        assert_eq!(
            events_of(server, "Em", |client| client.ask(&["GET", "none"], "$-1\r\n"), 1),
            ["__keyevent@0__:keymiss none"]
        );
    });
}

#[test]
fn every_type_publishes_its_events() {
    for_workers(&[], |server| {
        let all = |client: &mut Raw| {
            client.ask(&["RPUSH", "l", "1"], ":1\r\n");
            client.ask(&["SADD", "s", "1"], ":1\r\n");
            client.ask(&["HSET", "h", "f", "1"], ":1\r\n");
            client.ask(&["ZADD", "z", "1", "m"], ":1\r\n");
            client.ask(&["XADD", "t", "1-1", "f", "1"], "$3\r\n1-1\r\n");
            client.ask(&["APPEND", "k", "1"], ":1\r\n");
            client.ask(&["LPOP", "l"], "$1\r\n1\r\n");
            client.ask(&["PERSIST", "k"], ":0\r\n");
            client.ask(&["EXPIRE", "k", "100"], ":1\r\n");
            client.ask(&["EXPIRE", "k", "-1"], ":1\r\n");
        };
        let events = events_of(server, "EA", all, 10);
        let names: Vec<&str> = events.iter().filter_map(|event| event.strip_prefix("__keyevent@0__:")).collect();
        let expected =
            ["rpush l", "sadd s", "hset h", "zadd z", "xadd t", "append k", "lpop l", "del l", "expire k", "expired k"];
        assert_eq!(names, expected);
        for (class, count) in [("l", 2), ("s", 1), ("h", 1), ("z", 1), ("t", 1), ("$", 1), ("g", 2), ("x", 1)] {
            events_of(server, &format!("K{class}"), all, count);
        }
    });
}

#[test]
fn events_of_an_unblocked_client_follow_those_of_the_unblocking_command() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut waiting = server.raw();
        waiting.request(&["BLMOVE", "from", "to", "LEFT", "RIGHT", "0"]);
        wait_until("it waits", || info(&mut control, "blocked_clients") == 1);
        let events = events_of(server, "Kl", |client| client.ask(&["LPUSH", "from", "x"], ":1\r\n"), 3);
        assert_eq!(events, ["__keyspace@0__:from lpush", "__keyspace@0__:to rpush", "__keyspace@0__:from lpop"]);
        waiting.expect("$1\r\nx\r\n");
    });
}

#[test]
fn active_expiry_publishes_events() {
    for_workers(&["--enable-debug-command", "yes"], |server| {
        let mut control = server.client();
        set(&mut control, "notify-keyspace-events", "EAx");
        let mut listener = Listener::new(server, &["SUBSCRIBE", "__keyevent@0__:expired", "__keyevent@0__:hexpired"]);
        let () = cmd("SET").arg("key").arg("v").arg("PX").arg(20).query(&mut control).expect("OK");
        assert_eq!(listener.message(), ["message", "__keyevent@0__:expired", "key"]);
        let _: usize = cmd("HSET").arg("h").arg("f").arg("1").arg("g").arg("2").query(&mut control).expect("2");
        let _: Vec<i64> =
            cmd("HPEXPIRE").arg("h").arg(20).arg("FIELDS").arg(1).arg("f").query(&mut control).expect("an answer");
        assert_eq!(listener.message(), ["message", "__keyevent@0__:hexpired", "h"]);
        // Found by a command before active expiry comes by.
        let () = cmd("DEBUG").arg("SET-ACTIVE-EXPIRE").arg(0).query(&mut control).expect("OK");
        let () = cmd("SET").arg("late").arg("v").arg("PX").arg(1).query(&mut control).expect("OK");
        wait_until("it is gone", || cmd("EXISTS").arg("late").query::<usize>(&mut control) == Ok(0));
        assert_eq!(listener.message(), ["message", "__keyevent@0__:expired", "late"]);
    });
}

#[test]
fn events_of_a_key_have_the_order_of_its_changes() {
    const WRITERS: usize = 4;
    const EACH: usize = 1000;
    for_workers(&["--notify-keyspace-events", "K$g"], |server| {
        let mut listener = Listener::new(server, &["SUBSCRIBE", "__keyspace@0__:k"]);
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    let mut raw = server.raw();
                    for n in 0..EACH {
                        // Each of the two works only after the other did.
                        raw.request(&if n % 2 == 0 { vec!["SET", "k", "v", "NX"] } else { vec!["DEL", "k"] });
                        raw.line();
                    }
                });
            }
        });
        publish(&mut server.client(), "__keyspace@0__:k", "end");
        let mut expected = "set";
        loop {
            let event = listener.payload();
            if event == "end" {
                break;
            }
            assert_eq!(event, expected);
            expected = if event == "set" { "del" } else { "set" };
        }
    });
}

#[test]
fn messages_of_a_transaction_follow_its_reply() {
    for_workers(&["--notify-keyspace-events", "K$"], |server| {
        let mut client = server.raw();
        client.request(&["HELLO", "3"]);
        client.skip_to("*0");
        client.ask(&["SUBSCRIBE", "a"], &frame('>', &["subscribe", "a", ":1"]));
        client.ask(&["PSUBSCRIBE", "__keyspace@0__:*"], &frame('>', &["psubscribe", "__keyspace@0__:*", ":2"]));
        client.ask(&["MULTI"], "+OK\r\n");
        for words in [&["SET", "k", "v"][..], &["PUBLISH", "a", "1"], &["SSUBSCRIBE", "s"], &["UNSUBSCRIBE", "b"]] {
            client.ask(words, "+QUEUED\r\n");
        }
        client.request(&["EXEC"]);
        client.expect("*4\r\n+OK\r\n:1\r\n-ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client\r\n");
        client.expect(&frame('>', &["unsubscribe", "b", ":2"]));
        client.expect(&frame('>', &["pmessage", "__keyspace@0__:*", "__keyspace@0__:k", "set"]));
        client.expect(&frame('>', &["message", "a", "1"]));
    });
}

#[test]
fn a_message_arrives_before_later_replies_to_the_subscriber() {
    for_workers(&[], |server| {
        let mut control = server.client();
        // Few subscribers, which get a message in one turn, and many, which get it in several.
        for (count, rounds) in [(8, 100), (700, 10)] {
            let mut listeners: Vec<Raw> = (0..count).map(|_| server.raw()).collect();
            for listener in &mut listeners {
                listener.ask(&["SUBSCRIBE", "c"], &frame('*', &["subscribe", "c", ":1"]));
            }
            for n in 0..rounds {
                assert_eq!(publish(&mut control, "c", &n.to_string()), count);
                // The last ones first.
                listeners.iter_mut().rev().for_each(|listener| listener.request(&["PING"]));
                for listener in &mut listeners {
                    listener.expect(&frame('*', &["message", "c", &n.to_string()]));
                    listener.expect(&frame('*', &["pong", ""]));
                }
            }
            drop(listeners);
            wait_until("nobody is subscribed", || known(&mut control) == [0; 4]);
        }
    });
}

#[test]
fn a_message_to_very_many_subscribers_does_not_delay_others() {
    const SUBSCRIBERS: usize = 10_000;
    let server = Server::start(&["--io-threads", "1", "--maxclients", "10100"]);
    let (mut control, mut probe) = (server.client(), server.raw());
    let mut listeners: Vec<Listener> =
        (0..SUBSCRIBERS).map(|_| Listener::new(&server, &["SUBSCRIBE", "all"])).collect();
    let (replies, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _done = SetOnDrop(&done);
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                probe.ask(&["PING"], "+PONG\r\n");
                replies.fetch_add(1, Ordering::SeqCst);
            }
        });
        wait_until("the probe runs", || replies.load(Ordering::SeqCst) > 0);
        assert_eq!(publish(&mut control, "all", "message"), SUBSCRIBERS);
        let before = replies.load(Ordering::SeqCst);
        // All but the last get it earlier, each with a separate write.
        assert_eq!(listeners[SUBSCRIBERS - 1].payload(), "message");
        let meanwhile = replies.load(Ordering::SeqCst) - before;
        assert!(meanwhile > 3, "others got {meanwhile} replies while a message was delivered");
    });
    listeners[..SUBSCRIBERS - 1].iter_mut().for_each(|listener| assert_eq!(listener.payload(), "message"));
}
