//! The software watchdog (`watchdog-period`): logs workers whose event loop has not completed a turn for that long.
//!
//! Even an idle worker completes several turns per second. While the watchdog is on, a thread checks this for each
//! worker, and logs a violation once, with the server's state. A worker that runs a script and
//! [serves](kvick_worker) other clients meanwhile counts as completing turns.

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
    /// Zero disables the watchdog.
    period: Duration,
    has_thread: bool,
}

/// The last observation of a worker.
struct Observation {
    turns: u64,
    at: Instant,
    is_reported: bool,
}

impl Watchdog {
    /// Applies the settings, at startup and for CONFIG SET.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn configure(&'static self, server: &'static Server, values: &Values) -> io::Result<()> {
        let mut state = self.state.lock();
        state.period = match values.read(WATCHDOG_PERIOD) {
            0 => Duration::ZERO,
            // An idle worker completes one turn per tick.
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
        let mut seen: Vec<Observation> = (0..server.workers_max())
            .map(|worker| Observation { turns: turns(worker), at: now, is_reported: false })
            .collect();
        let mut state = self.state.lock();
        while !state.period.is_zero() {
            let period = state.period;
            let interval = period / 4;
            self.changed.wait_for(&mut state, interval);
            if server.is_shutting_down() {
                continue;
            }
            for (worker, seen) in seen.iter_mut().enumerate() {
                let turns = turns(worker);
                if turns != seen.turns || worker >= server.active_workers() {
                    *seen = Observation { turns, at: Instant::now(), is_reported: false };
                } else if seen.at.elapsed() >= period && !std::mem::replace(&mut seen.is_reported, true) {
                    let ms = seen.at.elapsed().as_millis();
                    crash::log_state(&format!(
                        "--- WATCHDOG TIMER EXPIRED ---\nworker-{worker} has not come round for {ms} ms"
                    ));
                }
            }
        }
        state.has_thread = false;
    }
}
