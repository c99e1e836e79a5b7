//! The first line of a script or a library: `#!lua name=mylib flags=no-writes,allow-oom`.

use std::ops::Range;

use kvick_resp::split_args;

use crate::Failure;

/// What scripts and functions say of themselves.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ScriptFlags {
    /// `no-writes`: it calls no command that writes.
    pub no_writes: bool,
    /// `allow-oom`: it may run when memory is short.
    pub allow_oom: bool,
    /// `allow-stale`: it may run on a replica that lost its primary.
    pub allow_stale: bool,
    /// `no-cluster`: it does not run in a cluster.
    pub no_cluster: bool,
    /// `allow-cross-slot-keys`: it may touch keys of several slots.
    pub allow_cross_slot_keys: bool,
}

impl ScriptFlags {
    /// Sets the flag that a script's first line names; `false` if there is none.
    fn set_of_script(&mut self, name: &[u8]) -> bool {
        self.set(|flag| name == flag.as_bytes())
    }

    /// Sets the flag that a function's registration names, in any case; `false` if there is none.
    pub(crate) fn set_of_function(&mut self, name: &[u8]) -> bool {
        self.set(|flag| name.eq_ignore_ascii_case(flag.as_bytes()))
    }

    /// Sets the first flag that is meant.
    fn set(&mut self, is_meant: impl Fn(&str) -> bool) -> bool {
        let flags = [
            (&mut self.no_writes, "no-writes"),
            (&mut self.allow_oom, "allow-oom"),
            (&mut self.allow_stale, "allow-stale"),
            (&mut self.no_cluster, "no-cluster"),
            (&mut self.allow_cross_slot_keys, "allow-cross-slot-keys"),
        ];
        let meant = flags.into_iter().find(|(_, name)| is_meant(name));
        meant.map(|(flag, _)| *flag = true).is_some()
    }

    /// The names of the flags that are set, in the order in which FUNCTION LIST shows them.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        let flags = [
            (self.no_writes, "no-writes"),
            (self.allow_oom, "allow-oom"),
            (self.allow_stale, "allow-stale"),
            (self.no_cluster, "no-cluster"),
            (self.allow_cross_slot_keys, "allow-cross-slot-keys"),
        ];
        flags.into_iter().filter(|(set, _)| *set).map(|(_, name)| name)
    }
}

/// What the first line of a script or a library says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shebang {
    /// The name of the engine, as it was written.
    pub engine: Vec<u8>,
    /// The name of the library; empty for a script.
    pub name: Vec<u8>,
    /// The flags of a script. `None` if it has no such line, and is to be run as before there were flags.
    pub flags: Option<ScriptFlags>,
    /// Where the code is: from the end of the line on, the line end included, so that lines are counted right.
    pub code: Range<usize>,
}

impl Shebang {
    /// Reads the first line of a script, which may lack.
    ///
    /// # Errors
    ///
    /// What is wrong with the line.
    pub fn of_script(body: &[u8]) -> Result<Shebang, Failure> {
        if !body.starts_with(b"#!") {
            return Ok(Shebang { engine: b"lua".to_vec(), name: Vec::new(), flags: None, code: 0..body.len() });
        }
        let Some(end) = line_end(body) else { return Err(Failure::new("ERR Invalid script shebang")) };
        let parts = split_args(&body[..end]).unwrap_or_default();
        let Some((engine, options)) = parts.split_first().filter(|(engine, _)| engine.len() >= 2) else {
            return Err(Failure::new("ERR Invalid engine in script shebang"));
        };
        let mut flags = ScriptFlags::default();
        for option in options {
            let Some(names) = option.strip_prefix(b"flags=") else {
                return Err(failure("Unknown lua shebang option: ", option));
            };
            let names = names.split(|byte| *byte == b',').filter(|_| !names.is_empty());
            for name in names {
                if !flags.set_of_script(name) {
                    return Err(failure("Unexpected flag in script shebang: ", name));
                }
            }
        }
        let code = end..body.len();
        Ok(Shebang { engine: engine[2..].to_vec(), name: Vec::new(), flags: Some(flags), code })
    }

    /// Reads the first line of a library.
    ///
    /// # Errors
    ///
    /// What is wrong with the line.
    pub fn of_library(code: &[u8]) -> Result<Shebang, Failure> {
        if !code.starts_with(b"#!") {
            return Err(Failure::new("ERR Missing library metadata"));
        }
        let invalid = || Failure::new("ERR Invalid library metadata");
        let end = line_end(code).ok_or_else(invalid)?;
        let parts = split_args(&code[..end]).unwrap_or_default();
        let (engine, options) = parts.split_first().ok_or_else(invalid)?;
        let mut name = None;
        for option in options {
            match option.split_at_checked(5) {
                Some((key, _)) if !key.eq_ignore_ascii_case(b"name=") => {
                    return Err(failure("Invalid metadata value given: ", option));
                }
                Some(_) if name.is_some() => {
                    let text = "ERR Invalid metadata value, name argument was given multiple times";
                    return Err(Failure::new(text));
                }
                Some((_, value)) => name = Some(value.to_vec()),
                None => return Err(failure("Invalid metadata value given: ", option)),
            }
        }
        let name = name.ok_or_else(|| Failure::new("ERR Library name was not given"))?;
        let engine = engine.get(2..).unwrap_or_default().to_vec();
        Ok(Shebang { engine, name, flags: None, code: end..code.len() })
    }
}

/// Where the first line ends, if it does: text ends at a zero.
fn line_end(body: &[u8]) -> Option<usize> {
    let end = memchr::memchr2(b'\n', 0, body)?;
    (body[end] == b'\n').then_some(end)
}

fn failure(text: &str, what: &[u8]) -> Failure {
    Failure::new([b"ERR ", text.as_bytes(), what].concat())
}
