//! Tests of the engine without a process: several clients on one or two executors, in a chosen order and at chosen
//! times, over an in-memory keyspace. One file per theme.
//!
//! A test passes [`for_executors`] the number of its clients and a closure, which runs once with one executor and once
//! with two. Clients and executors are identified by number. The closure gets the number of the last executor, so that
//! a request that it runs there comes from another thread's engine when there are two:
//!
//! ```text
//! for_executors(2, |mut harness, other| {
//!     harness.ask(0, 0, "BLPOP list 0", WAITS);
//!     harness.ask(other, 1, "RPUSH list a", ":1\r\n");
//!     assert_eq!(harness.delivered(), [(0, bulks(&["list", "a"]))]);
//!     assert_eq!(harness.logged(), "RPUSH list a; LPOP list");
//! });
//! ```
//!
//! - [`Harness::ask`] runs a request as a worker does that has read nothing else in its turn, and compares the reply;
//!   [`Harness::run`] returns the reply. Replies are those of RESP2. The command table has the data, transaction and
//!   script commands. What a session command would do, a test does itself: [`Harness::select`], [`Harness::track`],
//!   [`Harness::configure`], or through [`Harness::services`].
//! - Time stands still until [`Harness::advance`]. Keys then expire when they are accessed, one millisecond after the
//!   time that PEXPIREAT names; [`Harness::sweep`] is active expiry, and [`Harness::expire_waits`] ends the waits of
//!   blocked clients.
//! - [`Harness::delivered`] and [`Harness::logged`] return what has been sent to clients, and appended to the write
//!   log, since their last call.
//!
//! All tests of the crate share the process, so its memory is not what one test uses: the only memory limit with a
//! certain effect is one byte.

mod blocking;
mod eviction;
mod expiry;
mod hot_keys;
mod routing;
mod scripts;
mod tracking;
mod transactions;

use crate::batch::ResolvedCommand;
use crate::blocking::Blocked;
use crate::engine::{Engine, Outcome};
use crate::handlers::Handler;
use crate::services::Services;
use crate::session::Client;
use kvick_acl::identity::Identity;
use kvick_commands::table::{Class, CommandTable};
use kvick_commands::timeout::is_over;
use kvick_config::shapes::SavePoints;
use kvick_config::tables::{network, persistence};
use kvick_config::{Config, Key, Setting, Values};
use kvick_core::Core;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::executor::Executor;
use kvick_core::inbox::Delivery;
use kvick_core::tracking::Mode;
use kvick_resp::{OwnedArgs, ReplyBuffer, Version};
use kvick_store::Waiter;
use kvick_store::expire::{Pass, Sweeper};
use kvick_store::log::{Audience, Follower};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: kvick_runtime::allocator::Allocator = kvick_runtime::allocator::Allocator;

/// Stands for the reply to a client that blocks.
const WAITS: &str = "(waits)";
const OK: &str = "+OK\r\n";
const QUEUED: &str = "+QUEUED\r\n";
/// The reply to a wait that timed out, and to a transaction whose watched keys have changed.
const NIL_ARRAY: &str = "*-1\r\n";

/// A reply of one string.
fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// A reply of several strings.
fn bulks(texts: &[&str]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| bulk(text)).collect();
    format!("*{}\r\n{}", texts.len(), texts.concat())
}

/// The invalidation of keys, as a client receives it.
fn stale(keys: &[&str]) -> String {
    format!(">2\r\n$10\r\ninvalidate\r\n{}", bulks(keys))
}

/// The words of a request: they are separated by spaces, and those that contain spaces are in double quotes.
fn words(line: &str) -> Vec<&str> {
    let pieces = line.split('"').enumerate();
    pieces.flat_map(|(n, piece)| if n % 2 == 1 { vec![piece] } else { piece.split_whitespace().collect() }).collect()
}

/// A client, which belongs to worker 0.
struct Connected {
    client: Client,
    /// The wait for which it blocks.
    waiter: Option<Arc<Waiter>>,
}

/// Engines over one keyspace, clients, and a reader of the write log; see the module's documentation.
struct Harness {
    services: &'static Services,
    executors: Vec<Engine>,
    sweepers: Vec<Sweeper>,
    clients: Vec<Connected>,
    log: Follower,
    now_us: i64,
}

impl Harness {
    fn new(executors: usize, clients: usize) -> Self {
        Harness::with_settings(executors, clients, |_| ())
    }

