//! The section on the detection of hot keys.

use super::Context;
use super::page::Page;
use crate::commands::hot_keys::last_window;
use kvick_metrics::fields;

/// The last completed window.
pub struct Facts {
    samples: u64,
    duration_ms: u64,
}

fields! {
    /// All fields of the section.
    pub static FIELDS: Facts;
    hotkeys_last_window_samples: gauge kvick_hot_keys_window_samples
        "Sampled accesses in the last window of the detection of hot keys; 0 if it is disabled."
        = |facts| facts.samples;
    hotkeys_last_window_duration_ms: info = |facts| facts.duration_ms;
}

impl Facts {
    /// Collects them.
    pub fn of(context: &Context) -> Facts {
        let report = last_window(context.server);
        report.map_or(Facts { samples: 0, duration_ms: 0 }, |report| Facts {
            samples: report.samples,
            duration_ms: report.duration.as_millis() as u64,
        })
    }
}

/// Writes the section.
pub fn write(context: &Context, page: &mut Page) {
    page.section("Hotkeys");
    page.write(FIELDS, &Facts::of(context));
}
