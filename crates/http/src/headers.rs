//! Names and values of headers, for handlers.

pub use hyper::HeaderMap;
pub use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, ETAG, HOST, HeaderName, HeaderValue, IF_NONE_MATCH, LOCATION,
    ORIGIN, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
