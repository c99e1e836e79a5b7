//! Why a request failed, and what to do.

use hyper::StatusCode;
use hyper::header::{DATE, HeaderMap};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use std::fmt;
use std::io;

/// Difference of clocks that a server may refuse. Amazon's limit is 15 minutes.
const SKEW_MAX_S: i64 = 5 * 60;
/// Rights that all subcommands together need.
const RIGHTS: &str = "s3:ListBucket, s3:ListBucketMultipartUploads, s3:ListMultipartUploadParts, \
                      s3:AbortMultipartUpload, s3:GetObject, s3:PutObject and s3:DeleteObject";

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server could not be reached, or did not answer completely.
    Connection {
        /// Bucket and server.
        place: String,
        /// What happened.
        text: String,
        /// Whether another attempt may succeed.
        is_temporary: bool,
    },
    /// The server has answered with an error.
    Refused(Box<Refusal>),
}

/// The answer of a server that refuses.
#[derive(Debug)]
pub(super) struct Refusal {
    /// Bucket and server.
    place: String,
    status: StatusCode,
    /// S3's word for the error; empty if the answer has none.
    code: String,
    message: String,
    /// The region of the bucket, if the server tells it.
    region: Option<String>,
    /// How many seconds the clock of the server is ahead of that of this machine.
    ahead_s: Option<i64>,
}

impl Failure {
    /// Whether another attempt may succeed.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Failure::Connection { is_temporary, .. } => *is_temporary,
            Failure::Refused(refusal) => refusal.is_temporary(),
        }
    }
}

impl Refusal {
    pub(super) fn new(place: &str, status: StatusCode, headers: &HeaderMap, body: &str) -> Refusal {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let now = Timestamp::now().as_second();
        let server_time =
            header(DATE.as_str()).and_then(|date| rfc2822::DateTimeParser::new().parse_timestamp(date).ok());
        Refusal {
            place: place.to_owned(),
            status,
            code: element(body, "Code").unwrap_or_default(),
            message: element(body, "Message").unwrap_or_default(),
            region: header("x-amz-bucket-region").map(str::to_owned).or_else(|| element(body, "Region")),
            ahead_s: server_time.map(|time| time.as_second() - now),
        }
    }

    /// Whether the object or upload does not exist. A bucket or user that does not exist is another matter.
    pub(super) fn is_missing(&self) -> bool {
        self.status == StatusCode::NOT_FOUND && matches!(&*self.code, "NoSuchKey" | "NoSuchUpload" | "NotFound" | "")
    }

    fn is_temporary(&self) -> bool {
        match (self.status.as_u16(), &*self.code) {
            (501, _) => false,
            (408 | 409 | 429 | 500.., _) => true,
            // A part that was damaged on its way; and an answer that began before the server had failed.
            (_, "RequestTimeout" | "SlowDown" | "InternalError" | "BadDigest") => true,
            _ => false,
        }
    }

