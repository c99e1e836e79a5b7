//! The registry of scripts, by SHA1 sum.
//!
//! Scripts of EVAL are evicted in LRU order when there are too many. Scripts of SCRIPT LOAD stay until SCRIPT FLUSH.

use crate::conduct::Known;
use kvick_script::ScriptFlags;
use kvick_store::defrag::Mover;
use sha1::{Digest, Sha1};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of EVAL scripts kept.
const EVICTABLE_MAX: usize = 500;
/// Last use of a script that is never evicted.
const NEVER_EVICTED: u64 = u64::MAX;

/// A script's SHA1 sum, as forty lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sum([u8; 40]);

impl Sum {
    /// Computes the sum of a script.
    pub fn of(script: &[u8]) -> Sum {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 40];
        for (two, byte) in text.chunks_exact_mut(2).zip(Sha1::digest(script)) {
            two.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        Sum(text)
    }

    /// Parses a client's sum, in upper or lower case; `None` if its length is wrong. The digits are not validated.
    pub fn read(word: &[u8]) -> Option<Sum> {
        <[u8; 40]>::try_from(word).ok().map(|text| Sum(text.map(|byte| byte.to_ascii_lowercase())))
    }

    /// Its digits; a client's sum may contain other characters.
    pub fn digits(&self) -> &[u8; 40] {
        &self.0
    }
}

/// The most recent EVAL script and its sum: clients tend to repeat a script.
#[derive(Default)]
pub struct RecentSum(Option<(Box<[u8]>, Sum)>);

impl RecentSum {
    /// Maximum length of a remembered script in bytes.
    const LEN_MAX: usize = 4096;

    /// Computes the sum of a script.
    pub fn of(&mut self, script: &[u8]) -> Sum {
        if let Some((known, sum)) = &self.0
            && known.as_ref() == script
        {
            return *sum;
        }
        let sum = Sum::of(script);
        if script.len() <= Self::LEN_MAX {
            self.0 = Some((script.into(), sum));
        }
        sum
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// A script. Workers keep it, and must check whether it is still [registered](Script::is_registered).
pub struct Script {
    /// Its sum.
    pub sum: Sum,
    /// The flags declared in its first line, if any.
    pub flags: Option<ScriptFlags>,
    /// What is known about the keys it accesses.
    pub known: Known,
    /// Its last use, by the counter of uses.
    used: AtomicU64,
    uses: Arc<AtomicU64>,
    registered: AtomicBool,
}

/// A script is not marked as used if it is among so many that were used last. So workers that run the same few scripts
/// do not write to shared memory.
const RECENT_USES: u64 = 16;

impl Script {
    /// Whether the registry contains it.
    #[inline]
    pub fn is_registered(&self) -> bool {
        self.registered.load(Ordering::Relaxed)
    }

    /// Updates its last use, unless it was used a moment ago.
    #[inline]
    pub fn note_use(&self) {
        let (used, uses) = (self.used.load(Ordering::Relaxed), self.uses.load(Ordering::Relaxed));
        if used.saturating_add(RECENT_USES) < uses {
            self.mark_used();
        }
    }

    fn mark_used(&self) {
        let now = self.uses.fetch_add(1, Ordering::Relaxed) + 1;
        // It may have been exempted from eviction meanwhile.
        let _ =
            self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| (used != NEVER_EVICTED).then_some(now));
    }
}

/// A registered script with its text.
struct Entry {
    script: Arc<Script>,
    text: Box<[u8]>,
}

/// A script that is to be registered.
pub struct NewScript<'a> {
    /// Its sum.
    pub sum: Sum,
    /// Its text.
    pub text: &'a [u8],
    /// The flags declared in its first line, if any.
    pub flags: Option<ScriptFlags>,
    /// What is known about the keys it accesses.
    pub known: Known,
    /// Whether it is exempt from eviction.
    pub is_permanent: bool,
}

