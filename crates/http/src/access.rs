//! Who may see protected pages: clients with the token, or without a token local clients, as in protected mode.

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use std::net::IpAddr;
use subtle::ConstantTimeEq;

/// The current rules. The router asks for them with each request, so that changed settings apply at once.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The bearer token that requests must have.
    pub token: Option<Vec<u8>>,
    /// Whether remote peers are refused while there is no token.
    pub protected_mode: bool,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// It lacks the token, or has a wrong one.
    Token,
    /// Protected mode.
    ProtectedMode,
}

impl Access {
    /// Decides on a request from `peer`.
    ///
    /// # Errors
    /// The reason, if the request is refused.
    pub fn check(&self, peer: IpAddr, headers: &HeaderMap) -> Result<(), Denial> {
        match &self.token {
            Some(token) if bearer(headers).is_some_and(|given| given.ct_eq(token).into()) => Ok(()),
            Some(_) => Err(Denial::Token),
            None if self.protected_mode && !is_loopback(peer) => Err(Denial::ProtectedMode),
            None => Ok(()),
        }
    }
}

/// The token of the header `Authorization: Bearer TOKEN`. The scheme is case-insensitive.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(token.trim_ascii())
}

/// Whether the address is of this machine, also as an IPv4 address in an IPv6 one.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    const LOCAL: &str = "127.0.0.1";
    const MAPPED: &str = "::ffff:127.0.0.1";
    const REMOTE: &str = "192.0.2.7";

    fn check(access: &Access, peer: &str, authorization: Option<&'static str>) -> Result<(), Denial> {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
        }
        access.check(peer.parse().expect("an address"), &headers)
    }

    #[test]
    fn token_is_required_from_everyone() {
        let access = Access { token: Some(b"s3cret".to_vec()), protected_mode: true };
        for peer in [LOCAL, REMOTE] {
            assert_eq!(check(&access, peer, Some("Bearer s3cret")), Ok(()));
            assert_eq!(check(&access, peer, Some("bearer s3cret ")), Ok(()));
            for wrong in [None, Some("Bearer s3cre"), Some("Bearer s3crets"), Some("Basic s3cret"), Some("Bearer")] {
                assert_eq!(check(&access, peer, wrong), Err(Denial::Token), "{wrong:?}");
            }
        }
    }

    #[test]
    fn without_a_token_protected_mode_serves_local_peers() {
        let protected = Access { token: None, protected_mode: true };
        assert_eq!(check(&protected, LOCAL, None), Ok(()));
        assert_eq!(check(&protected, MAPPED, None), Ok(()));
        assert_eq!(check(&protected, REMOTE, None), Err(Denial::ProtectedMode));
        assert_eq!(check(&protected, REMOTE, Some("Bearer any")), Err(Denial::ProtectedMode));
        assert_eq!(check(&Access::default(), REMOTE, None), Ok(()));
    }
}
