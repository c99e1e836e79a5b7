//! The options of GEOSEARCH, GEORADIUS and their variants.

use kvick_resp::Args;
use kvick_resp::format::{parse_double, parse_i64};
use kvick_store::SortedSet;

use super::geohash::Place;
use super::shape::Shape;
use super::{place, place_of, unit};
use crate::context::Error;

/// The command whose arguments are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// GEORADIUS: starts with the center and a radius.
    Radius,
    /// GEORADIUSBYMEMBER: starts with a member and a radius.
    RadiusByMember,
    /// GEOSEARCH.
    Search,
    /// GEOSEARCHSTORE.
    SearchStore,
}

impl Syntax {
    fn is_search(self) -> bool {
        matches!(self, Syntax::Search | Syntax::SearchStore)
    }
}

/// The order of results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Nearest first.
    Ascending,
    /// Farthest first.
    Descending,
}

/// The parsed options.
#[derive(Default)]
pub struct Options {
    /// The center, from which distances are measured. `None` for polygons, which define their own, and if the key does
    /// not exist.
    pub centre: Option<Place>,
    /// The shape; `None` if the key does not exist.
    pub shape: Option<Shape>,
    /// WITHDIST.
    pub with_distance: bool,
    /// WITHHASH.
    pub with_hash: bool,
    /// WITHCOORD.
    pub with_place: bool,
    /// ASC or DESC.
    pub order: Option<Order>,
    /// COUNT.
    pub count: Option<usize>,
    /// ANY: whether the search ends once COUNT members are found.
    pub any: bool,
    /// STORE or STOREDIST: the argument index of the destination key.
    pub store: Option<usize>,
    /// Whether distances are stored instead of positions.
    pub store_distance: bool,
}

/// A cursor over the arguments.
struct Words<'a> {
    args: Args<'a>,
    at: usize,
}

impl<'a> Words<'a> {
    fn left(&self) -> usize {
        self.args.len().saturating_sub(self.at)
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let word = self.args.get(self.at);
        self.at += 1;
        word
    }

    fn double(&mut self, error: &'static str) -> Result<f64, Error> {
        self.next().and_then(parse_double).ok_or(Error::text(error))
    }

    fn place(&mut self) -> Result<Place, Error> {
        self.at += 2;
        place(self.args, self.at - 2)
    }

    fn unit(&mut self) -> Result<f64, Error> {
        unit(self.next().unwrap_or_default())
    }

    fn circle(&mut self) -> Result<Shape, Error> {
        let radius = self.double("ERR need numeric radius")?;
        if radius < 0.0 {
            return Err(Error::text("ERR radius cannot be negative"));
        }
        Ok(Shape::Circle { radius, unit: self.unit()? })
    }

    fn rectangle(&mut self) -> Result<Shape, Error> {
        let width = self.double("ERR need numeric width")?;
        let height = self.double("ERR need numeric height")?;
        if width < 0.0 || height < 0.0 {
            return Err(Error::text("ERR height or width cannot be negative"));
        }
        Ok(Shape::Box { width, height, unit: self.unit()? })
    }

    fn polygon(&mut self) -> Result<Shape, Error> {
        const NO_NUMBER: Error = Error::text("ERR invalid number of vertices");
        const TOO_FEW: Error = Error::text("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices");
        let corners = self.next().and_then(parse_i64).and_then(|n| i32::try_from(n).ok()).ok_or(NO_NUMBER)?;
        let corners = usize::try_from(corners).unwrap_or_default();
        if corners < 3 || self.left() / 2 < corners {
            return Err(TOO_FEW);
        }
        (0..corners).map(|_| self.place()).collect::<Result<_, _>>().map(Shape::Polygon)
    }

    /// The position of the next argument, a member of the searched set; `None` if the key does not exist.
    fn member(&mut self, set: Option<&SortedSet>) -> Result<Option<Place>, Error> {
        let member = self.next().unwrap_or_default();
        let Some(set) = set else { return Ok(None) };
        let missing = || Error::quoting(&[b"ERR member ", member, b" does not exist"]);
        place_of(set, member).map(Some).ok_or_else(missing)
    }
}

