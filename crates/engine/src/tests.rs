//! Tests of the engine without a process: several clients on one or two executors, in a chosen order, over an in-memory
//! keyspace, with the resulting write log.

use crate::batch::ResolvedCommand;
use crate::engine::{Engine, Outcome};
use crate::handlers::Handler;
use crate::scripts;
use crate::services::Services;
use crate::session::Client;
use crate::transactions;
use kvick_acl::identity::Identity;
use kvick_commands::table::{Class, CommandTable};
use kvick_config::tables::{memory, network};
use kvick_config::words::EvictionPolicy;
use kvick_config::{Config, Values};
use kvick_core::Core;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::executor::Executor;
use kvick_core::inbox::Delivery;
use kvick_core::tracking::Mode;
use kvick_resp::OwnedArgs;
use kvick_store::Waiter;
use kvick_store::log::{Audience, Follower};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[global_allocator]
static ALLOCATOR: kvick_runtime::allocator::Allocator = kvick_runtime::allocator::Allocator;

/// Stands for the reply to a blocked client.
const WAITS: &str = "(waits)";

/// Engines over one keyspace, clients, and a reader of the write log. Executors and clients are identified by number.
struct Harness {
    services: &'static Services,
    executors: Vec<Engine>,
    clients: Vec<(Client, Option<Arc<Waiter>>)>,
    log: Follower,
}

impl Harness {
    fn new(executors: usize, clients: usize) -> Self {
        kvick_runtime::clock::calibrate();
        kvick_runtime::memory::register_thread();
        let defaults = Config::new(Values::defaults().expect("a current directory"));
        defaults.put(network::IO_THREADS, executors as u32);
        let values = (*defaults.values()).clone();
        let mut table = CommandTable::<Handler>::new();
        table.add_family(Class::Transaction, transactions::COMMANDS, Handler::Control);
        table.add_family(Class::Script, scripts::COMMANDS, Handler::ScriptCall);
        let table: &'static _ = Box::leak(Box::new(table));
        let core = Core::new(values, table.catalogue(), "r".repeat(40));
        let services = Services::leak(core, table);
        let log = services.keyspace.log.follow(Audience::All);
        let executors = (0..executors).map(|number| {
            let participant = services.keyspace.global_lock.join().expect("few threads");
            Engine::new(services, Executor::Worker(number), services.stats[number].clone(), participant)
        });
        let executors = executors.collect();
        let clients = (0..clients).map(|number| {
            let address = || format!("127.0.0.1:{number}");
            let info = Arc::new(ClientInfo::new(number as u64 + 1, 0, -1, address(), address(), true, 0));
            info.token.store(number, Ordering::Relaxed);
            services.clients.add(info.clone());
            (Client::new(info, Identity::superuser()), None)
        });
        Harness { services, executors, clients: clients.collect(), log }
    }

    /// Runs a client's request on an executor as its worker would: in a separate batch.
    fn run(&mut self, executor: usize, client: usize, line: &str) -> String {
        self.run_at(executor, client, line, 0)
    }

    /// The same, `later_ms` from now.
    fn run_at(&mut self, executor: usize, client: usize, line: &str, later_ms: i64) -> String {
        let (engine, (client, waiter)) = (&mut self.executors[executor], &mut self.clients[client]);
        let (args, mut out) = (OwnedArgs::new(line.split(' ')), Vec::new());
        engine.update_clock();
        engine.begin_batch();
        engine.now_ms += later_ms;
        assert!(engine.enter(), "nobody has the global lock");
        loop {
            let outcome = engine.execute(client, args.args(), ResolvedCommand::Unresolved, &mut None, &mut out);
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
                    *waiter = Some(ticket);
                    out.extend_from_slice(WAITS.as_bytes());
                    break;
                }
                _ => panic!("{line} neither ran nor waits"),
            }
        }
        engine.leave();
        String::from_utf8(out).expect("text")
    }

    /// The deliveries in the inbox of worker 0, which owns all clients: the client's number and the message.
    fn delivered(&mut self) -> Vec<(usize, String)> {
        let inbox = self.services.inboxes.of(0);
        let text = |delivery| match delivery {
            Delivery::Served(served) => {
                vec![(served.client.id as usize - 1, String::from_utf8(served.reply).expect("text"))]
            }
            Delivery::Invalidated(invalidation) => {
                let mut out = Vec::new();
                invalidation.write(kvick_resp::Version::Resp3, &mut out);
                let targets = invalidation.targets(0..usize::MAX).iter();
                let out = String::from_utf8(out).expect("text");
                targets.map(|target| (target.client as usize - 1, out.clone())).collect()
            }
            Delivery::Published(_) | Delivery::Disconnected(_) => panic!("nobody asked for that"),
        };
        inbox.take().flat_map(text).collect()
    }

    /// The commands that have been appended to the write log since the last call, one per line.
    fn logged(&mut self) -> String {
        let bytes = self.log.read().expect("the log keeps up");
        let text = String::from_utf8(bytes).expect("text");
        let words = text.split("\r\n").filter(|word| !word.starts_with('$') && !word.is_empty());
        let lines = words.map(|word| if word.starts_with('*') { "\n".to_string() } else { format!("{word} ") });
        lines.collect::<String>().lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// Skips the SELECT at the start of the log.
    fn after_select(mut self) -> Self {
        self.run(0, 0, "SET first 1");
        assert_eq!(self.logged(), "SELECT 0; SET first 1");
        self
    }
}

/// Runs `test` with one executor and with two; the second argument is the number of the last executor.
fn for_executors(clients: usize, test: impl Fn(Harness, usize)) {
    for executors in [1, 2] {
        test(Harness::new(executors, clients).after_select(), executors - 1);
    }
}

