//! The cluster, or the server, that keys are restored into.

use crate::access::{Access, at};
use kvick_load::client::Client;
use kvick_load::connection::write_request;
use kvick_load::reply::Value;
use kvick_load::topology::{SLOTS, SlotMap, slot};
use std::io;
use std::time::{Duration, Instant};

/// Bytes of requests that are sent at once to a node.
const BATCH_BYTES: usize = 256 << 10;
/// Requests that are sent at once to a node.
const BATCH_REQUESTS: usize = 256;
/// How long a key is tried while the cluster redirects or is not ready.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections to all nodes that get keys.
pub(crate) struct Target<'a> {
    access: &'a Access,
    endpoints: &'a [String],
    /// All nodes that were named, also those that own no slots any more.
    nodes: Vec<Node>,
    owners: Owners,
}

/// Who owns a key, as an index of a node.
enum Owners {
    /// Without cluster mode.
    One(usize),
    /// For each slot; `None` if it has no owner.
    BySlot(Vec<Option<usize>>),
}

struct Node {
    address: String,
    /// `None` before the first request.
    client: Option<Client>,
    batch: Batch,
}

/// Requests that are sent together. The first one selects a database, since requests that are repeated in between leave
/// another one selected.
#[derive(Default)]
struct Batch {
    /// The database that is selected at the end; `None` if the batch is empty.
    database: Option<u64>,
    requests: Vec<u8>,
    /// For each reply: a key and its request, or a SELECT.
    expected: Vec<Option<Request>>,
}

/// A request for a key.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) database: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) words: Vec<Vec<u8>>,
}

impl<'a> Target<'a> {
    pub(crate) fn connect(endpoints: &'a [String], access: &'a Access) -> io::Result<Target<'a>> {
        let mut target = Target { access, endpoints, nodes: Vec::new(), owners: Owners::One(0) };
        target.refresh()?;
        Ok(target)
    }

    /// Addresses of all primaries.
    pub(crate) fn primaries(&self) -> Vec<String> {
        let mut owners = match &self.owners {
            Owners::One(node) => vec![*node],
            Owners::BySlot(owners) => owners.iter().flatten().copied().collect(),
        };
        owners.sort_unstable();
        owners.dedup();
        owners.into_iter().map(|node| self.nodes[node].address.clone()).collect()
    }

    /// Sends the request some time before [`Target::finish`] returns.
    pub(crate) fn send(&mut self, request: Request) -> io::Result<()> {
        let owner = self.owner(&request.key)?;
        let batch = &mut self.nodes[owner].batch;
        if batch.database != Some(request.database) {
            write_request(&["SELECT", &request.database.to_string()], &mut batch.requests);
            batch.expected.push(None);
            batch.database = Some(request.database);
        }
        write_request(&request.words, &mut batch.requests);
        batch.expected.push(Some(request));
        if batch.requests.len() >= BATCH_BYTES || batch.expected.len() >= BATCH_REQUESTS {
            self.flush(owner)?;
        }
        Ok(())
    }

    /// Waits until all requests were executed.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        (0..self.nodes.len()).try_for_each(|node| self.flush(node))
    }

    fn refresh(&mut self) -> io::Result<()> {
        let mut problem = io::Error::other("no endpoint");
        for endpoint in self.endpoints {
            let reply = self.access.client(endpoint).and_then(|mut client| client.ask(&["CLUSTER", "SLOTS"]));
            match reply {
                Ok(Value::Error(error)) if error.contains("cluster support disabled") => {
                    self.owners = Owners::One(self.index(endpoint));
                    return Ok(());
                }
                Ok(Value::Error(error)) => problem = io::Error::other(format!("{endpoint}: {error}")),
                Ok(reply) => {
                    let mut owners = vec![None; SLOTS];
                    for (first, last, nodes) in SlotMap::parse(&reply, endpoint).ranges {
                        owners[first.into()..=last.into()].fill(Some(self.index(&nodes[0])));
                    }
                    self.owners = Owners::BySlot(owners);
                    return Ok(());
                }
                Err(error) => problem = at(endpoint, &error),
            }
        }
        Err(problem)
    }

    fn owner(&self, key: &[u8]) -> io::Result<usize> {
        match &self.owners {
            Owners::One(node) => Ok(*node),
            Owners::BySlot(owners) => {
                let slot = slot(key);
                owners[usize::from(slot)].ok_or_else(|| io::Error::other(format!("slot {slot} has no owner")))
            }
        }
    }

    /// The index of the node with this address.
    fn index(&mut self, address: &str) -> usize {
        self.nodes.iter().position(|node| node.address == address).unwrap_or_else(|| {
            self.nodes.push(Node { address: address.to_owned(), client: None, batch: Batch::default() });
            self.nodes.len() - 1
        })
    }

    /// Sends requests to a node and returns so many replies.
    fn exchange(&mut self, node: usize, requests: &[u8], replies: usize) -> io::Result<Vec<Value>> {
        let Node { address, client, .. } = &mut self.nodes[node];
        let client = match client {
            Some(client) => client,
            None => client.insert(self.access.client(address)?),
        };
        client.send(requests, replies).map_err(|error| at(address, &error))
    }

    fn flush(&mut self, node: usize) -> io::Result<()> {
        let Batch { requests, expected, .. } = std::mem::take(&mut self.nodes[node].batch);
        if expected.is_empty() {
            return Ok(());
        }
        let replies = self.exchange(node, &requests, expected.len())?;
        for (request, reply) in expected.into_iter().zip(replies) {
            let Value::Error(error) = reply else { continue };
            match request {
                Some(request) if is_temporary(&error) => self.repeat(&request, error)?,
                Some(request) => return Err(refused(&request.key, &error)),
                None => return Err(io::Error::other(format!("{}: {error}", self.nodes[node].address))),
            }
        }
        Ok(())
    }

    /// Repeats a request that was redirected, or refused for a moment. So it was not executed.
    fn repeat(&mut self, request: &Request, error: String) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut error = error;
        while Instant::now() < deadline {
            let asked = error.strip_prefix("ASK ").and_then(|rest| rest.split(' ').nth(1)).map(str::to_owned);
            if asked.is_none() {
                std::thread::sleep(PAUSE);
                self.refresh()?;
            }
            let is_asking = asked.is_some();
            let owner = match asked {
                Some(address) => self.index(&address),
                None => self.owner(&request.key)?,
            };
            let mut bytes = Vec::new();
            // ASKING is for the very next command.
            write_request(&["SELECT", &request.database.to_string()], &mut bytes);
            if is_asking {
                write_request(&["ASKING"], &mut bytes);
            }
            write_request(&request.words, &mut bytes);
            let replies = self.exchange(owner, &bytes, 2 + usize::from(is_asking))?;
            match replies.last() {
                Some(Value::Error(refusal)) if is_temporary(refusal) => error.clone_from(refusal),
                Some(Value::Error(refusal)) => return Err(refused(&request.key, refusal)),
                _ => return Ok(()),
            }
        }
        Err(refused(&request.key, &error))
    }
}

fn is_temporary(error: &str) -> bool {
    ["MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "READONLY"].iter().any(|start| error.starts_with(start))
}

fn refused(key: &[u8], error: &str) -> io::Error {
    let key = key.escape_ascii();
    if error.starts_with("BUSYKEY") {
        return io::Error::other(format!("the key \"{key}\" exists already; --replace overwrites keys"));
    }
    io::Error::other(format!("the key \"{key}\" was refused: {error}"))
}
