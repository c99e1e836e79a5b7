//! The first line of a script or a library: `#!lua name=mylib flags=no-writes,allow-oom`.

use std::ops::Range;

use kvick_resp::split_args;

use crate::Failure;

/// The flags of a script or function.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ScriptFlags {
    /// `no-writes`: does not call write commands.
    pub no_writes: bool,
    /// `allow-oom`: may run while memory is above its limit.
    pub allow_oom: bool,
    /// `allow-stale`: may run on a replica without a connection to its primary.
    pub allow_stale: bool,
    /// `no-cluster`: does not run in cluster mode.
    pub no_cluster: bool,
    /// `allow-cross-slot-keys`: may access keys of several slots.
    pub allow_cross_slot_keys: bool,
}

impl ScriptFlags {
    /// Sets the flag with this name in the first line of a script; returns `false` if it is unknown.
    fn set_of_script(&mut self, name: &[u8]) -> bool {
        self.set(|flag| name == flag.as_bytes())
    }

    /// Sets the flag with this name in the registration of a function, case-insensitively; returns `false` if it is
    /// unknown.
    pub(crate) fn set_of_function(&mut self, name: &[u8]) -> bool {
        self.set(|flag| name.eq_ignore_ascii_case(flag.as_bytes()))
    }

    /// Sets the first flag for which `matches` returns true.
    fn set(&mut self, matches: impl Fn(&str) -> bool) -> bool {
        let flags = [
            (&mut self.no_writes, "no-writes"),
            (&mut self.allow_oom, "allow-oom"),
            (&mut self.allow_stale, "allow-stale"),
            (&mut self.no_cluster, "no-cluster"),
            (&mut self.allow_cross_slot_keys, "allow-cross-slot-keys"),
        ];
        let meant = flags.into_iter().find(|(_, name)| matches(name));
        meant.map(|(flag, _)| *flag = true).is_some()
    }

    /// The names of the flags that are set, in the order of FUNCTION LIST.
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

/// The parsed first line of a script or a library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shebang {
    /// The name of the engine, as written.
    pub engine: Vec<u8>,
    /// The name of the library; empty for a script.
    pub name: Vec<u8>,
    /// The flags of a script. `None` without a first line, when the rules from before flags existed apply.
    pub flags: Option<ScriptFlags>,
    /// The range of the code. It starts at the line end of the first line, so that line numbers are correct.
    pub code: Range<usize>,
}

impl Shebang {
    /// Parses the first line of a script, which is optional.
    ///
    /// # Errors
    ///
    /// If the line is malformed.
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

    /// Parses the first line of a library.
    ///
    /// # Errors
    ///
    /// If the line is malformed.
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

/// The end of the first line, if there is one. A NUL byte ends the text.
fn line_end(body: &[u8]) -> Option<usize> {
    let end = memchr::memchr2(b'\n', 0, body)?;
    (body[end] == b'\n').then_some(end)
}

fn failure(text: &str, what: &[u8]) -> Failure {
    Failure::new([b"ERR ", text.as_bytes(), what].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<T: std::fmt::Debug>(outcome: Result<T, Failure>) -> String {
        outcome.unwrap_err().to_string()
    }

    #[test]
    fn scripts_may_have_a_shebang() {
        let plain = Shebang::of_script(b"return 1").unwrap();
        assert_eq!((&*plain.engine, plain.flags, plain.code), (&b"lua"[..], None, 0..8));
        let script = b"#!lua flags=no-writes,allow-oom\nreturn 1";
        let flagged = Shebang::of_script(script).unwrap();
        assert_eq!((&*flagged.engine, &script[flagged.code]), (&b"lua"[..], &b"\nreturn 1"[..]));
        assert!(flagged.flags.unwrap().names().eq(["no-writes", "allow-oom"]));
        let without = Shebang::of_script(b"#!lua flags=\n").unwrap();
        assert_eq!(without.flags, Some(ScriptFlags::default()));
    }

    #[test]
    fn shebang_lines_are_validated() {
        let cases = [
            (&b"#!lua"[..], "ERR Invalid script shebang"),
            (b"#!lua\0\n", "ERR Invalid script shebang"),
            (b"#!\"lua\n", "ERR Invalid engine in script shebang"),
            (b"#!lua name=x\n", "ERR Unknown lua shebang option: name=x"),
            (b"#!lua flags=bad\n", "ERR Unexpected flag in script shebang: bad"),
            (b"#!lua flags=no-writes,\n", "ERR Unexpected flag in script shebang: "),
            (b"#!lua flags=NO-WRITES\n", "ERR Unexpected flag in script shebang: NO-WRITES"),
        ];
        for (script, error) in cases {
            assert_eq!(text(Shebang::of_script(script)), error);
        }
    }

    #[test]
    fn libraries_need_a_name() {
        let code = b"#!LUA NAME=lib\ncode";
        let library = Shebang::of_library(code).unwrap();
        assert_eq!((&*library.engine, &*library.name, &code[library.code]), (&b"LUA"[..], &b"lib"[..], &b"\ncode"[..]));
        let cases = [
            (&b"code"[..], "ERR Missing library metadata"),
            (b"#!lua name=lib", "ERR Invalid library metadata"),
            (b"#!lua\n", "ERR Library name was not given"),
            (b"#!lua name=a name=b\n", "ERR Invalid metadata value, name argument was given multiple times"),
            (b"#!lua foo=bar\n", "ERR Invalid metadata value given: foo=bar"),
            (b"#!lua x\n", "ERR Invalid metadata value given: x"),
            (b"#!lua \"name\n", "ERR Invalid library metadata"),
        ];
        for (code, error) in cases {
            assert_eq!(text(Shebang::of_library(code)), error);
        }
    }
}
