//! What protects a browser's session from other sites, and the headers of every reply.
//!
//! Requests that do something must come from the page itself: they need a header that a foreign site cannot add without
//! asking, and if the browser names the origin of a request, it must be this server. The cookie is never sent with
//! requests of other sites (`SameSite=Strict`) and cannot be read by scripts (`HttpOnly`).

use crate::sessions::Token;
use kvick_http::headers::{
    CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use kvick_http::{Reply, Request};
use std::net::IpAddr;

/// The header that requests of the page have.
pub const OWN_HEADER: &str = "x-kvick-page";

/// Only files of this server may be loaded, nothing inline, and no other site may embed the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Adds the headers that restrict what a browser does with a reply.
pub fn protect(mut reply: Reply) -> Reply {
    let headers = reply.headers_mut();
    let fixed = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    reply
}

/// Whether a request comes from the page, and not from another site.
pub fn is_from_page(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let has_own_header = headers.contains_key(OWN_HEADER);
    let is_same_site = headers.get("sec-fetch-site").is_none_or(|site| site == "same-origin" || site == "none");
    let is_own_origin = match headers.get(ORIGIN) {
        None => true,
        Some(origin) => match (origin.to_str().ok().and_then(|origin| origin.split_once("://")), text(HOST.as_str())) {
            (Some((_, authority)), Some(host)) => authority.eq_ignore_ascii_case(host),
            _ => false,
        },
    };
    has_own_header && is_same_site && is_own_origin
}

/// Whether the browser addressed this server by an IP address or as localhost. Any other name may belong to another
/// site that has its name resolve to this server (DNS rebinding), so a login by such a name needs a password.
pub fn is_addressed_directly(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let (name, _) = split_port(host);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Splits the port off a host.
fn split_port(host: &str) -> (&str, &str) {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (name, port),
        _ => (host, ""),
    }
}

/// The name of the cookie. Browsers send cookies to all ports of a host, so that of another server on this machine has
/// another name.
fn cookie_name(request: &Request) -> String {
    let host = request.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let prefix = if request.is_encrypted { "__Host-" } else { "" };
    format!("{prefix}kvick-page-{}", split_port(host).1)
}

/// The token in a request's cookie.
pub fn token(request: &Request) -> Option<Token> {
    let name = cookie_name(request);
    let cookies = request.headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).and_then(|(_, digits)| Token::parse(digits))
}

/// The value of `Set-Cookie` that gives the browser a token, or that takes it away.
pub fn cookie(request: &Request, token: Option<&Token>) -> String {
    let name = cookie_name(request);
    let secure = if request.is_encrypted { "; Secure" } else { "" };
    match token {
        Some(token) => format!("{name}={}; Path=/; HttpOnly; SameSite=Strict{secure}", token.digits()),
        None => format!("{name}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict{secure}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let value = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(value).collect()
    }

    #[test]
    fn requests_of_other_sites_are_recognised() {
        let own = ("x-kvick-page", "1");
        let host = ("host", "db:9121");
        assert!(is_from_page(&headers(&[own, host])));
        assert!(is_from_page(&headers(&[own, host, ("origin", "http://DB:9121"), ("sec-fetch-site", "same-origin")])));
        for foreign in [
            &[host][..],
            &[own, host, ("origin", "http://evil:9121")],
            &[own, host, ("origin", "http://db:9122")],
            &[own, host, ("origin", "null")],
            &[own, ("origin", "http://db:9121")],
            &[own, host, ("sec-fetch-site", "same-site")],
            &[own, host, ("sec-fetch-site", "cross-site")],
        ] {
            assert!(!is_from_page(&headers(foreign)), "{foreign:?}");
        }
    }

    #[test]
    fn only_addresses_and_localhost_are_direct() {
        for host in ["127.0.0.1:9121", "127.0.0.1", "[::1]:9121", "[2001:db8::1]", "localhost:1", "LOCALHOST"] {
            assert!(is_addressed_directly(&headers(&[("host", host)])), "{host}");
        }
        for host in ["db:9121", "evil.example", "localhost.evil.example:9121", "127.0.0.1.evil.example", ""] {
            assert!(!is_addressed_directly(&headers(&[("host", host)])), "{host}");
        }
        assert!(!is_addressed_directly(&headers(&[])));
    }
}
