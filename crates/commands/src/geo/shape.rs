//! Distances on earth, and the shapes of searches: circles, boxes and polygons.

use super::geohash::{Area, Cell, Degrees, LATITUDES, LONGITUDES, Place, STEPS_MAX};

/// The earth as a sphere: its quadratic mean radius in meters (WGS-84).
const EARTH_RADIUS: f64 = 6372797.560856;
/// Half the width of the Mercator projection, in meters.
const MERCATOR_MAX: f64 = 20037726.37;

fn radians(degrees: f64) -> f64 {
    degrees * (std::f64::consts::PI / 180.0)
}

fn degrees(radians: f64) -> f64 {
    radians / (std::f64::consts::PI / 180.0)
}

/// The distance in meters between two positions, by the haversine formula.
pub fn distance(from: Place, to: Place) -> f64 {
    /// Below this, about six nanometers, longitudes are considered equal.
    const SAME: f64 = 1e-15;
    let v = ((radians(to.longitude) - radians(from.longitude)) / 2.0).sin();
    if v.abs() <= SAME {
        return latitude_distance(from.latitude, to.latitude);
    }
    let (from_latitude, to_latitude) = (radians(from.latitude), radians(to.latitude));
    let u = ((to_latitude - from_latitude) / 2.0).sin();
    let a = u * u + from_latitude.cos() * to_latitude.cos() * v * v;
    2.0 * EARTH_RADIUS * a.sqrt().asin()
}

/// The distance along a meridian.
fn latitude_distance(from: f64, to: f64) -> f64 {
    EARTH_RADIUS * (radians(to) - radians(from)).abs()
}

/// The shape of a search.
#[derive(Clone, Debug)]
pub enum Shape {
    /// All positions within a radius.
    Circle {
        /// The radius, in units.
        radius: f64,
        /// Meters per unit.
        unit: f64,
    },
    /// All positions within half the width and half the height of the center.
    Box {
        /// West to east, in units.
        width: f64,
        /// South to north, in units.
        height: f64,
        /// Meters per unit.
        unit: f64,
    },
    /// The area enclosed by these corners, at least three.
    Polygon(Vec<Place>),
}

impl Shape {
    /// Meters per unit of its lengths, which is also the unit of reported distances.
    pub fn unit(&self) -> f64 {
        match self {
            Shape::Circle { unit, .. } | Shape::Box { unit, .. } => *unit,
            Shape::Polygon(_) => 1.0,
        }
    }

    /// The center of a polygon: the mean of its corners as points in space, projected back to the surface. The other
    /// shapes are given a center.
    pub fn own_centre(&self) -> Option<Place> {
        let Shape::Polygon(corners) = self else { return None };
        let (mut x, mut y, mut z) = (0.0, 0.0, 0.0);
        for corner in corners {
            let (longitude, latitude) = (radians(corner.longitude), radians(corner.latitude));
            x += latitude.cos() * longitude.cos();
            y += latitude.cos() * longitude.sin();
            z += latitude.sin();
        }
        let latitude = f64::atan2(z, (x * x + y * y).sqrt());
        Some(Place { longitude: degrees(f64::atan2(y, x)), latitude: degrees(latitude) })
    }

    /// The distance of a position from the center, if it is inside.
    pub fn distance_within(&self, centre: Place, place: Place) -> Option<f64> {
        match self {
            Shape::Circle { radius, unit } => {
                let metres = distance(centre, place);
                (metres <= radius * unit).then_some(metres)
            }
            Shape::Box { width, height, unit } => {
                if latitude_distance(place.latitude, centre.latitude) > height * unit / 2.0 {
                    return None;
                }
                let same_latitude = Place { longitude: centre.longitude, latitude: place.latitude };
                if distance(place, same_latitude) > width * unit / 2.0 {
                    return None;
                }
                Some(distance(centre, place))
            }
            Shape::Polygon(corners) => encloses(corners, place).then(|| distance(centre, place)),
        }
    }

