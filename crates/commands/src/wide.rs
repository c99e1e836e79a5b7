//! Loops over plain bytes, compiled twice: for every CPU, and for the wide registers of newer CPUs.
//!
//! A release for x86-64 may use only the features that every such CPU has, which is a quarter of the vector width of
//! most CPUs. [`widened!`] wraps a function of safe, vectorizable code and compiles its body a second time with AVX2
//! enabled. The choice is made at run time by one relaxed load and a cached CPU feature query per call, so it pays for
//! loops over at least some hundred bytes.
//!
//! Invariant: the second version is called only after [`enabled`] has checked that the CPU has every feature that it is
//! compiled for. That call is the only unsafe code here.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the wide version may be used. Only tests and benchmarks turn it off, to compare both versions; results never
/// differ.
static ALLOWED: AtomicBool = AtomicBool::new(true);

/// Allows or forbids the wide version for the whole process.
pub fn allow(allowed: bool) {
    ALLOWED.store(allowed, Ordering::Relaxed);
}

/// Whether the CPU supports the wide version and it is allowed.
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

/// Defines a function whose body is compiled twice, see the module's documentation.
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
                    // SAFETY: `enabled` has just checked every feature that `wide` is compiled for.
                    return unsafe { wide($($arg),*) };
                }
            }
            portable($($arg),*)
        }
    };
}
pub(crate) use widened;
