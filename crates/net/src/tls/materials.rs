//! TLS materials: the settings and the contents of their files, ready for connections.

use super::certificate::Summary;
use super::error::TlsError;
use super::files::{Files, IdentityFiles};
use super::sessions::Sessions;
use super::settings::{Identity, Settings};
use super::suites;
use super::trust::Trust;
use kvick_config::words::TlsAuthClients;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{NoServerSessionStorage, StoresServerSessions};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, Error, InconsistentKeys, RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::io;
use std::sync::Arc;

/// See the module's documentation.
pub struct Materials {
    /// The settings that they were made from.
    pub settings: Settings,
    /// For the server's side of connections.
    pub acceptor: Arc<ServerConfig>,
    /// For the server's side of the cluster bus, where every peer must present a certificate; `None` without
    /// authorities to check it.
    bus_acceptor: Option<Arc<ServerConfig>>,
    /// For the client's side.
    pub connector: Arc<ClientConfig>,
    /// The certificate of the server's side.
    pub server: Option<Summary>,
    /// The certificate of the client's side, if it is a different one.
    pub client: Option<Summary>,
    /// The trusted certificate that expires first.
    pub authorities: Option<Summary>,
    /// A hash of the files that they were made from.
    pub fingerprint: [u8; 20],
}

/// An assembled identity.
struct AssembledIdentity {
    key: Arc<SingleCertAndKey>,
    summary: Option<Summary>,
}

impl Materials {
    /// Reads the files and makes the materials.
    pub fn make(settings: Settings) -> Result<Self, TlsError> {
        let files = Files::read(&settings)?;
        Materials::of(settings, &files)
    }

    /// Creates the materials from files already read.
    pub fn of(settings: Settings, files: &Files) -> Result<Self, TlsError> {
        let has_authorities = settings.ca_file.is_some() || settings.ca_dir.is_some();
        if (settings.auth_clients != TlsAuthClients::No || settings.has_outgoing) && !has_authorities {
            return Err(TlsError::new(
                "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, tls-replication or \
                 tls-auth-clients are enabled!",
            ));
        }
        let versions = suites::versions(&settings)?;
        let provider = Arc::new(suites::provider(&settings)?);
        let (roots, authorities) = trusted(files);
        let trust = Trust { roots, revoked: files.revocation_lists()? };
        let server = assemble(&provider, &files.server, &settings.server)?;
        let client = files.client.as_ref().map(|files| assemble(&provider, files, &settings.client)).transpose()?;
        let client_key = client.as_ref().map_or(&server, |own| own).key.clone();
        let accepting = |auth_clients| {
            acceptor(&settings, auth_clients, &provider, &versions, &trust, server.key.clone()).map(Arc::new)
        };
        Ok(Materials {
            acceptor: accepting(settings.auth_clients)?,
            bus_acceptor: has_authorities.then(|| accepting(TlsAuthClients::Yes)).transpose()?,
            connector: Arc::new(connector(&provider, &versions, &trust, client_key)?),
            server: server.summary,
            client: client.and_then(|client| client.summary),
            authorities,
            fingerprint: files.fingerprint(),
            settings,
        })
    }

    /// The configuration of the server's side of the cluster bus.
    pub(super) fn bus_acceptor(&self) -> io::Result<Arc<ServerConfig>> {
        self.bus_acceptor
            .clone()
            .ok_or_else(|| io::Error::other("there are no trusted certificates to check peers with"))
    }
}

/// The authorities, and the one that expires first. Invalid certificates are ignored.
fn trusted(files: &Files) -> (Arc<RootCertStore>, Option<Summary>) {
    let all = files.authorities.iter().flat_map(|file| CertificateDer::pem_slice_iter(&file.bytes));
    let certificates: Vec<CertificateDer<'static>> = all.filter_map(Result::ok).collect();
    let summary = Summary::earliest(certificates.iter().map(|certificate| certificate.as_ref()));
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    (Arc::new(roots), summary)
}

fn assemble(
    provider: &CryptoProvider,
    files: &IdentityFiles,
    identity: &Identity,
) -> Result<AssembledIdentity, TlsError> {
    let failed =
        |error: Error| TlsError::new(format!("Failed to load private key: {}: {error}", files.key_path().display()));
    let chain = files.chain()?;
    let summary = Summary::of(&chain[0]);
    let key = files.key(identity.passphrase.as_deref())?;
    let key = CertifiedKey::new(chain, provider.key_provider.load_private_key(key).map_err(failed)?);
    // `rustls` does not parse version 1 certificates; the server may still present one.
    if let Err(error @ Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) = key.keys_match() {
        return Err(failed(error));
    }
    Ok(AssembledIdentity { key: Arc::new(key.into()), summary })
}

fn acceptor(
    settings: &Settings,
    auth_clients: TlsAuthClients,
    provider: &Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
    trust: &Trust,
    key: Arc<SingleCertAndKey>,
) -> Result<ServerConfig, TlsError> {
    let builder =
        ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions).map_err(unfit)?;
    let builder = match auth_clients {
        TlsAuthClients::No => builder.with_no_client_auth(),
        wanted => {
            builder.with_client_cert_verifier(trust.client_verifier(provider, wanted == TlsAuthClients::Optional)?)
        }
    };
    let mut config = builder.with_cert_resolver(key);
    config.ignore_client_order = settings.prefers_own_order;
    config.session_storage = match settings.sessions {
        Some(limits) => Arc::new(Sessions::new(limits)) as Arc<dyn StoresServerSessions>,
        None => Arc::new(NoServerSessionStorage {}),
    };
    // A client that resumes a session receives its next ticket.
    config.send_tls13_tickets = usize::from(settings.sessions.is_some());
    Ok(config)
}

fn connector(
    provider: &Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
    trust: &Trust,
    key: Arc<SingleCertAndKey>,
) -> Result<ClientConfig, TlsError> {
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions).map_err(unfit)?;
    let verifier = trust.server_verifier(provider)?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_client_cert_resolver(key))
}

/// The versions and the suites are incompatible.
fn unfit(error: Error) -> TlsError {
    TlsError::new(format!("Failed to configure TLS: {error}"))
}