/// The registry of scripts; see the module's documentation.
#[derive(Default)]
pub struct Scripts {
    by_sum: HashMap<Sum, Entry>,
    /// Number of scripts that may be evicted.
    evictable: usize,
    /// Counter of uses, as an LRU clock.
    uses: Arc<AtomicU64>,
    /// Total length of their texts in bytes.
    bytes: usize,
    /// Scripts evicted since statistics were reset.
    pub evicted: u64,
}

impl Scripts {
    /// Number of scripts.
    pub fn len(&self) -> usize {
        self.by_sum.len()
    }

    /// True when there are no scripts.
    pub fn is_empty(&self) -> bool {
        self.by_sum.is_empty()
    }

    /// Approximate memory in bytes.
    pub fn memory(&self) -> usize {
        self.bytes + self.len() * (size_of::<Script>() + size_of::<Sum>() + 2 * size_of::<usize>())
    }

    /// Finds a script.
    pub fn get(&self, sum: &Sum) -> Option<Arc<Script>> {
        self.by_sum.get(sum).map(|entry| entry.script.clone())
    }

    /// The text of a script.
    pub fn text(&self, sum: &Sum) -> Option<&[u8]> {
        self.by_sum.get(sum).map(|entry| &*entry.text)
    }

    /// Finds a script that is about to run, and updates its last use.
    pub fn get_to_run(&mut self, sum: &Sum) -> Option<Arc<Script>> {
        let script = self.get(sum)?;
        script.note_use();
        Some(script)
    }

    /// Exempts a script from eviction. Returns false if it is not registered.
    pub fn make_permanent(&mut self, sum: &Sum) -> bool {
        let Some(Entry { script, .. }) = self.by_sum.get(sum) else { return false };
        if script.used.swap(NEVER_EVICTED, Ordering::Relaxed) != NEVER_EVICTED {
            self.evictable -= 1;
        }
        true
    }

    /// Registers a new script. Returns it with the script evicted to make room.
    pub fn add(&mut self, new: NewScript<'_>) -> (Arc<Script>, Option<Arc<Script>>) {
        let NewScript { sum, text, flags, known, is_permanent } = new;
        let removed = (!is_permanent && self.evictable >= EVICTABLE_MAX).then(|| self.evict_oldest()).flatten();
        let now = self.uses.fetch_add(1, Ordering::Relaxed) + 1;
        let used = AtomicU64::new(if is_permanent { NEVER_EVICTED } else { now });
        self.evictable += usize::from(!is_permanent);
        self.bytes += text.len();
        let (uses, registered) = (self.uses.clone(), AtomicBool::new(true));
        let script = Arc::new(Script { sum, flags, known, used, uses, registered });
        self.by_sum.insert(sum, Entry { script: script.clone(), text: text.into() });
        (script, removed)
    }

    fn evict_oldest(&mut self) -> Option<Arc<Script>> {
        let used = |script: &Arc<Script>| script.used.load(Ordering::Relaxed);
        let scripts = self.by_sum.values().map(|entry| &entry.script);
        let oldest = scripts.filter(|script| used(script) != NEVER_EVICTED).min_by_key(|script| used(script))?;
        let sum = oldest.sum;
        let Entry { script, text } = self.by_sum.remove(&sum)?;
        script.registered.store(false, Ordering::Relaxed);
        self.evictable -= 1;
        self.bytes -= text.len();
        self.evicted += 1;
        Some(script)
    }

    /// Offers the texts, from table index `from` on, to a mover until its limit is reached. Returns the index at which
    /// to continue. Skips running scripts; scripts may also be missed if others are added meanwhile.
    pub fn relocate(&mut self, from: usize, mover: &mut Mover<'_>) -> Option<usize> {
        for (number, entry) in self.by_sum.values_mut().enumerate().skip(from) {
            if mover.is_due() {
                return Some(number);
            }
            mover.offer_bytes(&mut entry.text);
        }
        None
    }

