//! The catalogue of commands, and their templates.
//!
//! Every command is a text with placeholders, such as `HSET {key} {field} {value}`. [`Template::new`] encodes it once
//! into the bytes of one or several requests with gaps; sending a command then copies pieces and fills gaps. Built-in
//! verbs and commands written in the configuration are therefore the same thing.

use crate::config::{Command, ConfigError, Keyspace};

/// Where a template has a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// The key.
    Key,
    /// A key with this distance from the key, within its hash tag if keys have one.
    NextKey(u64),
    /// A value.
    Value,
    /// A field or member.
    Field,
    /// A random number.
    Number,
    /// The name of the connection, for consumers.
    Consumer,
    /// An ID of a stream entry that was read earlier.
    Id,
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes that are always the same.
    Bytes(Vec<u8>),
    /// Bytes that differ.
    Gap(Gap),
}

/// A command, ready to be sent.
#[derive(Clone, Debug)]
pub struct Template {
    /// Its name in reports.
    pub name: String,
    /// Its bytes.
    pub pieces: Vec<Piece>,
    /// Number of requests, and so of replies.
    pub requests: u16,
    /// Changes nothing.
    pub is_read: bool,
    /// May hold up its connection.
    pub blocks: bool,
    /// Its reply has IDs of stream entries to acknowledge.
    pub reads_ids: bool,
    /// Acknowledges such an ID.
    pub takes_id: bool,
    /// Needs the consumer group of this name.
    pub group: Option<String>,
    /// Uses several keys.
    pub has_several_keys: bool,
}

/// What a verb does to the data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Verbs: name, whether it only reads, template. `(...)` is repeated as often as `cardinality` says.
const CATALOGUE: &[(&str, Access, &str)] = {
    use Access::{Read, Write};
    &[
        ("ping", Read, "PING"),
        ("get", Read, "GET {key}"),
        ("getex", Write, "GETEX {key} PX {ttl_ms}"),
        ("getdel", Write, "GETDEL {key}"),
        ("getrange", Read, "GETRANGE {key} {start} {end}"),
        ("strlen", Read, "STRLEN {key}"),
        ("set", Write, "SET {key} {value} {expiry}"),
        ("append", Write, "APPEND {key} {value}"),
        ("delete", Write, "DEL ({key})"),
        ("unlink", Write, "UNLINK ({key})"),
        ("exists", Read, "EXISTS ({key})"),
        ("expire", Write, "PEXPIRE {key} {ttl_ms}"),
        ("ttl", Read, "TTL {key}"),
        ("mget", Read, "MGET ({key})"),
        ("mset", Write, "MSET ({key} {value})"),
        ("incr", Write, "INCR {key}"),
        ("incrby", Write, "INCRBY {key} {number}"),
        ("decr", Write, "DECR {key}"),
        ("setbit", Write, "SETBIT {key} {number} 1"),
        ("getbit", Read, "GETBIT {key} {number}"),
        ("hset", Write, "HSET {key} ({field} {value})"),
        ("hget", Read, "HGET {key} {field}"),
        ("hmget", Read, "HMGET {key} ({field})"),
        ("hgetall", Read, "HGETALL {key}"),
        ("hdel", Write, "HDEL {key} ({field})"),
        ("hexists", Read, "HEXISTS {key} {field}"),
        ("hincrby", Write, "HINCRBY {key} {field} {number}"),
        ("hlen", Read, "HLEN {key}"),
        ("lpush", Write, "LPUSH {key} ({value})"),
        ("rpush", Write, "RPUSH {key} ({value})"),
        ("lpop", Write, "LPOP {key}"),
        ("rpop", Write, "RPOP {key}"),
        ("llen", Read, "LLEN {key}"),
        ("lrange", Read, "LRANGE {key} {start} {end}"),
        ("list_fetch", Read, "LRANGE {key} 0 -1"),
        ("blpop", Write, "BLPOP {key} {timeout}"),
        ("brpop", Write, "BRPOP {key} {timeout}"),
        ("sadd", Write, "SADD {key} ({field})"),
        ("srem", Write, "SREM {key} ({field})"),
        ("sismember", Read, "SISMEMBER {key} {field}"),
        ("smembers", Read, "SMEMBERS {key}"),
        ("scard", Read, "SCARD {key}"),
        ("spop", Write, "SPOP {key}"),
        ("zadd", Write, "ZADD {key} ({number} {field})"),
        ("zincrby", Write, "ZINCRBY {key} {number} {field}"),
        ("zrange", Read, "ZRANGE {key} {start} {end}"),
        ("zrangebyscore", Read, "ZRANGE {key} {start} {end} BYSCORE"),
        ("zscore", Read, "ZSCORE {key} {field}"),
        ("zmscore", Read, "ZMSCORE {key} ({field})"),
        ("zrank", Read, "ZRANK {key} {field}"),
        ("zrem", Write, "ZREM {key} ({field})"),
        ("zcard", Read, "ZCARD {key}"),
        ("zpopmin", Write, "ZPOPMIN {key}"),
        ("bzpopmin", Write, "BZPOPMIN {key} {timeout}"),
        ("xadd", Write, "XADD {key} {maxlen} * ({field} {value})"),
        ("xlen", Read, "XLEN {key}"),
        ("xrange", Read, "XRANGE {key} - + COUNT {count}"),
        ("xreadgroup", Write, "XREADGROUP GROUP {group} {consumer} COUNT {count} STREAMS {key} >"),
        ("bxreadgroup", Write, "XREADGROUP GROUP {group} {consumer} COUNT {count} BLOCK {timeout_ms} STREAMS {key} >"),
        ("xack", Write, "XACK {key} {group} {id}"),
        ("pfadd", Write, "PFADD {key} ({field})"),
        ("pfcount", Read, "PFCOUNT {key}"),
        ("geoadd", Write, "GEOADD {key} 13.361 38.115 {field}"),
        ("geosearch", Read, "GEOSEARCH {key} FROMLONLAT 13.4 38.1 BYRADIUS 100 km COUNT {count}"),
        ("publish", Write, "PUBLISH {key} {value}"),
        ("spublish", Write, "SPUBLISH {key} {value}"),
    ]
};

