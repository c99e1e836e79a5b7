//! Settings with a format of their own: save points, output buffer limits, keyspace events and others.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::numbers;
use super::value::{Refusal, Text};

/// The working directory, absolute and without symbolic links. The server changes into it, not this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory(Arc<Path>);

impl Directory {
    /// The current directory of the process.
    pub fn current() -> std::io::Result<Self> {
        Ok(Self(std::env::current_dir()?.into()))
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Resolves a path relative to this directory.
    pub fn resolve(&self, name: &[u8]) -> PathBuf {
        self.0.join(OsStr::from_bytes(name))
    }

    /// The directory that `cd name` leads to. It must exist and be accessible.
    pub(super) fn enter(&self, name: &[u8]) -> Result<Self, Refusal> {
        if name.is_empty() {
            return Err(Refusal::new("dir can't be empty"));
        }
        let path = self.resolve(name).canonicalize()?;
        path.join(".").metadata()?;
        Ok(Self(path.into()))
    }
}

/// A condition for automatic dumps: a dump is written after `seconds` if there were at least `changes` changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavePoint {
    /// At least 1.
    pub seconds: u64,
    /// Any value.
    pub changes: u32,
}

/// The save points. A dump is written when any one of them applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavePoints(Arc<[SavePoint]>);

impl Default for SavePoints {
    fn default() -> Self {
        let points = [(3600, 1), (300, 100), (60, 10000)];
        Self(points.into_iter().map(|(seconds, changes)| SavePoint { seconds, changes }).collect())
    }
}

impl SavePoints {
    /// No save points: dumps are only written on request.
    pub fn none() -> Self {
        Self([].into())
    }

    /// The save points in order.
    pub fn points(&self) -> &[SavePoint] {
        &self.0
    }

    /// The save points of `self` followed by those of `more`.
    pub(super) fn followed_by(&self, more: &Self) -> Self {
        Self(self.0.iter().chain(more.0.iter()).copied().collect())
    }

    /// Parses pairs of seconds and changes. No argument, or one empty argument, means no save points.
    pub(super) fn parse(args: &[&[u8]]) -> Result<Self, Refusal> {
        let invalid = || Refusal::new("Invalid save parameters");
        if matches!(args, [[]]) {
            return Ok(Self::none());
        }
        let (pairs, []) = args.as_chunks::<2>() else {
            return Err(invalid());
        };
        let point = |[seconds, changes]: &[&[u8]; 2]| {
            let seconds = u64::try_from(numbers::lenient_integer(seconds)?).ok().filter(|&seconds| seconds >= 1)?;
            let changes = i32::try_from(numbers::lenient_integer(changes)?).ok()?.try_into().ok()?;
            Some(SavePoint { seconds, changes })
        };
        pairs.iter().map(point).collect::<Option<_>>().map(Self).ok_or_else(invalid)
    }
}

impl fmt::Display for SavePoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        join(f, self.0.iter().map(|point| format!("{} {}", point.seconds, point.changes)))
    }
}

/// The limits of pending output above which a client is disconnected; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// A client above this limit is disconnected at once.
    pub hard_bytes: u64,
    /// A client that stays above this limit for `soft_seconds` is disconnected.
    pub soft_bytes: u64,
    /// Duration for the soft limit.
    pub soft_seconds: u32,
}

/// An [`OutputLimit`] for each class of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimits {
    /// Normal clients.
    pub normal: OutputLimit,
    /// Replicas.
    pub replica: OutputLimit,
    /// Clients with a subscription.
    pub pubsub: OutputLimit,
}

impl Default for OutputLimits {
    fn default() -> Self {
        let limit = |hard_mb: u64, soft_mb: u64| OutputLimit {
            hard_bytes: hard_mb << 20,
            soft_bytes: soft_mb << 20,
            soft_seconds: 60,
        };
        Self { normal: OutputLimit::default(), replica: limit(256, 64), pubsub: limit(32, 8) }
    }
}