    /// With settings that cannot be changed later.
    fn with_settings(executors: usize, clients: usize, configure: impl FnOnce(&Config)) -> Self {
        kvick_runtime::clock::calibrate();
        kvick_runtime::memory::register_thread();
        let defaults = Config::new(Values::defaults().expect("a current directory"));
        defaults.put(network::IO_THREADS, executors as u32);
        // Otherwise FLUSHALL would write a dump to disk.
        defaults.put(persistence::SAVE, SavePoints::none());
        configure(&defaults);
        let values = (*defaults.values()).clone();
        let mut table = CommandTable::<Handler>::new();
        table.add_family(Class::Transaction, crate::transactions::COMMANDS, Handler::Control);
        table.add_family(Class::Script, crate::scripts::COMMANDS, Handler::ScriptCall);
        let table: &'static _ = Box::leak(Box::new(table));
        let core = Core::new(values, table.catalogue(), "r".repeat(40));
        let services = Services::leak(core, table);
        let log = services.keyspace.log.follow(Audience::All);
        let engines = (0..executors).map(|number| {
            let participant = services.keyspace.global_lock.join().expect("few threads");
            Engine::new(services, Executor::Worker(number), services.stats[number].clone(), participant)
        });
        let clients = (0..clients).map(|number| {
            let address = || format!("127.0.0.1:{number}");
            let info = Arc::new(ClientInfo::new(number as u64 + 1, 0, -1, address(), address(), true, 0));
            info.token.store(number, Ordering::Relaxed);
            services.clients.add(info.clone());
            Connected { client: Client::new(info, Identity::superuser()), waiter: None }
        });
        let mut harness = Harness {
            services,
            executors: engines.collect(),
            sweepers: (0..executors).map(|_| Sweeper::default()).collect(),
            clients: clients.collect(),
            log,
            now_us: kvick_runtime::clock::unix_us(),
        };
        harness.advance(0);
        harness
    }

    /// Skips the SELECT at the start of the log.
    fn after_select(mut self) -> Self {
        self.run(0, 0, "DEL nothing");
        self.run(0, 0, "SET first 1");
        self.run(0, 0, "DEL first");
        assert_eq!(self.logged(), "SELECT 0; SET first 1; DEL first");
        self
    }

    /// Lets time pass.
    fn advance(&mut self, ms: i64) {
        self.now_us += ms * 1000;
        for engine in &mut self.executors {
            engine.frozen_us = Some(self.now_us);
            engine.update_date();
        }
    }

    /// Current Unix time in milliseconds.
    fn now_ms(&self) -> i64 {
        self.now_us / 1000
    }

    /// Runs a client's request on an executor, in a turn of its own. Returns the reply, or [`WAITS`].
    #[track_caller]
    fn run(&mut self, executor: usize, client: usize, line: &str) -> String {
        let (engine, Connected { client, waiter }) = (&mut self.executors[executor], &mut self.clients[client]);
        assert!(waiter.is_none(), "a blocked client's requests are not executed");
        let (args, mut out) = (OwnedArgs::new(words(line)), ReplyBuffer::contiguous(Vec::new()));
        engine.update_clock();
        engine.begin_batch();
        assert!(engine.enter(), "nobody has the global lock");
        loop {
            let outcome = engine.execute(client, args.args(), ResolvedCommand::Unresolved, &mut out);
            let outcome = match outcome {
                Outcome::ScriptCall(script_call) => {
                    engine.execute_script_call(client, script_call, args.args(), &mut (), &mut out)
                }
                outcome => outcome,
            };
            match outcome {
                Outcome::Done => break,
                Outcome::Again => {}
                Outcome::Waits(ticket) => {
                    client.info.set_flags(ClientFlags::BLOCKED, true);
                    *client.info.waiter.lock() = Some(ticket.clone());
                    *waiter = Some(ticket);
                    out.bytes.extend_from_slice(WAITS.as_bytes());
                    break;
                }
                _ => panic!("{line} neither ran nor waits"),
            }
        }
        engine.leave();
        engine.settle_turn();
        String::from_utf8(out.bytes).expect("text")
    }

    /// Runs a client's request and compares the reply.
    #[track_caller]
    fn ask(&mut self, executor: usize, client: usize, line: &str, reply: &str) {
        assert_eq!(self.run(executor, client, line), reply, "{line}");
    }

    /// Runs requests in a transaction. Returns the reply to EXEC.
    #[track_caller]
    fn exec(&mut self, executor: usize, client: usize, lines: &[&str]) -> String {
        self.ask(executor, client, "MULTI", OK);
        lines.iter().for_each(|line| self.ask(executor, client, line, QUEUED));
        self.run(executor, client, "EXEC")
    }

    /// Selects a client's database.
    fn select(&mut self, client: usize, database: usize) {
        self.clients[client].client.select(database);
    }

    /// Turns tracking on for a client, with options and, for broadcasting mode, prefixes.
    fn track(&mut self, client: usize, flags: ClientFlags, prefixes: &[&str]) {
        let prefixes: Vec<&[u8]> = prefixes.iter().map(|prefix| prefix.as_bytes()).collect();
        self.clients[client].client.start_tracking(self.services, &Mode { flags, redirect: 0 }, &prefixes);
    }

