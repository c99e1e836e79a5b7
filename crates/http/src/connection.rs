//! One connection: its limits, and its requests.

use crate::limits::Limits;
use crate::router::{Reply, Request, Router, text};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// What is known of a connection.
#[derive(Clone, Copy)]
struct Ends {
    peer: SocketAddr,
    local: SocketAddr,
    is_encrypted: bool,
}

/// Serves a connection until it ends or exceeds a limit. What a peer does wrong is its own problem: errors other than
/// those of the TLS handshake are not reported.
///
/// # Errors
/// If the TLS handshake fails.
pub async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Arc<Router>,
    limits: Limits,
) -> io::Result<()> {
    let ends = Ends { peer, local: stream.local_addr()?, is_encrypted: tls.is_some() };
    let stream = Timed::new(stream, limits.write_time_max);
    match tls {
        None => serve_requests(stream, ends, router, limits).await,
        Some(config) => {
            let handshake = TlsAcceptor::from(config).accept(stream);
            let stream = timeout(limits.handshake_time_max, handshake).await??;
            serve_requests(stream, ends, router, limits).await;
        }
    }
    Ok(())
}

async fn serve_requests<S>(stream: S, ends: Ends, router: Arc<Router>, limits: Limits)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |request| {
        let router = router.clone();
        async move { Ok::<Reply, Infallible>(answer(&router, request, ends, &limits).await) }
    });
    // The result is an error of this peer alone.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time_max)
        .max_buf_size(limits.head_bytes_max)
        .max_headers(limits.headers_max)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Reads the body of a request, and calls its handler.
async fn answer(router: &Router, request: hyper::Request<Incoming>, ends: Ends, limits: &Limits) -> Reply {
    let (head, body) = request.into_parts();
    let admitted = match router.admit(&head.method, head.uri.path(), &head.headers, ends.peer.ip()) {
        Ok(admitted) => admitted,
        Err(refused) => return closing(*refused),
    };
    let body = timeout(limits.body_time_max, Limited::new(body, limits.body_bytes_max).collect()).await;
    let body = match body {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return closing(text(StatusCode::PAYLOAD_TOO_LARGE, "The body is too large.\n"));
        }
        Ok(Err(_)) => return closing(text(StatusCode::BAD_REQUEST, "The body is not valid.\n")),
        Err(_) => return closing(text(StatusCode::REQUEST_TIMEOUT, "The body did not arrive in time.\n")),
    };
    let request = Request {
        path: head.uri.path().to_owned(),
        query: head.uri.query().map(str::to_owned),
        method: head.method,
        headers: head.headers,
        body,
        peer: ends.peer,
        local: ends.local,
        is_encrypted: ends.is_encrypted,
    };
    router.call(admitted, request).await
}

/// Ends the connection after this reply, since the rest of the request is not read.
fn closing(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    reply
}

/// A socket whose writes fail if the peer does not read for too long. The time starts when the socket does not take all
/// bytes, and ends when it does: a peer that reads a few bytes now and then gains nothing by that.
struct Timed {
    stream: TcpStream,
    write_time_max: Duration,
    /// Runs while written bytes wait for the peer.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    fn new(stream: TcpStream, write_time_max: Duration) -> Timed {
        Timed { stream, write_time_max, stalled: None }
    }

    /// Whether the peer has been too slow; otherwise wakes the task when it is.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let limit = self.write_time_max;
        self.stalled.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx).is_ready()
    }
}

impl AsyncRead for Timed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        match &written {
            Poll::Ready(Ok(count)) if *count == bytes.len() => self.stalled = None,
            Poll::Ready(Ok(_)) | Poll::Pending if self.is_late(cx) => {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            _ => {}
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        Poll::Ready(Ok(()))
    }
}
