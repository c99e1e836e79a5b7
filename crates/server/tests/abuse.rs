//! Misbehaving clients: garbage, slow readers, deep pipelines, many connections. Other clients must hardly notice, and
//! memory must stay bounded.

mod common;

use common::{Server, for_workers, wait_until};
use redis::{Connection, cmd};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KB: usize = 1024;
const MB: usize = 1024 * KB;
/// Maximum bytes of the workers' caches of free memory and statistics, once in use.
const CACHES: usize = 512 * KB;
const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// A connection for exact bytes, without a library's buffers.
fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
    stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
    stream.set_write_timeout(Some(WAIT_LIMIT)).expect("a timeout");
    stream.set_nodelay(true).expect("an option");
    stream
}

/// Sends bytes, and reads as many as the reply has to have.
#[track_caller]
fn exchange(stream: &mut TcpStream, request: &[u8], reply: &[u8]) {
    stream.write_all(request).expect("a connection that takes bytes");
    let mut received = vec![0; reply.len()];
    stream.read_exact(&mut received).expect("a reply");
    assert!(received == reply, "expected {:?}, got {:?}", reply.escape_ascii(), received.escape_ascii());
}

#[track_caller]
fn ping(stream: &mut TcpStream) {
    exchange(stream, b"PING\r\n", b"+PONG\r\n");
}

/// Reads up to the end of the connection.
fn rest(stream: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        // The server closed it with input unread.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("expected the end, got {error} behind {:?}", rest.escape_ascii()),
    }
    String::from_utf8_lossy(&rest).into_owned()
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// A number of INFO.
fn info(connection: &mut Connection, field: &str) -> usize {
    let text: String = cmd("INFO").arg("everything").query(connection).expect("INFO");
    let fields: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once(':')).collect();
    fields[field].parse().unwrap_or_else(|_| panic!("{field} is {:?}", fields[field]))
}

/// Memory of the server's process that is resident, in bytes.
fn resident(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the state of the server");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * KB
}

/// Raises the limit of open files to the permitted maximum.
fn raise_file_limit() -> usize {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the arguments point to a value of ours that lives through the calls.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits), 0);
        limits.rlim_cur = limits.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limits), 0);
    }
    limits.rlim_cur as usize
}

/// Numbers that look random and are the same in each run (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end
    }
}

/// Sends PINGs until stopped; returns their sorted latencies.
fn ping_while(server: &Server, running: &AtomicBool) -> Vec<Duration> {
    let mut stream = connect(server);
    let mut times = Vec::new();
    while running.load(Ordering::Relaxed) {
        let began = Instant::now();
        ping(&mut stream);
        times.push(began.elapsed());
    }
    times.sort();
    times
}

/// Does something while another connection pings; how long its pings took, sorted.
fn with_pings<T: Send>(server: &Server, act: impl FnOnce() -> T + Send) -> (T, Vec<Duration>) {
    let running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let pinger = scope.spawn(|| ping_while(server, &running));
        let result = scope.spawn(act).join();
        running.store(false, Ordering::Relaxed);
        let times = pinger.join().expect("all pings answered");
        (result.expect("no failure"), times)
    })
}

/// The longest that a ping may take while something runs that takes so long, on a machine with other work: what others
/// feel must be little, or at least a small part of the whole.
fn latency_max(whole: Duration) -> Duration {
    (whole / 5).max(Duration::from_millis(250))
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

#[test]
fn ten_thousand_connections_open_and_close() {
    const WAVE: usize = 1_000;
    raise_file_limit();
    for_workers(&[], |server| {
        let before = resident(server);
        for wave in 0..10 {
            let mut streams: Vec<_> = (0..WAVE).map(|_| connect(server)).collect();
            match wave % 3 {
                0 => {}
                1 => streams.iter_mut().for_each(ping),
                _ => streams.iter_mut().for_each(|stream| stream.write_all(b"*2\r\n$3\r\nGET\r\n").expect("sent")),
            }
        }
        let mut client = server.client();
        wait_until("all are gone", || info(&mut client, "connected_clients") == 1);
        assert!(info(&mut client, "total_connections_received") >= 10 * WAVE);
        let growth = resident(server).saturating_sub(before);
        println!("resident memory grew by {} KiB", growth / KB);
        assert!(growth < 32 * MB, "{growth} bytes are still held");
    });
}

#[test]
fn killing_thousands_of_clients_is_quick() {
    const CLIENTS: usize = 3_000;
    raise_file_limit();
    for_workers(&[], |server| {
        let mut streams: Vec<_> = (0..CLIENTS).map(|_| connect(server)).collect();
        streams.iter_mut().for_each(ping);
        let mut killer = server.client();
        let began = Instant::now();
        assert_eq!(cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut killer), Ok(CLIENTS));
        wait_until("all are gone", || info(&mut killer, "connected_clients") == 1);
        println!("{CLIENTS} clients were killed within {:?}", began.elapsed());
        streams.iter_mut().for_each(|stream| assert_eq!(rest(stream), ""));
    });
}

