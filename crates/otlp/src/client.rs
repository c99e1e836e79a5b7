//! One request to the collector.

use crate::delivery::Outcome;
use crate::settings::Settings;
use crate::wire;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio_rustls::TlsConnector;

/// Time for a request, from the lookup of the name to the end of the reply.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of a reply.
const REPLY_MAX: usize = 64 * 1024;

/// Sends a batch. The text says why it was not accepted, or what the collector has to remark.
pub async fn send(settings: &Settings, body: Vec<u8>) -> (Outcome, Option<String>) {
    match tokio::time::timeout(TIME_MAX, exchange(settings, body)).await {
        Err(_) => (Outcome::Later(None), Some(format!("no reply within {} seconds", TIME_MAX.as_secs()))),
        Ok(Err(error)) => (Outcome::Later(None), Some(error.to_string())),
        Ok(Ok((status, headers, reply))) => judge(status, &headers, &reply),
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn exchange(settings: &Settings, body: Vec<u8>) -> Result<(StatusCode, HeaderMap, Bytes), Failure> {
    let stream = TcpStream::connect((settings.host.as_str(), settings.port)).await?;
    // Without this option requests are only slower.
    let _ = stream.set_nodelay(true);
    match &settings.tls {
        None => request(settings, stream, body).await,
        Some((config, name)) => {
            let stream = TlsConnector::from(config.clone()).connect(name.clone(), stream).await?;
            request(settings, stream, body).await
        }
    }
}

async fn request<S>(settings: &Settings, stream: S, body: Vec<u8>) -> Result<(StatusCode, HeaderMap, Bytes), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // An error of the connection is the result of the request too.
    let connection = spawn_local(connection);
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(settings.path.as_str())
        .header(HOST, settings.authority.as_str())
        .header(CONTENT_TYPE, "application/x-protobuf");
    if let Some(headers) = request.headers_mut() {
        settings.headers.iter().for_each(|(name, value)| {
            headers.insert(name.clone(), value.clone());
        });
    }
    let reply = sender.send_request(request.body(Full::new(Bytes::from(body)))?).await;
    let result = match reply {
        Err(error) => Err(error.into()),
        Ok(reply) => {
            let (head, body) = reply.into_parts();
            Limited::new(body, REPLY_MAX).collect().await.map(|body| (head.status, head.headers, body.to_bytes()))
        }
    };
    connection.abort();
    result
}

/// Decides by the rules of OTLP/HTTP: only these statuses are worth another attempt.
fn judge(status: StatusCode, headers: &HeaderMap, reply: &[u8]) -> (Outcome, Option<String>) {
    if status.is_success() {
        let partial = wire::rejected(reply);
        let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0);
        return (Outcome::Accepted { rejected }, Some(partial.error_message).filter(|text| !text.is_empty()));
    }
    let text = match wire::reason(reply) {
        Some(reason) => format!("status {}: {reason}", status.as_u16()),
        None => format!("status {}", status.as_u16()),
    };
    let outcome = match status.as_u16() {
        429 | 502 | 503 | 504 => Outcome::Later(retry_after(headers)),
        _ => Outcome::Refused,
    };
    (outcome, Some(text))
}

/// The header `Retry-After` in seconds. Its other form, a date, is treated as absent: the pause grows by itself.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// TLS that trusts the authorities of a file, or else those of the system.
pub fn tls(authorities: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(path) => {
            let failed = |error: &dyn std::fmt::Display| format!("Failed to read {}: {error}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
                let certificate = certificate.map_err(|error| failed(&error))?;
                roots.add(certificate).map_err(|error| failed(&error))?;
            }
            if roots.is_empty() {
                return Err(failed(&"it has no certificate"));
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let cause = found.errors.first().map_or_else(|| "none was found".to_owned(), ToString::to_string);
                return Err(format!("This system has no certificate authorities: {cause}"));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_decide_whether_a_batch_is_repeated() {
        let judge =
            |status: u16, headers: &HeaderMap| judge(StatusCode::from_u16(status).expect("a status"), headers, b"").0;
        let mut headers = HeaderMap::new();
        assert_eq!(judge(200, &headers), Outcome::Accepted { rejected: 0 });
        for status in [429, 502, 503, 504] {
            assert_eq!(judge(status, &headers), Outcome::Later(None), "{status}");
        }
        for status in [301, 400, 401, 404, 413, 500] {
            assert_eq!(judge(status, &headers), Outcome::Refused, "{status}");
        }
        headers.insert(RETRY_AFTER, "17".parse().expect("a value"));
        assert_eq!(judge(503, &headers), Outcome::Later(Some(Duration::from_secs(17))));
        headers.insert(RETRY_AFTER, "Wed, 21 Oct 2026 07:28:00 GMT".parse().expect("a value"));
        assert_eq!(judge(503, &headers), Outcome::Later(None));
    }
}
