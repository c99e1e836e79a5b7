//! Requests to the server of a bucket: signed, limited in time, and repeated after failures that pass.
//!
//! Signatures are part of the address and valid for some minutes, so addresses never appear in errors.

use super::refusal::{Failure, Refusal};
use super::settings::Settings;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;
use kvick_load::transport::TlsSettings;
use rusty_s3::actions::CompleteMultipartUpload;
use rusty_s3::signing::sign;
use rusty_s3::{Credentials, UrlStyle};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use url::Url;

/// How long a signature is valid. Clocks may differ by as much.
const VALID_S: u64 = 15 * 60;
/// Time to connect.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Time without an answer, or without a further piece of one.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Slowest transfer of a body, beyond that time.
const BYTES_PER_S_MIN: u64 = 128 << 10;
/// Bytes of an answer that is not an object: a page of a listing.
const ANSWER_MAX: usize = 16 << 20;
/// How often a request is sent to a server that has answered before.
const ATTEMPTS: u32 = 10;
/// How often it is sent before the first answer: the address may be wrong.
const FIRST_ATTEMPTS: u32 = 4;
/// Pause after the first failure. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A request that can be signed and sent any number of times.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) method: Method,
    /// The object; empty for the bucket.
    pub(super) key: String,
    /// Sorted by name.
    pub(super) query: Vec<(&'static str, String)>,
    /// Sorted by name, in small letters.
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
}

impl Request {
    /// Any request without headers and body.
    pub(super) fn new(method: Method, key: String, query: Vec<(&'static str, String)>) -> Request {
        Request { method, key, query, headers: Vec::new(), body: Bytes::new() }
    }

    /// Writes an object at once.
    pub(super) fn put(key: String, body: Bytes) -> Request {
        Request::new(Method::PUT, key, Vec::new()).with_body(body)
    }

    /// Removes an object. It need not exist.
    pub(super) fn delete(key: String) -> Request {
        Request::new(Method::DELETE, key, Vec::new())
    }

    /// Ends an upload in parts, and removes the parts.
    pub(super) fn abort(key: String, upload: &str) -> Request {
        Request::new(Method::DELETE, key, vec![("uploadId", upload.to_owned())])
    }

    /// Adds a body with its checksum, which the server compares.
    pub(super) fn with_body(mut self, body: Bytes) -> Request {
        use base64::Engine;
        use md5::{Digest, Md5};
        let sum = base64::engine::general_purpose::STANDARD.encode(Md5::digest(&body));
        self.headers.push(("content-md5", sum));
        self.body = body;
        self
    }
}

/// Sends requests. It needs a runtime around it.
pub(super) struct Service {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    bucket: rusty_s3::Bucket,
    credentials: Credentials,
    place: String,
    /// Whether the server has answered any request.
    has_answered: AtomicBool,
}

impl Service {
    fn new(settings: &Settings) -> io::Result<Service> {
        let wrong = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidInput, error.to_string());
        let style = if settings.has_path_style { UrlStyle::Path } else { UrlStyle::VirtualHost };
        let (endpoint, name) = (settings.endpoint.clone(), settings.bucket.clone());
        let bucket = rusty_s3::Bucket::new(endpoint, style, name, settings.region.clone());
        let bucket = bucket.map_err(|error| wrong(&format!("s3://{}: {error}", settings.bucket)))?;
        let credentials = match &settings.token {
            Some(token) => Credentials::new_with_token(&*settings.access_key, &*settings.secret_key, &**token),
            None => Credentials::new(&*settings.access_key, &*settings.secret_key),
        };
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let tls = HttpsConnectorBuilder::new();
        let tls = match (&settings.authorities, settings.endpoint.scheme()) {
            (None, "https") => {
                let provider = rustls::crypto::ring::default_provider();
                let roots = tls.with_provider_and_native_roots(provider);
                roots.map_err(|error| wrong(&format!("this system has no certificate authorities: {error}")))?
            }
            (None, _) => tls.with_tls_config(trust(b"").map_err(|error| wrong(&error))?),
            (Some(path), _) => {
                let fail = |error: &dyn std::fmt::Display| wrong(&format!("AWS_CA_BUNDLE={path}: {error}"));
                let authorities = std::fs::read(path).map_err(|error| fail(&error))?;
                tls.with_tls_config(trust(&authorities).map_err(|error| fail(&error))?)
            }
        };
        let connector = tls.https_or_http().enable_http1().wrap_connector(tcp);
        let http = legacy::Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        let host = settings.endpoint.as_str().trim_end_matches('/');
        let place = format!("s3://{} at {host}", settings.bucket);
        Ok(Service { http, bucket, credentials, place, has_answered: AtomicBool::new(false) })
    }

