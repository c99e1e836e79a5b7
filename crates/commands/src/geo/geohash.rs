//! Positions as geohashes. The longitude and latitude ranges are halved alternately, and each bit tells which half
//! contains the position. Nearby positions mostly share a prefix of bits, so that a cell of the grid is a range of
//! scores in a sorted set.
//!
//! Latitudes are limited to 85.05 degrees, where the Mercator projection is a square (EPSG:3857). Standard geohash
//! strings use latitudes from -90 to 90 degrees instead.

use std::ops::Range;

/// Halvings per coordinate in a score: 52 bits in total, which a double represents exactly.
pub const STEPS_MAX: u8 = 26;

/// A range of degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Degrees {
    /// The lower end.
    pub min: f64,
    /// The upper end.
    pub max: f64,
}

/// The valid longitudes.
pub const LONGITUDES: Degrees = Degrees { min: -180.0, max: 180.0 };
/// The latitudes that the grid covers.
pub const LATITUDES: Degrees = Degrees { min: -85.05112878, max: 85.05112878 };
/// The latitudes of standard geohash strings.
const ALL_LATITUDES: Degrees = Degrees { min: -90.0, max: 90.0 };

impl Degrees {
    /// Whether the range contains a value; both ends are inclusive.
    pub fn contains(self, degrees: f64) -> bool {
        degrees >= self.min && degrees <= self.max
    }

    /// The index of the part that contains a value after the range is halved `steps` times.
    fn part(self, degrees: f64, steps: u8) -> u32 {
        let offset = (degrees - self.min) / (self.max - self.min);
        (offset * (1u64 << steps) as f64) as u32
    }

    /// The ends of a part.
    fn ends(self, part: u32, steps: u8) -> Degrees {
        let (parts, scale) = ((1u64 << steps) as f64, self.max - self.min);
        let end = |part: f64| self.min + (part / parts) * scale;
        // The index after the last of 2^32 parts wraps around, as in Valkey.
        Degrees { min: end(f64::from(part)), max: end(f64::from(part.wrapping_add(1))) }
    }
}

/// A position on earth, in degrees.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Place {
    /// East is positive.
    pub longitude: f64,
    /// North is positive.
    pub latitude: f64,
}

impl Place {
    /// The center of the cell that a score represents.
    pub fn of_score(score: f64) -> Place {
        // Scores that are not geohashes are converted as in Valkey: what does not fit becomes 0.
        const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;
        let bits = match score {
            _ if score < 0.0 => score as i64 as u64,
            _ if score < TOO_LARGE => score as u64,
            _ => 0,
        };
        let area = Cell { bits, steps: STEPS_MAX }.area();
        let middle = |part: Degrees, all: Degrees| ((part.min + part.max) / 2.0).min(all.max).max(all.min);
        Place { longitude: middle(area.longitude, LONGITUDES), latitude: middle(area.latitude, LATITUDES) }
    }

    /// The score of a position in the grid.
    pub fn score(self) -> u64 {
        Cell::of(self, STEPS_MAX).bits
    }

    /// The standard geohash string of eleven characters. The last one is always 0, since 52 bits fill only ten.
    pub fn geohash(self) -> [u8; 11] {
        const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
        let bits = interleave(ALL_LATITUDES.part(self.latitude, STEPS_MAX), LONGITUDES.part(self.longitude, STEPS_MAX));
        let mut text = [ALPHABET[0]; 11];
        for (index, letter) in text[..10].iter_mut().enumerate() {
            *letter = ALPHABET[(bits >> (47 - 5 * index)) as usize & 31];
        }
        text
    }
}

/// A cell of the grid that results from halving both coordinates `steps` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The cell: two bits per step, the bit of the longitude first.
    pub bits: u64,
    /// Halvings: 1 to [`STEPS_MAX`].
    pub steps: u8,
}

/// The area of a cell.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// West to east.
    pub longitude: Degrees,
    /// South to north.
    pub latitude: Degrees,
}

/// The bits of longitudes.
const EVEN: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// The bits of latitudes.
const ODD: u64 = 0x5555_5555_5555_5555;

impl Cell {
    /// The cell of a position in the grid.
    pub fn of(place: Place, steps: u8) -> Cell {
        let (latitude, longitude) = (LATITUDES.part(place.latitude, steps), LONGITUDES.part(place.longitude, steps));
        Cell { bits: interleave(latitude, longitude), steps }
    }

    /// The area that it covers.
    pub fn area(self) -> Area {
        let latitude = deinterleave(self.bits);
        let longitude = deinterleave(self.bits >> 1);
        Area { longitude: LONGITUDES.ends(longitude, self.steps), latitude: LATITUDES.ends(latitude, self.steps) }
    }

