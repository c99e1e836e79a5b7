//! GEOSEARCH and GEOSEARCHSTORE, and the older GEORADIUS commands.
//!
//! A search reads the few cells of the grid that cover its shape, each of which is a range of scores, and keeps the
//! members whose positions are inside.

use kvick_resp::{Args, Reply};
use kvick_store::collections::sorted_set::{Builder, Cut};
use kvick_store::{IntBuf, SortedSet, Str};

use super::geohash::Place;
use super::options::{Options, Order, Syntax};
use super::shape::Shape;
use super::{reply_distance, reply_place};
use crate::context::{Context, Error, Handler};
use crate::sorted_set::store_result;
use crate::spec::{
    Arg, Begin, Categories, Command, Find, Flags, Group, KeyFlags, KeyPosition, KeyPositions, KeySpec, Spec,
};

// Arguments that several commands have.

/// The centre of a search.
const FROM: Arg = Arg::one_of(
    "from",
    &[
        Arg::string("member").token("FROMMEMBER"),
        Arg::block("fromlonlat", &[Arg::double("longitude"), Arg::double("latitude")]).token("FROMLONLAT"),
    ],
)
.optional();

/// The shape of a search.
const BY: Arg = Arg::one_of(
    "by",
    &[
        Arg::block("circle", &[Arg::double("radius").token("BYRADIUS"), UNIT]),
        Arg::block("box", &[Arg::double("width").token("BYBOX"), Arg::double("height"), UNIT]),
        Arg::block(
            "polygon",
            &[
                Arg::integer("num-vertices").token("BYPOLYGON"),
                Arg::block("vertices", &[Arg::double("longitude"), Arg::double("latitude")]).multiple(),
            ],
        )
        .since("9.0.0"),
    ],
);

/// The unit of distances.
const UNIT: Arg =
    Arg::one_of("unit", &[Arg::word("m", "M"), Arg::word("km", "KM"), Arg::word("ft", "FT"), Arg::word("mi", "MI")]);

/// The order of the members.
const ORDER: Arg = Arg::one_of("order", &[Arg::word("asc", "ASC"), Arg::word("desc", "DESC")]).optional();

/// The maximum number of members.
const COUNT: Arg =
    Arg::block("count-block", &[Arg::integer("count").token("COUNT"), Arg::word("any", "ANY").optional()]).optional();

/// The same for commands to which ANY was added.
const COUNT_SINCE_6_2: Arg = Arg::block(
    "count-block",
    &[Arg::integer("count").token("COUNT"), Arg::word("any", "ANY").optional().since("6.2.0")],
)
.optional();

/// Whether to reply with positions.
const WITH_COORD: Arg = Arg::word("withcoord", "WITHCOORD").optional();

/// Whether to reply with distances.
const WITH_DIST: Arg = Arg::word("withdist", "WITHDIST").optional();

/// Whether to reply with scores.
const WITH_HASH: Arg = Arg::word("withhash", "WITHHASH").optional();

/// The key to store the members in.
const STORE: Arg = Arg::one_of(
    "store",
    &[
        Arg::key("storekey").key_spec(1).token("STORE").display("key"),
        Arg::key("storedistkey").key_spec(2).token("STOREDIST").display("key"),
    ],
)
.optional();

/// `GEOSEARCH key [FROMMEMBER member | FROMLONLAT longitude latitude] (BYRADIUS radius (m | km | ft | mi) | BYBOX width
/// height (m | km | ft | mi) | BYPOLYGON num-vertices longitude latitude [longitude latitude ...]) [ASC | DESC] [COUNT
/// count [ANY]] [WITHCOORD] [WITHDIST] [WITHHASH]`
pub const GEOSEARCH: Command<Handler> = Command::new(
    Spec::new("geosearch", -7)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::GEO])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::Geo,
            "6.2.0",
            "O(N+log(M)), N being the number of members in the grid boxes around the shape and M that inside of the \
             shape.",
            "Lists the members inside of a circle, a box or a polygon.",
        )
        .history(&[("7.0.0", "Units may be in upper case."), ("9.0.0", "Added `BYPOLYGON`.")])
        .args(&[Arg::key("key"), FROM, BY, ORDER, COUNT, WITH_COORD, WITH_DIST, WITH_HASH]),
    geosearch,
);

fn geosearch(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    search(cx, args, 1, Syntax::Search, false)
}

