//! A load of consumer groups, through a common client library.
//!
//! One producer adds numbered entries to a stream. Some consumers block for them (XREADGROUP with BLOCK), each on its
//! own connection and thread; others poll (XREADGROUP without BLOCK) as tasks that share one connection, so several of
//! its requests are always in flight. [`Work::run`] counts every delivery and acknowledgement, and [`Done::check`]
//! checks that each group got each entry once.

use super::Server;
use futures_util::future::join_all;
use kvick_testing::SetOnDrop;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamInfoGroupsReply, StreamPendingReply, StreamReadReply};
use redis::{AsyncConnectionConfig, Client, Cmd, cmd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

const STREAM: &str = "soak";
/// Entries that a consumer takes at most at once.
const COUNT: usize = 10;
/// Timeout of one XREADGROUP: the interval at which consumers check for the end.
const BLOCK_MS: usize = 100;
/// Timeout of replies.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// The parameters of the load.
#[derive(Clone, Copy)]
pub struct Work {
    /// Entries to be added.
    pub entries: usize,
    /// Entries added with one pipeline.
    pub burst: usize,
    /// The time from one burst to the next; zero to go as fast as the server answers.
    pub every: Duration,
    /// Consumers that wait.
    pub waiting: usize,
    /// Consumers that poll.
    pub polling: usize,
    /// Pause of a polling consumer after an empty reply.
    pub pause: Duration,
    /// Whether polling consumers have a separate group.
    pub apart: bool,
}

/// The results.
pub struct Done {
    work: Work,
    groups: Vec<Group>,
    /// From the first entry added to the last one acknowledged.
    pub took: Duration,
    /// XREADGROUP requests of blocking consumers.
    pub waits: usize,
    /// XREADGROUP requests of polling consumers.
    pub polls: usize,
}

/// The results of a group.
struct Group {
    name: &'static str,
    /// Number of deliveries of each entry.
    deliveries: Vec<AtomicU8>,
    acknowledged: AtomicUsize,
    /// Set when somebody has stopped working on it: all is done, or the test has failed.
    is_over: AtomicBool,
}

impl Group {
    fn new(name: &'static str, entries: usize) -> Group {
        let deliveries = (0..entries).map(|_| AtomicU8::new(0)).collect();
        Group { name, deliveries, acknowledged: AtomicUsize::new(0), is_over: AtomicBool::new(false) }
    }

    fn is_done(&self) -> bool {
        self.acknowledged.load(Ordering::Relaxed) >= self.deliveries.len()
    }

    /// Whether consumers are to end.
    fn is_over(&self) -> bool {
        self.is_done() || self.is_over.load(Ordering::Relaxed)
    }

    fn read(&self, consumer: &str, block_ms: Option<usize>) -> Cmd {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(self.name).arg(consumer).arg("COUNT").arg(COUNT);
        if let Some(block_ms) = block_ms {
            read.arg("BLOCK").arg(block_ms);
        }
        read.arg("STREAMS").arg(STREAM).arg(">");
        read
    }

    /// Records a delivery. Returns the command that acknowledges it, unless it is empty.
    fn note(&self, reply: Option<StreamReadReply>) -> Option<Cmd> {
        let entries: Vec<_> = reply?.keys.into_iter().flat_map(|key| key.ids).collect();
        let mut acknowledge = cmd("XACK");
        acknowledge.arg(STREAM).arg(self.name);
        for entry in &entries {
            let number: usize = entry.get("n").expect("the entry's number");
            self.deliveries[number].fetch_add(1, Ordering::Relaxed);
            acknowledge.arg(&entry.id);
        }
        (!entries.is_empty()).then_some(acknowledge)
    }
}

impl Work {
    /// Does it, with a stream of its own, on a server.
    pub fn run(self, server: &Server) -> Done {
        let mut control = server.client();
        let _: i64 = cmd("DEL").arg(STREAM).query(&mut control).expect("a number");
        let names: &[&str] = if self.apart { &["waiting", "polling"] } else { &["all"] };
        let groups: Vec<Group> = names.iter().map(|name| Group::new(name, self.entries)).collect();
        for group in &groups {
            let mut create = cmd("XGROUP");
            create.arg("CREATE").arg(STREAM).arg(group.name).arg("0").arg("MKSTREAM");
            let () = create.query(&mut control).expect("OK");
        }
        let began = Instant::now();
        let (waits, polls) = std::thread::scope(|scope| {
            let waiting = self.wait(scope, server, &groups[0]);
            let polling =
                scope.spawn(|| if self.polling > 0 { self.poll(server, &groups[groups.len() - 1]) } else { 0 });
            let _over = groups.iter().map(|group| SetOnDrop(&group.is_over)).collect::<Vec<_>>();
            self.add(server);
            Self::wait_until_done(&groups);
            let waits = waiting.into_iter().map(|consumer| consumer.join().expect("no panic")).sum();
            (waits, polling.join().expect("no panic"))
        });
        Done { work: self, groups, took: began.elapsed(), waits, polls }
    }

    /// Adds all entries.
    fn add(&self, server: &Server) {
        let mut client = server.client();
        let began = Instant::now();
        for (burst, first) in (0..self.entries).step_by(self.burst).enumerate() {
            let mut pipe = redis::pipe();
            for number in first..self.entries.min(first + self.burst) {
                pipe.cmd("XADD").arg(STREAM).arg("*").arg("n").arg(number).arg("text").arg("some words").ignore();
            }
            let () = pipe.query(&mut client).expect("IDs");
            let due = began + self.every * (burst as u32 + 1);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }

    /// Waits until all entries are acknowledged or a consumer has failed. Fails if nothing is acknowledged for a while.
    fn wait_until_done(groups: &[Group]) {
        let acknowledged = || groups.iter().map(|group| group.acknowledged.load(Ordering::Relaxed)).sum::<usize>();
        let (mut last, mut at) = (acknowledged(), Instant::now());
        while !groups.iter().all(Group::is_over) {
            std::thread::sleep(Duration::from_millis(1));
            let now = acknowledged();
            if now != last {
                (last, at) = (now, Instant::now());
            }
            assert!(at.elapsed() < WAIT_LIMIT, "nothing is acknowledged any more after {last} entries");
        }
    }

    /// Starts the consumers that wait; each returns the number of its requests.
    fn wait<'s>(
        &self,
        scope: &'s Scope<'s, '_>,
        server: &'s Server,
        group: &'s Group,
    ) -> Vec<std::thread::ScopedJoinHandle<'s, usize>> {
        let consume = move |consumer: usize| {
            let _over = SetOnDrop(&group.is_over);
            let mut client = server.client();
            client.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
            let read = group.read(&format!("waiting:{consumer}"), Some(BLOCK_MS));
            let mut waits = 0;
            while !group.is_over() {
                waits += 1;
                let reply = read.query(&mut client).expect("entries, or nothing");
                if let Some(acknowledge) = group.note(reply) {
                    let acknowledged: usize = acknowledge.query(&mut client).expect("a number");
                    group.acknowledged.fetch_add(acknowledged, Ordering::Relaxed);
                }
            }
            waits
        };
        (0..self.waiting).map(|consumer| scope.spawn(move || consume(consumer))).collect()
    }

    /// Runs the consumers that poll, to the end; the number of their requests.
    fn poll(&self, server: &Server, group: &Group) -> usize {
        let _over = SetOnDrop(&group.is_over);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = Client::open(format!("redis://127.0.0.1:{}/", server.port())).expect("an address");
            let config = AsyncConnectionConfig::new().set_response_timeout(Some(WAIT_LIMIT));
            let shared = client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection");
            let consumers = (0..self.polling).map(|consumer| self.poll_one(consumer, shared.clone(), group));
            join_all(consumers).await.into_iter().sum()
        })
    }

    async fn poll_one(&self, consumer: usize, mut shared: MultiplexedConnection, group: &Group) -> usize {
        let read = group.read(&format!("polling:{consumer}"), None);
        let mut polls = 0;
        while !group.is_over() {
            polls += 1;
            let reply = read.query_async(&mut shared).await.expect("entries, or nothing");
            if let Some(acknowledge) = group.note(reply) {
                let acknowledged: usize = acknowledge.query_async(&mut shared).await.expect("a number");
                group.acknowledged.fetch_add(acknowledged, Ordering::Relaxed);
            } else if !self.pause.is_zero() {
                tokio::time::sleep(self.pause).await;
            }
        }
        polls
    }
}

