//! The thread that writes `nodes.conf`, so that the bus does not wait for the disk.

use crate::nodes_file::{NodesFile, SaveFailed};
use kvick_runtime::logging;
use std::io;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

/// The time between two log lines about failed saves.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// See the module's documentation.
pub struct Saver(Sender<Job>);

struct Job {
    content: Vec<u8>,
    sync: bool,
    /// Called when the content is durable, if that is before the outcome is known.
    durable: Box<dyn FnOnce() + Send>,
    /// Called with the outcome.
    done: Box<dyn FnOnce(Result<(), SaveFailed>) + Send>,
}

impl Saver {
    /// Starts the thread.
    pub fn start(mut file: NodesFile) -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::Builder::new().name("cluster-file".into()).spawn(move || {
            kvick_runtime::memory::register_thread();
            kvick_runtime::time_slice::shorten();
            for Job { content, sync, durable, done } in jobs {
                done(file.save(&content, sync, durable));
            }
        })?;
        Ok(Saver(sender))
    }

    /// Writes the content on the thread, which calls `durable` as [`NodesFile::save`] does, and `done` at the end.
    pub fn save(
        &self,
        content: Vec<u8>,
        sync: bool,
        durable: impl FnOnce() + Send + 'static,
        done: impl FnOnce(Result<(), SaveFailed>) + Send + 'static,
    ) {
        // The thread lives as long as the process.
        let _ = self.0.send(Job { content, sync, durable: Box::new(durable), done: Box::new(done) });
    }
}

/// Limits how often tolerated failures are logged.
#[derive(Default)]
pub struct FailureLog {
    last: Option<Instant>,
}

impl FailureLog {
    /// Logs that a save failed, unless that was logged a short time ago.
    pub fn log(&mut self) {
        if self.last.is_none_or(|last| last.elapsed() > LOG_INTERVAL) {
            self.last = Some(Instant::now());
            logging::warning(format_args!(
                "Cluster config updated even though writing the cluster config file to disk failed."
            ));
        }
    }
}