    /// Removes all scripts and returns their texts.
    pub fn clear(&mut self) -> Vec<Box<[u8]>> {
        (self.evictable, self.bytes) = (0, 0);
        let removed = self.by_sum.drain().map(|(_, Entry { script, text })| {
            script.registered.store(false, Ordering::Relaxed);
            text
        });
        removed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conduct::Conduct;
    use kvick_store::defrag::Heap;
    use std::alloc::{Layout, alloc, dealloc};
    use std::ptr::NonNull;

    /// A heap that moves every allocation.
    struct MoveAll;

    // SAFETY: allocations are copied to a new allocation of the same layout.
    unsafe impl Heap for MoveAll {
        unsafe fn relocate(&mut self, allocation: NonNull<u8>, layout: Layout) -> NonNull<u8> {
            // SAFETY: the layout is not empty; the old allocation has this layout, as the caller promises, and is
            // freed.
            unsafe {
                let Some(now) = NonNull::new(alloc(layout)) else { return allocation };
                now.copy_from_nonoverlapping(allocation, layout.size());
                dealloc(allocation.as_ptr(), layout);
                now
            }
        }
    }

    fn text(number: usize) -> Vec<u8> {
        format!("return {number}").into_bytes()
    }

    fn add(scripts: &mut Scripts, number: usize, is_permanent: bool) -> Option<Arc<Script>> {
        let (sum, text, known) = (Sum::of(&text(number)), &*text(number), Known::from(Conduct::Unknown));
        scripts.add(NewScript { sum, text, flags: None, known, is_permanent }).1
    }

    #[test]
    fn scripts_are_named_by_their_sha1() {
        assert_eq!(Sum::of(b"").digits(), b"da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert!(Sum::read(b"DA39A3EE5E6B4B0D3255BFEF95601890AFD80709") == Some(Sum::of(b"")));
        assert!(Sum::read(b"da39").is_none());
    }

    #[test]
    fn the_least_recently_used_script_is_evicted_first() {
        let mut scripts = Scripts::default();
        for number in 0..EVICTABLE_MAX {
            assert!(add(&mut scripts, number, false).is_none());
        }
        assert!(scripts.get_to_run(&Sum::of(&text(0))).is_some());
        let removed = add(&mut scripts, EVICTABLE_MAX, false).expect("there were too many");
        assert!(removed.sum == Sum::of(&text(1)) && !removed.is_registered());
        assert_eq!((scripts.len(), scripts.evicted), (EVICTABLE_MAX, 1));
        assert!(scripts.get(&Sum::of(&text(0))).is_some() && scripts.get(&Sum::of(&text(1))).is_none());
    }

    #[test]
    fn a_script_in_use_is_kept() {
        let mut scripts = Scripts::default();
        for number in 0..EVICTABLE_MAX {
            add(&mut scripts, number, false);
        }
        let used = scripts.get(&Sum::of(&text(3))).expect("a script");
        for number in EVICTABLE_MAX..3 * EVICTABLE_MAX {
            used.note_use();
            add(&mut scripts, number, false);
        }
        assert!(used.is_registered() && scripts.get(&used.sum).is_some());
        scripts.clear();
        assert!(!used.is_registered());
    }

    #[test]
    fn scripts_from_script_load_are_not_evicted() {
        let mut scripts = Scripts::default();
        add(&mut scripts, 0, false);
        assert!(scripts.make_permanent(&Sum::of(&text(0))) && !scripts.make_permanent(&Sum::of(&text(1))));
        for number in 1..=EVICTABLE_MAX {
            add(&mut scripts, number, true);
            assert!(add(&mut scripts, 10_000 + number, false).is_none());
        }
        assert!(scripts.get(&Sum::of(&text(0))).is_some());
        let memory = scripts.memory();
        assert!(memory > 2 * EVICTABLE_MAX * 8);
        let (mut from, mut moved) = (Some(0), 0);
        while let Some(number) = from {
            let mut heap = MoveAll;
            let mut mover = Mover::new(&mut heap, 100, 0);
            from = scripts.relocate(number, &mut mover);
            moved += mover.moved() as usize;
        }
        assert_eq!(moved, scripts.len());
        assert_eq!(scripts.text(&Sum::of(&text(7))), Some(&*text(7)));
        assert_eq!(scripts.clear().len(), 2 * EVICTABLE_MAX + 1);
        assert_eq!(scripts.memory(), 0);
    }
}
