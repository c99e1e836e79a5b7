//! An object that is read from its beginning to its end. If the connection fails, the rest is asked for.

use super::refusal::Failure;
use super::service::{Backoff, Client, Request};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_LENGTH, ETAG};
use hyper::{Method, Response, StatusCode};
use std::io::{self, Read};

/// See the module's documentation.
pub(super) struct Download {
    client: Client,
    key: String,
    body: Option<Incoming>,
    piece: Bytes,
    /// Bytes that have arrived.
    offset: u64,
    /// Size of the object.
    total: u64,
    /// The version of the object that was begun.
    etag: Option<String>,
    backoff: Backoff,
}

impl Download {
    pub(super) fn open(client: &Client, key: String) -> Result<Download, Failure> {
        let request = Request::new(Method::GET, key.clone(), Vec::new());
        let answer = client.runtime.block_on(client.service.open(&request, &mut Backoff::default()))?;
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let total = header(CONTENT_LENGTH).and_then(|length| length.parse().ok());
        let total = total.ok_or_else(|| client.service.failure(format!("{key}: the answer has no length")))?;
        let etag = header(ETAG).map(str::to_owned);
        let (client, body, backoff) = (client.clone(), Some(answer.into_body()), Backoff::default());
        Ok(Download { client, key, body, piece: Bytes::new(), offset: 0, total, etag, backoff })
    }

    /// Asks for the rest.
    fn resume(&mut self) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::new(Method::GET, self.key.clone(), Vec::new());
        request.headers.extend(self.etag.iter().map(|etag| ("if-match", etag.clone())));
        request.headers.push(("range", format!("bytes={}-", self.offset)));
        let answer = self.client.runtime.block_on(self.client.service.open(&request, &mut self.backoff))?;
        if answer.status() == StatusCode::PARTIAL_CONTENT || self.offset == 0 {
            return Ok(answer);
        }
        let text = format!("{}: the connection failed, and this server does not send the rest of an object", self.key);
        Err(Failure::Connection { place: self.client.place().to_owned(), text, is_temporary: false })
    }

    /// Waits for the next piece. At the end of the object it stays empty.
    fn fill(&mut self) -> Result<(), Failure> {
        while self.piece.is_empty() && self.offset < self.total {
            let mut body = match self.body.take() {
                Some(body) => body,
                None => self.resume()?.into_body(),
            };
            let next = self.client.runtime.block_on(self.client.service.next_piece(&mut body));
            let failure = match next {
                Ok(Some(piece)) if self.offset + piece.len() as u64 <= self.total => {
                    self.offset += piece.len() as u64;
                    self.piece = piece;
                    self.body = Some(body);
                    self.backoff = Backoff::default();
                    continue;
                }
                Ok(Some(_)) => {
                    let text = format!("{}: more bytes arrive than were announced", self.key);
                    let place = self.client.place().to_owned();
                    return Err(Failure::Connection { place, text, is_temporary: false });
                }
                Ok(None) => self.client.service.failure(format!("{}: the connection was closed", self.key)),
                Err(failure) => failure,
            };
            self.client.runtime.block_on(self.client.service.pause(&mut self.backoff, failure))?;
        }
        Ok(())
    }
}

impl Read for Download {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fill()?;
        let count = self.piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}
