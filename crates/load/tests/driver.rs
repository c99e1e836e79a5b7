//! The loop of a thread against servers that do what the test says.

mod common;

use common::{Answer, check_sums, run_on, scripted};
use std::io::Read;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn ok() -> Answer {
    Answer::Reply("+OK\r\n".to_owned())
}

#[test]
fn all_arrivals_of_an_open_loop_are_sent_and_answered() {
    let requests = Arc::new(AtomicU64::new(0));
    let counted = requests.clone();
    let port = scripted(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        ok()
    });
    for arrivals in ["constant", "poisson"] {
        requests.store(0, Ordering::Relaxed);
        let text = format!(
            "[general]\nduration = 1\n[client]\nthreads = 2\npoolsize = 5\n[workload.ratelimit]\nstart = 2000\n\
             arrivals = '{arrivals}'\n[[workload.keyspace]]"
        );
        let result = run_on(port, &text);
        assert_eq!(result.counters.answered, requests.load(Ordering::Relaxed));
        assert_eq!(result.counters.answered, result.counters.scheduled);
        assert_eq!(result.planned, 2000.0);
        // Six standard deviations for Poisson arrivals.
        let deviation = if arrivals == "constant" { 1 } else { 270 };
        assert!(result.counters.scheduled.abs_diff(2000) <= deviation, "{:?}", result.counters);
    }
}

#[test]
fn a_wait_for_a_connection_is_part_of_the_response_time_and_not_of_the_service_time() {
    // One request, the first, takes 300 ms; all others behind it wait for the only connection.
    let number = AtomicU64::new(0);
    let port = scripted(move |_| match number.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::Late(Duration::from_millis(300), "+OK\r\n".to_owned()),
        _ => ok(),
    });
    let text =
        "[general]\nduration = 1\n[client]\npoolsize = 1\n[workload.ratelimit]\nstart = 200\n[[workload.keyspace]]";
    let result = run_on(port, text);
    assert_eq!(result.counters.answered, 200);
    // 60 arrivals are due during the stall and wait 150 ms on average.
    assert!(result.response.summary.p90_ms >= 150.0, "{:?}", result.response.summary);
    assert!(result.service.summary.p90_ms < result.response.summary.p90_ms / 2.0, "{:?}", result.service.summary);
    assert!(result.service.summary.max_ms >= 299.0, "{:?}", result.service.summary);
}

#[cfg(target_os = "linux")]
#[test]
fn the_time_of_a_reply_is_that_of_its_arrival_and_not_of_the_read() {
    let port = scripted(|_| ok());
    // A turn is 40 times as long as a reply may take.
    let text = "[general]\nduration = 1\n[client]\npoolsize = 50\nsend_granularity = '40ms'\n[workload.ratelimit]\n\
                start = 500\n[[workload.keyspace]]";
    let result = run_on(port, text);
    assert_eq!(result.counters.answered, 500);
    assert!(result.service.summary.p50_ms < 10.0, "{:?}", result.service.summary);
    // The wait of the arrivals for their turn is part of the response time, and named as the generator's own delay.
    let (response, own) = (&result.response.summary, &result.own_delay.summary);
    assert!(response.p90_ms >= 30.0 && own.p90_ms >= 30.0, "{response:?}, {own:?}");
    assert_eq!(own.count, 500);
}

#[cfg(target_os = "linux")]
#[test]
fn large_replies_are_read_while_they_arrive() {
    let reply = format!("${}\r\n{}\r\n", 4 << 20, "x".repeat(4 << 20));
    let port = scripted(move |_| Answer::Reply(reply.clone()));
    // A server waits until its socket takes the rest of a large reply, so late reads would make it slow.
    let text = "[general]\nduration = 2\n[client]\npoolsize = 4\nsend_granularity = '200ms'\n[workload.ratelimit]\n\
                start = 10\n[[workload.keyspace]]";
    let result = run_on(port, text);
    assert_eq!(result.counters.answered, 20);
    assert!(result.service.summary.p50_ms < 150.0, "{:?}", result.service.summary);
}

