//! The manifest: the files of the append-only file, in the order in which they are read.

use kvick_resp::split_args;
use std::fmt;

/// Maximum length of a line in bytes, including its end.
const LINE_MAX: usize = 1024;

/// The kind of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartKind {
    /// The data set at some point in time.
    Base,
    /// Commands since then.
    Increment,
    /// A part that a later base has replaced.
    History,
}

/// One file of the append-only file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its name within the directory.
    pub name: Vec<u8>,
    /// Its sequence number among those of its kind: above 0, unless the manifest was edited by hand.
    pub number: i64,
}

/// The list of files. See the [module](super) documentation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    /// The base.
    pub base: Option<Part>,
    /// The increments, by ascending sequence number.
    pub increments: Vec<Part>,
    /// The files to be deleted, the latest first.
    pub history: Vec<Part>,
    last_base: i64,
    last_increment: i64,
}

/// Why a manifest is invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadManifest {
    /// The error message, which tools depend on.
    pub what: &'static str,
    /// The line and its number, counted from 1, if the error is in a line.
    pub line: Option<(usize, Vec<u8>)>,
}

impl std::error::Error for BadManifest {}

impl fmt::Display for BadManifest {
    /// Formats the error as several lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\n*** FATAL AOF MANIFEST FILE ERROR ***\n")?;
        if let Some((number, line)) = &self.line {
            write!(f, "Reading the manifest file, at line {number}\n>>> '{}'\n", String::from_utf8_lossy(line))?;
        }
        f.write_str(self.what)
    }
}

impl Manifest {
    /// Parses a manifest.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, BadManifest> {
        let mut manifest = Manifest::default();
        if bytes.is_empty() {
            return Err(BadManifest { what: "Found an empty AOF manifest", line: None });
        }
        for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            if line.starts_with(b"#") {
                continue;
            }
            let bad = |what| BadManifest { what, line: Some((index + 1, line.trim_ascii().to_vec())) };
            if line.len() > LINE_MAX || !line.ends_with(b"\n") {
                return Err(BadManifest { what: "The AOF manifest file contains too long line", line: None });
            }
            let (kind, part) = parse_line(line.trim_ascii()).map_err(bad)?;
            manifest.add(kind, part).map_err(bad)?;
        }
        Ok(manifest)
    }

    fn add(&mut self, kind: PartKind, part: Part) -> Result<(), &'static str> {
        match kind {
            PartKind::Base if self.base.is_some() => return Err("Found duplicate base file information"),
            PartKind::Base => {
                self.last_base = part.number;
                self.base = Some(part);
            }
            PartKind::History => self.history.push(part),
            PartKind::Increment if part.number <= self.last_increment => {
                return Err("Found a non-monotonic sequence number");
            }
            PartKind::Increment => {
                self.last_increment = part.number;
                self.increments.push(part);
            }
        }
        Ok(())
    }

    /// The manifest in the format of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let parts = self.base.iter().map(|part| (part, 'b'));
        let parts = parts.chain(self.history.iter().map(|part| (part, 'h')));
        for (part, kind) in parts.chain(self.increments.iter().map(|part| (part, 'i'))) {
            bytes.extend_from_slice(b"file ");
            push_name(&mut bytes, &part.name);
            bytes.extend_from_slice(format!(" seq {} type {kind}\n", part.number).as_bytes());
        }
        bytes
    }

    /// True if there are no files to read.
    pub fn is_empty(&self) -> bool {
        self.base.is_none() && self.increments.is_empty()
    }

    /// The files to read, in order.
    pub fn parts(&self) -> impl Iterator<Item = (PartKind, &Part)> {
        let base = self.base.iter().map(|part| (PartKind::Base, part));
        base.chain(self.increments.iter().map(|part| (PartKind::Increment, part)))
    }

    /// Adopts the single file of an old version as the base.
    pub fn adopt(&mut self, name: &[u8]) {
        (self.last_base, self.base) = (1, Some(Part { name: name.into(), number: 1 }));
    }

    /// Adds a base, whose file does not exist yet, and turns the previous one into history.
    pub fn new_base(&mut self, file_name: &[u8], is_dump: bool) -> &Part {
        if let Some(old) = self.base.take() {
            self.history.insert(0, old);
        }
        self.last_base = self.last_base.saturating_add(1);
        let suffix = if is_dump { "rdb" } else { "aof" };
        let name = [file_name, format!(".{}.base.{suffix}", self.last_base).as_bytes()].concat();
        self.base.insert(Part { name, number: self.last_base })
    }

    /// Adds an increment, whose file does not exist yet.
    pub fn new_increment(&mut self, file_name: &[u8]) -> &Part {
        self.last_increment = self.last_increment.saturating_add(1);
        let name = [file_name, format!(".{}.incr.aof", self.last_increment).as_bytes()].concat();
        self.increments.push(Part { name, number: self.last_increment });
        &self.increments[self.increments.len() - 1]
    }

    /// Turns all increments but the last `kept` into history, because the base contains them.
    pub fn retire_increments(&mut self, kept: usize) {
        let retired = self.increments.len().saturating_sub(kept);
        for part in self.increments.drain(..retired).rev() {
            self.history.insert(0, part);
        }
    }
}

