//! TLS, for connections of clients and for those that the server makes itself.
//!
//! ```text
//! settings --> materials --> server side: listen, stream  (connections of the workers)
//! (what the    (keys, chains,        |
//!  tls-* say)   trust, suites)       +-> client side: outgoing  (MIGRATE and replicas, on threads that may wait)
//! ```
//!
//! [`Settings`] are what the configuration says, [`Materials`] what was made of that and of the files it names. They
//! are made at the start, by CONFIG SET and by [`reload`], as a whole: new connections take those that are in effect,
//! and connections that are there keep theirs. What cannot be made changes nothing.
//!
//! The protocol is `rustls` with the cryptography of `ring`: TLS 1.2 and 1.3 with forward secrecy and authenticated
//! encryption, and nothing older.

pub mod certificate;
mod error;
mod files;
mod materials;
pub mod outgoing;
mod reload;
mod sessions;
mod settings;
pub mod stream;
mod suites;
mod trust;

pub use error::TlsError;
pub use materials::Materials;
pub use settings::Settings;

use kvick_config::Values;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// What the server has for TLS.
pub struct Tls {
    /// What new connections take; `None` while nothing needs TLS.
    materials: RwLock<Option<Arc<Materials>>>,
    /// Held while other materials are made, so that the last wish prevails.
    changing: Mutex<()>,
    started: Instant,
    /// Milliseconds after `started` at which files were looked at last.
    looked_ms: AtomicU64,
    /// Whether a thread is looking at the files.
    reloading: AtomicBool,
}

impl Default for Tls {
    fn default() -> Self {
        Tls {
            materials: RwLock::default(),
            changing: Mutex::default(),
            started: Instant::now(),
            looked_ms: AtomicU64::new(0),
            reloading: AtomicBool::new(false),
        }
    }
}

impl Tls {
    /// Reads the files that `values` name and has new connections use them; or forgets what there was, if nothing needs
    /// TLS any more. Errors are told in the log, and change nothing.
    pub fn configure(&self, values: &Values) -> Result<(), TlsError> {
        let _changing = self.changing.lock();
        let settings = Settings::read(values);
        if !settings.is_wanted {
            *self.materials.write() = None;
            return Ok(());
        }
        kvick_runtime::logging::debug(format_args!("Configuring TLS"));
        let made = Materials::make(settings);
        self.note_look();
        let materials = made.inspect_err(|error| kvick_runtime::logging::warning(format_args!("{error}")))?;
        *self.materials.write() = Some(Arc::new(materials));
        Ok(())
    }

    /// What new connections take.
    pub fn materials(&self) -> Option<Arc<Materials>> {
        self.materials.read().clone()
    }

    fn note_look(&self) {
        self.looked_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}