#[test]
fn a_wait_for_a_connection_is_not_the_delay_of_the_generator() {
    let port = scripted(|_| Answer::Late(Duration::from_millis(20), "+OK\r\n".to_owned()));
    let text = "[general]\nduration = 1\ndrain = '10s'\n[client]\npoolsize = 1\n[workload.ratelimit]\nstart = 200\n\
                [[workload.keyspace]]";
    let result = run_on(port, text);
    // The only connection takes 50 of the 200 requests that are due in a second.
    let (all, own) = (&result.send_delay.summary, &result.own_delay.summary);
    assert_eq!((all.count, own.count), (200, 200));
    assert!(all.p50_ms >= 1000.0 && own.p50_ms < 100.0, "{all:?}, {own:?}");
}

#[test]
fn arrivals_beyond_the_queue_are_counted_as_dropped() {
    let port = scripted(|_| Answer::Late(Duration::from_millis(100), "+OK\r\n".to_owned()));
    let text = "[general]\nduration = 1\ndrain = '5s'\n[client]\npoolsize = 1\nqueue = 10\n[workload.ratelimit]\n\
                start = 500\n[[workload.keyspace]]";
    let result = run_on(port, text);
    assert!(result.counters.dropped > 400, "{:?}", result.counters);
    assert_eq!(result.counters.scheduled, 500);
}

#[test]
fn requests_of_an_ended_connection_are_counted_and_it_is_opened_again() {
    let number = AtomicU64::new(0);
    let port = scripted(move |_| if number.fetch_add(1, Ordering::Relaxed) % 50 == 20 { Answer::Close } else { ok() });
    let text =
        "[general]\nduration = 1\n[client]\npoolsize = 3\n[workload.ratelimit]\nstart = 200\n[[workload.keyspace]]";
    let result = run_on(port, text);
    assert!(result.counters.failed >= 3 && result.counters.reconnects >= 3, "{:?}", result.counters);
    assert!(result.counters.answered > 100, "{:?}", result.counters);
}

#[test]
fn a_connection_without_a_reply_is_closed_after_the_timeout() {
    let number = AtomicU64::new(0);
    let port = scripted(move |_| match number.fetch_add(1, Ordering::Relaxed) {
        5 => Answer::Late(Duration::from_secs(3), String::new()),
        _ => ok(),
    });
    let text = "[general]\nduration = 1\n[client]\npoolsize = 2\nrequest_timeout = 200\n[workload.ratelimit]\n\
                start = 100\n[[workload.keyspace]]";
    let result = run_on(port, text);
    assert!(result.counters.timeouts >= 1 && result.counters.failed >= 1, "{:?}", result.counters);
}

#[test]
fn a_closed_loop_keeps_every_pipeline_full() {
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, noted) = (open.clone(), most.clone());
    let port = scripted(move |_| {
        noted.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        counted.fetch_sub(1, Ordering::SeqCst);
        ok()
    });
    let result = run_on(port, "[general]\nduration = 1\n[client]\npoolsize = 4\npipeline = 3\n[[workload.keyspace]]");
    assert_eq!(most.load(Ordering::SeqCst), 4);
    // Each connection has three requests outstanding, which the server answers one after the other.
    assert!(result.service.summary.p50_ms >= 59.0, "{:?}", result.service.summary);
}

#[test]
fn misses_and_errors_are_counted() {
    let port = scripted(|words| {
        Answer::Reply(match words[0].as_str() {
            "GET" => "$-1\r\n".to_owned(),
            _ => "-OOM no memory\r\n".to_owned(),
        })
    });
    let text = "[general]\nduration = 1\n[workload.ratelimit]\nstart = 500\n[[workload.keyspace]]\n\
                commands = [{ verb = 'get' }, { verb = 'set' }]";
    let result = run_on(port, text);
    let [get, set] = &result.commands[..] else { panic!("{:?}", result.commands) };
    assert_eq!((get.misses, get.errors), (get.response.summary.count, 0));
    assert_eq!((set.misses, set.errors), (0, set.response.summary.count));
    assert_eq!(result.error_texts["OOM"], set.errors);
}

#[test]
fn a_transaction_is_one_request_with_several_replies() {
    let port = scripted(|words| match words[0].as_str() {
        "EXEC" => Answer::Reply("*1\r\n:1\r\n".to_owned()),
        "INCR" => Answer::Late(Duration::from_millis(10), "+QUEUED\r\n".to_owned()),
        _ => ok(),
    });
    let text = "[general]\nduration = 1\n[workload.ratelimit]\nstart = 50\n[[workload.keyspace]]\n\
                commands = [{ verb = 'multi', commands = ['INCR {key}'], watch = true }]";
    let result = run_on(port, text);
    assert_eq!(result.counters.answered, 50);
    assert!(result.service.summary.p50_ms >= 10.0);
}

