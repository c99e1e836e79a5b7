//! Artificial delays for tests: `rdb-key-save-delay` and `key-load-delay`.

use crate::DurableCore;
use kvick_config::Key;
use std::time::{Duration, Instant};

/// How often a wait checks whether to continue.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Shorter delays are accumulated, since sleeps are not that short.
const SLEEP_MIN: Duration = Duration::from_micros(200);

/// A delay per key, from a setting. A positive value is microseconds per key; a negative one, keys per microsecond.
pub struct Delay {
    core: &'static DurableCore,
    setting: Key<i32>,
    /// The setting's value in generation `generation` of the configuration: reading it for each key would take longer
    /// than processing the key.
    value: i32,
    generation: u64,
    pending_ns: u64,
}

impl Delay {
    /// The delay that this setting asks for.
    pub fn new(core: &'static DurableCore, setting: Key<i32>) -> Self {
        let generation = core.config_generation();
        Delay { core, setting, value: core.config.read(setting), generation, pending_ns: 0 }
    }

    /// Counts `keys` more keys: waits when the accumulated delay is long enough, until the setting is 0 or
    /// `is_cancelled` returns true.
    #[inline]
    pub fn after(&mut self, keys: u64, is_cancelled: impl Fn() -> bool) {
        let setting = self.setting();
        if setting != 0 {
            self.pending_ns = self.pending_ns.saturating_add(keys.saturating_mul(per_key_ns(setting)));
            if Duration::from_nanos(self.pending_ns) >= SLEEP_MIN {
                self.wait(is_cancelled);
            }
        }
    }

    fn setting(&mut self) -> i32 {
        let generation = self.core.config_generation();
        if self.generation != generation {
            (self.generation, self.value) = (generation, self.core.config.read(self.setting));
        }
        self.value
    }

    #[cold]
    fn wait(&mut self, is_cancelled: impl Fn() -> bool) {
        let began = Instant::now();
        while self.setting() != 0 && !is_cancelled() {
            let Some(left) = Duration::from_nanos(self.pending_ns).checked_sub(began.elapsed()) else { break };
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
        self.pending_ns = 0;
    }
}

/// Nanoseconds for each key.
fn per_key_ns(setting: i32) -> u64 {
    match u64::try_from(setting) {
        Ok(us) => us * 1000,
        Err(_) => 1000 / u64::from(setting.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_is_microseconds_per_key_or_keys_per_microsecond() {
        assert_eq!([3, 0, -1, -10, i32::MIN].map(per_key_ns), [3000, 0, 1000, 100, 0]);
    }
}