impl OutputLimits {
    /// The maximum bytes of a reply for a normal client and for a subscriber.
    pub fn reply_bytes_max(&self) -> [usize; 2] {
        [self.normal, self.pubsub].map(|limit| match limit.hard_bytes {
            0 => usize::MAX,
            bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
        })
    }

    /// These limits with the limits of some classes replaced: groups of class, hard limit, soft limit and seconds.
    pub(super) fn changed(&self, args: &[&[u8]]) -> Result<Self, Refusal> {
        let (groups, []) = args.as_chunks::<4>() else {
            return Err(Refusal::new("Wrong number of arguments in buffer limit configuration."));
        };
        let mut limits = *self;
        for [class, hard, soft, seconds] in groups {
            let limit = match class.to_ascii_lowercase().as_slice() {
                b"normal" => &mut limits.normal,
                b"slave" | b"replica" => &mut limits.replica,
                b"pubsub" => &mut limits.pubsub,
                _ => {
                    return Err(Refusal::new("Invalid client class specified in buffer limit configuration."));
                }
            };
            let seconds = numbers::lenient_integer(seconds).and_then(|seconds| i32::try_from(seconds).ok());
            let parsed = (|| {
                Some(OutputLimit {
                    hard_bytes: numbers::memory(hard)?,
                    soft_bytes: numbers::memory(soft)?,
                    soft_seconds: seconds?.try_into().ok()?,
                })
            })();
            *limit = parsed
                .ok_or(Refusal::new("Error in hard, soft or soft_seconds setting in buffer limit configuration."))?;
        }
        Ok(limits)
    }

    /// The limits by the class names that configuration files use.
    pub(super) fn classes(&self) -> [(&'static str, OutputLimit); 3] {
        [("normal", self.normal), ("replica", self.replica), ("pubsub", self.pubsub)]
    }
}

impl fmt::Display for OutputLimits {
    /// The form of CONFIG GET, which uses the old name for replicas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes = [("normal", self.normal), ("slave", self.replica), ("pubsub", self.pubsub)];
        join(
            f,
            classes.into_iter().map(|(class, limit)| {
                format!("{class} {} {} {}", limit.hard_bytes, limit.soft_bytes, limit.soft_seconds)
            }),
        )
    }
}

/// Scores for the kernel's out-of-memory killer: for a primary, a replica, and a background process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomScores(pub [i16; 3]);

impl Default for OomScores {
    fn default() -> Self {
        Self([0, 200, 800])
    }
}

impl OomScores {
    /// Parses three scores.
    pub(super) fn parse(args: &[&[u8]]) -> Result<Self, Refusal> {
        let args: [&[u8]; 3] = args.try_into().map_err(|_| Refusal::new("wrong number of arguments"))?;
        let mut scores = [0; 3];
        for (score, arg) in scores.iter_mut().zip(args) {
            *score = numbers::lenient_integer(arg)
                .filter(|score| (-2000..=2000).contains(score))
                .and_then(|score| score.try_into().ok())
                .ok_or(Refusal::new("Invalid oom-score-adj-values, elements must be between -2000 and 2000."))?;
        }
        Ok(Self(scores))
    }
}

impl fmt::Display for OomScores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        join(f, self.0.iter())
    }
}

