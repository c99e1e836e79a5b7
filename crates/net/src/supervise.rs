//! Status messages to a supervisor: systemd over its notification socket, upstart by stopping once.

use kvick_config::words::Supervised;
use kvick_runtime::logging;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;

/// The supervisor, once detected.
static SUPERVISOR: OnceLock<Supervisor> = OnceLock::new();

enum Supervisor {
    Systemd(SocketAddr),
    Upstart,
}

/// Detects the supervisor that the settings name, and notifies it that the server starts. Returns whether there is one.
/// Must be called while the process has one thread.
pub fn announce(wanted: Supervised) -> bool {
    let is_set = |name| std::env::var_os(name).is_some();
    let found = match wanted {
        Supervised::No => None,
        Supervised::Upstart => upstart(),
        Supervised::Systemd => systemd(),
        Supervised::Auto if is_set("UPSTART_JOB") => {
            logging::verbose(format_args!("Upstart supervision detected."));
            upstart()
        }
        Supervised::Auto if is_set("NOTIFY_SOCKET") => {
            logging::verbose(format_args!("Systemd supervision detected."));
            systemd()
        }
        Supervised::Auto => None,
    };
    found.is_some_and(|supervisor| SUPERVISOR.set(supervisor).is_ok())
}

/// The value of `process_supervised` in INFO.
pub fn name() -> &'static str {
    match SUPERVISOR.get() {
        None => "no",
        Some(Supervisor::Systemd(_)) => "systemd",
        Some(Supervisor::Upstart) => "upstart",
    }
}

/// Sends systemd a message such as `READY=1`; does nothing without systemd.
pub fn notify(message: &str) {
    if let Some(Supervisor::Systemd(address)) = SUPERVISOR.get()
        && let Err(error) = send(address, message)
    {
        logging::warning(format_args!("systemd supervision error: {error}"));
    }
}

fn systemd() -> Option<Supervisor> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        logging::warning(format_args!("systemd supervision error: NOTIFY_SOCKET not found!"));
        return None;
    };
    let connected = address(&name).and_then(|address| send(&address, "STATUS=Kvick is loading...\n").map(|()| address));
    match connected {
        Ok(address) => {
            logging::notice(format_args!(
                "Supervised by systemd. TimeoutStartSec and TimeoutStopSec of the service unit must leave the server \
                 enough time."
            ));
            Some(Supervisor::Systemd(address))
        }
        Err(error) => {
            logging::warning(format_args!("systemd supervision error: {error}"));
            None
        }
    }
}

/// A path, or after `@` a name in the abstract namespace.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

fn send(address: &SocketAddr, message: &str) -> io::Result<()> {
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), address).map(|_| ())
}

/// Stops the process until it receives SIGCONT.
pub fn stop_until_continued() {
    // SAFETY: the call takes a number, and returns when the process is continued.
    unsafe { libc::raise(libc::SIGSTOP) };
}

fn upstart() -> Option<Supervisor> {
    if std::env::var_os("UPSTART_JOB").is_none() {
        logging::warning(format_args!("upstart supervision requested, but UPSTART_JOB not found!"));
        return None;
    }
    logging::notice(format_args!("supervised by upstart, will stop to signal readiness."));
    // Upstart waits for the stop.
    stop_until_continued();
    // SAFETY: the process has one thread.
    unsafe { std::env::remove_var("UPSTART_JOB") };
    Some(Supervisor::Upstart)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let n = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    }

    #[test]
    fn messages_reach_a_socket_in_the_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(&address(path.as_os_str()).unwrap(), "READY=1\n").unwrap();
        assert_eq!(receive(&socket), "READY=1\n");
    }

    #[test]
    fn messages_reach_an_abstract_socket() {
        let name = format!("kvick-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(&address(format!("@{name}").as_ref()).unwrap(), "STOPPING=1\n").unwrap();
        assert_eq!(receive(&socket), "STOPPING=1\n");
    }
}
