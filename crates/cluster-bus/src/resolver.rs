//! The thread that resolves host names of nodes whose known address does not answer.
//!
//! A query may take seconds, so neither the bus nor a worker waits for it. The thread starts with the first query.

use crate::Bus;
use kvick_cluster::state::LinkId;
use kvick_runtime::logging;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Queries that may wait. Further ones are refused: the link uses the known address, and is tried again soon.
const QUERIES_MAX: usize = 256;

/// The answer to a query.
pub struct Resolved {
    /// The link to be connected.
    pub link: LinkId,
    /// The address, if the name has one.
    pub ip: Option<IpAddr>,
}

struct Query {
    link: LinkId,
    hostname: String,
    known_ip: Option<IpAddr>,
}

/// See the module's documentation.
pub struct Resolver {
    bus: &'static Bus,
    queries: Option<SyncSender<Query>>,
}

impl Resolver {
    pub fn new(bus: &'static Bus) -> Resolver {
        Resolver { bus, queries: None }
    }

    /// Queries a name for a link. The answer arrives in the mailbox of the bus. Returns false if there is none to
    /// come.
    pub fn query(&mut self, link: LinkId, hostname: String, known_ip: Option<IpAddr>) -> bool {
        if self.queries.is_none() {
            let (sender, receiver) = sync_channel(QUERIES_MAX);
            let bus = self.bus;
            let started = std::thread::Builder::new().name("cluster-dns".into()).spawn(move || run(bus, &receiver));
            if let Err(error) = started {
                logging::warning(format_args!("Cannot resolve host name '{hostname}': no thread: {error}"));
                return false;
            }
            self.queries = Some(sender);
        }
        self.queries.as_ref().is_some_and(|queries| queries.try_send(Query { link, hostname, known_ip }).is_ok())
    }
}

fn run(bus: &Bus, queries: &Receiver<Query>) {
    kvick_runtime::memory::register_thread();
    for (turn, Query { link, hostname, known_ip }) in queries.iter().enumerate() {
        let ip = match resolve(&hostname, known_ip, turn) {
            Ok(ip) => ip,
            Err(error) => {
                logging::verbose(format_args!("Cannot resolve host name '{hostname}': {error}"));
                None
            }
        };
        bus.mailbox.send(Resolved { link, ip });
    }
}

/// An address of a name. See [`choose`].
fn resolve(hostname: &str, known_ip: Option<IpAddr>, turn: usize) -> std::io::Result<Option<IpAddr>> {
    let found: Vec<IpAddr> = (hostname, 0).to_socket_addrs()?.map(|address| address.ip()).collect();
    Ok(choose(&found, known_ip, turn))
}

/// Chooses another address than the known one, which did not answer; of several, one after the other by `turn`.
fn choose(found: &[IpAddr], known_ip: Option<IpAddr>, turn: usize) -> Option<IpAddr> {
    let others: Vec<IpAddr> = found.iter().copied().filter(|ip| Some(*ip) != known_ip).collect();
    let candidates = if others.is_empty() { found } else { &others };
    candidates.get(turn.checked_rem(candidates.len())?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_address_than_the_known_one_is_preferred() {
        let [one, two, three] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| ip.parse::<IpAddr>().expect("an address"));
        assert_eq!(choose(&[one, two], Some(one), 7), Some(two));
        assert_eq!(choose(&[one], Some(one), 1), Some(one));
        assert_eq!(choose(&[], Some(one), 1), None);
        let in_turn = [0, 1, 2].map(|turn| choose(&[one, two, three], Some(one), turn));
        assert_eq!(in_turn, [Some(two), Some(three), Some(two)]);
    }

    #[test]
    fn names_of_this_host_are_resolved() {
        assert!(resolve("localhost", None, 0).expect("an answer").expect("an address").is_loopback());
        assert!(resolve("no such name", None, 0).is_err());
    }
}