    /// An area that contains the shape.
    fn bounds(&self, centre: Place) -> Area {
        let (width, height) = match self {
            Shape::Circle { radius, unit } => (unit * radius, unit * radius),
            Shape::Box { width, height, unit } => (unit * width / 2.0, unit * height / 2.0),
            Shape::Polygon(corners) => return bounds_of(corners),
        };
        let latitude_delta = degrees(height / EARTH_RADIUS);
        // Parallels are shorter towards the poles: the edge nearer to a pole spans more degrees.
        let edge =
            if centre.latitude < 0.0 { centre.latitude - latitude_delta } else { centre.latitude + latitude_delta };
        let longitude_delta = degrees(width / EARTH_RADIUS / radians(edge).cos());
        Area {
            longitude: Degrees { min: centre.longitude - longitude_delta, max: centre.longitude + longitude_delta },
            latitude: Degrees { min: centre.latitude - latitude_delta, max: centre.latitude + latitude_delta },
        }
    }

    /// A radius in meters around the center that contains the shape.
    fn radius(&self, centre: Place, bounds: Area) -> f64 {
        match self {
            Shape::Circle { radius, unit } => radius * unit,
            Shape::Box { width, height, unit } => {
                ((width / 2.0) * (width / 2.0) + (height / 2.0) * (height / 2.0)).sqrt() * unit
            }
            Shape::Polygon(_) => {
                let Area { longitude: longitudes, latitude: latitudes } = bounds;
                let corner = |longitude, latitude| distance(centre, Place { longitude, latitude });
                let top = corner(longitudes.min, latitudes.max).max(corner(longitudes.max, latitudes.max));
                top.max(corner(longitudes.min, latitudes.min)).max(corner(longitudes.max, latitudes.min))
            }
        }
    }

    /// The cells to search: nine or fewer, without consecutive duplicates, large enough to cover the shape.
    pub fn cells(&self, centre: Place) -> Vec<Cell> {
        let bounds @ Area { longitude: longitudes, latitude: latitudes } = self.bounds(centre);
        let mut steps = steps_for(self.radius(centre, bounds), centre.latitude);
        let mut cell = Cell::of(centre, steps);
        let neighbour = |east, north| cell.neighbour(east, north).area();
        // If the center is near the edge of a cell, the shape may extend beyond the adjacent cell.
        let too_small = neighbour(0, 1).latitude.max < latitudes.max
            || neighbour(0, -1).latitude.min > latitudes.min
            || neighbour(1, 0).longitude.max < longitudes.max
            || neighbour(-1, 0).longitude.min > longitudes.min;
        if steps > 1 && too_small {
            steps -= 1;
            cell = Cell::of(centre, steps);
        }
        // The order of the cells determines the result of ANY and the order of unsorted results.
        const AROUND: [(i8, i8); 9] = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let area = cell.area();
        let useless = |(east, north): (i8, i8)| {
            steps >= 2
                && ((north < 0 && area.latitude.min < latitudes.min)
                    || (north > 0 && area.latitude.max > latitudes.max)
                    || (east < 0 && area.longitude.min < longitudes.min)
                    || (east > 0 && area.longitude.max > longitudes.max))
        };
        let mut cells: Vec<(usize, Cell)> = Vec::with_capacity(AROUND.len());
        for (index, (east, north)) in AROUND.into_iter().enumerate() {
            let neighbour = cell.neighbour(east, north);
            // If the grid has few cells, both sides have the same neighbor. As in Valkey, a cell is compared with the
            // previous one, unless that is the center cell.
            let again = cells.last().is_some_and(|(last, cell)| *last > 0 && *cell == neighbour);
            if !useless((east, north)) && !again {
                cells.push((index, neighbour));
            }
        }
        cells.into_iter().map(|(_, cell)| cell).collect()
    }
}

/// The number of halvings for cells of this radius.
fn steps_for(radius: f64, latitude: f64) -> u8 {
    if radius == 0.0 {
        return STEPS_MAX;
    }
    let mut steps = 1;
    let mut covered = radius;
    while covered < MERCATOR_MAX {
        covered *= 2.0;
        steps += 1;
    }
    // Two fewer, so that the cells cover the radius in most cases; cells are narrower towards the poles.
    steps -= 2;
    if !(-66.0..=66.0).contains(&latitude) {
        steps -= 1;
        if !(-80.0..=80.0).contains(&latitude) {
            steps -= 1;
        }
    }
    steps.clamp(1, i32::from(STEPS_MAX)) as u8
}