/// `GEOSEARCHSTORE destination source [FROMMEMBER member | FROMLONLAT longitude latitude] (BYRADIUS radius (m | km | ft
/// | mi) | BYBOX width height (m | km | ft | mi) | BYPOLYGON num-vertices longitude latitude [longitude latitude ...])
/// [ASC | DESC] [COUNT count [ANY]] [STOREDIST]`
pub const GEOSEARCHSTORE: Command<Handler> = Command::new(
    Spec::new("geosearchstore", -8)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::GEO])
        .keys(&[KeySpec::at(1, &[KeyFlags::OW, KeyFlags::UPDATE]), KeySpec::at(2, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::Geo,
            "6.2.0",
            "O(N+log(M)), N being the number of members in the grid boxes around the shape and M that inside of the \
             shape.",
            "Stores the members inside of a circle, a box or a polygon.",
        )
        .history(&[("7.0.0", "Units may be in upper case."), ("9.0.0", "Added `BYPOLYGON`.")])
        .args(&[
            Arg::key("destination"),
            Arg::key("source").key_spec(1),
            FROM,
            BY,
            ORDER,
            COUNT,
            Arg::word("storedist", "STOREDIST").optional(),
        ]),
    geosearchstore,
);

fn geosearchstore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    search(cx, args, 2, Syntax::SearchStore, false)
}

/// `GEORADIUS key longitude latitude radius (m | km | ft | mi) [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]]
/// [ASC | DESC] [STORE key | STOREDIST key]`
pub const GEORADIUS: Command<Handler> = Command::new(
    Spec::new("georadius", -6)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::GEO])
        .keys(&[
            KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS]),
            KeySpec::new(
                Begin::Keyword("STORE", 6),
                Find::Range { last: 0, step: 1, limit: 0 },
                &[KeyFlags::OW, KeyFlags::UPDATE, KeyFlags::VARIABLE_FLAGS],
            ),
            KeySpec::new(
                Begin::Keyword("STOREDIST", 6),
                Find::Range { last: 0, step: 1, limit: 0 },
                &[KeyFlags::OW, KeyFlags::UPDATE, KeyFlags::VARIABLE_FLAGS],
            ),
        ])
        .find_keys(radius_keys)
        .doc(
            Group::Geo,
            "3.2.0",
            "O(N+log(M)), N being the number of members in the bounding box of the circle and M the size of the index.",
            "Finds the members within a distance of a place, to list or to store them.",
        )
        .history(&[("6.2.0", "Added `ANY`."), ("7.0.0", "Units may be in upper case.")])
        .args(&[
            Arg::key("key"),
            Arg::double("longitude"),
            Arg::double("latitude"),
            Arg::double("radius"),
            UNIT,
            WITH_COORD,
            WITH_DIST,
            WITH_HASH,
            COUNT_SINCE_6_2,
            ORDER,
            STORE,
        ]),
    georadius,
);

fn georadius(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    search(cx, args, 1, Syntax::Radius, true)
}

/// `GEORADIUS_RO key longitude latitude radius (m | km | ft | mi) [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]]
/// [ASC | DESC]`
pub const GEORADIUS_RO: Command<Handler> = Command::new(
    Spec::new("georadius_ro", -6)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::GEO])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::Geo,
            "3.2.10",
            "O(N+log(M)), N being the number of members in the bounding box of the circle and M the size of the index.",
            "Lists the members within a distance of a place.",
        )
        .history(&[("6.2.0", "Added `ANY`."), ("7.0.0", "Units may be in upper case.")])
        .args(&[
            Arg::key("key"),
            Arg::double("longitude"),
            Arg::double("latitude"),
            Arg::double("radius"),
            UNIT,
            WITH_COORD,
            WITH_DIST,
            WITH_HASH,
            COUNT_SINCE_6_2,
            ORDER,
        ]),
    georadius_ro,
);

fn georadius_ro(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    search(cx, args, 1, Syntax::Radius, false)
}

/// `GEORADIUSBYMEMBER key member radius (m | km | ft | mi) [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC |
/// DESC] [STORE key | STOREDIST key]`
pub const GEORADIUSBYMEMBER: Command<Handler> = Command::new(
    Spec::new("georadiusbymember", -5)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::GEO])
        .keys(&[
            KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS]),
            KeySpec::new(
                Begin::Keyword("STORE", 5),
                Find::Range { last: 0, step: 1, limit: 0 },
                &[KeyFlags::OW, KeyFlags::UPDATE, KeyFlags::VARIABLE_FLAGS],
            ),
            KeySpec::new(
                Begin::Keyword("STOREDIST", 5),
                Find::Range { last: 0, step: 1, limit: 0 },
                &[KeyFlags::OW, KeyFlags::UPDATE, KeyFlags::VARIABLE_FLAGS],
            ),
        ])
        .find_keys(radius_keys)
        .doc(
            Group::Geo,
            "3.2.0",
            "O(N+log(M)), N being the number of members in the bounding box of the circle and M the size of the index.",
            "Finds the members within a distance of another one, to list or to store them.",
        )
        .history(&[("6.2.0", "Added `ANY`."), ("7.0.0", "Units may be in upper case.")])
        .args(&[
            Arg::key("key"),
            Arg::string("member"),
            Arg::double("radius"),
            UNIT,
            WITH_COORD,
            WITH_DIST,
            WITH_HASH,
            COUNT,
            ORDER,
            STORE,
        ]),
    georadiusbymember,
);