#[test]
fn incomplete_commands_do_not_affect_other_clients() {
    const CLIENTS: usize = 200;
    for_workers(&[], |server| {
        let mut client = server.client();
        let mut hanging: Vec<_> = (0..CLIENTS).map(|_| connect(server)).collect();
        // What workers allocate at the first use of a command is no connection's.
        for stream in &mut hanging {
            ping(stream);
            exchange(stream, &request(&[b"SET", b"other", b"0"]), b"+OK\r\n");
        }
        for _ in 0..4 {
            let _: String = cmd("CLIENT").arg("LIST").query(&mut server.client()).expect("a list");
        }
        let before = info(&mut client, "used_memory");
        let whole = request(&[b"SET", b"key", &[b'x'; 300]]);
        // In two parts, so that the second is read behind the first.
        for (n, stream) in hanging.iter_mut().enumerate() {
            stream.write_all(&whole[..n % 20 + 1]).expect("sent");
        }
        let mut other = connect(server);
        for n in 0..500 {
            exchange(&mut other, &request(&[b"SET", b"other", n.to_string().as_bytes()]), b"+OK\r\n");
        }
        for (n, stream) in hanging.iter_mut().enumerate() {
            stream.write_all(&whole[n % 20 + 1..n + 40]).expect("sent");
        }
        let received = || -> usize {
            let list: String = cmd("CLIENT").arg("LIST").query(&mut server.client()).expect("a list");
            let held = list.lines().filter_map(|line| line.split(' ').find_map(|field| field.strip_prefix("qbuf=")));
            held.filter(|held| held.parse::<usize>().expect("a number") > 0).count()
        };
        wait_until("all hang", || received() >= CLIENTS);
        let growth = info(&mut client, "used_memory").saturating_sub(before + CACHES) / CLIENTS;
        println!("half a command takes {growth} bytes");
        assert!(growth < KB, "{growth} bytes each");
        for (n, stream) in hanging.iter_mut().enumerate() {
            exchange(stream, &whole[n + 40..], b"+OK\r\n");
        }
    });
}

#[test]
fn claimed_lengths_take_no_memory() {
    const CLIENTS: usize = 20;
    for_workers(&["--proto-max-bulk-len", "4gb"], |server| {
        let mut client = server.client();
        let (used, rss) = (info(&mut client, "used_memory"), resident(server));
        let heads: [&[u8]; 4] = [
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1073741824\r\n",
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1073741824\r\nsome of it",
            b"*2147483647\r\n$4\r\nMSET\r\n",
            b"*2\r\n$1073741824\r\n",
        ];
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(server)).collect();
        for (connection, head) in clients.iter_mut().zip(heads.iter().cycle()) {
            ping(connection);
            connection.write_all(head).expect("sent");
        }
        wait_until("all is read", || {
            let list: String = cmd("CLIENT").arg("LIST").query(&mut client).expect("a list");
            list.lines().filter(|line| !line.contains("qbuf=0 qbuf-free=0 ")).count() >= CLIENTS
        });
        let (used, rss) = (info(&mut client, "used_memory").saturating_sub(used), resident(server).saturating_sub(rss));
        println!("{CLIENTS} GB announced: used_memory grew by {} KiB, resident memory by {} KiB", used / KB, rss / KB);
        assert!(used < 3 * MB && rss < 6 * MB, "{used} and {rss} bytes");
        ping(&mut connect(server));
    });
}

