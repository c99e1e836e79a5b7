//! Loops over plain bytes, compiled twice: once for any processor, once for the wide registers of newer ones.
//!
//! A release for x86-64 may only use what every such processor has, which is a quarter of the vector width that most
//! of them offer. [`widened!`] wraps a function of safe, vectorisable code and compiles its body a second time with
//! AVX2 allowed; the choice is made at run time, by one relaxed load and a cached processor query per call, so it pays
//! for loops over some hundred bytes and more.
//!
//! Invariant: the second compilation is only called behind [`enabled`], which asks the processor for every feature
//! that the compilation allows. That call is the only unsafe code here.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the wide code may be chosen. It only exists to compare both kinds; results never differ.
static ALLOWED: AtomicBool = AtomicBool::new(true);

/// Allows or forbids the wide code, for the whole process.
pub fn allow(allowed: bool) {
    ALLOWED.store(allowed, Ordering::Relaxed);
}

/// True when the processor has what the wide code needs and nobody has forbidden it.
#[inline]
pub fn enabled() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        ALLOWED.load(Ordering::Relaxed) && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Defines a function whose body exists twice, see the module's description.
macro_rules! widened {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $kind),*) $(-> $result)? {
            #[inline(always)]
            fn portable($($arg: $kind),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,popcnt")]
                fn wide($($arg: $kind),*) $(-> $result)? {
                    portable($($arg),*)
                }
                if $crate::wide::enabled() {
                    // SAFETY: `enabled` has just found every feature that `wide` is compiled for.
                    return unsafe { wide($($arg),*) };
                }
            }
            portable($($arg),*)
        }
    };
}
pub(crate) use widened;
