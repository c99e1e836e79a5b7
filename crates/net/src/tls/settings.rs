//! The values of the `tls-*` directives.

use kvick_config::tables::cluster::CLUSTER_FORWARD_TLS_PORT;
use kvick_config::tables::metrics::{METRICS_PORT, METRICS_TLS};
use kvick_config::tables::tls;
use kvick_config::value::Text;
use kvick_config::words::TlsAuthClients;
use kvick_config::{Key, Values};
use std::path::PathBuf;
use std::time::Duration;

/// See the module's documentation.
#[derive(Clone)]
pub struct Settings {
    /// Whether a port, or a kind of outgoing connection, uses TLS.
    pub is_wanted: bool,
    /// Whether outgoing connections use TLS.
    pub has_outgoing: bool,
    /// The server's identity towards clients.
    pub server: Identity,
    /// The server's identity as a client: `server` unless `tls-client-cert-file` and `-key-file` are set.
    pub client: Identity,
    /// Whether `client` is configured separately.
    pub has_client_identity: bool,
    /// A file of trusted certificates.
    pub ca_file: Option<PathBuf>,
    /// A directory of trusted certificates, in files named by hashes of their subjects.
    pub ca_dir: Option<PathBuf>,
    /// A file of certificate revocation lists.
    pub crl_file: Option<PathBuf>,
    /// Whether clients must present certificates.
    pub auth_clients: TlsAuthClients,
    /// Protocol versions; `None` for all supported ones.
    pub protocols: Option<Text>,
    /// Cipher suites of TLS 1.2.
    pub ciphers: Option<Text>,
    /// Cipher suites of TLS 1.3.
    pub ciphersuites: Option<Text>,
    /// Whether the server's order of suites takes precedence over the client's.
    pub prefers_own_order: bool,
    /// Limits of resumable sessions; `None` if resumption is disabled.
    pub sessions: Option<SessionLimits>,
}

/// A certificate with its key.
#[derive(Clone)]
pub struct Identity {
    /// The certificate chain, the server's own certificate first.
    pub certificates: Option<PathBuf>,
    /// The private key of the first certificate.
    pub key: Option<PathBuf>,
    /// The passphrase of an encrypted key.
    pub passphrase: Option<Text>,
}

/// The number and lifetime of cached sessions.
#[derive(Clone, Copy)]
pub struct SessionLimits {
    /// Maximum number of sessions.
    pub count_max: usize,
    /// Lifetime of a session.
    pub lifetime: Duration,
}

impl Settings {
    /// Reads them from `values`.
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
        let has_outgoing = values.read(tls::TLS_REPLICATION) || values.read(tls::TLS_CLUSTER);
        let count_max = match values.read(tls::TLS_SESSION_CACHE_SIZE) {
            0 => usize::MAX,
            size => size as usize,
        };
        let lifetime = Duration::from_secs(values.read(tls::TLS_SESSION_CACHE_TIMEOUT).into());
        Settings {
            is_wanted: values.read(tls::TLS_PORT) != 0
                || values.read(CLUSTER_FORWARD_TLS_PORT) != 0
                || has_outgoing
                || (values.read(METRICS_PORT) != 0 && values.read(METRICS_TLS)),
            has_outgoing,
            client: if has_client_identity { client } else { server.clone() },
            server,
            has_client_identity,
            ca_file: path(tls::TLS_CA_CERT_FILE),
            ca_dir: path(tls::TLS_CA_CERT_DIR),
            crl_file: path(tls::TLS_CRL_FILE),
            auth_clients: values.read(tls::TLS_AUTH_CLIENTS),
            protocols: values.read(tls::TLS_PROTOCOLS),
            ciphers: values.read(tls::TLS_CIPHERS),
            ciphersuites: values.read(tls::TLS_CIPHERSUITES),
            prefers_own_order: values.read(tls::TLS_PREFER_SERVER_CIPHERS),
            sessions: values.read(tls::TLS_SESSION_CACHING).then_some(SessionLimits { count_max, lifetime }),
        }
    }
}
