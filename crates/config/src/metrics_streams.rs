//! The value of `metrics-streams`: keys with their databases.

/// Number of streams.
const STREAMS_MAX: usize = 100;

/// A key that may be a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamName {
    /// Its database.
    pub db: usize,
    /// Its name.
    pub key: Vec<u8>,
}

/// Parses keys separated by commas. A key follows its database and an equals sign (`db2=key` or `2=key`), or is in
/// database 0. `None` if a key is empty or there are too many.
pub fn parse(text: &[u8]) -> Option<Vec<StreamName>> {
    let names: Option<Vec<StreamName>> = text.split(|byte| *byte == b',').map(parse_one).collect();
    names.filter(|names| names.len() <= STREAMS_MAX)
}

fn parse_one(text: &[u8]) -> Option<StreamName> {
    let text = text.trim_ascii();
    let (db, key) = match text.iter().position(|byte| *byte == b'=') {
        None => (0, text),
        Some(at) => {
            let db = std::str::from_utf8(&text[..at]).ok()?;
            (db.strip_prefix("db").unwrap_or(db).parse().ok()?, &text[at + 1..])
        }
    };
    (!key.is_empty()).then(|| StreamName { db, key: key.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_with_their_databases() {
        let names = parse(b"orders, db2=a=b,15=c").expect("valid");
        let names: Vec<(usize, &[u8])> = names.iter().map(|name| (name.db, &name.key[..])).collect();
        assert_eq!(names, [(0, &b"orders"[..]), (2, b"a=b"), (15, b"c")]);
        for invalid in ["", ",", "a,", "db0=", "dbx=a", "-1=a", "=a"] {
            assert_eq!(parse(invalid.as_bytes()), None, "{invalid}");
        }
        assert!(parse("a,".repeat(99).as_bytes()).is_none() && parse(("a,".repeat(99) + "a").as_bytes()).is_some());
        assert!(parse(("a,".repeat(100) + "a").as_bytes()).is_none());
    }
}
