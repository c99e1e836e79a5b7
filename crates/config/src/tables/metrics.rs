//! The HTTP endpoint: metrics for Prometheus, and the page for browsers.

use super::*;
use crate::checks;
use crate::directive::{Directive, Key, Typed, boolean, integer, optional, theme};
use crate::value::Text;

theme! {
    after security::END;
    METRICS_PORT: u16 = integer("metrics-port", 0, 65535, 0).works();
    METRICS_BIND: Option<Text> = optional("metrics-bind").works();
    METRICS_TLS: bool = boolean("metrics-tls", false).works();
    METRICS_TOKEN: Option<Text> = optional("metrics-token").sensitive().works();
    METRICS_STREAMS: Option<Text> = optional("metrics-streams").checked(checks::metrics_streams).works();
    METRICS_KEYS_MAX: u32 = integer("metrics-keys-max", 0, 100, 0).works();
    METRICS_CLIENTS_MAX: u32 = integer("metrics-clients-max", 0, 10_000, 0).works();
    UI: bool = boolean("ui", false).works();
    UI_WRITE: bool = boolean("ui-write", false).works();
}