bitflags::bitflags! {
    /// Classes of keyspace events, and the channels on which they are published. The bits are those of the module API.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct KeyspaceEvents: u16 {
        /// `K`: published to the channel of the key.
        const KEYSPACE = 1 << 0;
        /// `E`: published to the channel of the event.
        const KEYEVENT = 1 << 1;
        /// `g`: commands for any type.
        const GENERIC = 1 << 2;
        /// `$`: commands for strings.
        const STRING = 1 << 3;
        /// `l`: commands for lists.
        const LIST = 1 << 4;
        /// `s`: commands for sets.
        const SET = 1 << 5;
        /// `h`: commands for hashes.
        const HASH = 1 << 6;
        /// `z`: commands for sorted sets.
        const ZSET = 1 << 7;
        /// `x`: a key expired.
        const EXPIRED = 1 << 8;
        /// `e`: a key was evicted.
        const EVICTED = 1 << 9;
        /// `t`: commands for streams.
        const STREAM = 1 << 10;
        /// `m`: a lookup did not find the key.
        const KEY_MISS = 1 << 11;
        /// `d`: commands for module types.
        const MODULE = 1 << 13;
        /// `n`: a key was created.
        const NEW = 1 << 14;
        /// `A`: every class except `m` and `n`.
        const ALL = Self::GENERIC.bits() | Self::STRING.bits() | Self::LIST.bits() | Self::SET.bits()
            | Self::HASH.bits() | Self::ZSET.bits() | Self::EXPIRED.bits() | Self::EVICTED.bits()
            | Self::STREAM.bits() | Self::MODULE.bits();
    }
}

impl KeyspaceEvents {
    /// The letters in the order in which they are shown, without `A`, which stands for the first ten.
    const LETTERS: [(char, Self); 14] = [
        ('g', Self::GENERIC),
        ('$', Self::STRING),
        ('l', Self::LIST),
        ('s', Self::SET),
        ('h', Self::HASH),
        ('z', Self::ZSET),
        ('x', Self::EXPIRED),
        ('e', Self::EVICTED),
        ('t', Self::STREAM),
        ('d', Self::MODULE),
        ('n', Self::NEW),
        ('K', Self::KEYSPACE),
        ('E', Self::KEYEVENT),
        ('m', Self::KEY_MISS),
    ];

    /// Parses letters in any order.
    pub(super) fn parse(letters: &[u8]) -> Result<Self, Refusal> {
        let class = |letter: &u8| match letter {
            b'A' => Some(Self::ALL),
            _ => {
                Self::LETTERS.iter().find(|(known, _)| u32::from(*known) == u32::from(*letter)).map(|(_, class)| *class)
            }
        };
        letters
            .iter()
            .try_fold(Self::empty(), |all, letter| Some(all | class(letter)?))
            .ok_or(Refusal::new("Invalid event class character. Use 'Ag$lshzxeKEtmdn'."))
    }

    /// The letters of the classes; they parse back to the same classes.
    pub fn classes(&self) -> String {
        let (mut letters, rest) =
            if self.contains(Self::ALL) { ("A".to_owned(), *self - Self::ALL) } else { (String::new(), *self) };
        letters.extend(Self::LETTERS.iter().filter(|(_, class)| rest.contains(*class)).map(|(letter, _)| letter));
        letters
    }

    /// The letters in the form of CONFIG GET: like [`classes`](Self::classes), but without `n` if `A` is shown.
    pub(super) fn show(&self) -> String {
        if self.contains(Self::ALL) { (*self - Self::NEW).classes() } else { self.classes() }
    }
}

/// Addresses to listen on, as given: `*` means every IPv4 address, and a leading `-` means that the address may be
/// unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Arc<[Text]>);

impl Addresses {
    /// Maximum number of addresses.
    const MAX: usize = 16;

    /// The addresses in order.
    pub fn list(&self) -> &[Text] {
        &self.0
    }

    /// Every address of both families.
    pub(super) fn any() -> Self {
        Self(["*".into(), "-::*".into()].into())
    }

    /// No address.
    pub(super) fn none() -> Self {
        Self([].into())
    }

    /// Parses addresses; one empty argument means none.
    pub(super) fn parse(args: &[&[u8]]) -> Result<Self, Refusal> {
        match args {
            [[]] => Ok(Self::none()),
            _ if args.len() > Self::MAX => Err(Refusal::new("Too many bind addresses specified.")),
            _ => Ok(Self(args.iter().map(|address| (*address).into()).collect())),
        }
    }