fn georadiusbymember(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    search(cx, args, 1, Syntax::RadiusByMember, true)
}

/// `GEORADIUSBYMEMBER_RO key member radius (m | km | ft | mi) [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]]
/// [ASC | DESC]`
pub const GEORADIUSBYMEMBER_RO: Command<Handler> = Command::new(
    Spec::new("georadiusbymember_ro", -5)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::GEO])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::Geo,
            "3.2.10",
            "O(N+log(M)), N being the number of members in the bounding box of the circle and M the size of the index.",
            "Lists the members within a distance of another one.",
        )
        .history(&[("6.2.0", "Added `ANY`."), ("7.0.0", "Units may be in upper case.")])
        .args(&[
            Arg::key("key"),
            Arg::string("member"),
            Arg::double("radius"),
            UNIT,
            WITH_COORD,
            WITH_DIST,
            WITH_HASH,
            COUNT,
            ORDER,
        ]),
    georadiusbymember_ro,
);

fn georadiusbymember_ro(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    search(cx, args, 1, Syntax::RadiusByMember, false)
}

/// The keys of GEORADIUS and GEORADIUSBYMEMBER: the last STORE or STOREDIST takes effect.
fn radius_keys(args: Args<'_>) -> Option<KeyPositions> {
    let mut stored = None;
    let mut index = 5;
    while index + 1 < args.len() {
        let word = &args[index];
        if word.eq_ignore_ascii_case(b"store") || word.eq_ignore_ascii_case(b"storedist") {
            stored = Some(index + 1);
            index += 1;
        }
        index += 1;
    }
    let read = KeyPosition { index: 1, flags: KeyFlags::RO | KeyFlags::ACCESS };
    let written = stored.map(|index| KeyPosition { index, flags: KeyFlags::OW | KeyFlags::UPDATE });
    Some([read].into_iter().chain(written).collect())
}

/// A member found by a search.
struct Found<'a> {
    member: Str<'a>,
    score: f64,
    place: Place,
    /// Meters from the center.
    distance: f64,
}

/// Searches the sorted set at argument `source`, and lists or stores the result.
fn search(cx: &mut Context<'_>, args: Args<'_>, source: usize, syntax: Syntax, may_store: bool) -> Result<(), Error> {
    let key = cx.key(args, source);
    let set = cx.db.read::<SortedSet>(key)?;
    let options = Options::parse(args, syntax, may_store, set)?;
    let found = match (set, &options.shape) {
        (Some(set), Some(shape)) => {
            let centre = shape.own_centre().or(options.centre).unwrap_or_default();
            find(set, shape, centre, &options)
        }
        _ => Vec::new(),
    };
    let unit = options.shape.as_ref().map_or(1.0, Shape::unit);
    let Some(target) = options.store else {
        list(&mut cx.reply, &found, &options, unit);
        return Ok(());
    };
    let mut result = Builder::new();
    for one in &found {
        let score = if options.store_distance { one.distance / unit } else { one.score };
        result.update(one.member.bytes(&mut IntBuf::default()), |_| score);
    }
    let (result, changes) = (result.build(cx.settings.encoding.sorted_set), found.len() as u64);
    let event = if syntax == Syntax::SearchStore { "geosearchstore" } else { "georadiusstore" };
    let len = store_result(cx, cx.key(args, target), result, event, changes);
    cx.reply.uint(len as u64);
    Ok(())
}