fn bounds_of(corners: &[Place]) -> Area {
    // Initially inverted, so that the first corner sets both ends.
    let mut longitudes = Degrees { min: LONGITUDES.max, max: LONGITUDES.min };
    let mut latitudes = Degrees { min: LATITUDES.max, max: LATITUDES.min };
    for corner in corners {
        longitudes = Degrees { min: longitudes.min.min(corner.longitude), max: longitudes.max.max(corner.longitude) };
        latitudes = Degrees { min: latitudes.min.min(corner.latitude), max: latitudes.max.max(corner.latitude) };
    }
    Area { longitude: longitudes, latitude: latitudes }
}

/// Whether a polygon encloses a position: whether a ray from it crosses an odd number of edges (W. Randolph Franklin's
/// PNPOLY).
fn encloses(corners: &[Place], place: Place) -> bool {
    let mut inside = false;
    let edges = corners.iter().zip(corners.iter().cycle().skip(corners.len().saturating_sub(1)));
    for (a, b) in edges {
        if (a.latitude > place.latitude) != (b.latitude > place.latitude) {
            let crossing = (b.longitude - a.longitude) * (place.latitude - a.latitude) / (b.latitude - a.latitude);
            inside ^= place.longitude < crossing + a.longitude;
        }
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(longitude: f64, latitude: f64) -> Place {
        Place { longitude, latitude }
    }

    #[test]
    fn known_distances() {
        let palermo_catania =
            distance(place(13.361389338970184, 38.1155563954963), place(15.087267458438873, 37.50266842333162));
        assert_eq!(format!("{palermo_catania:.4}"), "166274.1516");
        assert_eq!(distance(place(1.0, 1.0), place(1.0, 1.0)), 0.0);
        let quarter = distance(place(7.0, 0.0), place(7.0, 90.0));
        assert!((quarter - EARTH_RADIUS * std::f64::consts::FRAC_PI_2).abs() < 1e-6);
    }

    #[test]
    fn polygons_enclose_their_interior() {
        let corners = [place(0.0, 0.0), place(4.0, 0.0), place(4.0, 4.0), place(2.0, 1.0), place(0.0, 4.0)];
        assert!(encloses(&corners, place(1.0, 1.0)) && encloses(&corners, place(3.5, 2.0)));
        assert!(!encloses(&corners, place(2.0, 2.0)) && !encloses(&corners, place(5.0, 1.0)));
        let centre = Shape::Polygon(corners.to_vec()).own_centre().expect("it has one");
        assert!((1.5..2.5).contains(&centre.longitude) && (1.0..3.0).contains(&centre.latitude));
    }

    proptest! {
        #[test]
        fn cells_cover_the_search_area(
            longitude in -170.0..170.0f64,
            latitude in -60.0..60.0f64,
            east in -3.0..3.0f64,
            north in -3.0..3.0f64,
            kilometres in 1.0..300.0f64,
        ) {
            let centre = place(longitude, latitude);
            let other = place(longitude + east, latitude + north);
            let corner = |east, north| place(longitude + east, latitude + north);
            for shape in [
                Shape::Circle { radius: kilometres, unit: 1000.0 },
                Shape::Box { width: kilometres, height: 200.0, unit: 1000.0 },
                Shape::Polygon(vec![corner(-1.0, -2.0), corner(2.0, -1.0), corner(0.5, 2.0)]),
            ] {
                let centre = shape.own_centre().unwrap_or(centre);
                if shape.distance_within(centre, other).is_some() {
                    let score = other.score() as f64;
                    let cells = shape.cells(centre);
                    let mut ranges = cells.iter().map(|cell| cell.scores());
                    let covered = ranges.any(|scores| scores.contains(&score));
                    prop_assert!(covered);
                }
            }
        }
    }
}
