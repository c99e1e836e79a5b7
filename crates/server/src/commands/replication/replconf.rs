//! REPLCONF: options and acknowledgements of a replica.

use crate::server::HasServer;
use kvick_commands::context::Error;
use kvick_commands::spec::{Categories, Command, Flags, Group, Spec};
use kvick_config::tables::replication::DUAL_CHANNEL_REPLICATION_ENABLED;
use kvick_durability::persistence::format::Parts;
use kvick_engine::session::{Session, SessionHandler};
use kvick_replication::replicas::Replica;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_resp::split_args;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Longest address that a replica may announce.
const ADDRESS_MAX: usize = 255;

/// REPLCONF option value [option value ...]
pub const REPLCONF: Command<SessionHandler> = Command::new(
    Spec::new("replconf", -1)
        .flags(&[Flags::FROM_REPLICA, Flags::REPLICAS_ONLY])
        .flags(&[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::ALLOW_BUSY])
        .acl(&[Categories::ADMIN, Categories::DANGEROUS, Categories::SLOW])
        .internal()
        .doc(Group::Server, "3.0.0", "O(1)", "Internal command that configures the replication stream."),
    replconf,
);

fn replconf(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    if args.len().is_multiple_of(2) {
        return Err(Error::SYNTAX);
    }
    let info = cx.client.info.clone();
    let replica = cx.client.replica.get_or_insert_with(|| Arc::new(Replica::new(info))).clone();
    let (mut is_answered, mut moved) = (true, false);
    let mut at = 1;
    while let (Some(option), Some(value)) = (args.get(at), args.get(at + 1)) {
        match option.to_ascii_lowercase().as_slice() {
            b"listening-port" => {
                let port = parse_i64(value).and_then(|port| u16::try_from(port).ok()).ok_or(Error::NOT_INTEGER)?;
                replica.port.store(port, Ordering::Relaxed);
            }
            b"ip-address" => {
                if value.len() > ADDRESS_MAX {
                    return Err(Error::new(format!(
                        "ERR REPLCONF ip-address provided by replica instance is too long: {} bytes",
                        value.len()
                    )));
                }
                *replica.announced.lock() = String::from_utf8_lossy(value).into_owned();
            }
            b"capa" if value.eq_ignore_ascii_case(b"eof") => replica.supports_eof.store(true, Ordering::Relaxed),
            b"capa" if value.eq_ignore_ascii_case(b"psync2") => replica.supports_psync2.store(true, Ordering::Relaxed),
            b"capa" if value.eq_ignore_ascii_case(b"dual-channel") => {
                let takes = cx.server.config.read(DUAL_CHANNEL_REPLICATION_ENABLED);
                replica.supports_dual_channel.store(takes, Ordering::Relaxed);
            }
            // Unknown capabilities are ignored.
            b"capa" => {}
            b"rdb-only" => replica.is_dump_only.store(parse_bool(value)?, Ordering::Relaxed),
            b"rdb-filter-only" => *replica.requested_parts.lock() = parts(value)?,
            b"rdb-channel" => replica.is_dump_channel.store(parse_bool(value)?, Ordering::Relaxed),
            b"set-rdb-client-id" => {
                let id = parse_i64(value).ok_or(Error::NOT_INTEGER)?;
                let channel = u64::try_from(id).ok().and_then(|id| cx.server.replication.replicas.dump_channel(id));
                let channel = channel.ok_or_else(|| Error::new(format!("ERR Unrecognized RDB client id {id}")))?;
                replica.dump_channel.store(channel.client.id, Ordering::Relaxed);
            }
            b"version" => {
                let version = version(value).ok_or(Error::text("ERR Unrecognized version format"))?;
                replica.version.store(version, Ordering::Relaxed);
            }
            b"set-cluster-node-id" => {
                let cluster =
                    cx.server().cluster().ok_or(Error::text("ERR This instance has cluster support disabled"))?;
                if cluster.read(|cluster, _| cluster.node_flags(value)).is_none() {
                    return Err(Error::quoting(&[b"ERR Unknown node ", value]));
                }
                *replica.node_id.lock() = Some(value.into());
            }
            b"ack" | b"fack" => {
                if cx.client.feed.is_none() {
                    return Ok(());
                }
                let place = if option.eq_ignore_ascii_case(b"ack") { &replica.applied } else { &replica.synced };
                let offset =
                    parse_i64(value).and_then(|offset| u64::try_from(offset).ok()).ok_or(Error::NOT_INTEGER)?;
                place.fetch_max(offset, Ordering::AcqRel);
                moved = true;
                replica.last_ack_ms.store(cx.now_ms, Ordering::Relaxed);
                is_answered = false;
            }
            // A request of the primary, which the replication thread answers.
            b"getack" => is_answered = false,
            _ => {
                return Err(Error::quoting(&[b"ERR Unrecognized REPLCONF option: ", option]));
            }
        }
        at += 2;
    }
    if moved {
        cx.server.aof.on_replica_ack();
        cx.server.slot_migration.on_replica_ack(cx.server);
    }
    if is_answered {
        cx.reply.ok();
    } else if let Some(feed) = &mut cx.client.feed {
        feed.acknowledge(cx.server);
    }
    Ok(())
}

/// 0 or 1.
fn parse_bool(value: &[u8]) -> Result<bool, Error> {
    match parse_i64(value).ok_or(Error::NOT_INTEGER)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::text("ERR value is out of range, value must between 0 and 1")),
    }
}

/// Parses the parts of a dump; no names mean an empty dump.
fn parts(names: &[u8]) -> Result<Parts, Error> {
    let names = split_args(names).map_err(|_| Error::text("ERR Missing rdb-filter-only values"))?;
    let unknown = names.iter().find(|name| !name.eq_ignore_ascii_case(b"functions"));
    if let Some(name) = unknown {
        return Err(Error::quoting(&[b"ERR Unsupported rdb-filter-only option: ", name]));
    }
    Ok(Parts { keys: false, functions: !names.is_empty() })
}

/// A version such as 9.1.2 as a number, with a byte for each part.
fn version(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    let parts: Vec<u32> = text.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [major, minor, patch] = parts[..] else { return None };
    (major < 256 && minor < 256 && patch < 256).then_some(major << 16 | minor << 8 | patch)
}
