//! Making a backup.

use crate::access::Access;
use crate::checking::{Passed, pass};
use crate::fetch::{Incoming, Source};
use crate::manifest::{Dump, Manifest, VERSION, name_of};
use crate::shards::{self, Shard};
use crate::storage::{Staged, Storage};
use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often a backup is begun anew because slots have moved meanwhile.
const ATTEMPTS: usize = 5;
/// Time between two attempts.
const PAUSE: Duration = Duration::from_secs(2);

/// What to back up.
#[derive(Clone)]
pub struct Plan {
    /// Addresses (`host:port`) of the server, or of some nodes of the cluster.
    pub endpoints: Vec<String>,
    /// How to reach them.
    pub access: Access,
    /// Whether a replica of each shard is asked, if there is one, instead of the primary.
    pub from_replicas: bool,
}

/// Makes a backup, and checks it before it is visible.
///
/// # Errors
/// If a shard does not answer, if slots move between shards all the time, or if a dump is not valid. Then nothing is
/// left in the storage.
pub fn create(plan: &Plan, storage: &dyn Storage) -> io::Result<Manifest> {
    for _ in 1..ATTEMPTS {
        match attempt(plan, storage)? {
            Some(manifest) => return Ok(manifest),
            None => std::thread::sleep(PAUSE),
        }
    }
    attempt(plan, storage)?.ok_or_else(|| {
        io::Error::other("slots moved between shards during each attempt: keys could be missing or there twice")
    })
}

/// A backup; `None` if slots have moved.
fn attempt(plan: &Plan, storage: &dyn Storage) -> io::Result<Option<Manifest>> {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
    let name = name_of(now_ms);
    let shards = shards::find(&plan.endpoints, &plan.access)?;
    let sources = shards.iter().map(|shard| connect(shard, plan)).collect::<io::Result<Vec<_>>>()?;
    let staged = storage.stage(&name)?;
    let (sender, began) = mpsc::channel();
    let (dumps, is_unmoved) = std::thread::scope(|scope| {
        let start = |(index, (node, source))| {
            let (staged, shard, sender) = (&*staged, &shards[index], sender.clone());
            scope.spawn(move || receive(node, source, index, shard, staged, sender))
        };
        let threads: Vec<_> = sources.into_iter().enumerate().map(start).collect();
        drop(sender);
        // When the last snapshot was begun, the slots must be where they were before the first.
        let is_unmoved = began.iter().count() == shards.len()
            && slots_of(&shards::find(&plan.endpoints, &plan.access)?) == slots_of(&shards);
        let join = |thread: ScopedJoinHandle<'_, io::Result<Dump>>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))
        };
        let dumps = threads.into_iter().map(join).collect::<io::Result<Vec<_>>>()?;
        io::Result::Ok((dumps, is_unmoved))
    })?;
    if !is_unmoved {
        return Ok(None);
    }
    let moments = || dumps.iter().map(|dump| dump.moment_unix_ms);
    let span_ms = moments().max().unwrap_or(0) - moments().min().unwrap_or(0);
    let cluster = shards.iter().any(|shard| !shard.slots.is_empty());
    let manifest = Manifest { version: VERSION, name, cluster, span_ms, shards: dumps };
    staged.publish(&manifest)?;
    Ok(Some(manifest))
}

/// Which slots are in one shard. Who the primary is does not matter.
fn slots_of(shards: &[Shard]) -> Vec<Vec<u16>> {
    let slots = |shard: &Shard| shard.slots.iter().flat_map(|(first, last)| *first..=*last).collect();
    shards.iter().map(slots).collect()
}

/// Connects to the node of a shard that sends the dump, and returns its address.
fn connect(shard: &Shard, plan: &Plan) -> io::Result<(String, Source)> {
    let replicas = if plan.from_replicas { &shard.replicas[..] } else { &[] };
    for replica in replicas {
        if let Ok(source) = Source::connect(replica, &plan.access) {
            return Ok((replica.clone(), source));
        }
    }
    Ok((shard.primary.clone(), Source::connect(&shard.primary, &plan.access)?))
}

/// Copies the dump of a shard into the storage, and checks it meanwhile. `began` is dropped, after a message if the
/// snapshot was begun.
fn receive(
    node: String,
    source: Source,
    index: usize,
    shard: &Shard,
    staged: &dyn Staged,
    began: Sender<()>,
) -> io::Result<Dump> {
    let file = format!("shard-{index}.rdb");
    let mut incoming = source.begin()?;
    // If another shard has failed, the receiver is gone.
    let _ = began.send(());
    drop(began);
    incoming.wait()?;
    let mut out = staged.create(&file)?;
    let Passed { bytes, crc64, keys } = pass(&file, &mut incoming, &mut out)?;
    let keys = keys.map_err(|report| io::Error::other(format!("{node}: {report}")))?;
    out.finish()?;
    let Incoming { moment_unix_ms, replication_id, replication_offset, .. } = incoming;
    let slots = shard.slots.clone();
    Ok(Dump { file, node, slots, moment_unix_ms, replication_id, replication_offset, keys, bytes, crc64 })
}