fn parse_line(line: &[u8]) -> Result<(PartKind, Part), &'static str> {
    const BAD: &str = "Invalid AOF manifest file format";
    let words = split_args(line).map_err(|_| BAD)?;
    // Additional words are reserved for later versions.
    if words.len() < 6 || !words.len().is_multiple_of(2) {
        return Err(BAD);
    }
    let (mut name, mut number, mut kind) = (None, 0, None);
    for pair in words.chunks_exact(2) {
        match pair[0].to_ascii_lowercase().as_slice() {
            b"file" if pair[1].iter().any(|byte| matches!(byte, b'/' | b'\\')) => {
                return Err("File can't be a path, just a filename");
            }
            b"file" => name = Some(pair[1].clone()),
            b"seq" => number = leading_integer(&pair[1]),
            b"type" => kind = pair[1].first().copied(),
            _ => {}
        }
    }
    let (Some(name), Some(kind)) = (name, kind) else { return Err(BAD) };
    if number == 0 {
        return Err(BAD);
    }
    let kind = match kind {
        b'b' => PartKind::Base,
        b'h' => PartKind::History,
        b'i' => PartKind::Increment,
        _ => return Err("Unknown AOF file type"),
    };
    Ok((kind, Part { name, number }))
}

/// The integer at the beginning of a text; 0 if there is none.
fn leading_integer(text: &[u8]) -> i64 {
    let digits = text.iter().enumerate().take_while(|(at, byte)| byte.is_ascii_digit() || (*at == 0 && **byte == b'-'));
    let len = digits.count();
    std::str::from_utf8(&text[..len]).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Appends a name, quoted if it would not be parsed as one word.
fn push_name(bytes: &mut Vec<u8>, name: &[u8]) {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    if !name.is_empty() && name.iter().all(is_plain) {
        return bytes.extend_from_slice(name);
    }
    bytes.push(b'"');
    for byte in name {
        match byte {
            b'"' | b'\\' => bytes.extend_from_slice(&[b'\\', *byte]),
            b'\n' => bytes.extend_from_slice(b"\\n"),
            b'\r' => bytes.extend_from_slice(b"\\r"),
            b'\t' => bytes.extend_from_slice(b"\\t"),
            0x07 => bytes.extend_from_slice(b"\\a"),
            0x08 => bytes.extend_from_slice(b"\\b"),
            byte if byte.is_ascii_graphic() || *byte == b' ' => bytes.push(*byte),
            byte => bytes.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    bytes.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(manifest: &Manifest) -> String {
        String::from_utf8(manifest.to_bytes()).unwrap()
    }

    fn refusal(text: &str) -> &'static str {
        Manifest::parse(text.as_bytes()).unwrap_err().what
    }

    #[test]
    fn a_rewrite_replaces_the_base_and_older_increments() {
        let mut manifest = Manifest::default();
        manifest.new_base(b"a.aof", true);
        manifest.new_increment(b"a.aof");
        assert_eq!(text(&manifest), "file a.aof.1.base.rdb seq 1 type b\nfile a.aof.1.incr.aof seq 1 type i\n");
        manifest.new_increment(b"a.aof");
        manifest.new_base(b"a.aof", false);
        manifest.retire_increments(1);
        assert_eq!(
            text(&manifest),
            "file a.aof.2.base.aof seq 2 type b\nfile a.aof.1.incr.aof seq 1 type h\n\
             file a.aof.1.base.rdb seq 1 type h\nfile a.aof.2.incr.aof seq 2 type i\n"
        );
        assert_eq!(Manifest::parse(&manifest.to_bytes()), Ok(manifest));
    }

    #[test]
    fn names_must_not_be_paths() {
        for name in ["a b", "", "\"x\"\\", "\n\r\t\u{7}\u{8}\u{1}", "é", "'"] {
            let mut manifest = Manifest::default();
            manifest.new_base(name.as_bytes(), true);
            if name.contains('\\') {
                assert!(Manifest::parse(&manifest.to_bytes()).is_err());
            } else {
                assert_eq!(Manifest::parse(&manifest.to_bytes()), Ok(manifest), "{name:?}");
            }
        }
        assert_eq!(refusal("file ../x seq 1 type b\n"), "File can't be a path, just a filename");
    }

    #[test]
    fn inconsistent_manifests_are_refused() {
        assert_eq!(refusal(""), "Found an empty AOF manifest");
        for line in ["\n", "file a seq 1\n", "file a seq 0 type b\n", "file a seq 1 type b c\n", "fil a seq 1 type b\n"]
        {
            assert_eq!(refusal(line), "Invalid AOF manifest file format", "{line:?}");
        }
        assert_eq!(refusal("file a seq 1 type x\n"), "Unknown AOF file type");
        assert_eq!(refusal("file a seq 1 type b\nfile b seq 2 type b\n"), "Found duplicate base file information");
        assert_eq!(refusal("file a seq 2 type i\nfile b seq 2 type i\n"), "Found a non-monotonic sequence number");
        assert_eq!(refusal("file a seq 1 type b"), "The AOF manifest file contains too long line");
        let long = format!("file a seq 1 type b more {}\n", "x".repeat(LINE_MAX));
        assert_eq!(refusal(&long), "The AOF manifest file contains too long line");
        let Err(BadManifest { line, .. }) = Manifest::parse(b"# a comment\n !!\n") else { panic!("no error") };
        assert_eq!(line, Some((2, b"!!".to_vec())));
    }
}
