//! Geospatial indexes: sorted sets whose scores are positions, encoded as 52-bit geohashes.
//!
//! - [`geohash`]: conversion of positions to numbers and back, and the cells around a position.
//! - [`shape`]: distances, and containment in a circle, box or polygon.
//! - [`members`]: GEOADD, GEODIST, GEOHASH and GEOPOS.
//! - [`search`]: GEOSEARCH and the older GEORADIUS commands, with their options in [`options`].
//!
//! All arithmetic uses the order of operations of Valkey, so that results are identical to the last bit.

use kvick_resp::format::parse_double;
use kvick_resp::{Args, Reply, Version};
use kvick_store::SortedSet;

use crate::context::{Error, Handler};
use crate::spec::Command;

pub mod geohash;
pub mod members;
pub mod options;
pub mod search;
pub mod shape;

use geohash::{LATITUDES, LONGITUDES, Place};

/// The commands of this family.
pub static COMMANDS: &[Command<Handler>] = &[
    members::GEOADD,
    members::GEODIST,
    members::GEOHASH,
    members::GEOPOS,
    search::GEOSEARCH,
    search::GEOSEARCHSTORE,
    search::GEORADIUS,
    search::GEORADIUS_RO,
    search::GEORADIUSBYMEMBER,
    search::GEORADIUSBYMEMBER_RO,
];

/// Parses a position from two arguments: longitude and latitude in degrees.
fn place(args: Args<'_>, index: usize) -> Result<Place, Error> {
    let degrees = |index| args.get(index).and_then(parse_double).ok_or(Error::NOT_FLOAT);
    let (longitude, latitude) = (degrees(index)?, degrees(index + 1)?);
    if LONGITUDES.contains(longitude) && LATITUDES.contains(latitude) {
        return Ok(Place { longitude, latitude });
    }
    Err(Error::new(format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}")))
}

/// Parses a unit of length; returns its length in meters.
fn unit(word: &[u8]) -> Result<f64, Error> {
    const UNITS: [(&[u8], f64); 4] = [(b"m", 1.0), (b"km", 1000.0), (b"ft", 0.3048), (b"mi", 1609.34)];
    const UNKNOWN: Error = Error::text("ERR unsupported unit provided. please use M, KM, FT, MI");
    UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, metres)| *metres).ok_or(UNKNOWN)
}

/// The position of a member; `None` if it does not exist.
fn place_of(set: &SortedSet, member: &[u8]) -> Option<Place> {
    set.score(member).map(Place::of_score)
}

/// Replies with a distance: four decimals, rounded half to even.
fn reply_distance(reply: &mut Reply<'_>, distance: f64) {
    let scaled = (distance * 10_000.0).round_ties_even() as i64;
    let (whole, fraction) = (scaled.unsigned_abs() / 10_000, scaled.unsigned_abs() % 10_000);
    let sign = if scaled < 0 { "-" } else { "" };
    reply.bulk(format!("{sign}{whole}.{fraction:04}").as_bytes());
}

/// Replies with longitude and latitude, with up to 17 decimals.
fn reply_place(reply: &mut Reply<'_>, place: Place) {
    reply.array(2);
    for degrees in [place.longitude, place.latitude] {
        let text = format!("{degrees:.17}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        let text = if text == "-0" { "0" } else { text };
        match reply.version() {
            Version::Resp2 => reply.bulk(text.as_bytes()),
            Version::Resp3 => reply.double_text(text.as_bytes()),
        }
    }
}