#[test]
fn a_deep_pipeline_does_not_delay_other_clients() {
    const COMMANDS: usize = 100_000;
    for_workers(&[], |server| {
        let pipeline = || {
            let mut stream = connect(server);
            let mut writer = stream.try_clone().expect("a second handle");
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let input = request(&[b"INCR", b"n"]).repeat(COMMANDS);
                    writer.write_all(&input).expect("sent");
                });
                let expected: String = (1..=COMMANDS).map(|n| format!(":{n}\r\n")).collect();
                exchange(&mut stream, b"", expected.as_bytes());
            });
        };
        let began = Instant::now();
        let ((), times) = with_pings(server, pipeline);
        let took = began.elapsed();
        let p99 = percentile(&times, 99);
        println!("{} pings meanwhile, p50 {:?}, p99 {p99:?}", times.len(), percentile(&times, 50));
        assert!(times.len() > 20, "only {} pings were answered before the pipeline was", times.len());
        assert!(p99 < latency_max(took), "{p99:?} of {took:?}");
    });
}

#[test]
fn a_pipeline_of_large_replies_does_not_delay_other_clients() {
    const GETS: usize = 300;
    for_workers(&[], |server| {
        let value = vec![b'v'; MB];
        let mut stream = connect(server);
        exchange(&mut stream, &request(&[b"SET", b"large", &value]), b"+OK\r\n");
        let mut client = server.client();
        let before = info(&mut client, "used_memory_peak");
        let read_all = || {
            let mut stream = connect(server);
            stream.write_all(&b"GET large\r\n".repeat(GETS)).expect("sent");
            let (mut buffer, mut left) = (vec![0; MB], GETS * bulk(&value).len());
            while left > 0 {
                let n = stream.read(&mut buffer).expect("a reply");
                assert!(n > 0, "closed with {left} bytes missing");
                left -= n;
            }
        };
        let began = Instant::now();
        let ((), times) = with_pings(server, read_all);
        let took = began.elapsed();
        let p99 = percentile(&times, 99);
        let peak = info(&mut client, "used_memory_peak") - before;
        println!("{} pings meanwhile, p99 {p99:?}; peak of memory {} MiB higher", times.len(), peak / MB);
        assert!(times.len() > 20 && p99 < latency_max(took), "{} pings, {p99:?} of {took:?}", times.len());
    });
}

/// Sends requests without reading the replies until the server closes the connection.
fn request_without_reading(server: &Server, gets: usize) {
    let mut stream = connect(server);
    for _ in 0..gets / 1_000 {
        if stream.write_all(&b"GET large\r\n".repeat(1_000)).is_err() {
            break;
        }
    }
    let mut client = server.client();
    wait_until("the reader is cut off", || info(&mut client, "client_output_buffer_limit_disconnections") == 1);
}

#[test]
fn a_client_that_never_reads_is_closed_at_the_hard_limit() {
    for_workers(&["--client-output-buffer-limit", "normal 16mb 0 0"], |server| {
        let value = vec![b'v'; MB];
        exchange(&mut connect(server), &request(&[b"SET", b"large", &value]), b"+OK\r\n");
        let mut client = server.client();
        let before = info(&mut client, "used_memory_peak").max(info(&mut client, "used_memory"));
        let began = Instant::now();
        let ((), times) = with_pings(server, || request_without_reading(server, 20_000));
        let took = began.elapsed();
        let p99 = percentile(&times, 99);
        let growth = info(&mut client, "used_memory_peak") - before;
        println!("peak of memory {} MiB higher, p99 of others {p99:?}", growth / MB);
        assert!(growth < 32 * MB, "{growth} bytes");
        assert!(p99 < latency_max(took), "{p99:?} of {took:?}");
        wait_until("it is logged", || server.log().contains("closed ASAP for overcoming of output buffer limits"));
        wait_until("its memory is free", || info(&mut client, "used_memory") < before + 4 * MB);
    });
}

#[test]
fn a_slow_reader_is_closed_at_the_soft_limit() {
    for_workers(&["--client-output-buffer-limit", "normal 0 1mb 1"], |server| {
        exchange(&mut connect(server), &request(&[b"SET", b"large", &vec![b'v'; MB]]), b"+OK\r\n");
        let began = Instant::now();
        // Enough for the kernel's buffers and the soft limit, and no more: the connection is idle when it is cut.
        request_without_reading(server, 1_000);
        println!("cut after {:?}", began.elapsed());
        assert!(began.elapsed() > Duration::from_secs(1), "{:?}", began.elapsed());
        wait_until("it is logged", || server.log().contains("closed ASAP for overcoming of output buffer limits"));
        ping(&mut connect(server));
    });
}

