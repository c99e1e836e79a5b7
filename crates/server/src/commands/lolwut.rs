//! LOLWUT: a maze of two characters, and the version.

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Command, Flags, Group, Spec};
use kvick_config::tables::process;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_resp::format::{parse_double, parse_i64};
use kvick_runtime::version;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[LOLWUT];

const COLUMNS: i64 = 60;
const COLUMNS_MAX: i64 = 160;
const ROWS: i64 = 16;
const ROWS_MAX: i64 = 80;

/// `LOLWUT [VERSION version] [numbers]`
pub const LOLWUT: Command<SessionHandler> = Command::new(
    Spec::new("lolwut", -1)
        .flags(&[Flags::READONLY, Flags::FAST])
        .doc(Group::Server, "5.0.0", "", "Returns computer art and the server version.")
        .args(&[Arg::integer("version").token("VERSION").optional()]),
    lolwut,
);

fn lolwut(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut art = match size(args)? {
        Some((columns, rows)) => draw_maze(columns, rows, kvick_runtime::clock::unix_us() as u64),
        None => String::new(),
    };
    art += &signature(cx.server.config.read(process::EXTENDED_REDIS_COMPATIBILITY));
    cx.reply.verbatim(art.as_bytes(), "txt");
    Ok(())
}

/// The columns and rows of the picture, if the version has one. Versions 5, 6 and 9 of the reference draw different
/// pictures, and take different numbers; here there is one picture.
fn size(args: Args<'_>) -> Result<Option<(i64, i64)>, Error> {
    let integer = |text: &[u8]| parse_i64(text).ok_or(Error::NOT_INTEGER);
    let version = match args.get(1) {
        Some(word) if args.len() >= 3 && word.eq_ignore_ascii_case(b"version") => Some(integer(&args[2])?),
        _ => None,
    };
    let numbers = args.slice_from(if version.is_some() { 3 } else { 1 });
    // The first digit decides in the reference.
    let digits = (version.unwrap_or(9) as u32).to_string();
    let integers = match digits.as_bytes() {
        b"5" => 3,
        b"6" => 2,
        [b'9', ..] if matches!(numbers.len(), 0 | 2 | 4) => 2,
        [b'9', ..] => {
            return Err(Error::text("ERR Syntax error. Use: LOLWUT [columns rows] [real imaginary]"));
        }
        _ => return Ok(None),
    };
    let mut sizes = [COLUMNS, ROWS, 0];
    for (size, text) in sizes[..integers].iter_mut().zip(numbers.iter()) {
        *size = integer(text)?;
    }
    if digits.starts_with('9') && (2..numbers.len()).any(|index| parse_double(&numbers[index]).is_none()) {
        return Err(Error::text("ERR value is not a valid float"));
    }
    Ok(Some((sizes[0].clamp(1, COLUMNS_MAX), sizes[1].clamp(1, ROWS_MAX))))
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
    fn numbers_are_those_of_the_version() {
        let size_of = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            size(kvick_resp::OwnedArgs::new(&words).args()).map_err(|error| error.to_string())
        };
        const SYNTAX: &str = "ERR Syntax error. Use: LOLWUT [columns rows] [real imaginary]";
        const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
        for (words, expected) in [
            ("lolwut", Ok(Some((COLUMNS, ROWS)))),
            ("lolwut 10 20", Ok(Some((10, 20)))),
            ("lolwut 1000 0 0.5 -1e3", Ok(Some((COLUMNS_MAX, 1)))),
            ("lolwut version", Err(SYNTAX)),
            ("lolwut 10", Err(SYNTAX)),
            ("lolwut 10 20 0.5", Err(SYNTAX)),
            ("lolwut 1 2 3 4 5", Err(SYNTAX)),
            ("lolwut 10 x", Err(NOT_INTEGER)),
            ("lolwut 10 20 0 x", Err("ERR value is not a valid float")),
            ("lolwut version x", Err(NOT_INTEGER)),
            ("lolwut VERSION 99999999999999999999", Err(NOT_INTEGER)),
            ("lolwut version 9 10", Err(SYNTAX)),
            ("lolwut version 5 10", Ok(Some((10, ROWS)))),
            ("lolwut version 5 10 20 x", Err(NOT_INTEGER)),
            ("lolwut version 6 10 20 x", Ok(Some((10, 20)))),
            ("lolwut version 7 x", Ok(None)),
            ("lolwut version -1", Ok(None)),
        ] {
            assert_eq!(size_of(words), expected.map_err(str::to_string), "{words}");
        }
    }

    #[test]
    fn the_signature_names_both_versions() {
        assert!(signature(false).contains(&format!("Kvick ver. {} (Valkey ver. 9.", version::KVICK)));
        assert!(signature(true).contains("(Redis ver. 7.2.4)"));
    }
}