impl Done {
    /// Checks that each group got each entry exactly once and acknowledged it, and that the server knows of nothing
    /// else.
    pub fn check(&self, server: &Server) {
        let (mut control, entries) = (server.client(), self.work.entries);
        assert_eq!(cmd("XLEN").arg(STREAM).query::<usize>(&mut control), Ok(entries));
        let told: StreamInfoGroupsReply = cmd("XINFO").arg("GROUPS").arg(STREAM).query(&mut control).expect("groups");
        assert_eq!(told.groups.len(), self.groups.len());
        for group in &self.groups {
            let wrong = group.deliveries.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
            let wrong: Vec<_> = wrong.filter(|(_, count)| *count != 1).take(10).collect();
            assert!(wrong.is_empty(), "{}: entries not delivered once, but as often as this: {wrong:?}", group.name);
            assert_eq!(group.acknowledged.load(Ordering::Relaxed), entries, "{}: acknowledged", group.name);
            let pending: StreamPendingReply =
                cmd("XPENDING").arg(STREAM).arg(group.name).query(&mut control).expect("a summary");
            assert_eq!(pending.count(), 0, "{}: pending", group.name);
            let told = told.groups.iter().find(|told| told.name == group.name).expect("the group");
            assert_eq!((told.entries_read, told.lag), (Some(entries), Some(0)), "{}", group.name);
        }
    }
}
