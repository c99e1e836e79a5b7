//! What the fuzz targets share: a machine, and a host that answers every command with the same bytes.

use std::cell::RefCell;

use kvick_resp::{Reply, Version};
use kvick_script::{Host, Identity, Kind, LogLevel, Propagation, Settings, Vm};

/// How often a script is asked whether it may go on before it may not.
const CHECKS_MAX: u32 = 20;

/// A host that answers every command with the same bytes.
struct FixedReplyHost<'a> {
    answer: &'a [u8],
    checks_left: u32,
}

impl Host for FixedReplyHost<'_> {
    fn call(&mut self, _: &[&[u8]], _: Version, out: &mut Vec<u8>) {
        out.extend_from_slice(self.answer);
    }

    fn may_call(&mut self, _: &[&[u8]]) -> Option<bool> {
        None
    }

    fn log(&mut self, _: LogLevel, _: &[u8]) {}

    fn set_propagation(&mut self, _: Propagation) {}

    fn interrupted(&mut self) -> Option<String> {
        self.checks_left = self.checks_left.saturating_sub(1);
        (self.checks_left == 0).then(|| "ERR ended".to_string())
    }
}

thread_local! {
    static MACHINE: RefCell<Option<Vm>> = const { RefCell::new(None) };
}

/// Runs a script with one argument, in a machine that stays from one run to the next, and answers its reply. What the
/// script calls is answered with `answer`.
pub fn run(script: &[u8], argument: &[u8], answer: &[u8]) -> Vec<u8> {
    MACHINE.with_borrow_mut(|machine| {
        let vm = machine.get_or_insert_with(|| {
            let identity = Identity {
                server_name: "valkey".to_string(),
                version: "9.1.2".to_string(),
                redis_version: "7.2.4".to_string(),
            };
            let settings = Settings { memory_max: Some(64 << 20), ..Settings::default() };
            Vm::new(Kind::Scripts, &identity, settings).expect("there is memory")
        });
        let digest = b"0123456789012345678901234567890123456789";
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, Version::Resp3);
        let host = &mut FixedReplyHost { answer, checks_left: CHECKS_MAX };
        let outcome = vm
            .compile_script(digest, script)
            .and_then(|()| vm.run_script(digest, std::iter::empty(), std::iter::once(argument), host, &mut reply));
        if let Err(failure) = outcome {
            reply.error(failure.text());
        }
        vm.forget_script(digest);
        out
    })
}
