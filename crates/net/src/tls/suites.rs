//! Protocol versions and cipher suites, by OpenSSL's names.
//!
//! Supported are OpenSSL's suites with forward secrecy and authenticated encryption. A list without any of them is
//! refused; other names in it are ignored, as OpenSSL ignores unknown names.

use super::error::TlsError;
use super::settings::Settings;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{self, cipher_suite as suite};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};

/// A cipher suite of TLS 1.2, with OpenSSL's name and the words that match it.
struct Known {
    name: &'static str,
    suite: SupportedCipherSuite,
    words: &'static [&'static str],
    bits: u32,
}

/// In the order of preference.
const TLS12: [Known; 6] = [
    Known {
        name: "ECDHE-ECDSA-AES256-GCM-SHA384",
        suite: suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        words: &["aECDSA", "ECDSA", "AES", "AES256", "AESGCM", "SUITEB192"],
        bits: 256,
    },
    Known {
        name: "ECDHE-RSA-AES256-GCM-SHA384",
        suite: suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        words: &["aRSA", "AES", "AES256", "AESGCM"],
        bits: 256,
    },
    Known {
        name: "ECDHE-ECDSA-CHACHA20-POLY1305",
        suite: suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        words: &["aECDSA", "ECDSA", "CHACHA20"],
        bits: 256,
    },
    Known {
        name: "ECDHE-RSA-CHACHA20-POLY1305",
        suite: suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        words: &["aRSA", "CHACHA20"],
        bits: 256,
    },
    Known {
        name: "ECDHE-ECDSA-AES128-GCM-SHA256",
        suite: suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        words: &["aECDSA", "ECDSA", "AES", "AES128", "AESGCM", "SUITEB128"],
        bits: 128,
    },
    Known {
        name: "ECDHE-RSA-AES128-GCM-SHA256",
        suite: suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        words: &["aRSA", "AES", "AES128", "AESGCM"],
        bits: 128,
    },
];

/// Words that match all suites.
const ALL: [&str; 9] = ["ALL", "DEFAULT", "HIGH", "TLSv1.2", "ECDHE", "EECDH", "kECDHE", "kEECDH", "FIPS"];

/// Cipher suites of TLS 1.3, in the order of preference.
const TLS13: [(&str, SupportedCipherSuite); 3] = [
    ("TLS_AES_256_GCM_SHA384", suite::TLS13_AES_256_GCM_SHA384),
    ("TLS_CHACHA20_POLY1305_SHA256", suite::TLS13_CHACHA20_POLY1305_SHA256),
    ("TLS_AES_128_GCM_SHA256", suite::TLS13_AES_128_GCM_SHA256),
];

/// The cryptography provider with the cipher suites that `settings` allow.
pub fn provider(settings: &Settings) -> Result<CryptoProvider, TlsError> {
    let tls13 = match &settings.ciphersuites {
        None => TLS13.iter().map(|(_, suite)| *suite).collect(),
        Some(list) => ciphersuites(&list.to_string())?,
    };
    let tls12 = match &settings.ciphers {
        None => TLS12.iter().map(|known| known.suite).collect(),
        Some(list) => ciphers(&list.to_string())?,
    };
    Ok(CryptoProvider { cipher_suites: [tls13, tls12].concat(), ..ring::default_provider() })
}

/// The protocol versions that `settings` allow. Versions before TLS 1.2 are recognised, but not supported.
pub fn versions(settings: &Settings) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
    let Some(list) = &settings.protocols else { return Ok(vec![&version::TLS13, &version::TLS12]) };
    let list = list.to_string();
    let mut versions = Vec::new();
    for word in list.split(' ') {
        match word.to_ascii_lowercase().as_str() {
            "tlsv1" | "tlsv1.1" => kvick_runtime::logging::warning(format_args!(
                "Ignoring '{word}' in tls-protocols: Kvick supports only TLSv1.2 and TLSv1.3."
            )),
            "tlsv1.2" => versions.push(&version::TLS12),
            "tlsv1.3" => versions.push(&version::TLS13),
            _ => {
                return Err(TlsError::new(
                    "Invalid tls-protocols specified. Use a combination of 'TLSv1', 'TLSv1.1', 'TLSv1.2' and \
                     'TLSv1.3'.",
                ));
            }
        }
    }
    if versions.is_empty() {
        return Err(TlsError::new(format!("tls-protocols names neither TLSv1.2 nor TLSv1.3: {list}")));
    }
    Ok(versions)
}

