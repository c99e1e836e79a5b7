//! Maps a TLS client certificate to the user as which its client is logged in.

use kvick_acl::User;
use kvick_acl::identity::note;
use kvick_acl::log::{Cause, Context, Event};
use kvick_config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use kvick_config::tables::tls::TLS_AUTH_CLIENTS_USER;
use kvick_config::words::TlsAuthClientsUser;
use kvick_engine::services::Services;
use kvick_engine::session::Client;
use kvick_net::tls::certificate::{common_name, uris};
use kvick_runtime::logging;
use std::sync::Arc;

/// The owner of a certificate; see the module's documentation.
#[derive(PartialEq, Eq, Debug)]
pub enum Owner<U = Arc<User>> {
    /// A user, as of this rights epoch.
    User(U, u32),
    /// The certificate contains this name, but no enabled user has it.
    Stranger(Vec<u8>),
    /// The certificate contains no name, or the mapping is disabled.
    Unknown,
}

impl Owner {
    /// The owner of a verified certificate under the current settings.
    pub fn of(der: &[u8], server: &Services) -> Self {
        let epoch = server.admission.rights();
        let find = |name: &[u8]| Some((server.acl.find(name).filter(|user| user.enabled)?, epoch));
        Owner::find(names(der, server.config.read(TLS_AUTH_CLIENTS_USER)), find)
    }

    /// Logs a client in as the user that its certificate names. A name without a user is recorded in ACL LOG.
    pub fn log_in(self, server: &Services, client: &mut Client, now_ms: i64) {
        let hide = server.config.read(HIDE_USER_DATA_FROM_LOG);
        let shown = |name: &[u8]| if hide { "*redacted*".into() } else { format!("\"{}\"", name.escape_ascii()) };
        match self {
            Owner::User(user, epoch) => {
                logging::verbose(format_args!("TLS: Auto-authenticated client as {}", shown(&user.name)));
                client.log_in(user, epoch);
            }
            Owner::Stranger(name) => {
                logging::verbose(format_args!("TLS: No matching user found for certificate name {}", shown(&name)));
                let (cause, context) = (Cause::TlsCertificate, Context::TopLevel);
                note(server, &server.acl, &client.info, &Event { cause, context, object: b"", user: &name, now_ms });
            }
            Owner::Unknown => {}
        }
    }
}

impl<U> Owner<U> {
    /// Finds the first of several names that has a user; otherwise the last name counts as a stranger's.
    fn find(mut names: Vec<Vec<u8>>, find: impl Fn(&[u8]) -> Option<(U, u32)>) -> Self {
        match names.iter().find_map(|name| find(name)) {
            Some((user, epoch)) => Owner::User(user, epoch),
            None => names.pop().map_or(Owner::Unknown, Owner::Stranger),
        }
    }
}

fn names(der: &[u8], field: TlsAuthClientsUser) -> Vec<Vec<u8>> {
    match field {
        TlsAuthClientsUser::Off => Vec::new(),
        TlsAuthClientsUser::CommonName => common_name(der).into_iter().collect(),
        TlsAuthClientsUser::Uri => uris(der),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_that_is_a_users_counts_and_of_strangers_the_last() {
        let owner = |names: &[&str]| {
            let names = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            Owner::find(names, |name| name.starts_with(b"user").then(|| (name.to_vec(), 7)))
        };
        assert_eq!(owner(&["a", "user 1", "user 2"]), Owner::User(b"user 1".to_vec(), 7));
        assert_eq!(owner(&["a", "b"]), Owner::Stranger(b"b".to_vec()));
        assert_eq!(owner(&[]), Owner::Unknown);
    }
}
