//! Real servers: a primary with a replica, Unix sockets, passwords, users, and TLS together with them.

mod common;

use common::{check_sums, start};
use kvick_load::client::Client;
use kvick_load::config::{Config, Tls};
use kvick_load::reply::Value;
use kvick_load::result::RunResult;
use kvick_load::run::{Share, Silent, run};
use kvick_load::transport::TlsSettings;
use kvick_testing::servers::Server;
use kvick_testing::{Deadline, free_port};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

/// A load of a second that fills its keys before: 80 percent GET, 20 percent SET.
const LOAD: &str = "[general]\nduration = 1\n[client]\nthreads = 2\npoolsize = 4\n[workload.ratelimit]\n\
                    start = 1000\n[[workload.keyspace]]\nnkeys = 100\npreload = 'set'";

/// The authority and the certificates of a server named `kvick.test` and of a client.
struct Certificates {
    dir: TempDir,
}

impl Certificates {
    fn new() -> Certificates {
        let dir = tempfile::tempdir().expect("a directory");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        std::fs::write(dir.path().join("ca.crt"), issuer.pem()).expect("a file");
        for name in ["server", "client"] {
            let mut params = CertificateParams::new(vec!["kvick.test".to_owned()]).expect("parameters");
            // A certificate with the name of its issuer would look as if it had signed itself.
            params.distinguished_name.push(DnType::CommonName, name);
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &issuer).expect("a certificate");
            std::fs::write(dir.path().join(format!("{name}.crt")), certificate.pem()).expect("a file");
            std::fs::write(dir.path().join(format!("{name}.key")), key.serialize_pem()).expect("a file");
        }
        Certificates { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What a server on this port needs, which asks for the certificates of clients.
    fn server_arguments(&self, port: u16) -> Vec<String> {
        let mut arguments = vec!["--tls-port".to_owned(), port.to_string()];
        for (name, file) in
            [("--tls-ca-cert-file", "ca.crt"), ("--tls-cert-file", "server.crt"), ("--tls-key-file", "server.key")]
        {
            arguments.extend([name.to_owned(), self.path(file).display().to_string()]);
        }
        arguments
    }

    /// What a client needs.
    fn client_settings(&self) -> Tls {
        Tls {
            ca_file: Some(self.path("ca.crt")),
            certificate: Some(self.path("client.crt")),
            private_key: Some(self.path("client.key")),
            server_name: Some("kvick.test".to_owned()),
        }
    }
}

fn load(endpoints: &[String], change: impl FnOnce(&mut Config)) -> Result<RunResult, String> {
    let mut config = Config::parse(LOAD).expect("a configuration");
    config.target.endpoints = endpoints.to_vec();
    change(&mut config);
    let result = run(&config, "test", Share::ALL, &Arc::new(AtomicBool::new(false)), &mut Silent);
    result.map_err(|error| error.to_string())
}

/// All requests were executed, and all keys were found.
fn check_success(result: &RunResult) {
    check_sums(result);
    assert_eq!((result.counters.answered, result.counters.errors), (1000, 0), "{:?}", result.error_texts);
    let get = result.commands.iter().find(|command| command.name == "get").expect("GET");
    assert_eq!(get.misses, 0, "the load reads the keys that it wrote before");
}

/// Sends a command, and returns the reply.
fn ask(endpoint: &str, change: impl FnOnce(&mut Config), words: &[&str]) -> Value {
    let mut config = Config::parse(LOAD).expect("a configuration");
    change(&mut config);
    let tls = config.tls.as_ref().map(|tls| TlsSettings::new(tls).expect("certificates"));
    let mut client = Client::connect(endpoint, &config.client, tls.as_ref()).expect("a connection");
    match client.ask(words).expect("a reply") {
        Value::Error(error) => panic!("{words:?}: {error}"),
        reply => reply,
    }
}

/// Calls of a command by clients since the server started.
fn calls(info: &str, command: &str) -> u64 {
    let start = format!("cmdstat_{command}:calls=");
    let line = info.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |rest| rest.split(',').next().expect("a number").parse().expect("a number"))
}

