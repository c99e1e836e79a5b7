//! Slowness that tests ask for: `rdb-key-save-delay` and `key-load-delay`.

use std::time::{Duration, Instant};

/// So often it is looked whether to go on waiting.
const SLICE: Duration = Duration::from_millis(5);
/// Shorter delays are saved up, since no sleep is that short.
const DUE: Duration = Duration::from_micros(200);

/// Delays that were earned key by key. A setting above zero is microseconds for each key; one below zero, the number of
/// keys for each microsecond.
#[derive(Default)]
pub struct Delay {
    owed_ns: u64,
}

impl Delay {
    /// `keys` more keys were dealt with; waits when enough has come together, until `setting` is 0 or `give_up` says so.
    pub fn after(&mut self, keys: u64, setting: impl Fn() -> i32, give_up: impl Fn() -> bool) {
        let of_each = |setting: i32| match setting {
            0 => 0,
            us if us > 0 => us as u64 * 1000,
            keys => 1000 / u64::from(keys.unsigned_abs()),
        };
        self.owed_ns = self.owed_ns.saturating_add(keys.saturating_mul(of_each(setting())));
        if Duration::from_nanos(self.owed_ns) < DUE {
            return;
        }
        let began = Instant::now();
        while setting() != 0 && !give_up() {
            let Some(left) = Duration::from_nanos(self.owed_ns).checked_sub(began.elapsed()) else { break };
            std::thread::sleep(left.min(SLICE));
        }
        self.owed_ns = 0;
    }
}
