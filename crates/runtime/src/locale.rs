//! Collation: the order of strings in a language.
//!
//! The locale is an object of its own: that of the process would change the behaviour of other libraries, and cannot be
//! replaced while threads compare strings.

use std::ffi::{CString, c_char};
use std::fmt;
use std::ptr::{self, NonNull};

/// The environment variables that name the locale, in their order of precedence.
const VARIABLES: [&str; 3] = ["LC_ALL", "LC_COLLATE", "LANG"];

// SAFETY: the signature is that of POSIX.
unsafe extern "C" {
    fn strxfrm_l(into: *mut c_char, text: *const c_char, size: usize, locale: libc::locale_t) -> usize;
}

/// A locale for comparisons.
pub struct Collation {
    locale: NonNull<libc::c_void>,
}

// SAFETY: a locale object does not change, and any thread may use it.
unsafe impl Send for Collation {}
// SAFETY: as above.
unsafe impl Sync for Collation {}

/// The system has no such locale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownLocale;

impl Collation {
    /// The collation of a locale, by default that of the environment; `None` if it is the order of bytes.
    pub fn of(name: &[u8]) -> Result<Option<Self>, UnknownLocale> {
        let from_environment = || VARIABLES.iter().filter_map(std::env::var_os).find(|value| !value.is_empty());
        let name = match name {
            b"" => from_environment().map(|value| value.into_encoded_bytes()).unwrap_or_default(),
            name => name.to_vec(),
        };
        if matches!(&*name, b"" | b"C" | b"POSIX") {
            return Ok(None);
        }
        let is_by_bytes = name.starts_with(b"C.");
        let name = CString::new(name).map_err(|_| UnknownLocale)?;
        // SAFETY: the name is a C string, and without a base a new object is made.
        let locale = unsafe { libc::newlocale(libc::LC_COLLATE_MASK, name.as_ptr(), ptr::null_mut()) };
        let collation = NonNull::new(locale.cast()).map(|locale| Collation { locale }).ok_or(UnknownLocale)?;
        Ok((!is_by_bytes).then_some(collation))
    }

    /// A key whose bytes are ordered as the locale orders the text. The text ends at its first NUL byte.
    pub fn sort_key(&self, text: &[u8]) -> Vec<u8> {
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let text = [&text[..end], &[0]].concat();
        let mut key = vec![0u8; 4 * text.len()];
        loop {
            // SAFETY: the text is zero-terminated, the key has this size, and the locale lives as long as `self`.
            let len = unsafe {
                strxfrm_l(key.as_mut_ptr().cast(), text.as_ptr().cast(), key.len(), self.locale.as_ptr().cast())
            };
            let is_complete = len < key.len();
            // The key is followed by a zero byte.
            key.resize(if is_complete { len } else { len + 1 }, 0);
            if is_complete {
                return key;
            }
        }
    }
}

impl Drop for Collation {
    fn drop(&mut self) {
        // SAFETY: this value owns the object, and nothing uses it after this.
        unsafe { libc::freelocale(self.locale.as_ptr().cast()) }
    }
}

impl fmt::Debug for Collation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collation")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_locales_need_no_keys() {
        for name in ["C", "POSIX"] {
            assert!(Collation::of(name.as_bytes()).expect("a locale").is_none());
        }
        for name in ["no_SUCH.locale", "C.nonsense", "a\0b"] {
            assert_eq!(Collation::of(name.as_bytes()).expect_err("no locale"), UnknownLocale);
        }
    }

    #[test]
    fn keys_of_any_length_are_complete() {
        // SAFETY: as in `of`.
        let locale = unsafe { libc::newlocale(libc::LC_COLLATE_MASK, c"C".as_ptr(), ptr::null_mut()) };
        let collation = Collation { locale: NonNull::new(locale.cast()).expect("a locale") };
        for text in [&b""[..], b"a", b"ab\0c", &[b'x'; 1_000]] {
            assert_eq!(collation.sort_key(text), text.split(|byte| *byte == 0).next().unwrap_or_default());
        }
    }
}