#[test]
fn warm_up_is_not_measured() {
    let began = Instant::now();
    let port = scripted(move |_| {
        let is_early = began.elapsed() < Duration::from_millis(300);
        if is_early { Answer::Reply("-LOADING\r\n".to_owned()) } else { ok() }
    });
    let text = "[general]\nduration = 1\nwarmup = '1s'\n[workload.ratelimit]\nstart = 200\n[[workload.keyspace]]";
    let result = run_on(port, text);
    assert_eq!((result.counters.scheduled, result.counters.errors), (200, 0));
}

#[test]
fn requests_of_a_cluster_follow_redirections() {
    // Two nodes. The first claims all slots, but has given the upper half to the second, and is about to give slots
    // below 100.
    let asked = Arc::new(Mutex::new(false));
    let was_asked = asked.clone();
    let second = scripted(move |words| {
        match words[0].as_str() {
            "ASKING" => *was_asked.lock().expect("a lock") = true,
            "CLUSTER" => return Answer::Reply("*0\r\n".to_owned()),
            _ => {}
        }
        ok()
    });
    let own_port = Arc::new(AtomicU64::new(0));
    let port_of_first = own_port.clone();
    let first = scripted(move |words| {
        let port = port_of_first.load(Ordering::Relaxed);
        Answer::Reply(match words[0].as_str() {
            "CLUSTER" => format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n"),
            _ => match kvick_load::topology::slot(words[1].as_bytes()) {
                slot @ 8192.. => format!("-MOVED {slot} 127.0.0.1:{second}\r\n"),
                slot @ ..2000 => format!("-ASK {slot} 127.0.0.1:{second}\r\n"),
                _ => "+OK\r\n".to_owned(),
            },
        })
    });
    own_port.store(first.into(), Ordering::Relaxed);
    let text = "[general]\nduration = 1\ndrain = '5s'\n[target]\ntopology = 'cluster'\n[client]\npoolsize = 3\n\
                [workload.ratelimit]\nstart = 1000\n[[workload.keyspace]]";
    let result = run_on(first, text);
    assert_eq!((result.counters.answered, result.counters.errors), (1000, 0), "{:?}", result.error_texts);
    assert!(result.counters.redirects > 0 && *asked.lock().expect("a lock"));
    check_sums(&result);
}

#[test]
fn a_node_that_has_left_a_cluster_is_not_tried_again() {
    // The second node ends as soon as it gets a request. After that, the first one has all slots.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let second = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let mut connections: Vec<_> = (0..2).map(|_| listener.accept().expect("a connection").0).collect();
        connections[0].read_exact(&mut [0]).expect("a request");
    });
    let (own_port, questions) = (Arc::new(AtomicU64::new(0)), AtomicUsize::new(0));
    let port_of_first = own_port.clone();
    let first = scripted(move |words| {
        let port = port_of_first.load(Ordering::Relaxed);
        let range = |first: u16, last: u16, port: u64| {
            format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
        };
        match words[0].as_str() {
            "CLUSTER" if questions.fetch_add(1, Ordering::Relaxed) == 0 => {
                Answer::Reply(format!("*2\r\n{}{}", range(0, 8191, port), range(8192, 16383, second.into())))
            }
            "CLUSTER" => Answer::Reply(format!("*1\r\n{}", range(0, 16383, port))),
            _ => ok(),
        }
    });
    own_port.store(first.into(), Ordering::Relaxed);
    let text = "[general]\nduration = 3\ndrain = '5s'\n[target]\ntopology = 'cluster'\n[client]\npoolsize = 2\n\
                [workload.ratelimit]\nstart = 1000\n[[workload.keyspace]]";
    let result = run_on(first, text);
    assert_eq!(result.counters.answered + result.counters.failed, 3000, "{:?}", result.error_texts);
    // Each connection would be tried some thirty times.
    let refused: u64 = result.error_texts.values().sum();
    assert!((1..30).contains(&refused), "{:?}", result.error_texts);
    check_sums(&result);
}
