//! Listening, connections, clients and the threads that serve them.

use super::*;
use crate::directive::{
    Directive, Form, Key, Special, Typed, boolean, cores, integer, memory, number, optional, special, theme,
};
use crate::shapes::{Addresses, OutputLimits};
use crate::value::Text;

const NO_RDMA: &str = "No RDMA building support.";

theme! {
    after 0;
    BIND: Addresses = special("bind", Special::Addresses).multi_arg().volatile().works();
    BIND_SOURCE_ADDR: Option<Text> = optional("bind-source-addr").works();
    PORT: u16 = integer("port", 0, 65535, 6379).works();
    PROTECTED_MODE: bool = boolean("protected-mode", true).works();
    UNIXSOCKET: Option<Text> = optional("unixsocket").immutable().works();
    UNIXSOCKETGROUP: Option<Text> = optional("unixsocketgroup").immutable().works();
    UNIXSOCKETPERM: u32 = number("unixsocketperm", 0, 0o777, 0, Form::Octal).immutable().works();
    TCP_BACKLOG: i32 = integer("tcp-backlog", 0, I32_MAX, 511).immutable().works();
    TCP_KEEPALIVE: u32 = integer("tcp-keepalive", 0, I32_MAX, 300).works();
    SOCKET_MARK_ID: u32 = integer("socket-mark-id", 0, U32_MAX, 0).immutable().works();
    MPTCP: bool = boolean("mptcp", false).immutable().works();
    RDMA_BIND: Addresses = special("rdma-bind", Special::Addresses).multi_arg().volatile().refused_at_runtime(NO_RDMA);
    RDMA_PORT: u16 = integer("rdma-port", 0, 65535, 0).refused_at_runtime(NO_RDMA);
    RDMA_RX_SIZE: u32 = integer("rdma-rx-size", 64 * KB, 16 * MB, MB).immutable();
    RDMA_COMPLETION_VECTOR: i32 = integer("rdma-completion-vector", -1, 1024, -1).immutable();

    MAXCLIENTS: u32 = integer("maxclients", 1, U32_MAX, 10000).works();
    TIMEOUT: u32 = integer("timeout", 0, I32_MAX, 0).works();
    MAX_NEW_CONNECTIONS_PER_CYCLE: u32 = integer("max-new-connections-per-cycle", 1, 1000, 10).works();
    MAX_NEW_TLS_CONNECTIONS_PER_CYCLE: u32 = integer("max-new-tls-connections-per-cycle", 1, 1000, 1).works();
    CLIENT_OUTPUT_BUFFER_LIMIT: OutputLimits =
        special("client-output-buffer-limit", Special::OutputLimits).multi_arg().works();
    CLIENT_QUERY_BUFFER_LIMIT: u64 = memory("client-query-buffer-limit", MB, I64_MAX, GB).works();
    PROTO_MAX_BULK_LEN: u64 = memory("proto-max-bulk-len", MB, I64_MAX, 512 * MB).works();
    TRACKING_TABLE_MAX_KEYS: u64 = integer("tracking-table-max-keys", 0, I64_MAX, 1_000_000).works();

    IO_THREADS: u32 = cores("io-threads", 256).works();
    IO_THREADS_MIN: u32 = integer("io-threads-min", 0, 256, 0).works();
    IO_THREADS_ALWAYS_ACTIVE: bool = boolean("io-threads-always-active", false).hidden();
    PREFETCH_BATCH_MAX_SIZE: u32 = integer("prefetch-batch-max-size", 0, 128, 16).works();
    MIN_IO_THREADS_AVOID_COPY_REPLY: u32 = integer("min-io-threads-avoid-copy-reply", 0, I32_MAX, 7).hidden();
    MIN_STRING_SIZE_AVOID_COPY_REPLY: u32 = integer("min-string-size-avoid-copy-reply", 0, I32_MAX, 16384).hidden();
    MIN_STRING_SIZE_AVOID_COPY_REPLY_THREADED: u32 =
        integer("min-string-size-avoid-copy-reply-threaded", 0, I32_MAX, 65536).hidden();
}
