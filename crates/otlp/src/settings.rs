//! Where the collector is, and how to reach it.

use crate::client;
use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use percent_encoding::percent_decode;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The path of the service for spans. It is appended to an endpoint that does not end with it.
const TRACES: &str = "/v1/traces";
/// The port of OTLP/HTTP.
const DEFAULT_PORT: u16 = 4318;

/// Why settings cannot be used, for the operator.
#[derive(Debug)]
pub struct Unusable(String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// See the module's documentation.
#[derive(Clone)]
pub struct Settings {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The value of the header `Host`.
    pub(crate) authority: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Settings {
    /// Reads settings.
    ///
    /// - `endpoint`: `http://host[:port][/path]` or `https://...`; the default port is that of OTLP/HTTP, 4318.
    /// - `headers`: added to each request, as `name=value,name=value`; values may be percent-encoded.
    /// - `authorities`: a PEM file of certificate authorities for https; without it those of the system are trusted.
    ///
    /// # Errors
    /// The directive's part that is wrong, or why a file cannot be read.
    pub fn new(endpoint: &str, headers: &[u8], authorities: Option<&Path>) -> Result<Settings, Unusable> {
        let wrong = |why: &str| Unusable(format!("Invalid OTLP endpoint '{endpoint}': {why}"));
        let uri: Uri = endpoint.parse().map_err(|_| wrong("expected http://host:port or https://host:port"))?;
        let is_encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("it must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("use headers for credentials"));
        }
        if uri.query().is_some() {
            return Err(wrong("it must not have a query"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        // The library takes a port that is no number for none.
        let has_port = authority.as_str().trim_end_matches(|c: char| c != ':' && c != ']').ends_with(':');
        let port = match (authority.port_u16(), has_port) {
            (Some(port), _) if port > 0 => port,
            (None, false) => DEFAULT_PORT,
            _ => return Err(wrong("the port is not a number from 1 to 65535")),
        };
        let path = uri.path().trim_end_matches('/');
        let path = if path.ends_with(TRACES) { path.to_owned() } else { format!("{path}{TRACES}") };
        let tls = match is_encrypted {
            false => None,
            true => {
                let name = ServerName::try_from(host.clone()).map_err(|_| wrong("the host is not a valid name"))?;
                Some((client::tls(authorities).map_err(Unusable)?, name))
            }
        };
        let (authority, headers) = (authority.as_str().to_owned(), parse_headers(headers)?);
        Ok(Settings { host, port, authority, path, headers, tls })
    }

    /// The address of the service, without credentials.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }
}

/// Reads headers, as the environment variable `OTEL_EXPORTER_OTLP_HEADERS` has them. The error does not repeat them,
/// because values are secrets.
fn parse_headers(text: &[u8]) -> Result<Vec<(HeaderName, HeaderValue)>, Unusable> {
    let parse = |(number, text): (usize, &[u8])| {
        let wrong = || Unusable(format!("Invalid OTLP header number {}: expected name=value", number + 1));
        let at = text.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
        let value: Vec<u8> = percent_decode(text[at + 1..].trim_ascii()).collect();
        let name = HeaderName::from_bytes(text[..at].trim_ascii()).map_err(|_| wrong())?;
        let mut value = HeaderValue::from_bytes(&value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        Ok((name, value))
    };
    let parts = text.split(|byte| *byte == b',').filter(|part| !part.trim_ascii().is_empty());
    parts.enumerate().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(endpoint: &str) -> Settings {
        Settings::new(endpoint, b"", None).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn endpoint_names_host_port_and_path() {
        for (endpoint, host, port, path) in [
            ("http://collector", "collector", 4318, "/v1/traces"),
            ("http://10.0.0.7:80/", "10.0.0.7", 80, "/v1/traces"),
            ("http://[::1]:4318/otlp/", "::1", 4318, "/otlp/v1/traces"),
            ("http://collector/v1/traces", "collector", 4318, "/v1/traces"),
        ] {
            let read = settings(endpoint);
            assert_eq!((read.host.as_str(), read.port, read.path.as_str()), (host, port, path), "{endpoint}");
        }
        assert_eq!(settings("http://collector:1").url(), "http://collector:1/v1/traces");
    }

    #[test]
    fn endpoints_that_cannot_be_used_are_refused() {
        for wrong in ["", "collector:4318", "ftp://a", "http://", "http://a:0x1", "http://a:65536", "http://u:p@a"] {
            assert!(Settings::new(wrong, b"", None).is_err(), "{wrong}");
        }
        assert!(Settings::new("http://a/?b", b"", None).is_err());
        let error = Settings::new("https://a", b"", Some(Path::new("/nonexistent"))).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("/nonexistent"), "{error}");
    }

    #[test]
    fn headers_are_decoded_and_errors_do_not_repeat_them() {
        let read = Settings::new("http://a", b"authorization=Basic%20eDp5, x-scope = a=b,", None).expect("valid");
        let pairs: Vec<_> = read.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(pairs, [("authorization", &b"Basic eDp5"[..]), ("x-scope", b"a=b")]);
        for wrong in [&b"a=1,secret"[..], b"a=1,secr et=2", b"a=1,b=secret%0a"] {
            let error = Settings::new("http://a", wrong, None).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("number 2") && !error.contains("secr"), "{error}");
        }
    }
}