impl Options {
    /// Parses the arguments of a search in `set`. STORE and STOREDIST are valid only if `may_store` is set.
    pub fn parse(args: Args<'_>, syntax: Syntax, may_store: bool, set: Option<&SortedSet>) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut words = Words { args, at: 2 };
        match syntax {
            Syntax::Radius => {
                options.centre = Some(words.place()?);
                options.shape = Some(words.circle()?);
            }
            Syntax::RadiusByMember => {
                options.centre = words.member(set)?;
                // The radius is not checked if the key does not exist.
                if set.is_some() {
                    options.shape = Some(words.circle()?);
                }
                words.at = 5;
            }
            Syntax::Search => {}
            Syntax::SearchStore => {
                options.store = Some(1);
                words.at = 3;
            }
        }
        // Which kinds of center were given, even if the position is unknown.
        let (mut by_member, mut by_place) = (false, false);
        while let Some(word) = words.next() {
            let word = word.to_ascii_lowercase();
            if options.take_plain(&word, &mut words, may_store)? {
                continue;
            }
            let polygon = matches!(options.shape, Some(Shape::Polygon(_)));
            match word.as_slice() {
                _ if !syntax.is_search() => return Err(Error::SYNTAX),
                b"storedist" if syntax == Syntax::SearchStore => options.store_distance = true,
                b"frommember" if words.left() >= 1 && !by_place && !polygon => {
                    options.centre = words.member(set)?;
                    by_member = true;
                }
                b"fromlonlat" if words.left() >= 2 && !by_member && !polygon => {
                    options.centre = Some(words.place()?);
                    by_place = true;
                }
                b"byradius" if words.left() >= 2 && matches!(options.shape, None | Some(Shape::Circle { .. })) => {
                    options.shape = Some(words.circle()?);
                }
                b"bybox" if words.left() >= 3 && matches!(options.shape, None | Some(Shape::Box { .. })) => {
                    options.shape = Some(words.rectangle()?);
                }
                b"bypolygon"
                    if words.left() >= 2 && !by_member && !by_place && (options.shape.is_none() || polygon) =>
                {
                    options.shape = Some(words.polygon()?);
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        options.check(args, syntax, by_member || by_place)?;
        Ok(options)
    }

    /// Processes an option that all commands accept; returns false if the word is not one.
    fn take_plain(&mut self, word: &[u8], words: &mut Words<'_>, may_store: bool) -> Result<bool, Error> {
        match word {
            b"withdist" => self.with_distance = true,
            b"withhash" => self.with_hash = true,
            b"withcoord" => self.with_place = true,
            b"any" => self.any = true,
            b"asc" => self.order = Some(Order::Ascending),
            b"desc" => self.order = Some(Order::Descending),
            b"count" if words.left() >= 1 => {
                let count = words.next().and_then(parse_i64).ok_or(Error::NOT_INTEGER)?;
                if count <= 0 {
                    return Err(Error::text("ERR COUNT must be > 0"));
                }
                self.count = Some(usize::try_from(count).unwrap_or(usize::MAX));
            }
            b"store" | b"storedist" if may_store && words.left() >= 1 => {
                self.store = Some(words.at);
                self.store_distance = word == b"storedist";
                words.at += 1;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks the combination of options.
    fn check(&self, args: Args<'_>, syntax: Syntax, has_centre: bool) -> Result<(), Error> {
        let command = args.get(0).unwrap_or_default();
        if self.store.is_some() && (self.with_distance || self.with_hash || self.with_place) {
            let what = if syntax.is_search() { "GEOSEARCHSTORE" } else { "STORE option in GEORADIUS" };
            let text = format!("ERR {what} is not compatible with WITHDIST, WITHHASH and WITHCOORD options");
            return Err(Error::new(text));
        }
        if syntax.is_search() && !has_centre && !matches!(self.shape, Some(Shape::Polygon(_))) {
            let text = b"ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for ";
            return Err(Error::quoting(&[text, command]));
        }
        if syntax.is_search() && self.shape.is_none() {
            let text = b"ERR exactly one of BYRADIUS, BYBOX and BYPOLYGON can be specified for ";
            return Err(Error::quoting(&[text, command]));
        }
        if self.any && self.count.is_none() {
            return Err(Error::text("ERR the ANY argument requires COUNT argument"));
        }
        Ok(())
    }
}
