//! Test support: a virtual machine with a host that has a few commands and records calls.

use kvick_resp::{Reply, Version};

use crate::{Console, Failure, Host, Identity, Kind, LogLevel, Propagation, Settings, Vm};

/// A host without a server.
#[derive(Default)]
pub(crate) struct FakeHost {
    /// The commands executed, with arguments joined by blanks.
    pub(crate) commands: Vec<String>,
    /// The logged lines.
    pub(crate) lines: Vec<(LogLevel, String)>,
    /// The last propagation setting.
    pub(crate) propagation: Option<Propagation>,
    /// Number of checks after which the script must end.
    pub(crate) checks_left: Option<u32>,
    /// The console of the debugger.
    pub(crate) console: Option<crate::debugger::tests::Script>,
}

impl Host for FakeHost {
    /// `reply` returns its argument as a raw reply; `version` the protocol version; `echo` its argument; `fail` its
    /// argument as an error; other commands are unknown.
    fn call(&mut self, request: &[&[u8]], version: Version, out: &mut Vec<u8>) {
        let words = request.iter().map(|word| String::from_utf8_lossy(word).into_owned());
        self.commands.push(words.collect::<Vec<_>>().join(" "));
        let mut reply = Reply::new(out, version);
        match *request {
            [b"reply", bytes] => reply.raw(bytes),
            [b"version"] => reply.int(if version == Version::Resp3 { 3 } else { 2 }),
            [b"echo", bytes] => reply.bulk(bytes),
            [b"fail", text] => reply.error(text),
            _ => reply.error("ERR Unknown command called from script"),
        }
    }

    /// Allows `echo` and denies `fail`.
    fn may_call(&mut self, request: &[&[u8]]) -> Option<bool> {
        match *request {
            [b"echo", ..] => Some(true),
            [b"fail", ..] => Some(false),
            _ => None,
        }
    }

    fn log(&mut self, level: LogLevel, line: &[u8]) {
        self.lines.push((level, String::from_utf8_lossy(line).into_owned()));
    }

    fn set_propagation(&mut self, targets: Propagation) {
        self.propagation = Some(targets);
    }

    fn console(&mut self) -> Option<&mut dyn Console> {
        self.console.as_mut().map(|console| console as &mut dyn Console)
    }

    fn interrupted(&mut self) -> Option<String> {
        let checks_left = self.checks_left.as_mut()?;
        *checks_left = checks_left.saturating_sub(1);
        (*checks_left == 0).then(|| "ERR Script killed by user with SCRIPT KILL.".to_string())
    }
}

pub(crate) const DIGEST: &[u8; 40] = b"0123456789012345678901234567890123456789";

pub(crate) fn machine(kind: Kind, settings: Settings) -> Vm {
    let identity = Identity {
        server_name: "valkey".to_string(),
        version: "9.1.2".to_string(),
        redis_version: "7.2.4".to_string(),
    };
    Vm::new(kind, &identity, settings).unwrap()
}

/// Runs a script in a machine with keys and arguments; returns its reply as text, or its failure in the form of an
/// error reply.
pub(crate) fn run(vm: &mut Vm, host: &mut FakeHost, script: &str, keys: &[&str], arguments: &[&str]) -> String {
    let mut out = Vec::new();
    let outcome = vm.compile_script(DIGEST, script.as_bytes()).and_then(|()| {
        vm.run_script(
            DIGEST,
            keys.iter().map(|key| key.as_bytes()),
            arguments.iter().map(|argument| argument.as_bytes()),
            host,
            &mut Reply::new(&mut out, Version::Resp2),
        )
    });
    vm.forget_script(DIGEST);
    shown(outcome, out)
}

/// Runs a script in a new machine.
pub(crate) fn eval(script: &str) -> String {
    run(&mut machine(Kind::Scripts, Settings::default()), &mut FakeHost::default(), script, &[], &[])
}

pub(crate) fn shown(outcome: Result<(), Failure>, out: Vec<u8>) -> String {
    match outcome {
        Ok(()) => String::from_utf8_lossy(&out).into_owned(),
        Err(failure) => format!("-{failure}\r\n"),
    }
}
