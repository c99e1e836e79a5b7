//! LOLWUT: a maze of two characters, and the version.

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Command, Flags, Group, Spec};
use kvick_config::tables::process;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_runtime::version;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[LOLWUT];

const COLUMNS: i64 = 60;
const COLUMNS_MAX: i64 = 160;
const ROWS: i64 = 16;
const ROWS_MAX: i64 = 80;

/// `LOLWUT [VERSION version] [columns [rows]]`
pub const LOLWUT: Command<SessionHandler> = Command::new(
    Spec::new("lolwut", -1)
        .flags(&[Flags::READONLY, Flags::FAST])
        .doc(Group::Server, "5.0.0", "", "Returns computer art and the server version.")
        .args(&[Arg::integer("version").token("VERSION").optional()]),
    lolwut,
);

fn lolwut(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let has_version = args.len() >= 3 && args[1].eq_ignore_ascii_case(b"version");
    if has_version {
        // Earlier versions drew other pictures; there is only one here.
        parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    }
    let sizes = args.slice_from(if has_version { 3 } else { 1 });
    let size = |index: usize, default: i64, max: i64| match sizes.get(index) {
        None => Ok(default),
        Some(text) => parse_i64(text).map(|size| size.clamp(1, max)).ok_or(Error::NOT_INTEGER),
    };
    let (columns, rows) = (size(0, COLUMNS, COLUMNS_MAX)?, size(1, ROWS, ROWS_MAX)?);
    let mut art = draw_maze(columns, rows, kvick_runtime::clock::unix_us() as u64);
    art += &signature(cx.server.config.read(process::EXTENDED_REDIS_COMPATIBILITY));
    cx.reply.verbatim(art.as_bytes(), "txt");
    Ok(())
}

/// The line below the picture. Clients look for the reference's name and version in it.
fn signature(as_redis: bool) -> String {
    let (name, number) = if as_redis { ("Redis", version::REDIS) } else { ("Valkey", version::VALKEY) };
    format!("\nWhichever way you turn, be quick. Kvick ver. {} ({name} ver. {number})\n", version::KVICK)
}

/// One of the two diagonals in each place, at random: the classic one-liner of the Commodore 64.
fn draw_maze(columns: i64, rows: i64, seed: u64) -> String {
    let mut state = seed | 1;
    let mut coin = || {
        // xorshift64: random enough for this.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 63 == 0
    };
    let mut art = String::new();
    for _ in 0..rows {
        art.extend((0..columns).map(|_| if coin() { '╱' } else { '╲' }));
        art.push('\n');
    }
    art
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maze_has_its_size_and_both_walls() {
        let art = draw_maze(40, 10, 7);
        assert_eq!(art.lines().count(), 10);
        assert!(art.lines().all(|line| line.chars().count() == 40));
        assert!(art.contains('╱') && art.contains('╲'));
        assert_ne!(art, draw_maze(40, 10, 8));
    }

    #[test]
    fn the_signature_names_both_versions() {
        assert!(signature(false).contains(&format!("Kvick ver. {} (Valkey ver. 9.", version::KVICK)));
        assert!(signature(true).contains("(Redis ver. 7.2.4)"));
    }
}
