//! Metrics as data: what a metric is, the fields of INFO that are metrics as well, and the text that Prometheus reads.
//!
//! A [`Metric`] is a definition: name, type, labels, help. A [`Field`] is a line of INFO with the function that
//! computes its [`Value`], and with the metric of the same value if there is one, so that both always agree. An
//! [`Exposition`] collects samples and writes them in Prometheus' text format. This crate computes no values and does
//! no I/O.

pub mod exposition;
pub mod field;
pub mod metric;

pub use exposition::{Exposition, Family};
pub use field::{Field, Value, export};
pub use metric::{Kind, Metric, Number};
