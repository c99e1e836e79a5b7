//! Fields that the server reads from certificates itself: serial number and expiry, for INFO, and user names; and from
//! certificate revocation lists, for the log.

use std::time::SystemTime;
use x509_cert::Certificate;
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The attribute of a name that is its common name: id-at-commonName of X.520.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The fields of a certificate in INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its serial number in hexadecimal digits.
    pub serial: String,
    /// Expiry, as Unix time in seconds.
    pub expires: i64,
}

impl Summary {
    /// Parses a certificate in DER; `None` if it is invalid.
    pub fn of(der: &[u8]) -> Option<Self> {
        let certificate = Certificate::from_der(der).ok()?;
        let body = certificate.tbs_certificate();
        let digits: String = body.serial_number().as_bytes().iter().map(|byte| format!("{byte:02X}")).collect();
        // A leading zero byte only marks the number as positive.
        let serial = digits.strip_prefix("00").filter(|rest| !rest.is_empty()).unwrap_or(&digits).to_string();
        let expires = body.validity().not_after.to_unix_duration().as_secs();
        Some(Summary { serial, expires: i64::try_from(expires).unwrap_or(i64::MAX) })
    }

    /// The certificate that expires first.
    pub fn earliest<'a>(certificates: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        certificates.into_iter().filter_map(Summary::of).min_by_key(|summary| summary.expires)
    }
}

/// The common name of a certificate's subject, as raw bytes.
pub fn common_name(der: &[u8]) -> Option<Vec<u8>> {
    let certificate = Certificate::from_der(der).ok()?;
    let mut attributes = certificate.tbs_certificate().subject().iter();
    let name = attributes.find(|attribute| attribute.oid == COMMON_NAME)?.value.value().to_vec();
    (!name.is_empty()).then_some(name)
}

/// The URIs among the subject's alternative names, in order, without those that contain a zero byte.
pub fn uris(der: &[u8]) -> Vec<Vec<u8>> {
    let Ok(certificate) = Certificate::from_der(der) else { return Vec::new() };
    let Ok(Some((_, names))) = certificate.tbs_certificate().get_extension::<SubjectAltName>() else {
        return Vec::new();
    };
    let uris = names.0.into_iter().filter_map(|name| match name {
        GeneralName::UniformResourceIdentifier(uri) => Some(uri.as_bytes().to_vec()),
        _ => None,
    });
    uris.filter(|uri| !uri.is_empty() && !uri.contains(&0)).collect()
}

/// Whether the next edition of a certificate revocation list was due before `now`.
pub fn is_outdated(list: &[u8], now: SystemTime) -> bool {
    let next = <CertificateList>::from_der(list).ok().and_then(|list| list.tbs_cert_list.next_update);
    next.is_some_and(|next| next.to_system_time() < now)
}

/// The name of the authority that issued a certificate revocation list.
pub fn list_issuer(list: &[u8]) -> Option<String> {
    Some(<CertificateList>::from_der(list).ok()?.tbs_cert_list.issuer.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, SerialNumber};

    fn der(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["localhost".into()]).expect("parameters");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn a_summary_has_the_serial_number_and_expiry() {
        let of = |serial: &[u8], year| {
            let certificate = der(|params| {
                params.serial_number = Some(SerialNumber::from_slice(serial));
                params.not_after = rcgen::date_time_ymd(year, 1, 1);
            });
            Summary::of(&certificate).expect("a certificate")
        };
        let summary = of(&[0x0a, 0xbc], 2033);
        assert_eq!(summary, Summary { serial: "0ABC".into(), expires: 1_988_150_400 });
        assert_eq!(of(&[0xff, 0x01], 2033).serial, "FF01");
        assert_eq!(of(&[0x01], 2060).expires, 2_840_140_800, "beyond the years of UTCTime");
        assert_eq!(Summary::of(b"0\x82\x01"), None);
    }

    #[test]
    fn user_names_are_found() {
        let certificate = der(|params| {
            params.distinguished_name.push(DnType::OrganizationName, "an organization");
            params.distinguished_name.push(DnType::CommonName, "user\0other");
            for uri in ["urn:first", "urn:second"] {
                params.subject_alt_names.push(SanType::URI(uri.try_into().expect("ASCII")));
            }
        });
        assert_eq!(common_name(&certificate).as_deref(), Some(&b"user\0other"[..]));
        assert_eq!(uris(&certificate), [&b"urn:first"[..], b"urn:second"]);
        let plain = der(|params| params.distinguished_name = rcgen::DistinguishedName::new());
        assert_eq!((common_name(&plain), uris(&plain)), (None, Vec::new()));
        assert_eq!((common_name(b""), uris(b"")), (None, Vec::new()));
    }
}
