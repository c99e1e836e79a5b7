//! What the tests share: servers with keys of all types, and the program.
#![allow(dead_code, reason = "not every test needs everything")]

use kvick_load::client::Client;
use kvick_load::config::Client as Settings;
use kvick_load::reply::Value;
use kvick_testing::servers;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Time for a change of servers. Other programs may use the cores meanwhile.
const LIMIT: Duration = Duration::from_secs(60);
pub const PASSWORD: &str = "a secret";
pub const LIBRARY: &str = "#!lua name=lib\nserver.register_function('answer', function(keys, args) return 42 end)";

/// A server with a password.
pub struct Server(servers::Server);

impl Server {
    pub fn start(program: &Path, options: &[&str]) -> Server {
        let own = ["--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"];
        let passwords = ["--requirepass", PASSWORD, "--masterauth", PASSWORD];
        Server(servers::Server::start(program, &[&own[..], &passwords, options].concat()))
    }

    pub fn endpoint(&self) -> String {
        self.0.endpoint()
    }

    pub fn port(&self) -> u16 {
        self.0.port()
    }

    pub fn bus_port(&self) -> u16 {
        self.0.bus_port()
    }

    pub fn client(&self) -> Client {
        let request_timeout = LIMIT.as_millis() as u64;
        let settings = Settings { password: Some(PASSWORD.into()), request_timeout, ..Settings::default() };
        Client::connect(&self.endpoint(), &settings, None).expect("a connection")
    }

    pub fn ask(&self, words: &[&str]) -> Value {
        ask(&mut self.client(), words)
    }
}

pub fn ask(client: &mut Client, words: &[&str]) -> Value {
    let reply = client.ask(words).expect("a reply");
    assert!(!matches!(reply, Value::Error(_)), "{words:?}: {reply:?}");
    reply
}

pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A cluster whose nodes own equal shares of the slots.
pub fn cluster(program: &Path, nodes: u16, options: &[&str]) -> Vec<Server> {
    let options = [&["--cluster-enabled", "yes", "--cluster-databases", "4"][..], options].concat();
    let servers: Vec<Server> = (0..nodes).map(|_| Server::start(program, &options)).collect();
    let bound = |index: u16| u32::from(index) * 16_384 / u32::from(nodes);
    for (index, server) in (0..).zip(&servers) {
        let (first, last) = (bound(index).to_string(), (bound(index + 1) - 1).to_string());
        server.ask(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        let (port, bus_port) = (servers[0].port().to_string(), servers[0].bus_port().to_string());
        if index > 0 {
            server.ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]);
        }
    }
    wait_for("the cluster is up", || {
        servers.iter().all(|server| {
            let (info, known) = (server.ask(&["CLUSTER", "INFO"]).text(), format!("cluster_known_nodes:{nodes}"));
            let is_up =
                ["cluster_state:ok", "cluster_slots_assigned:16384", &known].iter().all(|line| info.contains(line));
            // Commands with keys may be refused for a moment longer.
            let reply = server.client().ask(&["GET", "key"]).expect("a reply");
            is_up && !matches!(reply, Value::Error(error) if error.starts_with("CLUSTERDOWN"))
        })
    });
    servers
}

/// The program, with the environment of the test and these variables.
pub struct Program(Vec<(&'static str, String)>);

impl Program {
    /// With variables.
    pub fn with(variables: Vec<(&'static str, String)>) -> Program {
        Program(variables)
    }

    /// Without any.
    pub fn plain() -> Program {
        Program(Vec::new())
    }

    /// A command that was not started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvick-backup"));
        for variable in ["AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE", "AWS_DEFAULT_REGION", "AWS_REGION"] {
            command.env_remove(variable);
        }
        command.args(arguments).env("KVICK_BACKUP_PASSWORD", PASSWORD).envs(self.0.iter().cloned());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output().expect("the program");
        eprintln!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        output
    }

    /// Runs it; returns what it prints.
    pub fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs it; returns what it prints, with errors.
    pub fn fails(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

/// Keys of all types, some with an expiry.
pub fn commands(number: u32) -> Vec<Vec<String>> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let expiry = 4_102_444_800_000_u64 + u64::from(number);
    let mut commands = vec![
        words(&format!("SET string:{number} value-{number}")),
        words(&format!("SET volatile:{number} value PXAT {expiry}")),
        words(&format!("RPUSH list:{number} a b {number}")),
        words(&format!("SADD set:{number} a b {number}")),
        words(&format!("SADD numbers:{number} 1 2 {number}")),
        words(&format!("ZADD sorted:{number} 1 a 2.5 b {number} c")),
        words(&format!("HSET hash:{number} a 1 b {number}")),
        words(&format!("XADD stream:{number} 1-{number} field {number}")),
        words(&format!("XGROUP CREATE stream:{number} group 0")),
        words(&format!("XREADGROUP GROUP group consumer STREAMS stream:{number} >")),
    ];
    commands.push(vec!["SET".into(), format!("large:{number}"), "0123456789".repeat(number as usize * 7)]);
    commands
}

/// Sends each command to the owner of its key.
pub fn fill(servers: &[Server], numbers: std::ops::Range<u32>) {
    let mut clients: Vec<Client> = servers.iter().map(Server::client).collect();
    for command in numbers.flat_map(commands) {
        let key = if command[0].starts_with("XG") || command[0] == "XREADGROUP" {
            command.iter().find(|word| word.starts_with("stream:")).expect("a key")
        } else {
            &command[1]
        };
        let owner = usize::from(kvick_load::topology::slot(key.as_bytes())) * servers.len() / 16_384;
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        ask(&mut clients[owner], &words);
    }
}

/// All keys of a database with expiry and content.
pub fn content(servers: &[Server], database: u32) -> Vec<(String, i64, String)> {
    let mut found = Vec::new();
    for server in servers {
        let mut client = server.client();
        ask(&mut client, &["SELECT", &database.to_string()]);
        for key in ask(&mut client, &["KEYS", "*"]).elements() {
            let key = key.text();
            let digest = ask(&mut client, &["DEBUG", "DIGEST-VALUE", &key]).elements()[0].text();
            found.push((key.clone(), ask(&mut client, &["PEXPIRETIME", &key]).integer(), digest));
        }
    }
    found.sort();
    found
}
