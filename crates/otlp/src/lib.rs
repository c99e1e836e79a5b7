//! Exports spans to an OpenTelemetry collector, as OTLP over HTTP with protocol buffers.
//!
//! ```text
//! source of spans --> exporter (thread `otlp`) --> wire (encoding) --> client (HTTP/1.1, TLS) --> collector
//!                        |
//!                        +--> delivery (what to send when, what to give up)
//! ```
//!
//! [`Exporter`] is the thread. It asks for new spans once a second, so that those who create them need not wake it.
//! [`Settings`] say where the collector is. What a collector answers is not trusted: replies are limited in size and
//! time.

mod client;
mod delivery;
pub mod exporter;
pub mod settings;
pub mod span;
mod wire;

pub use exporter::{Counts, Exporter};
pub use settings::Settings;
pub use span::{Resource, Span, Value};
