//! How ready the kernel is to kill this process when memory runs out: `oom-score-adj` and its values.

use kvick_config::tables::process::{OOM_SCORE_ADJ, OOM_SCORE_ADJ_VALUES};
use kvick_config::tables::replication::REPLICAOF;
use kvick_config::words::OomScoreAdj;
use kvick_config::{Refusal, Values};
use kvick_runtime::logging;
use parking_lot::Mutex;
use std::fs;

/// Where the kernel keeps the score of the process.
const FILE: &str = "/proc/self/oom_score_adj";
/// The scores that the kernel takes.
const SCORE_MIN: i32 = -1000;
const SCORE_MAX: i32 = 1000;

/// The score that the process had when it was first adjusted, while it is.
static ORIGINAL: Mutex<Option<i32>> = Mutex::new(None);

/// Brings the score in line with the settings; back to what it was, if they say no more that it be adjusted.
pub fn apply(values: &Values) -> Result<(), Refusal> {
    let mut original = ORIGINAL.lock();
    let adjusted = adjust(values, &mut original);
    adjusted.map_err(|error| {
        logging::warning(format_args!("Unable to adjust {FILE}: {}", Refusal::from(error)));
        Refusal::new("Failed to set current oom_score_adj. Check server logs.")
    })
}

fn adjust(values: &Values, original: &mut Option<i32>) -> std::io::Result<()> {
    let mode = values.read(OOM_SCORE_ADJ);
    let score = match (mode, *original) {
        (OomScoreAdj::No, None) => return Ok(()),
        (OomScoreAdj::No, Some(before)) => {
            *original = None;
            before
        }
        (_, known) => {
            let before = match known {
                Some(before) => before,
                None => fs::read_to_string(FILE)?.trim().parse().unwrap_or(0),
            };
            *original = Some(before);
            let role = usize::from(values.read(REPLICAOF).is_some());
            let value = i32::from(values.read(OOM_SCORE_ADJ_VALUES).0[role]);
            let from = if mode == OomScoreAdj::Relative { before } else { 0 };
            (from + value).clamp(SCORE_MIN, SCORE_MAX)
        }
    };
    fs::write(FILE, format!("{score}\n"))
}
