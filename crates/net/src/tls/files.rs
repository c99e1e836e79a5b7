//! The files that the settings name, and their parsing.
//!
//! All are PEM. A key may be PKCS#8, encrypted or not, or an unencrypted key in the older RSA or elliptic curve
//! formats.

use super::certificate;
use super::error::TlsError;
use super::settings::{Identity, Settings};
use kvick_runtime::logging;
use pkcs8::EncryptedPrivateKeyInfoRef;
use pkcs8::der::SecretDocument;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha1::{Digest, Sha1};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How errors about certificate revocation lists begin in the log.
pub const CRL_FAILURE: &str = "Failed to load certificate revocation lists";

/// Files read together, so that certificates and keys match.
pub struct Files {
    /// For the server's side of connections.
    pub server: IdentityFiles,
    /// For the client's side, if configured separately.
    pub client: Option<IdentityFiles>,
    /// Trusted certificates: those of the file, then those of the directory.
    pub authorities: Vec<PemFile>,
    /// Certificate revocation lists.
    revocations: Option<PemFile>,
}

/// The contents of a file.
pub struct PemFile {
    path: PathBuf,
    /// The bytes of the file.
    pub bytes: Vec<u8>,
}

/// A certificate with its key.
pub struct IdentityFiles {
    certificates: PemFile,
    key: PemFile,
}

impl Files {
    /// Reads the files that `settings` name.
    pub fn read(settings: &Settings) -> Result<Self, TlsError> {
        let mut authorities = Vec::new();
        if let Some(path) = &settings.ca_file {
            authorities.push(read(path, "Failed to configure CA certificate(s) file/directory")?);
        }
        if let Some(dir) = &settings.ca_dir {
            read_ca_dir(dir, &mut authorities)?;
        }
        let revocations = settings.crl_file.as_ref().map(|path| read(path, CRL_FAILURE)).transpose()?;
        Ok(Files {
            server: IdentityFiles::read(&settings.server)?,
            client: settings.has_client_identity.then(|| IdentityFiles::read(&settings.client)).transpose()?,
            authorities,
            revocations,
        })
    }

    /// The certificate revocation lists: none without a file of them, otherwise at least one. The log warns of those
    /// that their authority should have replaced by now.
    pub fn revocation_lists(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
        let Some(PemFile { path, bytes }) = &self.revocations else { return Ok(Vec::new()) };
        let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(bytes).collect();
        let lists = lists.map_err(|error| failed(CRL_FAILURE, path, &error.to_string()))?;
        if lists.is_empty() {
            return Err(failed(CRL_FAILURE, path, "there is none in it"));
        }
        for outdated in lists.iter().filter(|list| certificate::is_outdated(list, SystemTime::now())) {
            let issuer = certificate::list_issuer(outdated).unwrap_or_default();
            logging::warning(format_args!(
                "The certificate revocation list of '{issuer}' in {} is outdated, but still applies",
                path.display()
            ));
        }
        Ok(lists)
    }

    /// A hash of the contents, to detect changes.
    pub fn fingerprint(&self) -> [u8; 20] {
        let identities = [Some(&self.server), self.client.as_ref()];
        let own = identities.into_iter().flatten().flat_map(|files| [&files.certificates, &files.key]);
        let mut digest = Sha1::new();
        for PemFile { path, bytes } in own.chain(&self.authorities).chain(&self.revocations) {
            let path = path.as_os_str().as_encoded_bytes();
            for part in [path, bytes] {
                digest.update((part.len() as u64).to_le_bytes());
                digest.update(part);
            }
        }
        digest.finalize().into()
    }
}

impl IdentityFiles {
    fn read(identity: &Identity) -> Result<Self, TlsError> {
        let certificates = identity.certificates.as_ref().ok_or(TlsError::new("No tls-cert-file configured!"))?;
        let key = identity.key.as_ref().ok_or(TlsError::new("No tls-key-file configured!"))?;
        Ok(IdentityFiles {
            certificates: read(certificates, "Failed to load certificate")?,
            key: read(key, "Failed to load private key")?,
        })
    }

    /// The certificate chain, with at least one certificate.
    pub fn chain(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let PemFile { path, bytes } = &self.certificates;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
        match chain {
            Ok(chain) if !chain.is_empty() => Ok(chain),
            Ok(_) => Err(failed("Failed to load certificate", path, "there is none in it")),
            Err(error) => Err(failed("Failed to load certificate", path, &error.to_string())),
        }
    }

    /// The key.
    pub fn key(&self, passphrase: Option<&[u8]>) -> Result<PrivateKeyDer<'static>, TlsError> {
        let PemFile { path, bytes } = &self.key;
        let key = match encrypted_key(bytes) {
            Some(text) => decrypt(text, passphrase),
            None if is_legacy_encrypted(bytes) => {
                Err("it is encrypted in the old way: have `openssl pkcs8 -topk8` convert it to PKCS#8".into())
            }
            None => PrivateKeyDer::from_pem_slice(bytes).map_err(|error| error.to_string()),
        };
        key.map_err(|reason| failed("Failed to load private key", path, &reason))
    }

    /// The path of the key file.
    pub fn key_path(&self) -> &Path {
        &self.key.path
    }
}

