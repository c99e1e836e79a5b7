//! Full sync through a file: the dump is written to disk once, and a separate thread sends it, preceded by its length.
//! Used with `repl-diskless-sync no`, and for replicas that do not accept a dump of unknown length.

use super::replicas::{Replica, Stage};
use super::synchronise::{is_only_for_replicas, log_abandoned};
use super::transfer::{Ended, Transfer};
use crate::ReplicatedCore;
use kvick_config::tables::persistence::RDB_DEL_SYNC_FILES;
use kvick_durability::aof::State;
use kvick_durability::persistence::background::SavedFile;
use kvick_durability::persistence::file::SaveError;
use kvick_durability::persistence::snapshots::Destination;
use kvick_runtime::affinity::{self, Role};
use kvick_runtime::logging;
use parking_lot::Mutex;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes per read.
const READ_SIZE: usize = 64 * 1024;

/// See the module's documentation.
pub struct DiskBackedSync {
    core: &'static ReplicatedCore,
    file: Box<SavedFile>,
    sender: Sender,
}

/// The thread that sends the file.
struct Sender {
    core: &'static ReplicatedCore,
    transfer: Arc<Transfer>,
    /// The replicas that receive it, including later arrivals.
    replicas: Arc<Mutex<Vec<Arc<Replica>>>>,
}

impl DiskBackedSync {
    /// For these replicas, which read the transfer.
    pub fn new(
        core: &'static ReplicatedCore,
        transfer: Arc<Transfer>,
        replicas: Arc<Mutex<Vec<Arc<Replica>>>>,
    ) -> DiskBackedSync {
        let sender = Sender { core, transfer, replicas };
        DiskBackedSync { core, file: Box::new(SavedFile::new(core)), sender }
    }
}

impl Destination for DiskBackedSync {
    fn open(&mut self) -> Result<(), SaveError> {
        self.file.open()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sender.check().inspect_err(|_| log_abandoned(&self.sender.transfer, false))?;
        self.file.write(bytes)
    }

    fn finish(self: Box<Self>, outcome: Result<(), SaveError>) -> Result<(), SaveError> {
        let DiskBackedSync { core, file, sender } = *self;
        let path: PathBuf = file.path().into();
        if let Err(error) = file.finish(outcome) {
            sender.end(Ended::Failed);
            return Err(error);
        }
        // Opened now, since the next save replaces the file.
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let begun = opened.and_then(|(length, file)| {
            let send = move || {
                kvick_runtime::memory::register_thread();
                affinity::set(Role::Background);
                sender.send(&path, file, length);
            };
            std::thread::Builder::new().name("dump-sender".into()).spawn(send).map(|_| ())
        });
        begun.map_err(|error| {
            logging::warning(format_args!("The dump for replicas cannot be sent: {error}"));
            core.disconnect_replicas();
            SaveError::Write("replicas", error)
        })
    }
}

impl Sender {
    /// Fails if no replica is left and the file is not needed otherwise.
    fn check(&self) -> io::Result<()> {
        match self.transfer.readers() {
            0 if is_only_for_replicas(self.core) => {
                Err(io::Error::new(io::ErrorKind::BrokenPipe, "all replicas are gone"))
            }
            _ => Ok(()),
        }
    }

    fn send(self, path: &Path, file: File, length: u64) {
        let sent = self.try_send(&file, length);
        self.remove_if_unneeded(path, &file);
        match &sent {
            // Workers log the replicas that they lose.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => logging::warning(format_args!("Reading the dump for replicas: {error}")),
            Ok(()) => {}
        }
        self.end(if sent.is_ok() { Ended::Complete } else { Ended::Failed });
    }

    /// Deletes the file, unless it is needed.
    fn remove_if_unneeded(&self, path: &Path, file: &File) {
        let core = self.core;
        let is_kept = core.aof.status().state != State::Off || !is_only_for_replicas(core);
        // Another save may have replaced it.
        let inode = |metadata: io::Result<Metadata>| metadata.ok().map(|metadata| metadata.ino());
        let is_same_file = inode(file.metadata()).is_some_and(|own| inode(std::fs::metadata(path)) == Some(own));
        if core.config.read(RDB_DEL_SYNC_FILES) && !is_kept && is_same_file {
            logging::notice(format_args!("Removing the RDB file used to feed replicas in a persistence-less instance"));
            // A failure to delete it does no harm.
            let _ = std::fs::remove_file(path);
        }
    }

    fn try_send(&self, file: &File, length: u64) -> io::Result<()> {
        self.write(format!("${length}\r\n").as_bytes())?;
        // No replica can join any more.
        self.replicas.lock().iter().for_each(|replica| replica.set_stage(Stage::Receiving));
        let mut file = file.take(length);
        let mut buffer = vec![0; READ_SIZE];
        let mut sent = 0;
        while sent < length {
            let n = match file.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            self.write(&buffer[..n])?;
            sent += n as u64;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.transfer.write(bytes)?;
        self.core.replication.wake_feeders(self.core, None);
        Ok(())
    }

    fn end(&self, outcome: Ended) {
        self.transfer.end(outcome);
        self.core.replication.wake_feeders(self.core, None);
    }
}
