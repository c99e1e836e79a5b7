//! Encrypted connections.

use super::*;
use crate::directive::{Directive, Key, Typed, boolean, integer, optional, theme, word};
use crate::value::Text;
use crate::words::{TlsAuthClients, TlsAuthClientsUser};

theme! {
    after cluster::END;
    TLS_PORT: u16 = integer("tls-port", 0, 65535, 0).works();
    TLS_REPLICATION: bool = boolean("tls-replication", false).works();
    TLS_CLUSTER: bool = boolean("tls-cluster", false).works();
    TLS_CERT_FILE: Option<Text> = optional("tls-cert-file").volatile().works();
    TLS_KEY_FILE: Option<Text> = optional("tls-key-file").volatile().works();
    TLS_KEY_FILE_PASS: Option<Text> = optional("tls-key-file-pass").sensitive().works();
    TLS_CLIENT_CERT_FILE: Option<Text> = optional("tls-client-cert-file").volatile().works();
    TLS_CLIENT_KEY_FILE: Option<Text> = optional("tls-client-key-file").volatile().works();
    TLS_CLIENT_KEY_FILE_PASS: Option<Text> = optional("tls-client-key-file-pass").sensitive().works();
    TLS_DH_PARAMS_FILE: Option<Text> = optional("tls-dh-params-file").volatile();
    TLS_CA_CERT_FILE: Option<Text> = optional("tls-ca-cert-file").volatile().works();
    TLS_CA_CERT_DIR: Option<Text> = optional("tls-ca-cert-dir").volatile().works();
    TLS_CRL_FILE: Option<Text> = optional("tls-crl-file").volatile().works();
    TLS_AUTH_CLIENTS: TlsAuthClients = word("tls-auth-clients", TlsAuthClients::Yes as u8).works();
    TLS_AUTH_CLIENTS_USER: TlsAuthClientsUser = word("tls-auth-clients-user", TlsAuthClientsUser::Off as u8).works();
    TLS_PROTOCOLS: Option<Text> = optional("tls-protocols").works();
    TLS_CIPHERS: Option<Text> = optional("tls-ciphers").works();
    TLS_CIPHERSUITES: Option<Text> = optional("tls-ciphersuites").works();
    TLS_PREFER_SERVER_CIPHERS: bool = boolean("tls-prefer-server-ciphers", false).works();
    TLS_SESSION_CACHING: bool = boolean("tls-session-caching", true).works();
    TLS_SESSION_CACHE_SIZE: u32 = integer("tls-session-cache-size", 0, I32_MAX, 20480).works();
    TLS_SESSION_CACHE_TIMEOUT: u32 = integer("tls-session-cache-timeout", 0, I32_MAX, 300).works();
    TLS_AUTO_RELOAD_INTERVAL: u32 = integer("tls-auto-reload-interval", 0, I32_MAX, 0).works();
}