    pub(super) fn join(&self) -> Vec<u8> {
        self.0.iter().map(|address| &address[..]).collect::<Vec<_>>().join(&b' ')
    }
}

/// The percentiles, from 0 to 100, that INFO reports per command.
#[derive(Clone, Debug, PartialEq)]
pub struct Percentiles(Arc<[f64]>);

impl Default for Percentiles {
    fn default() -> Self {
        Self([50.0, 99.0, 99.9].into())
    }
}

impl Percentiles {
    /// The percentiles in order.
    pub fn list(&self) -> &[f64] {
        &self.0
    }

    /// Parses percentiles. No argument, or one empty argument, means none.
    pub(super) fn parse(args: &[&[u8]]) -> Result<Self, Refusal> {
        if matches!(args, [[]]) {
            return Ok(Self([].into()));
        }
        let percentile = |arg: &&[u8]| {
            let number =
                numbers::float(arg).ok_or(Refusal::new("Invalid latency-tracking-info-percentiles parameters"))?;
            (0.0..=100.0)
                .contains(&number)
                .then_some(number)
                .ok_or(Refusal::new("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]"))
        };
        args.iter().map(percentile).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        join(f, self.0.iter().map(|percentile| numbers::trimmed_float(*percentile)))
    }
}

/// The primary that a replica follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    /// A host name or an address.
    pub host: Text,
    /// A TCP port.
    pub port: u16,
}

impl Primary {
    /// Parses host and port; `no one` means no primary.
    pub(super) fn parse(args: &[&[u8]]) -> Result<Option<Self>, Refusal> {
        let [host, port] = args else {
            return Err(Refusal::new("wrong number of arguments"));
        };
        if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
            return Ok(None);
        }
        let port = numbers::lenient_integer(port).and_then(|port| port.try_into().ok());
        let port = port.ok_or(Refusal::new("Invalid primary port"))?;
        Ok(Some(Self { host: (*host).into(), port }))
    }

    /// Host and port.
    pub(super) fn show(&self) -> Vec<u8> {
        [&self.host[..], self.port.to_string().as_bytes()].join(&b' ')
    }
}