/// Waits until a replica has all keys of the load.
fn wait_for_keys(replica: &str, change: impl Fn(&mut Config)) {
    let deadline = Deadline::of("the replica has the keys of its primary");
    while ask(replica, &change, &["DBSIZE"]).integer() != 100 {
        deadline.check();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn writes_go_to_the_primary_and_reads_to_the_replicas() {
    let Some(primary) = start(&[]) else { return };
    let of = format!("127.0.0.1 {}", primary.port());
    let replicas: Vec<Server> = (0..2).filter_map(|_| start(&["--replicaof", &of])).collect();
    let endpoints: Vec<String> = [&primary].into_iter().chain(&replicas).map(Server::endpoint).collect();
    // The keys are written by a run of its own, so that the replicas have them when the other begins.
    check_success(&load(&endpoints[..1], |_| {}).expect("a run"));
    endpoints[1..].iter().for_each(|replica| wait_for_keys(replica, |_| {}));
    let before = ask(&endpoints[0], |_| {}, &["INFO", "commandstats"]).text();
    let result = load(&endpoints, |config| {
        config.target.topology = kvick_load::config::Topology::Replicated;
        config.workload.keyspace[0].preload = None;
    });
    let result = result.expect("a run");
    check_success(&result);
    let count = |name: &str| {
        let found = result.commands.iter().find(|command| command.name == name);
        found.expect("a command").response.summary.count
    };
    let after = ask(&endpoints[0], |_| {}, &["INFO", "commandstats"]).text();
    let on_primary = |command: &str| calls(&after, command) - calls(&before, command);
    assert_eq!((on_primary("get"), on_primary("set")), (0, count("set")));
    let on_replicas: Vec<u64> =
        endpoints[1..].iter().map(|to| calls(&ask(to, |_| {}, &["INFO", "commandstats"]).text(), "get")).collect();
    assert_eq!(on_replicas.iter().sum::<u64>(), count("get"));
    // Both replicas take part, each with about half.
    assert!(on_replicas.iter().all(|count| *count > 200), "{on_replicas:?}");
}

#[test]
fn a_unix_socket_is_an_endpoint_with_a_password_as_well() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket").display().to_string();
    let Some(server) = start(&["--unixsocket", &path, "--requirepass", "secret word"]) else { return };
    let endpoint = [format!("unix://{path}")];
    let refused = load(&endpoint, |_| {}).expect_err("no password");
    assert!(refused.contains("NOAUTH"), "{refused}");
    for resp in [2, 3] {
        let result = load(&endpoint, |config| {
            config.client.password = Some("secret word".to_owned());
            config.client.resp = resp;
            config.client.database = 2;
        });
        check_success(&result.expect("a run"));
    }
    let with_password = |config: &mut Config| config.client.password = Some("secret word".to_owned());
    let keyspaces = ask(&server.endpoint(), with_password, &["INFO", "keyspace"]).text();
    assert!(keyspaces.contains("db2:keys=100,"), "{keyspaces}");
}

#[test]
fn a_user_of_the_access_list_is_limited_to_its_rights() {
    let user = ["--user", "loader", "on", ">pass", "~key:*", "+@all", "--user", "reader", "on", ">read", "~*", "+get"];
    let Some(server) = start(&user) else { return };
    let endpoint = [server.endpoint()];
    for resp in [2, 3] {
        let as_user = |name: &'static str, password: &'static str| {
            move |config: &mut Config| {
                config.client.username = Some(name.to_owned());
                config.client.password = Some(password.to_owned());
                config.client.resp = resp;
            }
        };
        check_success(&load(&endpoint, as_user("loader", "pass")).expect("a run"));
        let refused = load(&endpoint, as_user("loader", "other")).expect_err("a wrong password");
        assert!(refused.contains("WRONGPASS"), "{refused}");
        // A refused write is an error in the result, and no error of the run.
        let change = as_user("reader", "read");
        let result = load(&endpoint, |config| {
            change(config);
            config.workload.keyspace[0].preload = None;
        });
        let result = result.expect("a run");
        check_sums(&result);
        let set = result.commands.iter().find(|command| command.name == "set").expect("SET");
        assert_eq!((result.counters.errors, result.error_texts["NOPERM"]), (set.errors, set.errors));
        assert_eq!(set.errors, set.response.summary.count);
        assert!(set.errors > 0);
    }
}

#[test]
fn tls_goes_together_with_users_and_replicas() {
    let certificates = Certificates::new();
    let auth = ["--requirepass", "secret", "--masterauth", "secret", "--user", "loader", "on", ">pass", "~*", "+@all"];
    let start = |more: &[&str]| {
        let port = free_port();
        let tls = certificates.server_arguments(port);
        let arguments: Vec<&str> = tls.iter().map(String::as_str).chain(auth).chain(more.iter().copied()).collect();
        Some((start(&arguments)?, format!("127.0.0.1:{port}")))
    };
    let Some((primary, primary_tls)) = start(&[]) else { return };
    let of = format!("127.0.0.1 {}", primary.port());
    let Some((_replica, replica_tls)) = start(&["--replicaof", &of]) else { return };
    let with_password = |config: &mut Config| {
        config.tls = Some(certificates.client_settings());
        config.client.password = Some("secret".to_owned());
    };
    let with_user = |config: &mut Config| {
        config.tls = Some(certificates.client_settings());
        config.client.username = Some("loader".to_owned());
        config.client.password = Some("pass".to_owned());
        config.client.resp = 3;
    };
    let single = std::slice::from_ref(&primary_tls);
    check_success(&load(single, with_password).expect("a run with a password"));
    check_success(&load(single, with_user).expect("a run with a user"));
    wait_for_keys(&replica_tls, with_password);
    let both = [primary_tls.clone(), replica_tls];
    let result = load(&both, |config| {
        with_user(config);
        config.target.topology = kvick_load::config::Topology::Replicated;
        config.workload.keyspace[0].preload = None;
    });
    check_success(&result.expect("a run with a replica"));
    // The server does not take clients without a certificate, and the client no server with another name.
    let anonymous = load(single, |config| {
        with_user(config);
        let tls = config.tls.as_mut().expect("TLS");
        (tls.certificate, tls.private_key) = (None, None);
    });
    assert!(anonymous.is_err());
    let other_name = load(single, |config| {
        with_user(config);
        config.tls.as_mut().expect("TLS").server_name = Some("other.test".to_owned());
    });
    let error = other_name.expect_err("a certificate for another name");
    assert!(error.to_lowercase().contains("certificate"), "{error}");
}

#[test]
fn large_values_pass_through_tls() {
    let certificates = Certificates::new();
    let port = free_port();
    let arguments = certificates.server_arguments(port);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some(_server) = start(&arguments) else { return };
    let result = load(&[format!("127.0.0.1:{port}")], |config| {
        config.tls = Some(certificates.client_settings());
        config.workload.keyspace[0].vlen = kvick_load::config::ValueLength::Fixed(300_000);
        config.workload.ratelimit.as_mut().expect("a rate").start = 100.0;
        config.workload.keyspace[0].nkeys = 20;
        config.general.drain = kvick_load::config::Span::from_ms(10_000);
    });
    let result = result.expect("a run");
    check_sums(&result);
    assert_eq!((result.counters.answered, result.counters.errors), (100, 0), "{:?}", result.error_texts);
}
