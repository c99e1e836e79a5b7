//! Checks of individual directives beyond the kind of their values.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::proc_title;
use super::value::{Refusal, Setting, Text, Value};
use super::values::Values;
use super::words::ShutdownFlags;
use kvick_runtime::locale::Collation;

type Checked = Result<(), Refusal>;

fn ensure(holds: bool, otherwise: &'static str) -> Checked {
    if holds { Ok(()) } else { Err(Refusal::new(otherwise)) }
}

/// Clamps the value to 1..=500.
pub fn hz(value: &mut Value, _: &Values) -> Checked {
    *value = u32::of(value).clamp(1, 500).into_value();
    Ok(())
}

/// Raises values below 16 KiB to 16 KiB.
pub fn repl_backlog_size(value: &mut Value, _: &Values) -> Checked {
    *value = u64::of(value).max(16 << 10).into_value();
    Ok(())
}

/// The locale of the environment need not exist: then strings are compared byte by byte.
pub fn locale(value: &mut Value, _: &Values) -> Checked {
    let name = Text::of(value);
    ensure(name.is_empty() || Collation::of(&name).is_ok(), "Invalid locale name")
}

pub fn shutdown_flags(value: &mut Value, _: &Values) -> Checked {
    let both = ShutdownFlags::SAVE | ShutdownFlags::NOSAVE;
    ensure(!ShutdownFlags::of(value).contains(both), "shutdown options SAVE and NOSAVE can't be used simultaneously")
}

pub fn hash_seed(value: &mut Value, _: &Values) -> Checked {
    ensure(Text::of(value).len() <= 256, "hash-seed must be less than or equal to 256 characters")
}

pub fn proc_title_template(value: &mut Value, values: &Values) -> Checked {
    let title = proc_title::expand(&Text::of(value), "", None, values);
    ensure(title.is_some_and(|title| !title.is_empty()), "template format is invalid or contains unknown variables")
}

pub fn dbfilename(value: &mut Value, _: &Values) -> Checked {
    let name = Text::of(value);
    ensure(!name.is_empty(), "dbfilename can't be empty")?;
    ensure(is_base_name(&name), "dbfilename can't be a path, just a filename")
}

pub fn appendfilename(value: &mut Value, _: &Values) -> Checked {
    let name = Text::of(value);
    ensure(!name.is_empty(), "appendfilename can't be empty")?;
    ensure(is_base_name(&name), "appendfilename can't be a path, just a filename")
}

pub fn appenddirname(value: &mut Value, _: &Values) -> Checked {
    let name = Text::of(value);
    ensure(!name.is_empty(), "appenddirname can't be empty")?;
    ensure(is_base_name(&name), "appenddirname can't be a path, just a dirname")
}

fn is_base_name(name: &[u8]) -> bool {
    !name.iter().any(|byte| matches!(byte, b'/' | b'\\'))
}

pub fn cluster_config_file(value: &mut Value, _: &Values) -> Checked {
    ensure(!Text::of(value).is_empty(), "cluster-config-file can't be empty")
}

pub fn announced_nodename(value: &mut Value, _: &Values) -> Checked {
    ensure(is_announceable(&Text::of(value)), "Announced human node name contained invalid character")
}

pub fn announced_ip(value: &mut Value, _: &Values) -> Checked {
    let address = Text::of(value);
    ensure(address.len() < 46, "cluster-announce-ip is too long")?;
    ensure(is_announceable(&address), "cluster-announce-ip contains invalid character")
}

/// Whether the cluster configuration file can store the text: it contains no blanks, control characters or separators.
fn is_announceable(text: &[u8]) -> bool {
    text.iter().all(|byte| *byte > b',' && *byte != 0x7f && !b";<=>?@[]^{|}~\\".contains(byte))
}

pub fn announced_hostname(value: &mut Value, _: &Values) -> Checked {
    let name = Text::of(value);
    ensure(name.len() < 256, "Hostnames must be less than 256 characters")?;
    ensure(
        name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.')),
        "Hostnames may only contain alphanumeric characters, hyphens or dots",
    )
}

pub fn ipv4(value: &mut Value, _: &Values) -> Checked {
    let address = Text::of(value);
    ensure(address.is_empty() || address.to_string().parse::<Ipv4Addr>().is_ok(), "Invalid IPv4 address")
}

pub fn ipv6(value: &mut Value, _: &Values) -> Checked {
    let address = Text::of(value);
    ensure(address.is_empty() || address.to_string().parse::<Ipv6Addr>().is_ok(), "Invalid IPv6 address")
}

/// The streams whose metrics are shown.
pub fn metrics_streams(value: &mut Value, _: &Values) -> Checked {
    let Some(text) = Option::<Text>::of(value) else { return Ok(()) };
    let is_valid = super::metrics_streams::parse(&text).is_some();
    ensure(is_valid, "Expected up to 100 keys separated by commas, each with its database before a '='")
}