/// The names of all verbs with their templates, for the help.
pub fn verbs() -> impl Iterator<Item = (&'static str, &'static str)> {
    CATALOGUE.iter().map(|(name, _, text)| (*name, *text))
}

impl Template {
    /// By a command of the configuration, in a keyspace.
    pub fn new(command: &Command, keyspace: &Keyspace) -> Result<Template, ConfigError> {
        let verb = match command.verb.as_str() {
            // Other names of rpc-perf.
            "hash_get" => "hget",
            "hash_set" => "hset",
            "set_add" => "sadd",
            other => other,
        };
        let need = |text: &Option<String>, name: &str| {
            text.clone().ok_or_else(|| ConfigError(format!("verb \"{verb}\" needs {name} = \"...\"")))
        };
        let (texts, is_read) = match verb {
            "raw" => (vec![need(&command.command, "command")?], command.read_only),
            "multi" => {
                if command.commands.is_empty() {
                    return Err(ConfigError("verb \"multi\" needs commands = [\"...\"]".to_owned()));
                }
                let mut texts: Vec<String> = command.watch.then(|| "WATCH {key}".to_owned()).into_iter().collect();
                texts.push("MULTI".to_owned());
                texts.extend(command.commands.iter().cloned());
                texts.push("EXEC".to_owned());
                (texts, false)
            }
            "eval" => {
                let script = need(&command.script, "script")?;
                let args = command.args.join(" ");
                let name = if command.read_only { "EVAL_RO" } else { "EVAL" };
                (vec![format!("{name} {} 1 {{key}} {args}", quote(&script))], command.read_only)
            }
            name => {
                let name = if name == "hget" && command.cardinality > 1 { "hmget" } else { name };
                let entry = CATALOGUE.iter().find(|entry| entry.0 == name);
                let (_, access, text) = entry.ok_or_else(|| {
                    ConfigError(format!("verb \"{name}\" is unknown: `kvick-load verbs` lists all, and see \"raw\""))
                })?;
                let mut texts = vec![(*text).to_owned()];
                if let (Some(length), "lpush" | "rpush") = (command.truncate, name) {
                    let length = length.max(1);
                    let kept = if name == "lpush" { format!("0 {}", length - 1) } else { format!("-{length} -1") };
                    texts.push(format!("LTRIM {{key}} {kept}"));
                }
                (texts, *access == Access::Read)
            }
        };
        Template::compile(verb, &texts, is_read, command, keyspace)
    }