fn ciphersuites(list: &str) -> Result<Vec<SupportedCipherSuite>, TlsError> {
    let mut chosen = Vec::new();
    for name in list.split(':') {
        let known = TLS13.iter().find(|(known, _)| *known == name).map(|(_, suite)| *suite);
        chosen.extend(known.filter(|suite| !chosen.contains(suite)));
    }
    if chosen.is_empty() {
        return Err(TlsError::new(format!("Failed to configure ciphersuites: {list}: none of them is there")));
    }
    Ok(chosen)
}

/// Parses a list of `ciphers(1)`: names and words, joined by `+` if all must match. An operator may precede them: `!`
/// removes suites permanently, `-` removes them, `+` moves them to the end; without an operator they are added.
fn ciphers(list: &str) -> Result<Vec<SupportedCipherSuite>, TlsError> {
    let mut chosen: Vec<&Known> = Vec::new();
    let mut banned = [false; TLS12.len()];
    for item in list.split([':', ',', ';', ' ']).filter(|item| !item.is_empty()) {
        if item == "@STRENGTH" {
            chosen.sort_by_key(|known| std::cmp::Reverse(known.bits));
            continue;
        }
        let (operator, words) = match item.as_bytes()[0] {
            operator @ (b'!' | b'-' | b'+') => (operator, &item[1..]),
            _ => (b' ', item),
        };
        let meant = |known: &Known| words.split('+').all(|word| known.answers_to(word));
        match operator {
            b'+' => chosen.sort_by_key(|known| meant(known)),
            b'!' | b'-' => {
                chosen.retain(|known| !meant(known));
                let bans = TLS12.iter().map(|known| operator == b'!' && meant(known));
                banned.iter_mut().zip(bans).for_each(|(banned, more)| *banned |= more);
            }
            _ => {
                for (known, banned) in TLS12.iter().zip(&banned) {
                    let is_there = chosen.iter().any(|other| other.name == known.name);
                    if meant(known) && !banned && !is_there {
                        chosen.push(known);
                    }
                }
            }
        }
    }
    if chosen.is_empty() {
        return Err(TlsError::new(format!("Failed to configure ciphers: {list}: none of them is there")));
    }
    Ok(chosen.into_iter().map(|known| known.suite).collect())
}

impl Known {
    fn answers_to(&self, word: &str) -> bool {
        self.name == word
            || self.suite.suite().as_str() == Some(word)
            || ALL.contains(&word)
            || self.words.contains(&word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(list: &str) -> Vec<&'static str> {
        let suites = ciphers(list).unwrap_or_default();
        let name =
            |suite: &SupportedCipherSuite| TLS12.iter().find(|known| known.suite == *suite).map(|known| known.name);
        suites.iter().filter_map(name).collect()
    }

    #[test]
    fn names_set_the_order_and_unknown_ones_are_ignored() {
        let list = "AES128-SHA256:ECDHE-RSA-AES128-GCM-SHA256:TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384:NONSENSE";
        assert_eq!(chosen(list), ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"]);
        for nothing in ["AES128-SHA256", "NONSENSE", "-ALL", "ALL:-ALL", "!ALL:ALL", "RSA", "+ALL"] {
            assert_eq!(chosen(nothing), [""; 0], "{nothing}");
        }
    }

    #[test]
    fn operators_and_words_are_those_of_openssl() {
        assert_eq!(chosen("DEFAULT:!MEDIUM").len(), TLS12.len());
        assert_eq!(chosen("ECDHE+AESGCM+aRSA"), ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"]);
        let without = chosen("ALL:-AES128:!CHACHA20:CHACHA20");
        assert_eq!(without, ["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"]);
        assert_eq!(
            chosen("aRSA:+AES256"),
            ["ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"]
        );
        assert_eq!(
            chosen("AES128+aRSA:AES256+aRSA @STRENGTH @SECLEVEL=1"),
            ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"]
        );
    }

    #[test]
    fn suites_of_tls_1_3_are_named_in_full() {
        let two = ciphersuites("TLS_AES_128_GCM_SHA256:TLS_AES_128_CCM_SHA256:TLS_AES_256_GCM_SHA384").expect("a list");
        assert_eq!(two, [suite::TLS13_AES_128_GCM_SHA256, suite::TLS13_AES_256_GCM_SHA384]);
        assert!(ciphersuites("TLS_AES_128").is_err());
        assert!(ciphersuites("").is_err());
    }
}