    /// The scores of its positions: a half-open range.
    pub fn scores(self) -> Range<f64> {
        let align = |bits: u64| (bits << (2 * (u32::from(STEPS_MAX) - u32::from(self.steps)))) as f64;
        align(self.bits)..align(self.bits + 1)
    }

    /// The adjacent cell, -1 to 1 cells to the east and to the north. The grid wraps around at its edges.
    pub fn neighbour(self, east: i8, north: i8) -> Cell {
        let shift = 64 - 2 * u32::from(self.steps);
        let longitude = step(self.bits & EVEN, east, ODD >> shift, EVEN >> shift);
        let latitude = step(self.bits & ODD, north, EVEN >> shift, ODD >> shift);
        Cell { bits: longitude | latitude, ..self }
    }
}

/// Adds -1 to 1 to a number whose bits are at every second position, `mask`; `others` are the positions between.
fn step(bits: u64, by: i8, others: u64, mask: u64) -> u64 {
    let stepped = match by {
        0 => return bits,
        // The bits between are set, so that a carry propagates across them.
        1.. => bits.wrapping_add(others + 1),
        _ => (bits | others).wrapping_sub(others + 1),
    };
    stepped & mask
}

/// Interleaves the bits of two numbers; those of `low` are at positions 0, 2, ....
fn interleave(low: u32, high: u32) -> u64 {
    spread(low) | spread(high) << 1
}

/// Spreads bits to every second position.
fn spread(number: u32) -> u64 {
    let mut bits = u64::from(number);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, ODD),
    ] {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// Extracts the bits at every second position, starting at position 0.
fn deinterleave(bits: u64) -> u32 {
    let mut bits = bits & ODD;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0xffff_ffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PALERMO: Place = Place { longitude: 13.361389, latitude: 38.115556 };

    #[test]
    fn known_points_have_known_scores() {
        assert_eq!(PALERMO.score(), 3479099956230698);
        assert_eq!(Place { longitude: 15.087269, latitude: 37.502669 }.score(), 3479447370796909);
        assert_eq!(&Place::of_score(3479099956230698.0).geohash(), b"sqc8b49rny0");
        let middle = Place::of_score(3479099956230698.0);
        assert_eq!((middle.longitude, middle.latitude), (13.361389338970184, 38.1155563954963));
    }

    #[test]
    fn cell_neighbours_wrap_around_the_grid() {
        let first = Cell { bits: 0, steps: 3 };
        assert_eq!(first.neighbour(0, 0), first);
        assert_eq!(first.neighbour(1, 0).bits, 0b10);
        assert_eq!(first.neighbour(0, 1).bits, 0b01);
        assert_eq!(first.neighbour(-1, 0).bits, 0b101010);
        assert_eq!(first.neighbour(-1, -1).bits, 0b111111);
        assert_eq!(first.neighbour(-1, -1).neighbour(1, 1), first);
        assert_eq!(Cell { bits: 0b1010, steps: 2 }.neighbour(1, 0).bits, 0);
    }

    #[test]
    fn any_score_decodes_to_a_point() {
        for score in [-1.0, 0.0, 1e300, f64::INFINITY, f64::NEG_INFINITY, 4503599627370496.0] {
            let place = Place::of_score(score);
            assert!(LONGITUDES.contains(place.longitude) && LATITUDES.contains(place.latitude), "{score}");
        }
        assert_eq!(Place::of_score(f64::INFINITY), Place::of_score(0.0));
        assert_eq!(Place::of_score(-1.0), Place { longitude: LONGITUDES.max, latitude: LATITUDES.max });
    }

    proptest! {
        #[test]
        fn bits_round_trip(low in any::<u32>(), high in any::<u32>()) {
            let bits = interleave(low, high);
            prop_assert_eq!((deinterleave(bits), deinterleave(bits >> 1)), (low, high));
        }

        #[test]
        fn point_is_in_its_geohash_cell(
            longitude in -180.0..180.0f64,
            latitude in -85.05..85.05f64,
            steps in 1..=STEPS_MAX,
        ) {
            let place = Place { longitude, latitude };
            let cell = Cell::of(place, steps);
            let area = cell.area();
            let margin = |degrees: Degrees| Degrees { min: degrees.min - 1e-9, max: degrees.max + 1e-9 };
            prop_assert!(margin(area.longitude).contains(longitude) && margin(area.latitude).contains(latitude));
            prop_assert!(cell.scores().contains(&(place.score() as f64)));
        }
    }
}