    fn compile(
        verb: &str,
        texts: &[String],
        is_read: bool,
        command: &Command,
        keyspace: &Keyspace,
    ) -> Result<Template, ConfigError> {
        let mut builder = Builder::default();
        let mut words = Vec::new();
        for text in texts {
            let arguments = split(text)?;
            let arguments = expand(&arguments, command, keyspace)?;
            words.extend(arguments.iter().take(1).map(|word| word.to_ascii_uppercase()));
            builder.request(&arguments);
        }
        let text = texts.join(" ");
        let is_group_command = text.contains("XREADGROUP") || text.contains("XACK");
        // Blocking commands have names of their own, except for two with an option.
        let blocks = words.iter().any(|word| matches!(word.as_str(), "BLPOP" | "BRPOP" | "BLMOVE" | "BLMPOP"))
            || words.iter().any(|word| word.starts_with("BZ") || word == "BRPOPLPUSH" || word.starts_with("WAIT"))
            || (text.contains("XREAD") && text.split_whitespace().any(|word| word.eq_ignore_ascii_case("BLOCK")));
        let gaps =
            || builder.pieces.iter().filter_map(|piece| if let Piece::Gap(gap) = piece { Some(gap) } else { None });
        Ok(Template {
            name: match verb {
                "raw" => words.first().map_or_else(|| verb.to_owned(), |word| word.to_ascii_lowercase()),
                _ => verb.to_owned(),
            },
            requests: texts.len() as u16,
            is_read,
            blocks,
            reads_ids: text.contains("XREADGROUP"),
            takes_id: gaps().any(|gap| *gap == Gap::Id),
            group: is_group_command.then(|| command.group.clone()),
            has_several_keys: gaps().any(|gap| matches!(gap, Gap::NextKey(_))),
            pieces: builder.pieces,
        })
    }
}

/// An argument of a template.
#[derive(Clone, Debug, PartialEq)]
enum Argument {
    Text(Vec<u8>),
    Gap(Gap),
}

impl Argument {
    fn to_ascii_uppercase(&self) -> String {
        match self {
            Argument::Text(bytes) => String::from_utf8_lossy(bytes).to_ascii_uppercase(),
            Argument::Gap(_) => String::new(),
        }
    }
}

/// Replaces placeholders, and repeats what is in parentheses.
fn expand(words: &[String], command: &Command, keyspace: &Keyspace) -> Result<Vec<Argument>, ConfigError> {
    let mut arguments = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let Some(first) = words[at].strip_prefix('(').filter(|rest| rest.starts_with('{')) else {
            argument(&words[at], 0, command, keyspace, &mut arguments)?;
            at += 1;
            continue;
        };
        let length = words[at..].iter().position(|word| word.ends_with(')'));
        let length = length.ok_or_else(|| ConfigError("a `(` of a template lacks its `)`".to_owned()))? + 1;
        let mut group: Vec<&str> = words[at..at + length].iter().map(String::as_str).collect();
        group[0] = first;
        let last = group.len() - 1;
        group[last] = group[last].trim_end_matches(')');
        for repetition in 0..command.cardinality {
            for word in &group {
                argument(word, repetition as u64, command, keyspace, &mut arguments)?;
            }
        }
        at += length;
    }
    if arguments.is_empty() {
        return Err(ConfigError("a command is empty".to_owned()));
    }
    Ok(arguments)
}

fn argument(
    word: &str,
    repetition: u64,
    command: &Command,
    keyspace: &Keyspace,
    arguments: &mut Vec<Argument>,
) -> Result<(), ConfigError> {
    let text = |text: String| Argument::Text(text.into_bytes());
    let ttl_ms = || keyspace.ttl.map_or(60_000, |ttl| ttl.0.as_millis());
    arguments.push(match word {
        "{key}" if repetition == 0 => Argument::Gap(Gap::Key),
        "{key}" => Argument::Gap(Gap::NextKey(repetition)),
        "{value}" => Argument::Gap(Gap::Value),
        "{field}" => Argument::Gap(Gap::Field),
        "{number}" => Argument::Gap(Gap::Number),
        "{consumer}" => Argument::Gap(Gap::Consumer),
        "{id}" => Argument::Gap(Gap::Id),
        "{start}" => text(command.start.to_string()),
        "{end}" => text(command.end.to_string()),
        "{count}" => text(command.cardinality.to_string()),
        "{timeout}" => text(command.timeout.to_string()),
        "{timeout_ms}" => text(((command.timeout * 1000.0) as u64).to_string()),
        "{group}" => text(command.group.clone()),
        "{ttl_ms}" => text(ttl_ms().to_string()),
        "{expiry}" => {
            if keyspace.ttl.is_some() {
                arguments.extend([text("PX".to_owned()), text(ttl_ms().to_string())]);
            }
            return Ok(());
        }
        "{maxlen}" => {
            if let Some(length) = command.truncate {
                arguments.extend([text("MAXLEN".to_owned()), text("~".to_owned()), text(length.to_string())]);
            }
            return Ok(());
        }
        word if word.starts_with('{') && word.ends_with('}') && !word.contains(' ') => {
            return Err(ConfigError(format!("placeholder {word} is unknown")));
        }
        word => text(word.to_owned()),
    });
    Ok(())
}