const ENCRYPTED_BEGIN: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
const ENCRYPTED_END: &str = "-----END ENCRYPTED PRIVATE KEY-----";

/// The encrypted PKCS#8 key in a file.
fn encrypted_key(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let from = &text[text.find(ENCRYPTED_BEGIN)?..];
    Some(&from[..from.find(ENCRYPTED_END)? + ENCRYPTED_END.len()])
}

/// Whether a PEM header marks the key as encrypted in the format before PKCS#8.
fn is_legacy_encrypted(bytes: &[u8]) -> bool {
    const HEADER: &[u8] = b"Proc-Type: 4,ENCRYPTED";
    bytes.windows(HEADER.len()).any(|window| window == HEADER)
}

fn decrypt(text: &str, passphrase: Option<&[u8]>) -> Result<PrivateKeyDer<'static>, String> {
    let passphrase = passphrase.ok_or("it is encrypted, and there is no passphrase")?;
    let (_, document) = SecretDocument::from_pem(text).map_err(|error| error.to_string())?;
    let encrypted = EncryptedPrivateKeyInfoRef::try_from(document.as_bytes()).map_err(|error| error.to_string())?;
    let key = encrypted.decrypt(passphrase).map_err(|_| "it cannot be decrypted: is the passphrase right?")?;
    Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into())
}

fn read(path: &Path, failure: &str) -> Result<PemFile, TlsError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(PemFile { path: path.to_path_buf(), bytes }),
        Err(error) => Err(failed(failure, path, &error.to_string())),
    }
}

fn failed(what: &str, path: &Path, reason: &str) -> TlsError {
    TlsError::new(format!("{what}: {}: {reason}", path.display()))
}

/// Reads the files of a directory prepared by `openssl rehash` or `c_rehash`: those named by eight hexadecimal digits,
/// a dot and a number. OpenSSL ignores others too.
fn read_ca_dir(dir: &Path, found: &mut Vec<PemFile>) -> Result<(), TlsError> {
    let unreadable =
        |error: std::io::Error| failed("Failed to configure CA certificate(s) file/directory", dir, &error.to_string());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if is_hash(entry.file_name().as_encoded_bytes()) && entry.path().is_file() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    // An unreadable file is ignored, like a missing one.
    found.extend(paths.into_iter().filter_map(|path| {
        let bytes = std::fs::read(&path).ok()?;
        Some(PemFile { path, bytes })
    }));
    Ok(())
}

fn is_hash(name: &[u8]) -> bool {
    name.len() > 9
        && name[..8].iter().all(u8::is_ascii_hexdigit)
        && name[8] == b'.'
        && name[9..].iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_file(bytes: &[u8]) -> IdentityFiles {
        let certificates = PemFile { path: "cert".into(), bytes: Vec::new() };
        IdentityFiles { certificates, key: PemFile { path: "key".into(), bytes: bytes.to_vec() } }
    }

    /// A test key: `openssl genpkey -algorithm ed25519`, and the same encrypted with `openssl pkcs8 -topk8 -passout
    /// pass:1234`.
    const PLAIN: &str = include_str!("testdata/plain.key");
    const ENCRYPTED: &str = include_str!("testdata/encrypted.key");

    #[test]
    fn an_encrypted_key_needs_its_passphrase() {
        let plain = key_file(PLAIN.as_bytes()).key(None).expect("a key");
        let encrypted = key_file(format!("a note\n{ENCRYPTED}").as_bytes());
        assert_eq!(encrypted.key(Some(b"1234")).expect("a key").secret_der(), plain.secret_der());
        let refused = |passphrase| encrypted.key(passphrase).expect_err("no key").to_string();
        assert_eq!(refused(None), "Failed to load private key: key: it is encrypted, and there is no passphrase");
        assert!(refused(Some(b"123")).contains("is the passphrase right?"));
        let old = b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAA==\n";
        assert!(key_file(old).key(Some(b"1234")).expect_err("no key").to_string().contains("openssl pkcs8"));
        assert!(key_file(b"").key(None).is_err());
        assert!(key_file(b"").chain().is_err());
    }

    #[test]
    fn a_directory_is_read_like_openssl_reads_it() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["0123abCD.0", "fedcba98.10", "0123abcd.r0", "0123abcd.", "ca.crt", "x123abcd.0"] {
            std::fs::write(dir.path().join(name), name).expect("a file");
        }
        std::fs::create_dir(dir.path().join("00000000.0")).expect("a directory");
        let mut found = Vec::new();
        read_ca_dir(dir.path(), &mut found).expect("a directory");
        let contents: Vec<&[u8]> = found.iter().map(|file| file.bytes.as_slice()).collect();
        assert_eq!(contents, [&b"0123abCD.0"[..], b"fedcba98.10"]);
        assert!(read_ca_dir(&dir.path().join("nothing"), &mut found).is_err());
    }
}