    fn url(&self, request: &Request) -> Url {
        let url = match &*request.key {
            "" => self.bucket.base_url().clone(),
            key => self.bucket.object_url(key),
        };
        let method = match request.method {
            Method::PUT => rusty_s3::Method::Put,
            Method::POST => rusty_s3::Method::Post,
            Method::DELETE => rusty_s3::Method::Delete,
            _ => rusty_s3::Method::Get,
        };
        let (key, secret, token) = (self.credentials.key(), self.credentials.secret(), self.credentials.token());
        let query = request.query.iter().map(|(name, value)| (*name, &**value));
        let headers = request.headers.iter().map(|(name, value)| (*name, &**value));
        sign(&Timestamp::now(), method, url, key, secret, token, self.bucket.region(), VALID_S, query, headers)
    }

    /// The body of the request that completes an upload.
    pub(super) fn completion(&self, key: &str, upload: &str, etags: &[String]) -> String {
        let etags = etags.iter().map(String::as_str);
        CompleteMultipartUpload::new(&self.bucket, Some(&self.credentials), key, upload, etags).body()
    }

    /// A failure of the connection, which may pass.
    pub(super) fn failure(&self, text: impl Into<String>) -> Failure {
        Failure::Connection { place: self.place.clone(), text: text.into(), is_temporary: true }
    }

