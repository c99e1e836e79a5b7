//! The cluster, or the server, that keys are restored into.

use crate::access::{Access, at};
use kvick_load::client::Client;
use kvick_load::connection::write_request;
use kvick_load::reply::Value;
use kvick_load::topology::{SlotMap, slot};
use std::collections::HashMap;
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
    /// `None` without cluster mode.
    slots: Option<SlotMap>,
    nodes: HashMap<String, Node>,
}

struct Node {
    client: Client,
    database: u64,
    batch: Batch,
}

#[derive(Default)]
struct Batch {
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
        let mut target = Target { access, endpoints, slots: None, nodes: HashMap::new() };
        target.refresh()?;
        Ok(target)
    }

    /// Addresses of all primaries.
    pub(crate) fn primaries(&self) -> Vec<String> {
        let Some(slots) = &self.slots else { return self.endpoints.iter().take(1).cloned().collect() };
        let mut primaries: Vec<String> = slots.ranges.iter().map(|(_, _, nodes)| nodes[0].clone()).collect();
        primaries.sort_unstable();
        primaries.dedup();
        primaries
    }

    /// Sends the request some time before [`Target::finish`] returns.
    pub(crate) fn send(&mut self, request: Request) -> io::Result<()> {
        let owner = self.owner(&request.key)?;
        let node = self.node(&owner)?;
        if node.database != request.database {
            write_request(&["SELECT", &request.database.to_string()], &mut node.batch.requests);
            node.batch.expected.push(None);
            node.database = request.database;
        }
        write_request(&request.words, &mut node.batch.requests);
        node.batch.expected.push(Some(request));
        if node.batch.requests.len() >= BATCH_BYTES || node.batch.expected.len() >= BATCH_REQUESTS {
            self.flush(&owner)?;
        }
        Ok(())
    }

    /// Waits until all requests were executed.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let owners: Vec<String> = self.nodes.keys().cloned().collect();
        owners.iter().try_for_each(|owner| self.flush(owner))
    }

    fn refresh(&mut self) -> io::Result<()> {
        let mut problem = io::Error::other("no endpoint");
        for endpoint in self.endpoints {
            let reply = self.access.client(endpoint).and_then(|mut client| client.ask(&["CLUSTER", "SLOTS"]));
            match reply {
                Ok(Value::Error(error)) if error.contains("cluster support disabled") => {
                    self.slots = None;
                    return Ok(());
                }
                Ok(Value::Error(error)) => problem = io::Error::other(format!("{endpoint}: {error}")),
                Ok(reply) => {
                    self.slots = Some(SlotMap::parse(&reply, endpoint));
                    return Ok(());
                }
                Err(error) => problem = at(endpoint, &error),
            }
        }
        Err(problem)
    }

    fn owner(&self, key: &[u8]) -> io::Result<String> {
        let Some(slots) = &self.slots else {
            return self.endpoints.first().cloned().ok_or_else(|| io::Error::other("no endpoint"));
        };
        let slot = slot(key);
        slots.owner(slot).map(str::to_owned).ok_or_else(|| io::Error::other(format!("slot {slot} has no owner")))
    }

    fn node(&mut self, address: &str) -> io::Result<&mut Node> {
        if !self.nodes.contains_key(address) {
            let client = self.access.client(address)?;
            let node = Node { client, database: self.access.settings.database.into(), batch: Batch::default() };
            self.nodes.insert(address.to_owned(), node);
        }
        self.nodes.get_mut(address).ok_or_else(|| io::Error::other("no such node"))
    }

    fn flush(&mut self, address: &str) -> io::Result<()> {
        let node = self.node(address)?;
        let Batch { requests, expected } = std::mem::take(&mut node.batch);
        if expected.is_empty() {
            return Ok(());
        }
        let replies = node.client.send(&requests, expected.len()).map_err(|error| at(address, &error))?;
        for (request, reply) in expected.into_iter().zip(replies) {
            let Value::Error(error) = reply else { continue };
            match request {
                Some(request) if is_temporary(&error) => self.repeat(&request, error)?,
                Some(request) => return Err(refused(&request.key, &error)),
                None => return Err(io::Error::other(format!("{address}: {error}"))),
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
            let owner = asked.map_or_else(|| self.owner(&request.key), Ok)?;
            let node = self.node(&owner)?;
            let mut bytes = Vec::new();
            // ASKING is for the very next command.
            write_request(&["SELECT", &request.database.to_string()], &mut bytes);
            node.database = request.database;
            if is_asking {
                write_request(&["ASKING"], &mut bytes);
            }
            write_request(&request.words, &mut bytes);
            let replies = node.client.send(&bytes, 2 + usize::from(is_asking)).map_err(|error| at(&owner, &error))?;
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