#[test]
fn a_slow_reader_does_not_stall_its_worker() {
    let server = Server::start(&["--io-threads", "1"]);
    exchange(&mut connect(&server), &request(&[b"SET", b"large", &vec![b'v'; 16 * MB]]), b"+OK\r\n");
    let mut slow = connect(&server);
    slow.write_all(&b"GET large\r\n".repeat(4)).expect("sent");
    let (mut other, mut buffer, mut times) = (connect(&server), vec![0; 4 * KB], Vec::new());
    let began = Instant::now();
    for _ in 0..1_000 {
        slow.read_exact(&mut buffer).expect("some of the reply");
        let began = Instant::now();
        ping(&mut other);
        times.push(began.elapsed());
    }
    times.sort();
    let p99 = percentile(&times, 99);
    println!("p99 of others {p99:?}, longest {:?}", times[times.len() - 1]);
    assert!(p99 < latency_max(began.elapsed()), "{p99:?}");
    let waiting: String = cmd("CLIENT").arg("LIST").query(&mut server.client()).expect("a list");
    assert!(waiting.lines().any(|line| !line.contains(" omem=0 ")), "nothing waits for the slow reader");
}

#[test]
fn a_fast_reader_of_large_replies_does_not_stall_its_worker() {
    let server = Server::start(&["--io-threads", "1"]);
    let value = vec![b'v'; 64 * MB];
    exchange(&mut connect(&server), &request(&[b"SET", b"large", &value]), b"+OK\r\n");
    let read = || {
        let (mut stream, mut buffer) = (connect(&server), vec![0; MB]);
        for _ in 0..4 {
            stream.write_all(b"GET large\r\n").expect("sent");
            let mut left = bulk(&value).len();
            while left > 0 {
                let n = stream.read(&mut buffer).expect("some of the reply");
                assert!(n > 0, "closed with {left} bytes missing");
                left -= n;
            }
        }
    };
    let began = Instant::now();
    let ((), times) = with_pings(&server, read);
    let took = began.elapsed();
    println!("{} pings, p99 {:?}, longest {:?}", times.len(), percentile(&times, 99), times[times.len() - 1]);
    assert!(times.len() > 20 && percentile(&times, 99) < latency_max(took), "{took:?}: {times:?}");
}

#[test]
fn garbage_closes_only_its_connection() {
    for_workers(&[], |server| {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let valid = request(&[b"SET", b"key", b"value"]).repeat(40);
        for round in 0..150 {
            let len = random.below(20_000) + 1;
            let garbage: Vec<u8> = match round % 3 {
                0 => (0..len).map(|_| random.next() as u8).collect(),
                // What looks like a request for a while.
                1 => (0..len).map(|_| b"*$123\r\n\0-x \"'"[random.below(13)]).collect(),
                _ => {
                    let mut bytes = valid.clone();
                    for _ in 0..random.below(8) + 1 {
                        let place = random.below(bytes.len());
                        bytes[place] = random.next() as u8;
                    }
                    bytes
                }
            };
            let mut stream = connect(server);
            // The server may have had enough before all of it is sent.
            let _ = stream.write_all(&garbage);
            let _ = stream.shutdown(Shutdown::Write);
            rest(&mut stream);
        }
        ping(&mut connect(server));
        let mut client = server.client();
        wait_until("all are gone", || info(&mut client, "connected_clients") == 1);
    });
}

#[test]
fn a_tls_client_hello_on_the_plain_port_is_harmless() {
    for_workers(&[], |server| {
        // The beginning of a ClientHello: handshake, TLS 1.0, 512 bytes; client hello, TLS 1.2, random bytes.
        let mut hello = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
        let mut random = Random(7);
        hello.extend((0..500).map(|_| random.next() as u8 | 0x80));
        let whole = hello.clone();
        hello[3..5].copy_from_slice(b"\x02\n");
        for greeting in [whole, hello] {
            let mut stream = connect(server);
            exchange(&mut stream, &greeting, b"-ERR this port does not take TLS\r\n");
            rest(&mut stream);
        }
        ping(&mut connect(server));
    });
}