/// The members inside a shape, limited and sorted as the options require.
fn find<'a>(set: &'a SortedSet, shape: &Shape, centre: Place, options: &Options) -> Vec<Found<'a>> {
    let count = options.count.unwrap_or(usize::MAX);
    let enough = if options.any { count } else { usize::MAX };
    let mut found = Vec::new();
    for cell in shape.cells(centre) {
        let scores = cell.scores();
        let cut = |score| Cut::Score { score, behind: false };
        for (member, score) in set.range(set.ranks(&cut(scores.start), &cut(scores.end))) {
            if found.len() >= enough {
                break;
            }
            let place = Place::of_score(score);
            if let Some(distance) = shape.distance_within(centre, place) {
                found.push(Found { member, score, place, distance });
            }
        }
    }
    // COUNT without an order returns the nearest members, unless ANY is given.
    let nearest = (options.count.is_some() && !options.any).then_some(Order::Ascending);
    match options.order.or(nearest) {
        Some(Order::Ascending) => found.sort_by(|a, b| a.distance.total_cmp(&b.distance)),
        Some(Order::Descending) => found.sort_by(|a, b| b.distance.total_cmp(&a.distance)),
        None => {}
    }
    found.truncate(count);
    found
}

/// Lists the members found, with the requested details.
fn list(reply: &mut Reply<'_>, found: &[Found<'_>], options: &Options, unit: f64) {
    let extras =
        [options.with_distance, options.with_hash, options.with_place].into_iter().filter(|with| *with).count();
    reply.array(found.len());
    for one in found {
        if extras > 0 {
            reply.array(extras + 1);
        }
        reply.bulk(one.member.bytes(&mut IntBuf::default()));
        if options.with_distance {
            reply_distance(reply, one.distance / unit);
        }
        if options.with_hash {
            reply.int(one.score as i64);
        }
        if options.with_place {
            reply_place(reply, one.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use crate::{geo, sorted_set};

    fn bench() -> Bench {
        let mut bench = Bench::new(&[geo::COMMANDS, sorted_set::COMMANDS]);
        bench.run("GEOADD s 13.361389 38.115556 Palermo 15.087269 37.502669 Catania");
        bench.run("GEOADD s 12.758489 38.788135 edge1 17.241510 38.788135 edge2");
        bench
    }

    #[test]
    fn circles_boxes_and_polygons_are_searched() {
        let mut bench = bench();
        for entries in [0, 128] {
            bench.settings.encoding.sorted_set.entries = entries;
            bench.run("ZADD s XX 3479099956230698 Palermo");
            for (command, expected) in [
                ("GEOSEARCH s FROMLONLAT 15 37 BYRADIUS 200 km ASC", "*2 $7 Catania $7 Palermo"),
                ("GEOSEARCH s FROMLONLAT 15 37 BYRADIUS 200 km DESC COUNT 1", "*1 $7 Palermo"),
                ("GEOSEARCH s FROMLONLAT 15 37 BYBOX 400 400 km ASC", "*4 $7 Catania $7 Palermo $5 edge2 $5 edge1"),
                ("GEOSEARCH s FROMLONLAT 15 37 BYBOX 400 400 km COUNT 3", "*3 $7 Catania $7 Palermo $5 edge2"),
                ("GEOSEARCH s FROMMEMBER Palermo BYRADIUS 0 m", "*1 $7 Palermo"),
                ("GEOSEARCH s BYPOLYGON 3 13 37 16 37 14.5 39", "*1 $7 Catania"),
                ("GEOSEARCH s FROMLONLAT 100 37 BYRADIUS 200 km", "*0"),
                ("GEOSEARCH none FROMMEMBER x BYRADIUS 200 km", "*0"),
                ("GEORADIUS s 15 37 200 km asc", "*2 $7 Catania $7 Palermo"),
                ("GEORADIUSBYMEMBER_RO s Palermo 200 km asc", "*3 $7 Palermo $5 edge1 $7 Catania"),
                ("GEORADIUSBYMEMBER none x wrong wrong", "*0"),
                ("GEORADIUS s 15 37 200 mi WITHDIST COUNT 1", "*1 *2 $7 Catania $7 35.0711"),
                (
                    "GEORADIUS_RO s 15 37 100 km WITHDIST WITHHASH WITHCOORD",
                    "*1 *4 $7 Catania $7 56.4413 :3479447370796909 *2 $20 15.08726745843887329 $20 \
                     37.50266842333162032",
                ),
            ] {
                assert_eq!(bench.run(command), expected, "{command}");
            }
        }
    }

    #[test]
    fn any_option_stops_at_the_count() {
        let mut bench = bench();
        assert!(bench.run("GEOSEARCH s FROMLONLAT 15 37 BYBOX 400 400 km COUNT 2 ANY").starts_with("*2 "));
        assert!(bench.run("GEOSEARCH s FROMLONLAT 15 37 BYBOX 400 400 km COUNT 9 ANY DESC").starts_with("*4 $5 edge1"));
    }

    #[test]
    fn results_can_be_stored() {
        let mut bench = bench();
        bench.propagated();
        let command = "GEOSEARCHSTORE d s FROMLONLAT 15 37 BYRADIUS 200 km STOREDIST";
        assert_eq!(bench.run(command), ":2");
        assert_eq!(bench.events(), ["new", "geosearchstore"]);
        assert_eq!(bench.propagated(), [command]);
        assert_eq!(bench.run("ZRANGE d 0 0 WITHSCORES"), "*2 $7 Catania $16 56.4412578701582");
        assert_eq!(bench.run("GEORADIUS s 15 37 200 km STOREDIST x STORE d"), ":2");
        assert_eq!(bench.events(), ["georadiusstore"]);
        assert_eq!(bench.run("ZSCORE d Palermo"), "$16 3479099956230698");
        assert_eq!(bench.run("ZCARD x"), ":0");
        assert_eq!(bench.run("GEORADIUSBYMEMBER none x 1 m STORE d"), ":0");
        assert_eq!(bench.events(), ["del"]);
        assert_eq!(bench.run("GEOSEARCHSTORE d s FROMLONLAT 100 37 BYRADIUS 200 km"), ":0");
    }

    #[test]
    fn conflicting_options_are_rejected() {
        let mut bench = bench();
        for (command, error) in [
            ("GEOSEARCH s FROMLONLAT 15 37 BYRADIUS 200", "syntax error"),
            ("GEOSEARCH s FROMLONLAT 15 37 FROMMEMBER x BYRADIUS 200 km", "syntax error"),
            ("GEOSEARCH s FROMLONLAT 15 37 BYRADIUS 200 km BYBOX 1 1 km", "syntax error"),
            ("GEOSEARCH s FROMLONLAT 15 37 BYRADIUS 200 km STORE d", "syntax error"),
            ("GEOSEARCH s FROMLONLAT 15 37 BYRADIUS 200 km COUNT", "syntax error"),
            ("GEOSEARCH s FROMLONLAT 15 37 BYRADIUS 200 km COUNT 0", "COUNT must be > 0"),
            ("GEOSEARCH s FROMLONLAT 15 37 BYRADIUS 200 km ANY", "the ANY argument requires COUNT argument"),
            ("GEOSEARCH s FROMMEMBER Rome BYRADIUS 200 km", "member Rome does not exist"),
            ("GEOSEARCH s FROMLONLAT 15 37 BYRADIUS x km", "need numeric radius"),
            ("GEOSEARCH s FROMLONLAT 15 37 BYRADIUS -1 km", "radius cannot be negative"),
            ("GEOSEARCH s FROMLONLAT 15 37 BYBOX 1 -1 km", "height or width cannot be negative"),
            ("GEOSEARCH s BYPOLYGON x 1 1 2 2 3 3", "invalid number of vertices"),
            ("GEOSEARCH s BYPOLYGON 4 1 1 2 2 3 3", "GEOSEARCH BYPOLYGON must have at least 3 vertices"),
            ("GEOSEARCH s BYPOLYGON 2147483647 1 1 2 2", "GEOSEARCH BYPOLYGON must have at least 3 vertices"),
            ("GEOSEARCH s BYPOLYGON 3 1 1 2 2 3 3 FROMLONLAT 1 1", "syntax error"),
            (
                "GEOSEARCH s BYRADIUS 200 km ASC ASC ASC",
                "exactly one of FROMMEMBER or FROMLONLAT can be specified for GEOSEARCH",
            ),
            (
                "GEOSEARCH s FROMLONLAT 15 37 ASC ASC",
                "exactly one of BYRADIUS, BYBOX and BYPOLYGON can be specified for GEOSEARCH",
            ),
            (
                "GEOSEARCHSTORE d s FROMLONLAT 15 37 BYRADIUS 200 km WITHDIST",
                "GEOSEARCHSTORE is not compatible with WITHDIST, WITHHASH and WITHCOORD options",
            ),
            (
                "GEORADIUS s 15 37 200 km STORE d WITHHASH",
                "STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and WITHCOORD options",
            ),
            ("GEORADIUS_RO s 15 37 200 km STORE d", "syntax error"),
            ("GEORADIUS s 15 37 200 km FROMMEMBER x", "syntax error"),
            ("GEORADIUSBYMEMBER none x 1 m wrong", "syntax error"),
        ] {
            assert_eq!(bench.run(command), format!("-ERR {error}"), "{command}");
        }
    }
}