    /// Changes a setting. Executors apply it before their next request.
    fn configure<T: Setting>(&self, key: Key<T>, value: T) {
        self.services.config.put(key, value);
    }

    /// Deletes expired keys and fields that no command accesses, each executor in its share of the partitions.
    fn sweep(&mut self) {
        for (number, (engine, sweeper)) in self.executors.iter_mut().zip(&mut self.sweepers).enumerate() {
            let (stats, event_mask, now_ms) = (engine.stats.clone(), engine.event_mask(), engine.now_ms);
            assert!(engine.enter(), "nobody has the global lock");
            let ran_out = sweeper.run(Pass {
                keyspace: self.services.keyspace,
                share: kvick_store::Share { worker: number, workers: self.services.active_workers() },
                now_ms,
                budget: Duration::from_secs(60),
                acceptable_percent: 0,
                lazy: engine.runtime_config.commands.lazy_expire,
                counters: &stats.keyspace,
                effects: engine.effects(),
                event_mask,
            });
            assert!(!ran_out, "the tests have few keys");
            engine.settle_consequences();
            engine.leave();
            engine.settle_turn();
        }
    }

    /// Whether a client waits for a key. It does until its answer is [delivered](Self::delivered).
    fn is_blocked(&self, client: usize) -> bool {
        self.clients[client].waiter.is_some()
    }

    /// Ends, on an executor, the waits whose timeout has passed. Returns the clients with their replies.
    fn expire_waits(&mut self, executor: usize) -> Vec<(usize, String)> {
        let (now_ms, mut replies) = (self.now_ms(), Vec::new());
        for number in 0..self.clients.len() {
            let until_ms = self.clients[number].waiter.as_deref().and_then(Blocked::of).and_then(|one| one.until_ms);
            if until_ms.is_some_and(|until_ms| is_over(until_ms, now_ms))
                && let Some(waiter) = self.cancel_wait(executor, number)
                && let Some(blocked) = Blocked::of(&waiter)
            {
                let served = blocked.end(&waiter, None, self.services, &self.executors[executor].stats);
                replies.push((number, String::from_utf8(served.reply).expect("text")));
            }
        }
        replies
    }

    /// Ends a client's wait without an answer, as when it disconnects. Returns the wait unless it was served.
    fn cancel_wait(&mut self, executor: usize, client: usize) -> Option<Arc<Waiter>> {
        let waiter = self.clients[client].waiter.clone().expect("a client that waits");
        self.executors[executor].cancel_wait(&waiter).then(|| {
            self.unblock(client);
            waiter
        })
    }

    fn unblock(&mut self, client: usize) {
        let Connected { client, waiter } = &mut self.clients[client];
        client.info.set_flags(ClientFlags::BLOCKED, false);
        (*waiter, *client.info.waiter.lock()) = (None, None);
    }

    /// What has been sent to clients since the last call, apart from replies to [`run`](Self::run): the client's number
    /// and the message, in the order of delivery. Unblocks the clients that were served.
    fn delivered(&mut self) -> Vec<(usize, String)> {
        let mut messages = Vec::new();
        for delivery in self.services.inboxes.of(0).take() {
            match delivery {
                Delivery::Served(served) => {
                    let client = served.client.id as usize - 1;
                    let waiter = self.clients[client].waiter.as_ref().expect("a client that waits");
                    assert!(waiter.has_left() && waiter.ticket() == served.ticket, "only its last wait is answered");
                    self.unblock(client);
                    messages.push((client, String::from_utf8(served.reply).expect("text")));
                }
                Delivery::Invalidated(invalidation) => {
                    let mut out = Vec::new();
                    invalidation.write(Version::Resp3, &mut out);
                    let out = String::from_utf8(out).expect("text");
                    let targets = invalidation.targets(0..usize::MAX).iter();
                    messages.extend(targets.map(|target| (target.client as usize - 1, out.clone())));
                }
                Delivery::Published(_)
                | Delivery::Disconnected(_)
                | Delivery::ToSource(..)
                | Delivery::UnblockedElsewhere(..)
                | Delivery::SlotsLost => {
                    panic!("nobody asked for that")
                }
            }
            self.services.inboxes.delivered(0);
        }
        messages
    }

    /// The commands that have been appended to the write log since the last call.
    fn logged(&mut self) -> String {
        let bytes = self.log.read().expect("the log keeps up");
        let text = String::from_utf8(bytes).expect("text");
        let words = text.split("\r\n").filter(|word| !word.starts_with('$') && !word.is_empty());
        let lines = words.map(|word| if word.starts_with('*') { "\n".to_string() } else { format!("{word} ") });
        lines.collect::<String>().lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
    }
}

/// Runs `test` with one executor and with two; the second argument is the number of the last executor.
fn for_executors(clients: usize, test: impl Fn(Harness, usize)) {
    for executors in [1, 2] {
        test(Harness::new(executors, clients).after_select(), executors - 1);
    }
}
