//! Version and usage texts.

use kvick_runtime::version::{KVICK, VALKEY};

/// The commit of the build, in eight hexadecimal digits; zeros if unknown.
pub const GIT_SHA: &str = env!("KVICK_GIT_SHA");
/// "1" if the build had uncommitted changes, else "0".
pub const GIT_DIRTY: &str = env!("KVICK_GIT_DIRTY");
/// A hexadecimal ID of the build.
pub const BUILD_ID: &str = env!("KVICK_BUILD_ID");

/// The version in Valkey's form, `v=9.1.2 sha=... malloc=... bits=64 build=...`, with Kvick's own version behind it.
pub fn line() -> String {
    let bits = usize::BITS;
    let malloc = allocator();
    format!("v={VALKEY} sha={GIT_SHA}:{GIT_DIRTY} malloc={malloc} bits={bits} build={BUILD_ID} kvick={KVICK}")
}

/// The allocator and its version, such as `jemalloc-5.3.1`.
pub fn allocator() -> String {
    let version = tikv_jemalloc_ctl::version::read().unwrap_or_default();
    format!("jemalloc-{}", version.split('-').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_has_the_format_that_tools_expect() {
        let line = line();
        let field = |name: &str| {
            let found = line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("no {name} in {line}")).to_owned()
        };
        assert!(line.starts_with("v=9.1."));
        assert_eq!(field("kvick"), KVICK);
        assert_eq!(field("bits"), "64");
        assert!(field("malloc").starts_with("jemalloc-5."), "{line}");
        let (sha, dirty) = field("sha").split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        assert!(sha.len() >= 8 && sha.bytes().all(|byte| byte.is_ascii_hexdigit()) && ["0", "1"].contains(&&*dirty));
        assert!(u64::from_str_radix(&field("build"), 16).is_ok());
    }
}
