//! Save points: background saves that start automatically.

use super::status::Status;
use super::{background, changes, now_s};
use crate::DurableCore;
use kvick_config::shapes::SavePoint;
use kvick_config::tables::persistence::SAVE;
use kvick_core::admission::Reasons;
use kvick_runtime::logging;

/// Seconds between a failed save and the next attempt.
const RETRY_S: i64 = 5;

/// Starts a save if one is due. A worker calls this periodically, outside of a batch.
pub fn tick(core: &'static DurableCore) {
    if core.admission.has(Reasons::LOADING | Reasons::SHUTTING_DOWN) {
        return;
    }
    let (status, now_s) = (core.persistence.status(), now_s());
    if status.running.is_some() || !may_try(&status, now_s) {
        return;
    }
    let unsaved = changes(core).saturating_sub(status.changes_saved);
    let points = core.config.read(SAVE);
    let due = points.points().iter().find(|point| is_due(point, &status, unsaved, now_s));
    if let Some(SavePoint { seconds, changes }) = due {
        logging::notice(format_args!("{changes} changes in {seconds} seconds. Saving..."));
    }
    if due.is_some() || status.scheduled {
        let mut global = core.keyspace.lock_global();
        if !core.admission.has(Reasons::LOADING) {
            // Another thread may have started one in the meantime, which is fine.
            let _ = background::begin(core, &mut global);
        }
    }
}

fn may_try(status: &Status, now_s: i64) -> bool {
    status.last_ok || now_s - status.last_try_s > RETRY_S
}

fn is_due(point: &SavePoint, status: &Status, unsaved: u64, now_s: i64) -> bool {
    unsaved >= u64::from(point.changes) && now_s - status.last_save_s > point.seconds as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn save_point_is_due_if_time_and_changes_are_reached() {
        let status = Status { last_save_s: 100, ..Status::default() };
        let point = SavePoint { seconds: 10, changes: 3 };
        assert!(is_due(&point, &status, 3, 111));
        assert!(!is_due(&point, &status, 2, 111));
        assert!(!is_due(&point, &status, 3, 110));
    }

    #[test]
    fn failed_save_is_retried_after_a_delay() {
        let mut status = Status { last_try_s: 100, ..Status::default() };
        assert!(may_try(&status, 101));
        status.last_ok = false;
        assert!(!may_try(&status, 105));
        assert!(may_try(&status, 106));
    }
}