/// Writes items separated by blanks.
fn join<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: impl Iterator<Item = T>) -> fmt::Result {
    for (position, item) in items.enumerate() {
        write!(f, "{}{item}", if position == 0 { "" } else { " " })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<&[u8]> {
        line.split_terminator(' ').map(str::as_bytes).collect()
    }

    #[test]
    fn save_points_are_pairs() {
        assert_eq!(SavePoints::default().to_string(), "3600 1 300 100 60 10000");
        assert_eq!(SavePoints::parse(&args("900 1 60 0")).unwrap().to_string(), "900 1 60 0");
        assert_eq!(SavePoints::parse(&[b""]).unwrap().to_string(), "");
        for bad in ["900", "0 1", "1 -1", "1 x", "1 1  1", "1 99999999999"] {
            assert_eq!(SavePoints::parse(&args(bad)).unwrap_err().to_string(), "Invalid save parameters", "{bad}");
        }
    }

    #[test]
    fn output_limits_change_only_the_classes_named() {
        let limits = OutputLimits::default().changed(&args("SLAVE 1mb 1kb 5 normal 1k 0 0")).unwrap();
        assert_eq!(limits.to_string(), "normal 1000 0 0 slave 1048576 1024 5 pubsub 33554432 8388608 60");
        assert_eq!(OutputLimits::default().changed(&args("replica 0 0 0")).unwrap().replica, OutputLimit::default());
        let refusal = |line| OutputLimits::default().changed(&args(line)).unwrap_err().to_string();
        assert_eq!(refusal("normal 1 1"), "Wrong number of arguments in buffer limit configuration.");
        assert_eq!(refusal("master 1 1 1"), "Invalid client class specified in buffer limit configuration.");
        for bad in ["normal x 0 0", "normal 0 -1 0", "normal 0 0 -1", "normal 0 0 1s"] {
            let text = "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
            assert_eq!(refusal(bad), text, "{bad}");
        }
    }

    #[test]
    fn keyspace_events_are_shown_in_a_fixed_order() {
        let shown = |letters: &str| KeyspaceEvents::parse(letters.as_bytes()).unwrap().show();
        assert_eq!(shown("KEA"), "AKE");
        assert_eq!(shown("mEnzxg"), "gzxnEm");
        assert_eq!(shown("g$lshzxetd"), "A");
        assert_eq!(shown(""), "");
        let text = KeyspaceEvents::parse(b"Kq").unwrap_err().to_string();
        assert_eq!(text, "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.");
    }

    #[test]
    fn keyspace_events_read_back_as_they_are_written() {
        for bits in 0..=u16::MAX {
            let events = KeyspaceEvents::from_bits_truncate(bits);
            assert_eq!(KeyspaceEvents::parse(events.classes().as_bytes()), Ok(events));
        }
        let all_and_new = KeyspaceEvents::parse(b"An").unwrap();
        assert_eq!((all_and_new.show(), all_and_new.classes()), ("A".to_owned(), "An".to_owned()));
    }

    #[test]
    fn oom_scores_are_three_bounded_integers() {
        assert_eq!(OomScores::parse(&args("1 -2 2000")).unwrap().to_string(), "1 -2 2000");
        assert_eq!(OomScores::parse(&args("1 2")).unwrap_err().to_string(), "wrong number of arguments");
        let text = OomScores::parse(&args("1 2 2001")).unwrap_err().to_string();
        assert_eq!(text, "Invalid oom-score-adj-values, elements must be between -2000 and 2000.");
    }

    #[test]
    fn at_most_sixteen_addresses() {
        assert_eq!(Addresses::parse(&args("127.0.0.1 -::1")).unwrap().join(), b"127.0.0.1 -::1");
        assert!(Addresses::parse(&[b""]).unwrap().list().is_empty());
        let text = Addresses::parse(&[&b"*"[..]; 17]).unwrap_err().to_string();
        assert_eq!(text, "Too many bind addresses specified.");
    }

    #[test]
    fn percentiles_are_between_0_and_100() {
        assert_eq!(Percentiles::parse(&args("50.125 99 0")).unwrap().to_string(), "50.125 99 0");
        assert!(Percentiles::parse(&[b""]).unwrap().list().is_empty());
        let refusal = |line| Percentiles::parse(&args(line)).unwrap_err().to_string();
        assert_eq!(refusal("x"), "Invalid latency-tracking-info-percentiles parameters");
        let text = "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]";
        assert_eq!((refusal("100.1"), refusal("-1")), (text.to_owned(), text.to_owned()));
    }

    #[test]
    fn a_primary_is_a_host_and_a_port() {
        assert_eq!(Primary::parse(&args("h 6379")).unwrap().unwrap().show(), b"h 6379");
        assert_eq!(Primary::parse(&args("NO one")).unwrap(), None);
        for bad in ["h x", "h -1", "h 65536"] {
            assert_eq!(Primary::parse(&args(bad)).unwrap_err().to_string(), "Invalid primary port");
        }
    }

    #[test]
    fn relative_directories_are_resolved_against_the_current_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("inner")).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let outer = Directory::current().unwrap().enter(dir.path().as_os_str().as_bytes()).unwrap();
        let inner = outer.enter(b"./inner").unwrap();
        assert_eq!(inner.enter(b"..").unwrap(), outer);
        let refusal = |name: &[u8]| outer.enter(name).unwrap_err().to_string();
        assert_eq!(refusal(b""), "dir can't be empty");
        assert_eq!(refusal(b"none"), "No such file or directory");
        assert_eq!(refusal(b"file"), "Not a directory");
    }
}
