//! An authority for the tests of TLS.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
    KeyPair, KeyUsagePurpose, PublicKeyData, RevokedCertParams, SanType, SerialNumber,
};
use std::path::PathBuf;
use tempfile::TempDir;

/// An authority and the files of those that it has certified.
pub struct Authority {
    pub issuer: CertifiedIssuer<'static, KeyPair>,
    pub data_dir: TempDir,
}

/// A certificate and its key, as files.
#[derive(Clone)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub serial: SerialNumber,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        let data_dir = tempfile::tempdir().expect("a directory");
        std::fs::write(data_dir.path().join("ca.crt"), issuer.pem()).expect("a file");
        Authority { issuer, data_dir }
    }

    pub fn file(&self) -> PathBuf {
        self.data_dir.path().join("ca.crt")
    }

    /// Creates a certificate, which is also valid for a server on this machine.
    pub fn certify(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        let uri = format!("urn:user:{name}").as_str().try_into().expect("ASCII");
        params.subject_alt_names.push(SanType::URI(uri));
        let key = KeyPair::generate().expect("a key");
        let serial = SerialNumber::from_slice(&key.der_bytes()[1..17]);
        params.serial_number = Some(serial.clone());
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let path = |kind| self.data_dir.path().join(format!("{name}.{kind}"));
        let identity = Identity { certificate: path("crt"), key: path("key"), serial };
        std::fs::write(&identity.certificate, certificate.pem()).expect("a file");
        std::fs::write(&identity.key, key.serialize_pem()).expect("a file");
        identity
    }

    /// Writes a list that revokes the certificates of `revoked`. The next list is due in `next_year`.
    pub fn revoke(&self, revoked: &[&Identity], next_year: i32) -> PathBuf {
        let revoke = |identity: &&Identity| RevokedCertParams {
            serial_number: identity.serial.clone(),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2020, 1, 1),
            next_update: rcgen::date_time_ymd(next_year, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(revoke).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let path = self.data_dir.path().join("revoked.crl");
        let list = params.signed_by(&self.issuer).expect("a list").pem().expect("PEM");
        std::fs::write(&path, list).expect("a file");
        path
    }
}
