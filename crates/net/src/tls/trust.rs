//! Which certificates of clients and of other servers are accepted: those that chain to a trusted authority, unless a
//! certificate revocation list names one of the chain.
//!
//! Lists apply whether or not they are outdated, and an authority need not have one: a list can only take access away.

use super::error::TlsError;
use super::files::CRL_FAILURE;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// The trusted authorities, and what they have revoked.
pub struct Trust {
    /// The authorities.
    pub roots: Arc<RootCertStore>,
    /// Certificate revocation lists.
    pub revoked: Vec<CertificateRevocationListDer<'static>>,
}

impl Trust {
    /// The verifier of clients; if `optional`, a client without a certificate is accepted.
    pub fn client_verifier(
        &self,
        provider: &Arc<CryptoProvider>,
        optional: bool,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let builder = WebPkiClientVerifier::builder_with_provider(self.roots.clone(), provider.clone())
            .with_crls(self.revoked.iter().cloned())
            .allow_unknown_revocation_status();
        let builder = if optional { builder.allow_unauthenticated() } else { builder };
        builder.build().map_err(unusable)
    }

    /// The verifier of servers.
    pub fn server_verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<AnyName>, TlsError> {
        let with_lists = || {
            WebPkiServerVerifier::builder_with_provider(self.roots.clone(), provider.clone())
                .with_crls(self.revoked.iter().cloned())
                .allow_unknown_revocation_status()
                .build()
                .map_err(unusable)
        };
        // The library makes no such verifier without authorities. No server is accepted then.
        let has_lists = !self.revoked.is_empty() && !self.roots.is_empty();
        Ok(Arc::new(AnyName {
            roots: self.roots.clone(),
            algorithms: provider.signature_verification_algorithms,
            with_lists: has_lists.then(with_lists).transpose()?,
        }))
    }
}

fn unusable(error: VerifierBuilderError) -> TlsError {
    TlsError::new(match error {
        VerifierBuilderError::InvalidCrl(_) => format!(
            "{CRL_FAILURE}: {error} (lists must be complete and of version 2, which `openssl ca` writes if crlnumber \
             is configured)"
        ),
        _ => format!("Failed to configure CA certificate(s) file/directory: {error}"),
    })
}

/// Accepts any server whose certificate chains to a trusted authority, whatever its name: the configured address of a
/// primary or node need not match its certificate. The reference does the same.
#[derive(Debug)]
pub struct AnyName {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
    /// Verifies chains by certificate revocation lists too, if there are any, and then the name.
    with_lists: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(with_lists) = &self.with_lists else {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
            return Ok(ServerCertVerified::assertion());
        };
        match with_lists.verify_server_cert(end_entity, intermediates, name, ocsp_response, now) {
            // The name is verified last.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
