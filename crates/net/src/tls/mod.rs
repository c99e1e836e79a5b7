//! TLS, for client connections and for the server's own outgoing connections.
//!
//! ```text
//! settings --> materials --> server side: listen, stream  (connections of the workers)
//! (the tls-*   (keys, chains,        |
//!  directives)  trust, suites)       +-> client side: outgoing  (MIGRATE and replicas, on blocking threads)
//!                                    +-> both sides: duplex  (links of the cluster bus)
//! ```
//!
//! [`Settings`] hold the configuration, [`Materials`] the result of reading the files that it names. Materials are made
//! at startup, by CONFIG SET and by [`reload`], and replaced as a whole: new connections use the current materials,
//! existing connections keep theirs. If making them fails, nothing changes.
//!
//! The protocol is `rustls` with the cryptography of `ring`: TLS 1.2 and 1.3 with forward secrecy and authenticated
//! encryption, and nothing older.

pub mod certificate;
pub mod duplex;
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

/// The server's TLS state.
pub struct Tls {
    /// The materials for new connections; `None` while TLS is not used.
    materials: RwLock<Option<Arc<Materials>>>,
    /// Held while new materials are made, so that the last change prevails.
    changing: Mutex<()>,
    started: Instant,
    /// Milliseconds after `started` of the last check of the files.
    checked_ms: AtomicU64,
    /// Whether a thread is checking the files.
    reloading: AtomicBool,
}

impl Default for Tls {
    fn default() -> Self {
        Tls {
            materials: RwLock::default(),
            changing: Mutex::default(),
            started: Instant::now(),
            checked_ms: AtomicU64::new(0),
            reloading: AtomicBool::new(false),
        }
    }
}

impl Tls {
    /// Reads the files that `values` name and makes new connections use them; drops the materials if TLS is not used
    /// any more. Errors are logged, and change nothing.
    pub fn configure(&self, values: &Values) -> Result<(), TlsError> {
        let _changing = self.changing.lock();
        let settings = Settings::read(values);
        if !settings.is_wanted {
            *self.materials.write() = None;
            return Ok(());
        }
        kvick_runtime::logging::debug(format_args!("Configuring TLS"));
        let result = Materials::make(settings);
        self.note_check();
        let materials = result.inspect_err(|error| kvick_runtime::logging::warning(format_args!("{error}")))?;
        *self.materials.write() = Some(Arc::new(materials));
        Ok(())
    }

    /// The materials for new connections.
    pub fn materials(&self) -> Option<Arc<Materials>> {
        self.materials.read().clone()
    }

    fn note_check(&self) {
        self.checked_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}
