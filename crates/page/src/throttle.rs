//! Limits guesses of passwords: failed logins for each address, and logins at the same time.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Failed logins of an address within [`WINDOW`].
const FAILURES_MAX: usize = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Failures that are remembered. An attacker with more addresses than that is not stopped here.
const REMEMBERED_MAX: usize = 1024;

/// Recent failures, oldest first.
#[derive(Default)]
pub struct Throttle {
    failures: VecDeque<(Instant, IpAddr)>,
}

impl Throttle {
    /// Whether an address may try to log in.
    pub fn admits(&mut self, peer: IpAddr, now: Instant) -> bool {
        while self.failures.front().is_some_and(|(time, _)| now.duration_since(*time) > WINDOW) {
            self.failures.pop_front();
        }
        let network = network(peer);
        self.failures.iter().filter(|(_, failed)| *failed == network).count() < FAILURES_MAX
    }

    /// Records a failure.
    pub fn failed(&mut self, peer: IpAddr, now: Instant) {
        if self.failures.len() >= REMEMBERED_MAX {
            self.failures.pop_front();
        }
        self.failures.push_back((now, network(peer)));
    }
}

/// The address, or for IPv6 its network of 64 bits, of which one host may have all addresses.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_refused_after_failures_for_a_while() {
        let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        for (one, same, other) in
            [("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")]
        {
            for _ in 0..FAILURES_MAX {
                assert!(throttle.admits(parse(one), now));
                throttle.failed(parse(one), now);
            }
            assert!(!throttle.admits(parse(one), now) && !throttle.admits(parse(same), now));
            assert!(throttle.admits(parse(other), now));
            assert!(throttle.admits(parse(one), now + WINDOW + Duration::from_secs(1)));
        }
    }

    #[test]
    fn memory_is_bounded() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        for number in 0..2 * REMEMBERED_MAX as u32 {
            throttle.failed(IpAddr::from(number.to_be_bytes()), now);
        }
        assert_eq!(throttle.failures.len(), REMEMBERED_MAX);
    }
}
