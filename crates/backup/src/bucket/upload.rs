//! An object that is uploaded while its data arrive, in parts.
//!
//! A part is sent while the next one fills up. Memory is bounded by a few parts. Parts grow, because an object has at
//! most 10,000 of them and its size is not known in advance. An object that is smaller than a part is sent at once.

use super::listing;
use super::refusal::Failure;
use super::service::{Client, Request};
use crate::storage::Output;
use hyper::Method;
use hyper::body::Bytes;
use rusty_s3::actions::{CompleteMultipartUploadResponse, CreateMultipartUpload};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Bytes of the first parts. S3's least is 5 MiB.
const FIRST_PART_BYTES: usize = 8 << 20;
/// Number of parts after which their size doubles.
const PARTS_OF_A_SIZE: usize = 1_000;
/// Most parts of an object.
const PARTS_MAX: usize = 10_000;
/// Parts up to this size are sent two at a time, larger ones one by one.
const PAIR_BYTES_MAX: usize = 16 << 20;

/// How long a part of an upload that failed may take to arrive, before the upload is aborted.
const LAST_PARTS_MAX: Duration = Duration::from_secs(10);

/// Bytes of the part with this index: 8 MiB up to 8 GB, and 512 MiB at a terabyte.
const fn part_bytes(index: usize) -> usize {
    FIRST_PART_BYTES << (index / PARTS_OF_A_SIZE)
}

/// See the module's documentation.
pub(super) struct Upload {
    client: Client,
    key: String,
    /// The upload in parts, if it was begun.
    id: Option<String>,
    buffer: Vec<u8>,
    under_way: VecDeque<JoinHandle<Result<String, Failure>>>,
    /// The server's names for the parts that have arrived.
    etags: Vec<String>,
    bytes: u64,
    is_finished: bool,
}

impl Upload {
    pub(super) fn new(client: Client, key: String) -> Upload {
        Upload {
            client,
            key,
            id: None,
            buffer: Vec::new(),
            under_way: VecDeque::new(),
            etags: Vec::new(),
            bytes: 0,
            is_finished: false,
        }
    }

    fn begin(&self) -> Result<String, Failure> {
        let request = Request::new(Method::POST, self.key.clone(), vec![("uploads", String::new())]);
        let answer = self.client.call(&request)?;
        match CreateMultipartUpload::parse_response(&answer.text) {
            Ok(parsed) => Ok(parsed.upload_id().to_owned()),
            Err(error) => Err(self.final_failure(&format!("the answer cannot be read: {error}"))),
        }
    }

    fn final_failure(&self, text: &str) -> Failure {
        let place = self.client.place().to_owned();
        Failure::Connection { place, text: format!("{}: {text}", self.key), is_temporary: false }
    }

    /// Sends the buffer as a part, while others may be under way.
    fn send_part(&mut self) -> Result<(), Failure> {
        let index = self.etags.len() + self.under_way.len();
        if index == PARTS_MAX {
            return Err(self.final_failure("the dump is too large for an object"));
        }
        let id = match &self.id {
            Some(id) => id.clone(),
            None => self.id.insert(self.begin()?).clone(),
        };
        let at_once = if self.buffer.len() <= PAIR_BYTES_MAX { 2 } else { 1 };
        while self.under_way.len() >= at_once {
            self.settle_one()?;
        }
        let body = Bytes::from(std::mem::take(&mut self.buffer));
        let query = vec![("partNumber", (index + 1).to_string()), ("uploadId", id)];
        let (service, key) = (self.client.service.clone(), self.key.clone());
        self.under_way.push_back(self.client.runtime.spawn(async move {
            let answer = service.call(&Request::new(Method::PUT, key, query).with_body(body)).await?;
            answer.etag.ok_or_else(|| service.failure("the answer to a part has no ETag"))
        }));
        Ok(())
    }

    /// Waits until the oldest part has arrived.
    fn settle_one(&mut self) -> Result<(), Failure> {
        let Some(oldest) = self.under_way.pop_front() else { return Ok(()) };
        let etag = self.client.runtime.block_on(oldest);
        let etag = etag.unwrap_or_else(|error| Err(self.final_failure(&error.to_string())))?;
        self.etags.push(etag);
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Failure> {
        if self.id.is_none() {
            let body = Bytes::from(std::mem::take(&mut self.buffer));
            return self.client.call(&Request::put(self.key.clone(), body)).map(drop);
        }
        if !self.buffer.is_empty() {
            self.send_part()?;
        }
        while !self.under_way.is_empty() {
            self.settle_one()?;
        }
        let Some(id) = self.id.clone() else { return Ok(()) };
        let text = self.client.service.completion(&self.key, &id, &self.etags);
        let mut request = Request::new(Method::POST, self.key.clone(), vec![("uploadId", id)]);
        request.body = text.into();
        match self.client.call(&request) {
            Ok(answer) => {
                let parsed = CompleteMultipartUploadResponse::parse(&answer.text);
                parsed.map(drop).map_err(|error| self.final_failure(&format!("the answer cannot be read: {error}")))
            }
            // An earlier attempt may have succeeded without an answer.
            Err(Failure::Refused(refusal)) if refusal.is_missing() && self.exists()? => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    fn exists(&self) -> Result<bool, Failure> {
        let found = listing::objects(&self.client, &self.key)?;
        Ok(found.iter().any(|object| object.key == self.key && object.size == self.bytes))
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let size = part_bytes(self.etags.len() + self.under_way.len());
        if self.buffer.len() == size {
            self.send_part()?;
        }
        let size = part_bytes(self.etags.len() + self.under_way.len());
        if self.buffer.capacity() == 0 {
            // Memory that is not written to costs nothing.
            self.buffer.reserve_exact(size);
        }
        let count = bytes.len().min(size - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for Upload {
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.complete()?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        // A part that the server still receives could arrive behind the end of its upload, and would stay.
        for mut part in self.under_way.drain(..) {
            if self.client.runtime.block_on(async { timeout(LAST_PARTS_MAX, &mut part).await }).is_err() {
                part.abort();
            }
        }
        if let Some(id) = self.id.take() {
            // If that fails, the next pruning removes the parts.
            self.client.try_call(&Request::abort(self.key.clone(), &id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_and_hold_terabytes() {
        assert_eq!([0, 999, 1_000, 9_999].map(part_bytes), [8 << 20, 8 << 20, 16 << 20, 4 << 30]);
        let total: u64 = (0..PARTS_MAX).map(|index| part_bytes(index) as u64).sum();
        assert!(total > 5 << 40, "an object has up to 5 TiB: {total}");
        // A terabyte is reached with parts of 512 MiB.
        let of_half_gib = (0..7_000).map(|index| part_bytes(index) as u64).sum::<u64>();
        assert!(of_half_gib > 1_000_000_000_000, "{of_half_gib}");
    }
}
