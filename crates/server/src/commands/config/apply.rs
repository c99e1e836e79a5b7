//! What changes in the running server when a setting does. Settings that are not named here are read when they are
//! needed, through [`Tunables`](crate::server::Tunables) or from the configuration itself.

use crate::config::tables::{network, process};
use crate::config::{Id, Refusal, Values};
use crate::server::Server;

/// Puts one setting into effect, as [`Apply`](crate::config::Apply) asks.
pub fn apply(server: &'static Server, id: Id, values: &Values) -> Result<(), Refusal> {
    if id == process::DIR.id() {
        return Ok(std::env::set_current_dir(values.read(process::DIR).path())?);
    }
    if id == network::PORT.id() {
        return listen(server, values, "Unable to listen on this port. Check server logs.");
    }
    if id == network::BIND.id() {
        return listen(server, values, "Failed to bind to specified addresses.");
    }
    Ok(())
}

fn listen(server: &'static Server, values: &Values, refusal: &'static str) -> Result<(), Refusal> {
    server.listen_anew(values).map_err(|error| {
        crate::logging::warning(format_args!("{error}"));
        Refusal::new(refusal)
    })
}
