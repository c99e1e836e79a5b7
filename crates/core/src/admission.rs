//! The admission word: why commands may not run now, and the rights epoch, in one atomic word.
//!
//! The dispatcher compares one word per request and tests the reasons one by one only if one of them is set. The rights
//! epoch changes whenever the rights of users change. Unrestricted clients cache the word under which every command is
//! admitted, so one comparison admits most requests.

use kvick_runtime::clock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

bitflags::bitflags! {
    /// Why commands may have to wait or be refused.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Reasons: u32 {
        /// The data set is not loaded.
        const LOADING = 1 << 0;
        /// The last save failed.
        const SAVE_FAILED = 1 << 1;
        /// Shutdown has saved the data set for the last time; later changes would be lost.
        const SHUTTING_DOWN = 1 << 2;
        /// A memory limit is set: commands may have to evict first.
        const LIMITED = 1 << 3;
        /// The server is a replica.
        const REPLICA = 1 << 4;
        /// Fewer replicas than `min-replicas-to-write` are healthy.
        const FEW_REPLICAS = 1 << 5;
        /// The last write to the append-only file failed.
        const AOF_WRITE_FAILED = 1 << 6;
        /// A monitor is connected and sees every command. Refuses nothing except some commands of the monitors
        /// themselves.
        const MONITORED = 1 << 7;
        /// A script has been running for longer than `busy-reply-threshold`.
        const BUSY = 1 << 8;
        /// A dump is being loaded into the staging database; the current data set is served meanwhile.
        const ASYNC_LOADING = 1 << 9;
    }
}

impl Reasons {
    /// These reasons as bits of the admission word.
    #[inline]
    pub const fn word(self) -> u64 {
        self.bits() as u64
    }
}

/// The rights epoch occupies the bits above the reasons.
const EPOCH_SHIFT: u32 = 32;

/// See the module's documentation. The struct has cache lines of its own, so that only changes of the word invalidate
/// them.
#[derive(Default)]
#[repr(align(128))]
pub struct Admission {
    word: AtomicU64,
    /// When the data set was last marked as not loaded, Unix time in ms.
    loading_since_ms: AtomicI64,
}

impl Admission {
    /// Reasons and rights epoch in one word.
    #[inline]
    pub fn word(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// The word in this rights epoch when no reason is set.
    pub fn open_word(rights: u32) -> u64 {
        u64::from(rights) << EPOCH_SHIFT
    }

    /// The rights epoch. A user read after this call is at least as new as the epoch.
    #[inline]
    pub fn rights(&self) -> u32 {
        (self.word.load(Ordering::Acquire) >> EPOCH_SHIFT) as u32
    }

    /// Starts a new rights epoch.
    pub fn renew_rights(&self) {
        // The epoch wraps around after the largest number.
        self.word.fetch_add(1 << EPOCH_SHIFT, Ordering::Release);
    }

    /// Whether any of these reasons is set.
    #[inline]
    pub fn has(&self, reasons: Reasons) -> bool {
        self.word.load(Ordering::Acquire) & u64::from(reasons.bits()) != 0
    }

    /// When the data set was last marked as not loaded, Unix time in ms.
    pub fn loading_since_ms(&self) -> i64 {
        self.loading_since_ms.load(Ordering::Relaxed)
    }

    /// Sets or clears these reasons.
    pub fn set(&self, reasons: Reasons, on: bool) {
        if on {
            if reasons.contains(Reasons::LOADING) {
                self.loading_since_ms.store(clock::unix_ms(), Ordering::Relaxed);
            }
            self.word.fetch_or(reasons.bits().into(), Ordering::Release);
        } else {
            self.word.fetch_and(!u64::from(reasons.bits()), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_is_open_if_no_reason_is_set() {
        let admission = Admission::default();
        let is_open = || admission.word() == Admission::open_word(admission.rights());
        assert!(is_open());
        admission.set(Reasons::LOADING, true);
        admission.set(Reasons::SAVE_FAILED, true);
        admission.set(Reasons::LOADING, false);
        assert!(!is_open() && admission.has(Reasons::SAVE_FAILED) && !admission.has(Reasons::LOADING));
        admission.set(Reasons::SAVE_FAILED, false);
        assert!(is_open());
    }

    #[test]
    fn rights_epoch_and_reasons_are_independent() {
        let admission = Admission { word: AtomicU64::new(Admission::open_word(u32::MAX)), ..Admission::default() };
        admission.set(Reasons::SHUTTING_DOWN, true);
        admission.renew_rights();
        assert_eq!(
            (admission.rights(), admission.has(Reasons::SHUTTING_DOWN), admission.has(Reasons::LOADING)),
            (0, true, false)
        );
        admission.renew_rights();
        admission.set(Reasons::SHUTTING_DOWN, false);
        assert_eq!(admission.word(), Admission::open_word(1));
    }
}
