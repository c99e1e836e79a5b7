//! The software watchdog (`watchdog-period`): tells the log which worker did not come round for so long.
//!
//! A worker comes round its loop several times in a second even if it has nothing to do. While the watchdog is on, a
//! thread looks whether each of them does, and when one does not, has the log tell so, with the server's state. It
//! tells of each time once. A worker that runs a script and [attends](kvick_engine::worker) to others meanwhile does
//! come round.

use crate::crash;
use crate::server::Server;
use kvick_config::Values;
use kvick_config::tables::process::{HZ, WATCHDOG_PERIOD};
use kvick_runtime::affinity::{self, Role};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::time::{Duration, Instant};

/// See the module's documentation.
#[derive(Default)]
pub struct Watchdog {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Zero for never.
    period: Duration,
    has_thread: bool,
}

/// What is known of a worker.
struct Seen {
    turns: u64,
    at: Instant,
    is_told: bool,
}

impl Watchdog {
    /// Takes over the settings; for the start and for CONFIG SET.
    ///
    /// # Errors
    ///
    /// If there can be no thread.
    pub fn configure(&'static self, server: &'static Server, values: &Values) -> io::Result<()> {
        let mut state = self.state.lock();
        state.period = match values.read(WATCHDOG_PERIOD) {
            0 => Duration::ZERO,
            // Who has nothing to do comes round once in a tick.
            ms => Duration::from_millis(ms.into()).max(Duration::from_secs(2) / values.read(HZ).clamp(1, 500)),
        };
        self.changed.notify_all();
        if !state.period.is_zero() && !state.has_thread {
            std::thread::Builder::new().name("watchdog".into()).spawn(move || self.watch(server))?;
            state.has_thread = true;
        }
        Ok(())
    }

    /// Watches until the period is zero.
    fn watch(&self, server: &Server) {
        kvick_runtime::memory::register_thread();
        affinity::set(Role::Background);
        let now = Instant::now();
        let turns = |worker: usize| server.stats[worker].turns.get();
        let mut seen: Vec<Seen> =
            (0..server.workers()).map(|worker| Seen { turns: turns(worker), at: now, is_told: false }).collect();
        let mut state = self.state.lock();
        while !state.period.is_zero() {
            let period = state.period;
            let look_every = period / 4;
            self.changed.wait_for(&mut state, look_every);
            if server.is_ending() {
                continue;
            }
            for (worker, seen) in seen.iter_mut().enumerate() {
                let turns = turns(worker);
                if turns != seen.turns {
                    *seen = Seen { turns, at: Instant::now(), is_told: false };
                } else if seen.at.elapsed() >= period && !std::mem::replace(&mut seen.is_told, true) {
                    let ms = seen.at.elapsed().as_millis();
                    crash::tell_state(&format!(
                        "--- WATCHDOG TIMER EXPIRED ---\nworker-{worker} has not come round for {ms} ms"
                    ));
                }
            }
        }
        state.has_thread = false;
    }
}
