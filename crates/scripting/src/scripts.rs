//! The registry of scripts, by SHA1 sum.
//!
//! Scripts of EVAL are evicted in LRU order when there are too many. Scripts of SCRIPT LOAD stay until SCRIPT FLUSH.

use kvick_script::ScriptFlags;
use kvick_store::defrag::Mover;
use sha1::{Digest, Sha1};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// A registered script.
pub struct Script {
    /// Its sum.
    pub sum: Sum,
    /// Its text.
    pub text: Box<[u8]>,
    /// The flags declared in its first line, if any.
    pub flags: Option<ScriptFlags>,
    used: AtomicU64,
}

/// The registry of scripts; see the module's documentation.
#[derive(Default)]
pub struct Scripts {
    by_sum: HashMap<Sum, Arc<Script>>,
    /// Number of scripts that may be evicted.
    evictable: usize,
    /// Counter of uses, as an LRU clock.
    uses: u64,
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
        self.by_sum.get(sum).cloned()
    }

    /// Finds a script that is about to run, and updates its last use.
    pub fn get_to_run(&mut self, sum: &Sum) -> Option<Arc<Script>> {
        let script = self.by_sum.get(sum)?;
        self.uses += 1;
        if script.used.load(Ordering::Relaxed) != NEVER_EVICTED {
            script.used.store(self.uses, Ordering::Relaxed);
        }
        Some(script.clone())
    }

    /// Exempts a script from eviction. Returns false if it is not registered.
    pub fn make_permanent(&mut self, sum: &Sum) -> bool {
        let Some(script) = self.by_sum.get(sum) else { return false };
        if script.used.swap(NEVER_EVICTED, Ordering::Relaxed) != NEVER_EVICTED {
            self.evictable -= 1;
        }
        true
    }

    /// Registers a new script. Returns it with the script evicted to make room.
    pub fn add(
        &mut self,
        sum: Sum,
        text: &[u8],
        flags: Option<ScriptFlags>,
        is_permanent: bool,
    ) -> (Arc<Script>, Option<Arc<Script>>) {
        let removed = (!is_permanent && self.evictable >= EVICTABLE_MAX).then(|| self.evict_oldest()).flatten();
        self.uses += 1;
        let used = AtomicU64::new(if is_permanent { NEVER_EVICTED } else { self.uses });
        self.evictable += usize::from(!is_permanent);
        self.bytes += text.len();
        let script = Arc::new(Script { sum, text: text.into(), flags, used });
        self.by_sum.insert(sum, script.clone());
        (script, removed)
    }

    fn evict_oldest(&mut self) -> Option<Arc<Script>> {
        let used = |script: &Arc<Script>| script.used.load(Ordering::Relaxed);
        let oldest =
            self.by_sum.values().filter(|script| used(script) != NEVER_EVICTED).min_by_key(|script| used(script))?;
        let sum = oldest.sum;
        let script = self.by_sum.remove(&sum)?;
        self.evictable -= 1;
        self.bytes -= script.text.len();
        self.evicted += 1;
        Some(script)
    }

    /// Offers the texts, from table index `from` on, to a mover until its limit is reached. Returns the index at which
    /// to continue. Skips running scripts; scripts may also be missed if others are added meanwhile.
    pub fn relocate(&mut self, from: usize, mover: &mut Mover<'_>) -> Option<usize> {
        for (number, script) in self.by_sum.values_mut().enumerate().skip(from) {
            if mover.is_due() {
                return Some(number);
            }
            if let Some(script) = Arc::get_mut(script) {
                mover.offer_bytes(&mut script.text);
            }
        }
        None
    }

    /// Removes and returns all scripts.
    pub fn clear(&mut self) -> Vec<Arc<Script>> {
        (self.evictable, self.bytes) = (0, 0);
        self.by_sum.drain().map(|(_, script)| script).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        scripts.add(Sum::of(&text(number)), &text(number), None, is_permanent).1
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
        assert_eq!(&*removed.text, text(1));
        assert_eq!((scripts.len(), scripts.evicted), (EVICTABLE_MAX, 1));
        assert!(scripts.get(&Sum::of(&text(0))).is_some() && scripts.get(&Sum::of(&text(1))).is_none());
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
        let (running, mut from, mut moved) = (scripts.get(&Sum::of(&text(9))), Some(0), 0);
        while let Some(number) = from {
            let mut heap = MoveAll;
            let mut mover = Mover::new(&mut heap, 100, 0);
            from = scripts.relocate(number, &mut mover);
            moved += mover.moved() as usize;
        }
        drop(running);
        assert_eq!(moved, scripts.len() - 1, "all but one that runs");
        assert!(scripts.get(&Sum::of(&text(7))).is_some_and(|script| *script.text == text(7)));
        assert_eq!(scripts.clear().len(), 2 * EVICTABLE_MAX + 1);
        assert_eq!(scripts.memory(), 0);
    }
}