#[test]
fn http_requests_close_the_connection() {
    for_workers(&[], |server| {
        let line = "Possible SECURITY ATTACK detected. It looks like somebody is sending POST or Host: commands to";
        let mut http_client = connect(server);
        http_client
            .write_all(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\nSET attacked yes\r\n")
            .expect("sent");
        assert_eq!(rest(&mut http_client), "");
        wait_until("it is logged", || server.log().contains(line));
        let mut getting = connect(server);
        getting.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\nSET attacked yes\r\n").expect("sent");
        assert!(!rest(&mut getting).contains("OK"));
        let mut parsed = connect(server);
        parsed.write_all(&request(&[b"pOsT", b"x"])).expect("sent");
        assert_eq!(rest(&mut parsed), "");
        assert_eq!(server.log().matches(line).count(), 1, "logged once in a while only");
        assert_eq!(cmd("EXISTS").arg("attacked").query(&mut server.client()), Ok(0));
    });
}

#[test]
fn pipelines_may_be_split_anywhere() {
    for_workers(&[], |server| {
        let mut random = Random(42);
        let (mut input, mut expected) = (Vec::new(), Vec::new());
        for n in 0..400 {
            let len = match n % 20 {
                0 => 32 * KB - 3 + random.below(6),
                1 => random.below(150_000),
                _ => random.below(200),
            };
            let value: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            let key = format!("key:{}", n % 7);
            match n % 4 {
                3 => {
                    input.extend_from_slice(format!("ECHO {key}\r\n").as_bytes());
                    expected.extend(bulk(key.as_bytes()));
                }
                2 => {
                    let many: Vec<Vec<u8>> = (0..random.below(3_000)).map(|n| format!("{key}:{n}").into()).collect();
                    let words: Vec<&[u8]> = [&b"DEL"[..], b"x"].into_iter().chain(many.iter().map(|k| &**k)).collect();
                    input.extend(request(&words));
                    expected.extend_from_slice(b":0\r\n");
                }
                _ => {
                    input.extend(request(&[b"SET", key.as_bytes(), &value]));
                    input.extend(request(&[b"GET", key.as_bytes()]));
                    expected.extend_from_slice(b"+OK\r\n");
                    expected.extend(bulk(&value));
                }
            }
        }
        let mut stream = connect(server);
        let mut writer = stream.try_clone().expect("a second handle");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut left = &input[..];
                while !left.is_empty() {
                    let most = [3, 50, 5_000, 70_000][random.below(4)];
                    let (now, later) = left.split_at((random.below(most) + 1).min(left.len()));
                    writer.write_all(now).expect("sent");
                    left = later;
                }
            });
            let mut received = vec![0; expected.len()];
            stream.read_exact(&mut received).expect("all replies");
            assert!(received == expected, "some replies differ");
        });
        ping(&mut stream);
    });
}

#[test]
fn idle_connections_cost_under_a_kibibyte() {
    const CLIENTS: usize = 5_000;
    raise_file_limit();
    for_workers(&[], |server| {
        let mut client = server.client();
        let before = info(&mut client, "used_memory");
        let large = request(&[b"SET", b"large", &[b'v'; 50_000]]);
        let mut streams: Vec<_> = (0..CLIENTS).map(|_| connect(server)).collect();
        for (n, stream) in streams.iter_mut().enumerate() {
            ping(stream);
            // A request in three parts is held for a while; what is held has to be given back.
            exchange(stream, b"PING\r\n*2\r\n$4\r\nECH", b"+PONG\r\n");
            exchange(stream, b"O\r\n$3\r\nab", b"");
            exchange(stream, b"c\r\nPING\r\n", b"$3\r\nabc\r\n+PONG\r\n");
            if n % 50 == 0 {
                exchange(stream, &large, b"+OK\r\n");
                exchange(stream, b"GET large\r\n", &bulk(&[b'v'; 50_000]));
            }
        }
        let each = |now: usize| now.saturating_sub(before + CACHES) / CLIENTS;
        println!("an idle connection takes {} bytes", each(info(&mut client, "used_memory")));
        wait_until("an idle connection takes little", || each(info(&mut client, "used_memory")) < 1024);
        assert_eq!(info(&mut client, "connected_clients"), CLIENTS + 1);
    });
}

