//! DEBUG RELOAD: saves the data set to a file and loads it.

use kvick_commands::context::Error;
use kvick_durability::persistence::load::{self, Reload};
use kvick_durability::persistence::save;
use kvick_engine::session::Session;
use kvick_resp::Args;
use kvick_runtime::logging;

/// `DEBUG RELOAD [MERGE] [NOFLUSH] [NOSAVE]`
pub fn reload(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (mut how, mut saves) = (Reload { merge: false, flush: true }, true);
    for word in args.iter().skip(2) {
        match &*word.to_ascii_lowercase() {
            b"merge" => how.merge = true,
            b"noflush" => how.flush = false,
            b"nosave" => saves = false,
            _ => return Err(Error::text("ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.")),
        }
    }
    if saves {
        save::save(cx.server, cx.locked, 0).map_err(|_| Error::text("ERR"))?;
    }
    match load::reload(cx.server, cx.locked, how) {
        Ok(Some(_)) => {
            logging::notice(format_args!("DB reloaded by DEBUG RELOAD"));
            cx.reply.ok();
            Ok(())
        }
        _ => Err(Error::text("ERR Error trying to load the RDB dump, check server logs.")),
    }
}