    /// What the user can do about it.
    fn advice(&self) -> Option<String> {
        let fixed = |text: &str| Some(text.to_owned());
        let status = self.status.as_u16();
        match (&*self.code, self.ahead_s, &self.region) {
            ("RequestTimeTooSkewed" | "RequestExpired", None, _) => fixed("set the clock of this machine"),
            (_, Some(ahead), _) if matches!(status, 400 | 401 | 403) && ahead.abs() > SKEW_MAX_S => {
                let way = if ahead > 0 { "behind" } else { "ahead of" };
                Some(format!("the clock of this machine is {} s {way} that of the server: set it", ahead.abs()))
            }
            ("InvalidAccessKeyId" | "XAdminUserNotFound", ..) => {
                fixed("check AWS_ACCESS_KEY_ID, and that AWS_ENDPOINT_URL is its server")
            }
            ("ExpiredToken" | "InvalidToken", ..) => {
                fixed("get a new AWS_SESSION_TOKEN, with the keys that belong to it")
            }
            (
                "PermanentRedirect"
                | "TemporaryRedirect"
                | "AuthorizationHeaderMalformed"
                | "AuthorizationQueryParametersError"
                | "IllegalLocationConstraintException",
                _,
                region,
            ) => Some(match region {
                Some(region) => format!("the bucket is in another region: set AWS_REGION={region}"),
                None => "set AWS_REGION to the region of the bucket, or AWS_ENDPOINT_URL to its server".to_owned(),
            }),
            ("SignatureDoesNotMatch", ..) => fixed("check AWS_SECRET_ACCESS_KEY and AWS_REGION"),
            ("NoSuchBucket", ..) => fixed("create the bucket, or check its name and AWS_ENDPOINT_URL"),
            ("NoSuchUpload", ..) => {
                fixed("something has aborted the upload, such as a rule of the bucket or another program that prunes")
            }
            _ if matches!(status, 301 | 307) => fixed("set AWS_REGION to the region of the bucket"),
            _ if matches!(status, 401 | 403) => {
                Some(format!("these credentials may lack a right: needed are {RIGHTS}"))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answers {}", self.place, self.status.as_u16())?;
        match (&*self.code, &*self.message) {
            ("", "") => {}
            (code, "") => write!(f, " {code}")?,
            (code, message) => write!(f, " {code}: {}", message.trim_end_matches('.'))?,
        }
        self.advice().map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connection { place, text, .. } => write!(f, "{place}: {text}"),
            Failure::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        let kind = match &failure {
            Failure::Connection { .. } => io::ErrorKind::NotConnected,
            Failure::Refused(refusal) if refusal.status == StatusCode::NOT_FOUND => io::ErrorKind::NotFound,
            Failure::Refused(refusal) if refusal.status == StatusCode::FORBIDDEN => io::ErrorKind::PermissionDenied,
            Failure::Refused(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, failure.to_string())
    }
}

/// The text of the first element with this name. Errors come with and without a namespace, and sometimes as a page for
/// people: what is not found is absent.
fn element(xml: &str, name: &str) -> Option<String> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&#34;", "\"");
    let text = text.replace("&apos;", "'").replace("&#39;", "'");
    Some(text.replace("&amp;", "&").trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, code: &str, headers: &[(&'static str, &str)]) -> Refusal {
        let status = StatusCode::from_u16(status).expect("a status");
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().expect("a value"));
        }
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>No &amp; no.</Message></Error>");
        Refusal::new("s3://b at http://h", status, &map, &body)
    }

    #[test]
    fn errors_say_what_to_do() {
        for (status, code, advice) in [
            (403, "AccessDenied", "s3:PutObject"),
            (403, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
            (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
            (403, "RequestTimeTooSkewed", "clock"),
            (400, "ExpiredToken", "AWS_SESSION_TOKEN"),
            (301, "PermanentRedirect", "AWS_REGION"),
            (404, "NoSuchBucket", "create the bucket"),
        ] {
            let text = refusal(status, code, &[]).to_string();
            assert!(text.starts_with(&format!("s3://b at http://h answers {status} {code}: No & no; ")), "{text}");
            assert!(text.contains(advice), "{text}");
        }
        let text = refusal(400, "AuthorizationHeaderMalformed", &[("x-amz-bucket-region", "eu-north-1")]).to_string();
        assert!(text.ends_with("set AWS_REGION=eu-north-1"), "{text}");
        let text = refusal(403, "AccessDenied", &[("date", "Wed, 21 Oct 2015 07:28:00 GMT")]).to_string();
        assert!(text.contains("ahead of that of the server: set it"), "{text}");
        let page = Refusal::new("s3://b", StatusCode::BAD_GATEWAY, &HeaderMap::new(), "<html>no</html>");
        assert_eq!(page.to_string(), "s3://b answers 502");
    }

    #[test]
    fn only_failures_that_may_pass_are_temporary() {
        for (status, code) in
            [(500, "InternalError"), (503, "SlowDown"), (400, "RequestTimeout"), (200, "InternalError")]
        {
            assert!(refusal(status, code, &[]).is_temporary(), "{status} {code}");
        }
        for (status, code) in
            [(403, "AccessDenied"), (404, "NoSuchKey"), (400, "InvalidRequest"), (501, "NotImplemented")]
        {
            assert!(!refusal(status, code, &[]).is_temporary(), "{status} {code}");
        }
    }
}
