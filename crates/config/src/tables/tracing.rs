//! The export of slow commands as traces.

use super::*;
use crate::directive::{Directive, Key, Typed, boolean, optional, text, theme};
use crate::value::Text;

theme! {
    after metrics::END;
    TRACING_ENDPOINT: Option<Text> = optional("tracing-endpoint").works();
    TRACING_HEADERS: Option<Text> = optional("tracing-headers").sensitive().works();
    TRACING_CA_CERT_FILE: Option<Text> = optional("tracing-ca-cert-file").works();
    TRACING_SERVICE_NAME: Text = text("tracing-service-name", "kvick").works();
    TRACING_QUERY_TEXT: bool = boolean("tracing-query-text", false).works();
}