#[test]
fn unix_sockets_are_served() {
    let data_dir = tempfile::tempdir().expect("a temporary directory");
    let path = data_dir.path().join("socket");
    let name = path.to_str().expect("a plain name");
    for_workers(&["--unixsocket", name, "--unixsocketperm", "700"], |server| {
        let open = redis::Client::open(format!("unix://{name}")).and_then(|client| client.get_connection());
        let mut client = open.expect("a connection");
        assert_eq!(cmd("SET").arg("k").arg("v").query(&mut client), Ok("OK".to_string()));
        assert_eq!(cmd("GET").arg("k").query(&mut server.client()), Ok("v".to_string()));
        let list: String = cmd("CLIENT").arg("LIST").query(&mut client).expect("a list");
        assert!(list.contains(&format!("addr={name}:0")) && list.contains("flags=U"), "{list}");
        let mut raw = UnixStream::connect(&path).expect("a connection");
        raw.write_all(&b"PING\r\n".repeat(5_000)).expect("sent");
        let mut received = vec![0; 7 * 5_000];
        raw.read_exact(&mut received).expect("all replies");
        assert!(received == b"+PONG\r\n".repeat(5_000));
    });
}

#[test]
fn clients_beyond_maxclients_get_an_error() {
    for_workers(&["--maxclients", "3"], |server| {
        let mut client = server.client();
        wait_until("the connection that looked whether it is up is gone", || {
            info(&mut client, "connected_clients") == 1
        });
        let mut admitted = [connect(server), connect(server)];
        admitted.iter_mut().for_each(ping);
        for _ in 0..3 {
            assert_eq!(rest(&mut connect(server)), "-ERR max number of clients reached\r\n");
        }
        assert_eq!(info(&mut client, "rejected_connections"), 3);
        drop(admitted);
        wait_until("there is room", || info(&mut client, "connected_clients") == 1);
        ping(&mut connect(server));
    });
}

#[test]
fn idle_clients_are_closed_after_the_timeout() {
    for_workers(&["--timeout", "1"], |server| {
        let (mut idle, mut busy) = (connect(server), connect(server));
        ping(&mut idle);
        idle.set_nonblocking(true).expect("an option");
        let began = Instant::now();
        wait_until("the idle client is closed", || {
            ping(&mut busy);
            matches!(idle.read(&mut [0]), Ok(0))
        });
        println!("closed after {:?}", began.elapsed());
        assert!(began.elapsed() > Duration::from_millis(900), "{:?}", began.elapsed());
        ping(&mut busy);
    });
}

