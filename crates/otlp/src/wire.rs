//! The messages of OTLP that are sent and received, with the field numbers of `opentelemetry-proto` 1.x.

use crate::span::{Attribute, Resource, Span, Value};
use prost::Message;
use std::time::{SystemTime, UNIX_EPOCH};

/// `Span.SPAN_KIND_SERVER`
const KIND_SERVER: i32 = 2;
/// `Status.STATUS_CODE_ERROR`
const STATUS_ERROR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<ResourceMessage>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMessage {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<SpanMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "any_value::Value", tags = "1, 3")]
    value: Option<any_value::Value>,
}

/// What [`AnyValue`] may be.
mod any_value {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(int64, tag = "3")]
        Integer(i64),
    }
}

/// The reply of a collector that has accepted a request, at least in part.
#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

/// What a collector did not accept of a request.
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// Number of spans.
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    /// Why, for people. It may have a text, a warning, even if no span is rejected.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

/// The reply of a collector that has not accepted a request: `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Failure {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Encodes a request with these spans. Each becomes a trace of its own with a random id.
///
/// # Errors
/// If the system has no random numbers.
pub fn encode(resource: &Resource, version: &str, spans: &[Span]) -> Result<Vec<u8>, getrandom::Error> {
    let spans = spans.iter().map(span).collect::<Result<Vec<_>, _>>()?;
    let scope = Scope { name: "kvick".into(), version: version.into() };
    let request = ExportRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(ResourceMessage { attributes: resource.iter().map(key_value).collect() }),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
        }],
    };
    Ok(request.encode_to_vec())
}

/// What a collector did not accept, by its reply with status 200. A reply that is not understood says nothing.
pub fn rejected(reply: &[u8]) -> PartialSuccess {
    ExportResponse::decode(reply).ok().and_then(|reply| reply.partial_success).unwrap_or_default()
}

/// The reason in a reply with another status, if it has one.
pub fn reason(reply: &[u8]) -> Option<String> {
    Failure::decode(reply).ok().map(|failure| failure.message).filter(|message| !message.is_empty())
}

fn span(span: &Span) -> Result<SpanMessage, getrandom::Error> {
    // Ids must not be zero, which is less likely than a failure of the hardware.
    let (mut trace_id, mut span_id) = (vec![0; 16], vec![0; 8]);
    getrandom::fill(&mut trace_id)?;
    getrandom::fill(&mut span_id)?;
    let began = unix_ns(span.began);
    Ok(SpanMessage {
        trace_id,
        span_id,
        name: span.name.clone(),
        kind: KIND_SERVER,
        start_time_unix_nano: began,
        end_time_unix_nano: began.saturating_add(u64::try_from(span.duration.as_nanos()).unwrap_or(u64::MAX)),
        attributes: span.attributes.iter().map(key_value).collect(),
        status: span.error.clone().map(|message| Status { message, code: STATUS_ERROR }),
    })
}

fn key_value((key, value): &Attribute) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::Text(text.clone()),
        Value::Integer(number) => any_value::Value::Integer(*number),
    };
    KeyValue { key: (*key).to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn spans_have_ids_times_and_status() {
        let one = Span {
            name: "GET".into(),
            began: UNIX_EPOCH + Duration::from_nanos(1_700_000_000_000_000_001),
            duration: Duration::from_micros(15),
            error: Some("WRONGTYPE no".into()),
            attributes: vec![("db.namespace", "0".into()), ("kvick.commandlog.id", 7.into())],
        };
        let two = Span { error: None, ..one.clone() };
        let encoded = encode(&vec![("service.name", "kvick".into())], "1.2", &[one, two]).expect("random numbers");
        let request = ExportRequest::decode(&encoded[..]).expect("valid");
        let [ResourceSpans { resource, scope_spans }] = &request.resource_spans[..] else { panic!("{request:?}") };
        assert_eq!(resource.as_ref().map(|resource| resource.attributes[0].key.as_str()), Some("service.name"));
        let [one, two] = &scope_spans[0].spans[..] else { panic!("{request:?}") };
        assert_eq!((one.trace_id.len(), one.span_id.len()), (16, 8));
        assert_ne!((&one.trace_id, &one.span_id), (&two.trace_id, &two.span_id));
        assert_eq!(one.start_time_unix_nano, 1_700_000_000_000_000_001);
        assert_eq!(one.end_time_unix_nano - one.start_time_unix_nano, 15_000);
        assert_eq!(one.status.as_ref().map(|status| (status.code, status.message.as_str())), Some((2, "WRONGTYPE no")));
        assert_eq!(two.status, None);
        assert_eq!(one.attributes.len(), 2);
    }

    #[test]
    fn replies_say_what_was_rejected_and_why() {
        let partial = PartialSuccess { rejected_spans: 3, error_message: "full".into() };
        let reply = ExportResponse { partial_success: Some(partial.clone()) }.encode_to_vec();
        assert_eq!(rejected(&reply), partial);
        assert_eq!(rejected(b""), PartialSuccess::default());
        let failure = Failure { code: 3, message: "no tenant".into() }.encode_to_vec();
        assert_eq!(reason(&failure).as_deref(), Some("no tenant"));
        assert_eq!(reason(b"<html>"), None);
    }

    proptest! {
        #[test]
        fn any_reply_is_read(bytes: Vec<u8>) {
            rejected(&bytes);
            reason(&bytes);
        }
    }
}
