//! Lists of objects and of uploads that were not completed, page by page.

use super::refusal::Failure;
use super::service::{Client, Request};
use hyper::Method;
use instant_xml::FromXml;
use jiff::Timestamp;
use rusty_s3::actions::{ListObjectsV2, ListParts};

/// The namespace of S3's answers.
const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// An object.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) key: String,
    pub(super) size: u64,
    pub(super) modified: Timestamp,
}

/// An upload in parts that was not completed.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub(super) key: String,
    pub(super) id: String,
    pub(super) begun: Timestamp,
}

/// All objects whose keys begin with `prefix`, by key.
pub(super) fn objects(client: &Client, prefix: &str) -> Result<Vec<Object>, Failure> {
    let mut found = Vec::new();
    let mut token = None;
    loop {
        let mut query = vec![("encoding-type", "url".to_owned()), ("list-type", "2".into()), ("prefix", prefix.into())];
        if let Some(token) = token {
            query.insert(0, ("continuation-token", token));
        }
        let answer = client.call(&Request::new(Method::GET, String::new(), query))?;
        let page = ListObjectsV2::parse_response(&answer.text).map_err(|error| unreadable(client, &error))?;
        for entry in page.contents {
            let modified = parse_time(client, entry.last_modified.as_deref().unwrap_or_default())?;
            found.push(Object { key: entry.key, size: entry.size.unwrap_or(0), modified });
        }
        token = page.next_continuation_token;
        if token.is_none() {
            return Ok(found);
        }
    }
}

#[derive(FromXml)]
#[xml(rename = "ListMultipartUploadsResult", ns(NAMESPACE))]
struct UploadsPage {
    uploads: Vec<UploadEntry>,
    #[xml(rename = "IsTruncated")]
    is_truncated: Option<bool>,
    #[xml(rename = "NextKeyMarker")]
    next_key: Option<String>,
    #[xml(rename = "NextUploadIdMarker")]
    next_id: Option<String>,
}

#[derive(FromXml)]
#[xml(rename = "Upload", ns(NAMESPACE))]
struct UploadEntry {
    #[xml(rename = "Key")]
    key: String,
    #[xml(rename = "UploadId")]
    id: String,
    #[xml(rename = "Initiated")]
    initiated: String,
}

/// All uploads to keys that begin with `prefix`.
pub(super) fn uploads(client: &Client, prefix: &str) -> Result<Vec<Unfinished>, Failure> {
    let mut found = Vec::new();
    let mut marker: Option<(String, String)> = None;
    loop {
        let mut query = vec![("prefix", prefix.to_owned())];
        if let Some((key, id)) = &marker {
            query.insert(0, ("key-marker", key.clone()));
            query.push(("upload-id-marker", id.clone()));
        }
        query.push(("uploads", String::new()));
        let answer = client.call(&Request::new(Method::GET, String::new(), query))?;
        let page: UploadsPage = instant_xml::from_str(&answer.text).map_err(|error| unreadable(client, &error))?;
        for entry in page.uploads {
            let begun = parse_time(client, &entry.initiated)?;
            found.push(Unfinished { key: entry.key, id: entry.id, begun });
        }
        let next = (page.next_key.unwrap_or_default(), page.next_id.unwrap_or_default());
        // A page that leads nowhere would be asked for again and again.
        if page.is_truncated != Some(true) || next.0.is_empty() || marker.as_ref() == Some(&next) {
            return Ok(found);
        }
        marker = Some(next);
    }
}

/// When the last part of an upload arrived; `None` without parts.
pub(super) fn last_part(client: &Client, upload: &Unfinished) -> Result<Option<Timestamp>, Failure> {
    let (mut last, mut marker) = (None, None);
    loop {
        let mut query = vec![("uploadId", upload.id.clone())];
        if let Some(marker) = marker {
            query.insert(0, ("part-number-marker", u16::to_string(&marker)));
        }
        let answer = client.call(&Request::new(Method::GET, upload.key.clone(), query))?;
        let page = ListParts::parse_response(&answer.text).map_err(|error| unreadable(client, &error))?;
        for part in page.parts {
            last = last.max(Some(parse_time(client, &part.last_modified)?));
        }
        marker = page.next_part_number_marker;
        if marker.is_none() {
            return Ok(last);
        }
    }
}

fn parse_time(client: &Client, text: &str) -> Result<Timestamp, Failure> {
    text.parse().map_err(|error| unreadable(client, &error))
}

/// An answer that another attempt would not make better.
fn unreadable(client: &Client, error: &dyn std::fmt::Display) -> Failure {
    let text = format!("the answer cannot be read: {error}");
    Failure::Connection { place: client.place().to_owned(), text, is_temporary: false }
}
