//! Exports slow commands as traces (`tracing-endpoint`).
//!
//! The command log hands its new entries over ([`SlowCommands`](kvick_core::slow_commands::SlowCommands)); the thread of
//! [`kvick_otlp`] takes them once a second, and this module describes them as spans, by the semantic conventions of
//! OpenTelemetry for databases.

use crate::server::Server;
use kvick_config::Values;
use kvick_config::tables::process::DIR;
use kvick_config::tables::tracing::{
    TRACING_CA_CERT_FILE, TRACING_ENDPOINT, TRACING_HEADERS, TRACING_QUERY_TEXT, TRACING_SERVICE_NAME,
};
use kvick_core::slow_commands::SlowCommand;
use kvick_otlp::{Counts, Exporter, Resource, Settings, Span};
use kvick_runtime::{logging, version};
use parking_lot::Mutex;
use std::time::{Duration, UNIX_EPOCH};

/// How long a shutdown waits for the last spans to be sent.
const FINISH_MAX: Duration = Duration::from_secs(2);

/// The export, which is off without an endpoint.
#[derive(Default)]
pub struct Tracing {
    /// The thread, from the first time that there is an endpoint.
    exporter: Mutex<Option<Exporter>>,
}

impl Tracing {
    /// Sends slow commands where the settings say, from now on. After an error nothing has changed.
    ///
    /// # Errors
    /// What is wrong with the settings, or why the thread cannot be started.
    pub fn configure(&self, server: &'static Server, values: &Values) -> Result<(), Box<dyn std::error::Error>> {
        let mut exporter = self.exporter.lock();
        let slow = &server.commandlog.slow;
        let Some(endpoint) = values.read(TRACING_ENDPOINT) else {
            slow.set_wanted(false);
            if let Some(exporter) = &*exporter {
                exporter.configure(None);
            }
            return Ok(());
        };
        let headers = values.read(TRACING_HEADERS).map(|headers| headers.to_vec()).unwrap_or_default();
        let authorities = values.read(TRACING_CA_CERT_FILE).map(|name| values.read(DIR).resolve(&name));
        let settings = Settings::new(&endpoint.to_string(), &headers, authorities.as_deref())?;
        let thread = match &mut *exporter {
            Some(thread) => thread,
            none => none.insert(Exporter::start(Box::new(move || take(server)), version::KVICK)?),
        };
        logging::notice(format_args!("Slow commands are sent as traces to {}", settings.url()));
        thread.configure(Some((settings, resource(server, values))));
        slow.set_wanted(true);
        Ok(())
    }

    /// Sends what there is, before the process ends.
    pub fn finish(&self) {
        if let Some(exporter) = &*self.exporter.lock() {
            exporter.flush(FINISH_MAX);
        }
    }

    /// How many spans were sent or not.
    pub fn counts(&self, server: &Server) -> Counts {
        let counts = self.exporter.lock().as_ref().map(Exporter::counts).unwrap_or_default();
        Counts { dropped: counts.dropped + server.commandlog.slow.dropped(), ..counts }
    }
}

/// What is the same for all spans.
fn resource(server: &Server, values: &Values) -> Resource {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut resource = vec![
        ("service.name", values.read(TRACING_SERVICE_NAME).to_string().into()),
        ("service.instance.id", server.run_id.clone().into()),
        ("service.version", version::KVICK.into()),
        ("process.pid", i64::from(std::process::id()).into()),
    ];
    if !host.trim().is_empty() {
        resource.push(("host.name", host.trim().into()));
    }
    resource
}

/// The slow commands since the last call.
fn take(server: &Server) -> Vec<Span> {
    let slow = server.commandlog.slow.take();
    if slow.is_empty() {
        return Vec::new();
    }
    let has_text = server.config.read(TRACING_QUERY_TEXT);
    slow.into_iter().map(|slow| span(server, slow, has_text)).collect()
}

fn span(server: &Server, slow: SlowCommand, has_text: bool) -> Span {
    let name = operation(server, &slow.entry.args);
    let mut attributes = vec![
        ("db.system.name", "redis".into()),
        ("db.operation.name", name.clone().into()),
        ("db.namespace", slow.db.to_string().into()),
        ("enduser.id", text(&slow.user).into()),
        ("kvick.client.id", i64::try_from(slow.client).unwrap_or(i64::MAX).into()),
        ("kvick.commandlog.id", slow.entry.id.into()),
        ("kvick.worker", (slow.worker as i64).into()),
    ];
    for (address, [name, port_name]) in
        [(&slow.entry.peer, ["client.address", "client.port"]), (&slow.local, ["server.address", "server.port"])]
    {
        let (host, port) = split(address);
        attributes.push((name, host.into()));
        attributes.extend(port.map(|port| (port_name, i64::from(port).into())));
    }
    for (name, value) in [("kvick.client.name", &slow.entry.name), ("kvick.client.library", &slow.library)] {
        if !value.is_empty() {
            attributes.push((name, text(value).into()));
        }
    }
    let mut error = slow.error.as_deref().map(text);
    if let Some(error) = &mut error {
        let code = error.split(' ').next().unwrap_or_default().to_owned();
        attributes.push(("db.response.status_code", code.clone().into()));
        attributes.push(("error.type", code.clone().into()));
        if !has_text {
            // The rest may repeat arguments.
            *error = code;
        }
    }
    if has_text {
        let words: Vec<String> = slow.entry.args.iter().map(|word| text(word)).collect();
        attributes.push(("db.query.text", words.join(" ").into()));
    }
    let duration = Duration::from_micros(u64::try_from(slow.entry.value).unwrap_or(0));
    let ended = UNIX_EPOCH + Duration::from_micros(u64::try_from(slow.ended_us).unwrap_or(0));
    Span { name, began: ended.checked_sub(duration).unwrap_or(UNIX_EPOCH), duration, error, attributes }
}

/// The name of a command as conventions want it, `CONFIG GET`. It has few values, whatever clients send.
fn operation(server: &Server, args: &[Vec<u8>]) -> String {
    let Some(command) = args.first().and_then(|name| server.catalogue.find(name)) else { return "UNKNOWN".into() };
    let subcommand = args.get(1).and_then(|name| server.catalogue.subcommand(command, name));
    subcommand.unwrap_or(command).full_name.replace('|', " ").to_ascii_uppercase()
}

/// An address and its port, if it has one: a path of a Unix socket has none.
fn split(address: &str) -> (&str, Option<u16>) {
    match address.rsplit_once(':').map(|(host, port)| (host, port.parse())) {
        Some((host, Ok(port))) if !address.starts_with('/') => (host.trim_matches(['[', ']']), Some(port)),
        _ => (address, None),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split() {
        assert_eq!(split("127.0.0.1:6379"), ("127.0.0.1", Some(6379)));
        assert_eq!(split("[::1]:6379"), ("::1", Some(6379)));
        assert_eq!(split("/run/kvick.sock:0"), ("/run/kvick.sock:0", None));
        assert_eq!(split(""), ("", None));
    }
}
