//! Which server a request goes to.

use crate::reply::Value;

/// Number of slots in a cluster.
pub const SLOTS: usize = 16_384;

/// The slot of a key: CRC16 (XMODEM) of its hash tag, if it has one, or of the key. Written here once more because the
/// load generator shares no code with the server that it judges.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|length| *length > 0).map(|length| &rest[..length])
    });
    let sum = tag.unwrap_or(key).iter().fold(0_u16, |sum, byte| {
        let index = (sum >> 8) as u8 ^ byte;
        sum << 8 ^ CRC[index as usize]
    });
    sum % SLOTS as u16
}

static CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

/// The nodes that serve the slots of a cluster, as CLUSTER SLOTS lists them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlotMap {
    /// Ranges of slots, each with the addresses of its primary and its replicas.
    pub ranges: Vec<(u16, u16, Vec<String>)>,
}

impl SlotMap {
    /// Reads the reply of CLUSTER SLOTS from the node at `asked`, whose host stands for nodes without an address.
    pub fn parse(reply: &Value, asked: &str) -> SlotMap {
        let own_host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
        let ranges = reply.elements().iter().filter_map(|range| {
            let [first, last, nodes @ ..] = range.elements() else { return None };
            let slot = |value: &Value| u16::try_from(value.integer()).ok().filter(|slot| usize::from(*slot) < SLOTS);
            let addresses = nodes.iter().map(|node| {
                let [host, port, ..] = node.elements() else { return String::new() };
                let host = if host.bytes().is_empty() { own_host.to_owned() } else { host.text() };
                format!("{host}:{}", port.integer())
            });
            Some((slot(first)?, slot(last)?, addresses.filter(|address| !address.is_empty()).collect::<Vec<_>>()))
        });
        SlotMap { ranges: ranges.filter(|(first, last, nodes)| first <= last && !nodes.is_empty()).collect() }
    }

    /// How many slots have an owner.
    pub fn covered(&self) -> usize {
        self.ranges.iter().map(|(first, last, _)| usize::from(last - first) + 1).sum()
    }

    /// The primary of a slot.
    pub fn owner(&self, slot: u16) -> Option<&str> {
        let range = self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, nodes)| nodes[0].as_str())
    }
}

/// Where a redirected request has to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The slot.
    pub slot: u16,
    /// The address of the node.
    pub address: String,
    /// Only this request, after ASKING.
    pub is_ask: bool,
}

impl Redirect {
    /// Reads the text of an error; `None` if it is another one. `from` is the address of the node that sent it.
    pub fn parse(error: &[u8], from: &str) -> Option<Redirect> {
        let text = std::str::from_utf8(error).ok()?;
        let mut words = text.split(' ');
        let is_ask = match words.next()? {
            "ASK" => true,
            "MOVED" => false,
            _ => return None,
        };
        let slot = words.next()?.parse().ok().filter(|slot| usize::from(*slot) < SLOTS)?;
        let address = words.next()?;
        let own_host = from.rsplit_once(':').map_or(from, |(host, _)| host);
        let address = if address.starts_with(':') { format!("{own_host}{address}") } else { address.to_owned() };
        Some(Redirect { slot, address, is_ask })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), slot(b"foo{}{bar}"));
        assert_ne!(slot(b"foo{}{bar}"), slot(b"bar"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
    }

    #[test]
    fn the_slot_map_is_read() {
        let text = "*2\r\n*4\r\n:0\r\n:99\r\n*3\r\n$0\r\n\r\n:7000\r\n$1\r\na\r\n*3\r\n$1\r\nh\r\n:7001\r\n$1\r\nb\r\n\
                    *3\r\n:100\r\n:16383\r\n*3\r\n$1\r\nh\r\n:7002\r\n$1\r\nc\r\n";
        let map = SlotMap::parse(&Value::parse(text.as_bytes()).expect("a reply"), "1.2.3.4:7000");
        assert_eq!(map.owner(99), Some("1.2.3.4:7000"));
        assert_eq!(map.owner(100), Some("h:7002"));
        assert_eq!(map.ranges[0].2[1], "h:7001");
        assert_eq!(map.covered(), SLOTS);
    }

    #[test]
    fn redirections_are_read() {
        let moved = Redirect::parse(b"MOVED 7 10.0.0.1:6379", "x:1").expect("a redirection");
        assert_eq!((moved.slot, &*moved.address, moved.is_ask), (7, "10.0.0.1:6379", false));
        assert_eq!(Redirect::parse(b"ASK 7 :6380", "x:1").expect("a redirection").address, "x:6380");
        for other in ["ERR x", "MOVED", "MOVED 99999 a:1", "MOVED x a:1"] {
            assert_eq!(Redirect::parse(other.as_bytes(), "x:1"), None);
        }
    }
}