#[test]
fn a_transaction_is_logged_as_one_and_given_up_when_a_watched_key_changes() {
    for_executors(2, |mut harness, other| {
        assert_eq!(harness.run(0, 0, "WATCH k"), "+OK\r\n");
        assert_eq!(harness.run(0, 0, "MULTI"), "+OK\r\n");
        assert_eq!(harness.run(0, 0, "INCR k"), "+QUEUED\r\n");
        assert_eq!(harness.run(0, 0, "RPUSH list a"), "+QUEUED\r\n");
        assert_eq!(harness.run(0, 0, "EXEC"), "*2\r\n:1\r\n:1\r\n");
        assert_eq!(harness.logged(), "MULTI; INCR k; RPUSH list a; EXEC");
        harness.run(0, 0, "WATCH k");
        harness.run(0, 0, "MULTI");
        harness.run(0, 0, "INCR k");
        assert_eq!(harness.run(other, 1, "SET k 9"), "+OK\r\n");
        assert_eq!(harness.run(0, 0, "EXEC"), "*-1\r\n");
        assert_eq!((harness.run(0, 0, "GET k"), harness.logged()), ("$1\r\n9\r\n".into(), "SET k 9".into()));
    });
}

#[test]
fn what_a_script_did_is_logged_together_also_what_came_before_its_error() {
    for_executors(1, |mut harness, other| {
        let script = "redis.call('set',KEYS[1],ARGV[1])redis.call('incr','undeclared')return{KEYS[1]}";
        assert_eq!(harness.run(0, 0, &format!("EVAL {script} 1 a 7")), "*1\r\n$1\r\na\r\n");
        assert_eq!(harness.logged(), "MULTI; set a 7; incr undeclared; EXEC");
        let failing = "redis.call('incr',KEYS[1])redis.call('rpush',KEYS[1],'x')";
        let reply = harness.run(other, 0, &format!("EVAL {failing} 1 a"));
        assert!(reply.starts_with("-WRONGTYPE "), "{reply}");
        assert_eq!((harness.run(0, 0, "GET a"), harness.logged()), ("$1\r\n8\r\n".into(), "incr a".into()));
    });
}

#[test]
fn clients_that_wait_are_served_in_their_order_once() {
    for_executors(3, |mut harness, other| {
        assert_eq!(harness.run(0, 0, "BLPOP list 0"), WAITS);
        assert_eq!(harness.run(other, 1, "BRPOP other list 0"), WAITS);
        assert_eq!(harness.run(other, 2, "RPUSH list a b c"), ":3\r\n");
        let pair = |element: &str| format!("*2\r\n$4\r\nlist\r\n$1\r\n{element}\r\n");
        assert_eq!(harness.delivered(), [(0, pair("a")), (1, pair("c"))]);
        assert_eq!(harness.logged(), "RPUSH list a b c; LPOP list; RPOP list");
        assert!(harness.clients.iter().take(2).all(|(_, waiter)| waiter.as_ref().is_some_and(|one| one.has_left())));
        assert_eq!(harness.run(0, 2, "RPUSH list d"), ":2\r\n");
        assert_eq!(harness.delivered(), []);
    });
}

#[test]
fn a_client_that_caches_a_key_is_told_once_when_it_changes() {
    for_executors(2, |mut harness, other| {
        let mode = Mode { flags: ClientFlags::empty(), redirect: 0 };
        harness.clients[0].0.start_tracking(harness.services, &mode, &[]);
        harness.run(0, 0, "GET k");
        harness.run(other, 1, "SET elsewhere 1");
        assert_eq!(harness.delivered(), []);
        harness.run(other, 1, "SET k 1");
        let invalidation = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n".to_string();
        assert_eq!(harness.delivered(), [(0, invalidation)]);
        harness.run(other, 1, "SET k 2");
        assert_eq!(harness.delivered(), []);
    });
}

#[test]
fn a_key_whose_time_has_come_is_gone_and_its_deletion_is_logged_once() {
    for_executors(2, |mut harness, other| {
        harness.run(0, 0, "SET k 1 PX 1000");
        assert!(harness.logged().starts_with("SET k 1 PXAT "));
        assert_eq!(harness.run_at(0, 0, "GET k", 500), "$1\r\n1\r\n");
        assert_eq!(harness.run_at(other, 1, "GET k", 2000), "$-1\r\n");
        assert_eq!(harness.run_at(0, 0, "GET k", 2000), "$-1\r\n");
        assert_eq!(harness.logged(), "UNLINK k");
    });
}

#[test]
fn above_the_memory_limit_keys_go_or_writes_are_refused() {
    for_executors(1, |mut harness, other| {
        for n in 0..20 {
            harness.run(0, 0, &format!("SET key:{n} 1"));
        }
        harness.logged();
        harness.services.config.put(memory::MAXMEMORY, 1);
        let reply = harness.run(other, 0, "SET more 1");
        assert_eq!(reply, "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
        assert_eq!((harness.run(other, 0, "EXISTS key:1"), harness.logged()), (":1\r\n".into(), String::new()));
        harness.services.config.put(memory::MAXMEMORY_POLICY, EvictionPolicy::AllkeysRandom);
        harness.services.config.put(memory::MAXMEMORY_EVICTION_TENACITY, 100);
        harness.run(other, 0, "SET more 1");
        assert!(harness.services.keyspace.is_empty(0), "every key goes before a write is refused");
        assert_eq!(harness.logged().matches("UNLINK ").count(), 21, "the keys, and the first one");
    });
}
