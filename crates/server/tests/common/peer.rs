//! Valkey, Redis and Sentinel processes, for interoperability tests.

use super::{free_port, wait_until};
use redis::{Connection, cmd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The program of Valkey's Sentinel: `KVICK_TEST_SENTINEL`, or the server of `KVICK_TEST_VALKEY`, which runs as
/// Sentinel with the option `--sentinel`. If neither is set, prints so and returns `None`.
pub fn sentinel() -> Option<PathBuf> {
    let named = std::env::var_os("KVICK_TEST_SENTINEL").or_else(|| std::env::var_os("KVICK_TEST_VALKEY"));
    let program = named.map(PathBuf::from).filter(|program| program.exists());
    if program.is_none() {
        println!("Not run: neither KVICK_TEST_SENTINEL nor KVICK_TEST_VALKEY names a program");
    }
    program
}

/// A running server of another project, with its directory.
pub struct Running {
    child: Child,
    port: u16,
}

impl Running {
    /// Starts it with its port and directory and these arguments. It may not accept connections yet.
    pub fn start(program: &str, data_dir: &Path, args: &[&str]) -> Running {
        let port = free_port();
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--enable-debug-command", "yes"])
            .arg("--dir")
            .arg(data_dir)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the server's program");
        Running { child, port }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A new connection, once it has loaded what it has.
    pub fn client(&self) -> Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).expect("an address");
        let mut connection = None;
        wait_until("the server has loaded", || {
            connection = client.get_connection().ok();
            connection.as_mut().is_some_and(|connection| cmd("PING").query::<String>(connection).is_ok())
        });
        connection.expect("a connection")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
