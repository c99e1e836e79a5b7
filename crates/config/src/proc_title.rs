//! The process title that tools like `ps` show, made from `proc-title-template`.

use std::path::Path;

use super::tables::cluster::CLUSTER_ENABLED;
use super::tables::network::{BIND, PORT, UNIXSOCKET};
use super::tables::tls::TLS_PORT;
use super::values::Values;

/// Expands a template: `{name}` is a variable and `{{` a literal brace. Returns `None` if a variable is unknown or a
/// brace is not closed. Surrounding blanks are removed.
pub fn expand(template: &[u8], title: &str, config_file: Option<&Path>, values: &Values) -> Option<String> {
    let template = String::from_utf8_lossy(template);
    let mut out = String::new();
    let mut rest = template.as_ref();
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('{') {
            out.push('{');
            rest = after;
            continue;
        }
        let (name, after) = after.split_once('}')?;
        out.push_str(&variable(name, title, config_file, values)?);
        rest = after;
    }
    out.push_str(rest);
    Some(out.trim_matches(' ').to_owned())
}

fn variable(name: &str, title: &str, config_file: Option<&Path>, values: &Values) -> Option<String> {
    let (port, tls_port) = (values.read(PORT), values.read(TLS_PORT));
    let socket = || values.read(UNIXSOCKET).map(|path| path.to_string()).unwrap_or_default();
    Some(match name {
        "title" => title.to_owned(),
        "listen-addr" if port == 0 && tls_port == 0 => format!("unixsocket:{}", socket()),
        "listen-addr" => {
            let addresses = values.read(BIND);
            let address = addresses.list().first().map_or_else(|| "*".to_owned(), ToString::to_string);
            format!("{address}:{}", if port == 0 { tls_port } else { port })
        }
        "server-mode" => if values.read(CLUSTER_ENABLED) { "[cluster]" } else { "" }.to_owned(),
        "config-file" => config_file.map_or_else(|| "-".into(), |path| path.to_string_lossy().into_owned()),
        "port" => port.to_string(),
        "tls-port" => tls_port.to_string(),
        "unixsocket" => socket(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn title(template: &str) -> Option<String> {
        let values = Values::defaults().unwrap();
        expand(template.as_bytes(), "kvick-server", Some(Path::new("/etc/k.conf")), &values)
    }

    #[test]
    fn variables_are_put_in_place() {
        assert_eq!(title("{title} {listen-addr} {server-mode}").unwrap(), "kvick-server *:6379");
        assert_eq!(title("TEST {port} {tls-port} {unixsocket} {config-file}").unwrap(), "TEST 6379 0  /etc/k.conf");
        assert_eq!(title(" {{x} ").unwrap(), "{x}");
    }

    #[test]
    fn unknown_variables_and_open_braces_are_refused() {
        for bad in ["{pid}", "{title", "x {"] {
            assert_eq!(title(bad), None, "{bad}");
        }
    }
}