#[test]
fn input_beyond_its_limit_closes_the_connection() {
    for_workers(&["--client-query-buffer-limit", "1mb"], |server| {
        let heads: [&[u8]; 2] = [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4194304\r\n", b"*100000\r\n$4\r\nMGET\r\n"];
        for head in heads {
            let mut stream = connect(server);
            let body = if head.len() > 30 { vec![b'x'; 3 * MB] } else { b"$100\r\n".to_vec() };
            let body = if body.len() > 6 { body } else { [&body[..], &[b'k'; 100], b"\r\n"].concat().repeat(30_000) };
            // The server closes before all of it is sent.
            let _ = stream.write_all(head).and_then(|()| stream.write_all(&body));
            assert_eq!(rest(&mut stream), "");
        }
        let mut client = server.client();
        assert_eq!(info(&mut client, "client_query_buffer_limit_disconnections"), 2);
        let line = "Closing client that reached max query buffer length";
        wait_until("it is logged", || server.log().matches(line).count() == 2);
    });
}

#[test]
fn suppressed_replies_take_no_memory() {
    for_workers(&[], |server| {
        let mut stream = connect(server);
        exchange(&mut stream, &request(&[b"SET", b"large", &vec![b'v'; MB]]), b"+OK\r\n");
        let mut client = server.client();
        let before = info(&mut client, "used_memory");
        let gets = b"GET large\r\n".repeat(500);
        exchange(&mut stream, &[b"CLIENT REPLY OFF\r\n", &gets[..], b"CLIENT REPLY ON\r\n"].concat(), b"+OK\r\n");
        ping(&mut stream);
        let peak = info(&mut client, "used_memory_peak").saturating_sub(before);
        println!("peak of memory {} KiB higher", peak / KB);
        assert!(peak < 8 * MB, "{peak} bytes");
    });
}

#[test]
fn shutdown_closes_connections_and_listeners() {
    let data_dir = tempfile::tempdir().expect("a temporary directory");
    let path = data_dir.path().join("socket");
    for_workers(&["--unixsocket", path.to_str().expect("a plain name")], |server| {
        let (mut idle, mut half, mut asking) = (connect(server), connect(server), connect(server));
        ping(&mut idle);
        half.write_all(b"*1\r\n$4\r\nPI").expect("sent");
        asking.write_all(b"PING\r\nSHUTDOWN NOSAVE\r\nPING\r\n").expect("sent");
        let answered = rest(&mut asking);
        assert!(["", "+PONG\r\n"].contains(&&*answered), "{answered:?}");
        assert_eq!((rest(&mut idle), rest(&mut half)), (String::new(), String::new()));
        wait_until("nobody listens", || TcpStream::connect(("127.0.0.1", server.port())).is_err());
        assert!(UnixStream::connect(&path).is_err());
    });
}

#[test]
fn connections_are_accepted_once_descriptors_are_free() {
    let server = Server::start(&["--io-threads", "1"]);
    let mut client = server.client();
    wait_until("one client is there", || info(&mut client, "connected_clients") == 1);
    let set_limit = |files: u64| {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the arguments point to values of ours that live through the calls; the process is the test's server.
        unsafe {
            let pid = server.pid() as libc::pid_t;
            assert_eq!(libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &mut before), 0);
            let limit = libc::rlimit { rlim_cur: files, ..before };
            assert_eq!(libc::prlimit(pid, libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()), 0);
        }
        before.rlim_cur
    };
    let before = set_limit(3);
    let mut waiting = [connect(&server), connect(&server)];
    wait_until("it is logged", || server.log().contains("Error accepting a client connection"));
    assert_eq!(cmd("PING").query(&mut client), Ok("PONG".to_string()));
    set_limit(before);
    // Nobody else connects, which would make the server look.
    waiting.iter_mut().for_each(ping);
}

#[test]
fn requests_sent_before_a_half_close_are_answered() {
    for_workers(&["--requirepass", "secret"], |server| {
        let auth: &[u8] = b"AUTH secret\r\n";
        for sets in [1, 2, 100, 5_000] {
            for _ in 0..20 {
                let mut stream = connect(server);
                stream.write_all(&[auth, &b"SET k v\r\n".repeat(sets)].concat()).expect("sent");
                stream.shutdown(Shutdown::Write).expect("half closed");
                assert_eq!(rest(&mut stream), "+OK\r\n".repeat(sets + 1));
            }
        }
    });
}

#[test]
fn a_protocol_error_behind_a_blocked_request_is_answered_in_order() {
    for_workers(&[], |server| {
        let (mut control, mut writer) = (connect(server), connect(server));
        exchange(&mut control, b"CLIENT PAUSE 100000 WRITE\r\n", b"+OK\r\n");
        writer.write_all(b"SET k v\r\nPING\r\n*1\r\n+PING\r\nPING\r\n").expect("sent");
        let mut client = server.client();
        wait_until("the write waits", || {
            let waiting: String = cmd("CLIENT").arg(&["LIST", "FLAGS", "b"]).query(&mut client).expect("a list");
            waiting.lines().count() == 1
        });
        exchange(&mut control, b"CLIENT UNPAUSE\r\n", b"+OK\r\n");
        assert_eq!(rest(&mut writer), "+OK\r\n+PONG\r\n-ERR Protocol error: expected '$', got '+'\r\n");
    });
}

#[test]
fn replies_beyond_the_hard_limit_are_not_partly_sent() {
    for_workers(&["--client-output-buffer-limit", "normal 100000 0 0"], |server| {
        let value = [b'v'; 10_000];
        let mut stream = connect(server);
        exchange(&mut stream, &request(&[b"SET", b"k", &value]), b"+OK\r\n");
        exchange(&mut stream, &b"GET k\r\n".repeat(5), &bulk(&value).repeat(5));
        stream.write_all(&b"GET k\r\n".repeat(15)).expect("sent");
        assert_eq!(rest(&mut stream), "");
    });
}
