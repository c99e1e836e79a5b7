//! What the `tls-*` directives say.

use kvick_config::tables::tls;
use kvick_config::value::Text;
use kvick_config::words::TlsAuthClients;
use kvick_config::{Key, Values};
use std::path::PathBuf;
use std::time::Duration;

/// See the module's documentation.
#[derive(Clone)]
pub struct Settings {
    /// Whether there is a port, or a kind of connection of the server's own, that uses TLS.
    pub is_wanted: bool,
    /// Whether the server makes connections that use TLS.
    pub connects: bool,
    /// What the server shows to clients.
    pub server: Identity,
    /// What it shows where it is the client. It is `server` unless `tls-client-cert-file` and `-key-file` are set.
    pub client: Identity,
    /// Whether `client` is one of its own.
    pub has_client_identity: bool,
    /// Certificates that are trusted, in one file.
    pub ca_file: Option<PathBuf>,
    /// The same, in a folder of files that are named by hashes of their subjects.
    pub ca_dir: Option<PathBuf>,
    /// Whether clients must show certificates.
    pub auth_clients: TlsAuthClients,
    /// Versions of the protocol; `None` for all that there are.
    pub protocols: Option<Text>,
    /// Cipher suites of TLS 1.2.
    pub ciphers: Option<Text>,
    /// Cipher suites of TLS 1.3.
    pub ciphersuites: Option<Text>,
    /// Whether the server's order of suites counts, and not the client's.
    pub prefers_own_order: bool,
    /// Sessions that may be resumed; `None` if none may be.
    pub sessions: Option<SessionLimits>,
}

/// A certificate with its key.
#[derive(Clone)]
pub struct Identity {
    /// The chain of certificates, the server's own first.
    pub certificates: Option<PathBuf>,
    /// The key of the first.
    pub key: Option<PathBuf>,
    /// What the key is encrypted with, if it is.
    pub passphrase: Option<Text>,
}

/// How many sessions are kept, and for how long.
#[derive(Clone, Copy)]
pub struct SessionLimits {
    /// Sessions kept.
    pub count_max: usize,
    /// Time for which one is kept.
    pub lifetime: Duration,
}

impl Settings {
    /// What `values` say.
    pub fn read(values: &Values) -> Self {
        let path = |key: Key<Option<Text>>| values.read(key).map(|text| text.as_path().to_path_buf());
        let server = Identity {
            certificates: path(tls::TLS_CERT_FILE),
            key: path(tls::TLS_KEY_FILE),
            passphrase: values.read(tls::TLS_KEY_FILE_PASS),
        };
        let client = Identity {
            certificates: path(tls::TLS_CLIENT_CERT_FILE),
            key: path(tls::TLS_CLIENT_KEY_FILE),
            passphrase: values.read(tls::TLS_CLIENT_KEY_FILE_PASS),
        };
        let has_client_identity = client.certificates.is_some() && client.key.is_some();
        let connects = values.read(tls::TLS_REPLICATION) || values.read(tls::TLS_CLUSTER);
        let count_max = match values.read(tls::TLS_SESSION_CACHE_SIZE) {
            0 => usize::MAX,
            size => size as usize,
        };
        let lifetime = Duration::from_secs(values.read(tls::TLS_SESSION_CACHE_TIMEOUT).into());
        Settings {
            is_wanted: values.read(tls::TLS_PORT) != 0 || connects,
            connects,
            client: if has_client_identity { client } else { server.clone() },
            server,
            has_client_identity,
            ca_file: path(tls::TLS_CA_CERT_FILE),
            ca_dir: path(tls::TLS_CA_CERT_DIR),
            auth_clients: values.read(tls::TLS_AUTH_CLIENTS),
            protocols: values.read(tls::TLS_PROTOCOLS),
            ciphers: values.read(tls::TLS_CIPHERS),
            ciphersuites: values.read(tls::TLS_CIPHERSUITES),
            prefers_own_order: values.read(tls::TLS_PREFER_SERVER_CIPHERS),
            sessions: values.read(tls::TLS_SESSION_CACHING).then_some(SessionLimits { count_max, lifetime }),
        }
    }
}