#[derive(Default)]
struct Builder {
    pieces: Vec<Piece>,
}

impl Builder {
    fn request(&mut self, arguments: &[Argument]) {
        self.bytes(format!("*{}\r\n", arguments.len()).as_bytes());
        for argument in arguments {
            match argument {
                Argument::Gap(gap) => self.pieces.push(Piece::Gap(*gap)),
                Argument::Text(text) => {
                    let mut encoded = Vec::new();
                    crate::values::write_argument(text, &mut encoded);
                    self.bytes(&encoded);
                }
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        match self.pieces.last_mut() {
            Some(Piece::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.pieces.push(Piece::Bytes(bytes.to_vec())),
        }
    }
}

/// Splits a command at spaces. Text in double quotes stays together; a backslash there escapes the next character.
fn split(text: &str) -> Result<Vec<String>, ConfigError> {
    let mut words = Vec::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter.is_whitespace() {
            continue;
        }
        let mut word = String::new();
        if letter == '"' {
            loop {
                match letters.next() {
                    Some('"') => break,
                    Some('\\') => word.extend(letters.next()),
                    Some(letter) => word.push(letter),
                    None => return Err(ConfigError(format!("a quote is not closed in {text}"))),
                }
            }
        } else {
            word.push(letter);
            while let Some(letter) = letters.next_if(|letter| !letter.is_whitespace()) {
                word.push(letter);
            }
        }
        words.push(word);
    }
    Ok(words)
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(command: &str, keyspace: &str) -> Result<Template, ConfigError> {
        let command = toml::from_str(command).expect("a command");
        Template::new(&command, &toml::from_str(keyspace).expect("a keyspace"))
    }

    /// The bytes with gaps as words.
    fn shown(template: &Template) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Bytes(bytes) => String::from_utf8_lossy(bytes).replace("\r\n", " "),
            Piece::Gap(gap) => format!("<{gap:?}> "),
        };
        template.pieces.iter().map(piece).collect()
    }

    #[test]
    fn every_verb_has_a_template() {
        for (verb, _) in verbs() {
            let built = template(&format!("verb = '{verb}'\ncardinality = 2"), "").expect(verb);
            assert!(!built.pieces.is_empty() && built.requests == 1);
            assert_eq!(built.blocks, verb.starts_with('b'), "{verb}");
        }
    }

    #[test]
    fn templates_are_encoded_requests() {
        let shown = |command: &str, keyspace: &str| shown(&template(command, keyspace).expect("a template"));
        assert_eq!(shown("verb = 'get'", ""), "*2 $3 GET <Key> ");
        assert_eq!(shown("verb = 'set'", "ttl = '2s'"), "*5 $3 SET <Key> <Value> $2 PX $4 2000 ");
        assert_eq!(shown("verb = 'mget'\ncardinality = 2", ""), "*3 $4 MGET <Key> <NextKey(1)> ");
        assert_eq!(
            shown("verb = 'lpush'\ntruncate = 10", ""),
            "*3 $5 LPUSH <Key> <Value> *4 $5 LTRIM <Key> $1 0 $1 9 "
        );
        assert_eq!(shown("verb = 'multi'\ncommands = ['INCR {key}']", ""), "*1 $5 MULTI *2 $4 INCR <Key> *1 $4 EXEC ");
        assert_eq!(
            shown("verb = 'eval'\nscript = 'return \"a b\"'\nargs = ['{value}']", ""),
            "*5 $4 EVAL $12 return \"a b\" $1 1 <Key> <Value> "
        );
    }

    #[test]
    fn errors_name_what_is_missing() {
        for (command, words) in [
            ("verb = 'gte'", "unknown"),
            ("verb = 'raw'", "needs command"),
            ("verb = 'raw'\ncommand = ''", "empty"),
            ("verb = 'raw'\ncommand = 'GET {kye}'", "{kye}"),
            ("verb = 'raw'\ncommand = 'GET \"a'", "not closed"),
            ("verb = 'multi'", "needs commands"),
        ] {
            let error = template(command, "").expect_err(command).to_string();
            assert!(error.contains(words), "{command}: {error}");
        }
    }
}
