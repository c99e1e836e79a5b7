//! Periodic checks of the files for changes, on a short-lived thread.

use super::files::Files;
use super::materials::Materials;
use super::{Tls, TlsError};
use kvick_config::Values;
use kvick_config::tables::tls::TLS_AUTO_RELOAD_INTERVAL;
use kvick_runtime::affinity::{self, Role};
use kvick_runtime::logging;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Tls {
    /// Starts a check of the files if one is due.
    pub fn reload_if_due(&'static self, values: &Values) {
        let interval = Duration::from_secs(values.read(TLS_AUTO_RELOAD_INTERVAL).into());
        let checked = Duration::from_millis(self.checked_ms.load(Ordering::Relaxed));
        if interval.is_zero() || self.started.elapsed().saturating_sub(checked) < interval {
            return;
        }
        if self.materials().is_none() || self.reloading.swap(true, Ordering::Relaxed) {
            return;
        }
        let spawned = std::thread::Builder::new().name("tls-reload".into()).spawn(|| {
            kvick_runtime::memory::register_thread();
            affinity::set(Role::Background);
            if let Err(error) = self.reload() {
                logging::warning(format_args!("{error}"));
                logging::warning(format_args!("Background TLS reload failed"));
            }
            self.note_check();
            self.reloading.store(false, Ordering::Relaxed);
        });
        if spawned.is_err() {
            // The thread could not be started.
            self.reloading.store(false, Ordering::Relaxed);
        }
    }

    /// Creates new materials with the present settings if the files have changed.
    fn reload(&self) -> Result<(), TlsError> {
        let _changing = self.changing.lock();
        let Some(present) = self.materials() else { return Ok(()) };
        let files = Files::read(&present.settings)?;
        if files.fingerprint() == present.fingerprint {
            logging::debug(format_args!("TLS reload skipped: materials unchanged"));
            return Ok(());
        }
        logging::notice(format_args!("TLS materials changed, reloading in background"));
        let reloaded = Materials::of(present.settings.clone(), &files)?;
        *self.materials.write() = Some(Arc::new(reloaded));
        logging::notice(format_args!("TLS materials reloaded successfully"));
        Ok(())
    }
}