    /// Sends a request once.
    async fn attempt(&self, request: &Request) -> Result<Response<Incoming>, Failure> {
        let mut message = hyper::Request::builder().method(&request.method).uri(self.url(request).as_str());
        for (name, value) in &request.headers {
            message = message.header(*name, value);
        }
        let message = message.body(Full::new(request.body.clone())).map_err(|error| self.failure(error.to_string()))?;
        let limit = SILENCE_MAX + Duration::from_secs(request.body.len() as u64 / BYTES_PER_S_MIN);
        let answer = match timeout(limit, self.http.request(message)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                let (place, text, is_temporary) = (self.place.clone(), causes(&error), !is_about_tls(&error));
                return Err(Failure::Connection { place, text, is_temporary });
            }
            Err(_) => return Err(self.failure(format!("no answer within {} s", limit.as_secs()))),
        };
        self.has_answered.store(true, Ordering::Relaxed);
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        // Without its body the error is less clear, and still an error.
        let text = self.text(body).await.unwrap_or_default();
        Err(Failure::Refused(Box::new(Refusal::new(&self.place, head.status, &head.headers, &text))))
    }

    async fn text(&self, body: Incoming) -> Result<String, Failure> {
        match timeout(SILENCE_MAX, Limited::new(body, ANSWER_MAX).collect()).await {
            Ok(Ok(body)) => Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned()),
            Ok(Err(error)) => Err(self.failure(format!("the answer was cut short: {error}"))),
            Err(_) => Err(self.failure("the answer was not complete in time")),
        }
    }

    /// Sends a request until it succeeds, and returns the body as text.
    pub(super) async fn call(&self, request: &Request) -> Result<Answer, Failure> {
        let backoff = &mut Backoff::default();
        loop {
            let failure = match self.attempt(request).await {
                Ok(answer) => {
                    let (head, body) = answer.into_parts();
                    match self.text(body).await {
                        // An answer may begin before the request has failed.
                        Ok(text) if text.contains("<Error>") => {
                            Failure::Refused(Box::new(Refusal::new(&self.place, head.status, &head.headers, &text)))
                        }
                        Ok(text) => {
                            let etag = head.headers.get(hyper::header::ETAG).and_then(|etag| etag.to_str().ok());
                            return Ok(Answer { text, etag: etag.map(str::to_owned) });
                        }
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            self.pause(backoff, failure).await?;
        }
    }

    /// Sends a request until an answer begins.
    pub(super) async fn open(&self, request: &Request, backoff: &mut Backoff) -> Result<Response<Incoming>, Failure> {
        loop {
            match self.attempt(request).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.pause(backoff, failure).await?,
            }
        }
    }

    /// Waits before the next attempt. Gives the failure back if there is none.
    pub(super) async fn pause(&self, backoff: &mut Backoff, failure: Failure) -> Result<(), Failure> {
        let has_answered = self.has_answered.load(Ordering::Relaxed);
        backoff.failures += 1;
        if !failure.is_temporary() || backoff.failures >= if has_answered { ATTEMPTS } else { FIRST_ATTEMPTS } {
            return Err(match failure {
                Failure::Connection { place, text, is_temporary } if !has_answered => {
                    Failure::Connection { place, text: format!("{text}; check AWS_ENDPOINT_URL"), is_temporary }
                }
                failure => failure,
            });
        }
        let pause = PAUSE_MIN.saturating_mul(1 << (backoff.failures - 1)).min(PAUSE_MAX);
        // Uploads that failed together do not come back together.
        sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        Ok(())
    }

    /// The next piece of a body; `None` behind the last one.
    pub(super) async fn next_piece(&self, body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        loop {
            match timeout(SILENCE_MAX, body.frame()).await {
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(piece) => return Ok(Some(piece)),
                    Err(_) => continue,
                },
                Ok(Some(Err(error))) => return Err(self.failure(causes(&error))),
                Err(_) => return Err(self.failure(format!("no data for {} s", SILENCE_MAX.as_secs()))),
            }
        }
    }
}

/// A complete answer.
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) etag: Option<String>,
}

/// TLS that trusts these authorities.
fn trust(authorities: &[u8]) -> Result<rustls::ClientConfig, kvick_load::config::ConfigError> {
    TlsSettings::from_pem(authorities, None).map(|settings| settings.client_config())
}

/// An error with its causes: the outer ones only say that a request has failed.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Whether the two sides do not agree on TLS, such as on a certificate. That does not change by itself.
fn is_about_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        // An I/O error is not the source of the error that it has inside.
        let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if error.is::<rustls::Error>() || inside.is_some_and(|inside| inside.is::<rustls::Error>()) {
            return true;
        }
        next = error.source();
    }
    false
}

/// The attempts of a request so far.
#[derive(Default)]
pub(super) struct Backoff {
    failures: u32,
}

/// [`Service`] with a runtime, for threads that wait.
#[derive(Clone)]
pub(super) struct Client {
    // Tasks have no reference to the runtime, which must not end inside of one.
    pub(super) runtime: Arc<Runtime>,
    pub(super) service: Arc<Service>,
}

impl Client {
    pub(super) fn new(settings: &Settings) -> io::Result<Client> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(Client { runtime: Arc::new(runtime), service: Arc::new(Service::new(settings)?) })
    }

    /// Sends a request until it succeeds.
    pub(super) fn call(&self, request: &Request) -> Result<Answer, Failure> {
        self.runtime.block_on(self.service.call(request))
    }

    /// Sends a request once, whatever comes of it.
    pub(super) fn try_call(&self, request: &Request) {
        let _ = self.runtime.block_on(self.service.attempt(request));
    }

    /// Bucket and server, for people.
    pub(super) fn place(&self) -> &str {
        &self.service.place
    }
}
