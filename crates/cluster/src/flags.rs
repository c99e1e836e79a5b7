//! Flags of nodes, with the bits that they have on the bus and the words that they have in `nodes.conf`.

use bitflags::bitflags;

bitflags! {
    /// What a node is, as its own messages and the gossip of others say. Bits without a name are kept.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct NodeFlags: u16 {
        /// Owns slots, or may.
        const PRIMARY = 1 << 0;
        /// Replicates a primary.
        const REPLICA = 1 << 1;
        /// Suspected to have failed by the sender alone ("possible failure").
        const PFAIL = 1 << 2;
        /// Failed, by agreement of a majority of primaries.
        const FAIL = 1 << 3;
        /// The node that sends or writes this.
        const MYSELF = 1 << 4;
        /// Its name is not confirmed yet.
        const HANDSHAKE = 1 << 5;
        /// Its address is unknown.
        const NO_ADDRESS = 1 << 6;
        /// It is sent MEET instead of PING.
        const MEET = 1 << 7;
        /// A primary that replicas of other primaries may move to.
        const MIGRATE_TO = 1 << 8;
        /// A replica that does not start failovers.
        const NO_FAILOVER = 1 << 9;
        /// Understands ping extensions.
        const EXTENSIONS = 1 << 10;
        /// Understands PUBLISH and PUBLISHSHARD with light headers.
        const LIGHT_PUBLISH = 1 << 11;
        /// Understands MODULE with a light header, and MEET from nodes that it knows already.
        const LIGHT_MODULE = 1 << 12;
        /// A replica that considers its primary failed (Valkey 9.1).
        const PRIMARY_FAILED = 1 << 13;
        const _ = !0;
    }
}

/// The words of `nodes.conf` and CLUSTER NODES, in the order in which they are written.
const WORDS: [(NodeFlags, &str); 8] = [
    (NodeFlags::MYSELF, "myself"),
    (NodeFlags::PRIMARY, "master"),
    (NodeFlags::REPLICA, "slave"),
    (NodeFlags::PFAIL, "fail?"),
    (NodeFlags::FAIL, "fail"),
    (NodeFlags::HANDSHAKE, "handshake"),
    (NodeFlags::NO_ADDRESS, "noaddr"),
    (NodeFlags::NO_FAILOVER, "nofailover"),
];

/// The word for a node without any flag that has a word.
const NO_FLAGS: &str = "noflags";

impl NodeFlags {
    /// The flags that have a word, and so survive in `nodes.conf`.
    pub const PERSISTED: NodeFlags = NodeFlags::MYSELF
        .union(NodeFlags::PRIMARY)
        .union(NodeFlags::REPLICA)
        .union(NodeFlags::PFAIL)
        .union(NodeFlags::FAIL)
        .union(NodeFlags::HANDSHAKE)
        .union(NodeFlags::NO_ADDRESS)
        .union(NodeFlags::NO_FAILOVER);

    /// Appends the words of these flags, separated by commas, or `noflags`.
    pub fn write_words(self, out: &mut String) {
        let start = out.len();
        for (_, word) in WORDS.iter().filter(|(flag, _)| self.contains(*flag)) {
            if out.len() > start {
                out.push(',');
            }
            out.push_str(word);
        }
        if out.len() == start {
            out.push_str(NO_FLAGS);
        }
    }

    /// The flags that a comma-separated list of words names, in any case. `primary` and `replica` are accepted too.
    /// Returns the first unknown word as the error.
    pub fn parse_words(words: &str) -> Result<NodeFlags, &str> {
        let mut flags = NodeFlags::empty();
        for word in words.split(',') {
            let known = WORDS.iter().find(|(_, known)| known.eq_ignore_ascii_case(word));
            flags |= match known {
                Some((flag, _)) => *flag,
                None if word.eq_ignore_ascii_case("primary") => NodeFlags::PRIMARY,
                None if word.eq_ignore_ascii_case("replica") => NodeFlags::REPLICA,
                None if word.eq_ignore_ascii_case(NO_FLAGS) => NodeFlags::empty(),
                None => return Err(word),
            };
        }
        Ok(flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back() {
        for bits in 0..1 << 10 {
            let flags = NodeFlags::from_bits_retain(bits);
            let mut words = String::new();
            flags.write_words(&mut words);
            assert_eq!(NodeFlags::parse_words(&words), Ok(flags & NodeFlags::PERSISTED), "{words}");
        }
    }

    #[test]
    fn words_are_those_of_valkey() {
        let mut words = String::new();
        (NodeFlags::PRIMARY | NodeFlags::MYSELF | NodeFlags::EXTENSIONS).write_words(&mut words);
        assert_eq!(words, "myself,master");
        words.clear();
        NodeFlags::MEET.write_words(&mut words);
        assert_eq!(words, "noflags");
        assert_eq!(NodeFlags::parse_words("Primary,fail?"), Ok(NodeFlags::PRIMARY | NodeFlags::PFAIL));
        assert_eq!(NodeFlags::parse_words("master,leader"), Err("leader"));
        assert_eq!(NodeFlags::parse_words(""), Err(""));
    }
}
