//! Methods and paths, and the handlers behind them.

use crate::access::{Access, Denial};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Method, Response, StatusCode};
use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc::Receiver;

/// The type of plain text replies.
pub const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// The reply to requests that protected mode refuses: what the operator can do.
const PROTECTED: &str = "Refused: protected mode is enabled and no metrics-token is set, so this page is served to \
    local clients only. To allow remote clients, set metrics-token and send it as bearer token, or make sure that \
    only trusted hosts can reach this port and run 'CONFIG SET protected-mode no'.\n";

/// A request with its whole body.
#[derive(Debug)]
pub struct Request {
    /// Its method.
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    /// The query, without the question mark.
    pub query: Option<String>,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, within the limit.
    pub body: Bytes,
    /// The address of the peer.
    pub peer: SocketAddr,
    /// The address that it has connected to.
    pub local: SocketAddr,
    /// Whether it arrived over TLS.
    pub is_encrypted: bool,
}

/// The body of a reply.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A reply.
pub type Reply = Response<Body>;

/// A body that is known.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A body that is sent piece by piece, until all senders are dropped. The channel's capacity limits what waits for a
/// slow reader; a sender notices by its failing `send` that the connection has ended.
pub fn stream(pieces: Receiver<Bytes>) -> Body {
    StreamBody::new(Pieces(pieces)).boxed_unsync()
}

/// The stream of a channel's pieces.
struct Pieces(Receiver<Bytes>);

impl futures_core::Stream for Pieces {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A reply with a status, a content type and a body. It must not be cached.
pub fn reply(status: StatusCode, content_type: &'static str, body: Body) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    reply
}

/// A reply with a plain text.
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Reply {
    reply(status, PLAIN_TEXT, full(text))
}

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Anyone who can reach the port.
    Open,
    /// Who [`Access`] allows.
    Protected,
}

type Answer = Pin<Box<dyn Future<Output = Reply> + Send>>;
type Handler = Box<dyn Fn(Request) -> Answer + Send + Sync>;

struct Route {
    method: Method,
    path: &'static str,
    guard: Guard,
    handler: Handler,
}

/// See the module's documentation.
pub struct Router {
    routes: Vec<Route>,
    access: Box<dyn Fn() -> Access + Send + Sync>,
}

impl Router {
    /// A router without routes. `access` returns the current rules for protected routes.
    pub fn new(access: impl Fn() -> Access + Send + Sync + 'static) -> Router {
        Router { routes: Vec::new(), access: Box::new(access) }
    }

    /// Adds a route with an asynchronous handler.
    pub fn route<F>(
        mut self,
        method: Method,
        path: &'static str,
        guard: Guard,
        handler: impl Fn(Request) -> F + Send + Sync + 'static,
    ) -> Router
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        let handler: Handler = Box::new(move |request| Box::pin(handler(request)));
        self.routes.push(Route { method, path, guard, handler });
        self
    }

    /// Adds a route for GET and HEAD with a handler that computes its reply at once.
    pub fn get(
        self,
        path: &'static str,
        guard: Guard,
        handler: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Router {
        self.route(Method::GET, path, guard, move |request| std::future::ready(handler(&request)))
    }

    /// Decides on the head of a request, before its body is read.
    ///
    /// # Errors
    /// The reply, if no handler may be called.
    pub(crate) fn admit(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        peer: IpAddr,
    ) -> Result<Admitted, Box<Reply>> {
        // hyper sends no body in reply to HEAD.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let mut of_path = self.routes.iter().enumerate().filter(|(_, route)| route.path == path).peekable();
        if of_path.peek().is_none() {
            return Err(Box::new(text(StatusCode::NOT_FOUND, "There is no such page.\n")));
        }
        let methods: Vec<&str> = of_path.clone().map(|(_, route)| route.method.as_str()).collect();
        let Some((number, route)) = of_path.find(|(_, route)| route.method == method) else {
            let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "This page does not support that method.\n");
            if let Ok(methods) = HeaderValue::try_from(methods.join(", ")) {
                refused.headers_mut().insert(ALLOW, methods);
            }
            return Err(Box::new(refused));
        };
        if route.guard == Guard::Protected {
            (self.access)().check(peer, headers).map_err(|denial| Box::new(denied(denial)))?;
        }
        Ok(Admitted(number))
    }

    /// Calls the handler of an admitted request.
    pub(crate) fn call(&self, Admitted(number): Admitted, request: Request) -> Answer {
        (self.routes[number].handler)(request)
    }
}

/// A request that may call a handler.
pub(crate) struct Admitted(usize);

fn denied(denial: Denial) -> Reply {
    match denial {
        Denial::ProtectedMode => text(StatusCode::FORBIDDEN, PROTECTED),
        Denial::Token => {
            let mut reply = text(StatusCode::UNAUTHORIZED, "This page needs the bearer token of metrics-token.\n");
            reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            reply
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(router: &Router, method: &Method, path: &str, peer: [u8; 4]) -> StatusCode {
        match router.admit(method, path, &HeaderMap::new(), IpAddr::from(peer)) {
            Ok(_) => StatusCode::OK,
            Err(reply) => reply.status(),
        }
    }

    #[test]
    fn routes_are_found_by_method_and_path_and_are_guarded() {
        let page = |_: &Request| text(StatusCode::OK, "");
        let router = Router::new(|| Access { token: None, protected_mode: true })
            .get("/open", Guard::Open, page)
            .get("/page", Guard::Protected, page)
            .route(Method::POST, "/page", Guard::Protected, |_| async { text(StatusCode::OK, "") });
        let (local, remote) = ([127, 0, 0, 1], [192, 0, 2, 1]);
        assert_eq!(status(&router, &Method::GET, "/page", local), StatusCode::OK);
        assert_eq!(status(&router, &Method::HEAD, "/page", local), StatusCode::OK);
        assert_eq!(status(&router, &Method::POST, "/page", local), StatusCode::OK);
        assert_eq!(status(&router, &Method::GET, "/page", remote), StatusCode::FORBIDDEN);
        assert_eq!(status(&router, &Method::GET, "/open", remote), StatusCode::OK);
        assert_eq!(status(&router, &Method::GET, "/page/", local), StatusCode::NOT_FOUND);
        let refused = router.admit(&Method::PUT, "/page", &HeaderMap::new(), IpAddr::from(local)).err();
        let refused = refused.expect("a reply");
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(refused.headers()[ALLOW], "GET, POST");
    }
}
