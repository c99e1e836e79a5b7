//! GEOADD, GEODIST, GEOHASH and GEOPOS.

use kvick_resp::Args;
use kvick_store::{IntBuf, SortedSet, Str};
use smallvec::SmallVec;

use super::{place, place_of, reply_distance, reply_place, unit};
use crate::context::{Context, Error, Handler};
use crate::sorted_set::add::{Rule, add};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// `GEOADD key [NX | XX] [CH] longitude latitude member [longitude latitude member ...]`
pub const GEOADD: Command<Handler> = Command::new(
    Spec::new("geoadd", -5)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::GEO])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::UPDATE])])
        .doc(
            Group::Geo,
            "3.2.0",
            "O(log(N)) for each member, N being the size of the sorted set.",
            "Adds members with their places to a geospatial index, creating it if there is none.",
        )
        .history(&[("6.2.0", "Added `CH`, `NX` and `XX`.")])
        .args(&[
            Arg::key("key"),
            Arg::one_of("condition", &[Arg::word("nx", "NX"), Arg::word("xx", "XX")]).optional().since("6.2.0"),
            Arg::word("change", "CH").optional().since("6.2.0"),
            Arg::block("data", &[Arg::double("longitude"), Arg::double("latitude"), Arg::string("member")]).multiple(),
        ]),
    geoadd,
);

fn geoadd(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut rule = Rule::default();
    let is_option = |word: &&[u8]| {
        let flag = match word.to_ascii_lowercase().as_slice() {
            b"nx" => &mut rule.nx,
            b"xx" => &mut rule.xx,
            b"ch" => &mut rule.ch,
            _ => return false,
        };
        *flag = true;
        true
    };
    let first = 2 + args.slice_from(2).iter().take_while(is_option).count();
    let triples = args.slice_from(first);
    if !triples.len().is_multiple_of(3) || (rule.nx && rule.xx) {
        return Err(Error::SYNTAX);
    }
    let mut scores = SmallVec::<[i64; 4]>::new();
    for index in (0..triples.len()).step_by(3) {
        scores.push(place(triples, index)?.score() as i64);
    }
    if scores.is_empty() {
        return Err(Error::SYNTAX);
    }
    let members = triples.iter().skip(2).step_by(3);
    let elements = scores.iter().map(|score| *score as f64).zip(members.clone());
    add(cx, cx.key(args, 1), rule, elements)?;
    let effects = cx.db.effects();
    if effects.has_readers() && effects.dirty() > 0 {
        let digits: Vec<(IntBuf, i64)> = scores.iter().map(|score| (IntBuf::default(), *score)).collect();
        propagate(cx, args, first, digits, members);
    }
    Ok(())
}

/// Propagates GEOADD as the equivalent ZADD.
fn propagate<'a>(
    cx: &mut Context<'_>,
    args: Args<'a>,
    first: usize,
    mut scores: Vec<(IntBuf, i64)>,
    members: impl Iterator<Item = &'a [u8]>,
) {
    let mut words: Vec<&[u8]> = vec![b"ZADD"];
    words.extend(args.iter().take(first).skip(1));
    for ((digits, score), member) in scores.iter_mut().zip(members) {
        words.extend([Str::Int(*score).bytes(digits), member]);
    }
    cx.db.effects().propagate(&words);
}

/// GEODIST key member1 member2 [m | km | ft | mi]
pub const GEODIST: Command<Handler> = Command::new(
    Spec::new("geodist", -4)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::GEO])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(Group::Geo, "3.2.0", "O(1)", "Returns the distance between two members.")
        .args(&[
            Arg::key("key"),
            Arg::string("member1"),
            Arg::string("member2"),
            Arg::one_of(
                "unit",
                &[Arg::word("m", "M"), Arg::word("km", "KM"), Arg::word("ft", "FT"), Arg::word("mi", "MI")],
            )
            .optional(),
        ]),
    geodist,
);

fn geodist(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let unit = match args.len() {
        4 => 1.0,
        5 => unit(&args[4])?,
        _ => return Err(Error::SYNTAX),
    };
    let key = cx.key(args, 1);
    let set = cx.db.read::<SortedSet>(key)?;
    match set.and_then(|set| place_of(set, &args[2]).zip(place_of(set, &args[3]))) {
        Some((from, to)) => reply_distance(&mut cx.reply, super::shape::distance(from, to) / unit),
        None => cx.reply.null(),
    }
    Ok(())
}

/// GEOHASH key [member [member ...]]
pub const GEOHASH: Command<Handler> = Command::new(
    Spec::new("geohash", -2)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::GEO])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(Group::Geo, "3.2.0", "O(1) for each member.", "Returns the places of members as geohash strings.")
        .args(&[Arg::key("key"), Arg::string("member").optional().multiple()]),
    geohash,
);

fn geohash(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let set = cx.db.read::<SortedSet>(key)?;
    cx.reply.array(args.len() - 2);
    for member in args.slice_from(2).iter() {
        match set.and_then(|set| place_of(set, member)) {
            Some(place) => cx.reply.bulk(&place.geohash()),
            None => cx.reply.null(),
        }
    }
    Ok(())
}

/// GEOPOS key [member [member ...]]
pub const GEOPOS: Command<Handler> = Command::new(
    Spec::new("geopos", -2)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::GEO])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(Group::Geo, "3.2.0", "O(1) for each member.", "Returns the longitudes and latitudes of members.")
        .args(&[Arg::key("key"), Arg::string("member").optional().multiple()]),
    geopos,
);

fn geopos(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let set = cx.db.read::<SortedSet>(key)?;
    cx.reply.array(args.len() - 2);
    for member in args.slice_from(2).iter() {
        match set.and_then(|set| place_of(set, member)) {
            Some(place) => reply_place(&mut cx.reply, place),
            None => cx.reply.null_array(),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use crate::{geo, sorted_set};
    use kvick_resp::Version;

    fn bench() -> Bench {
        let mut bench = Bench::new(&[geo::COMMANDS, sorted_set::COMMANDS]);
        let added = bench.run("GEOADD sicily 13.361389 38.115556 Palermo 15.087269 37.502669 Catania");
        assert_eq!(added, ":2");
        bench
    }

    #[test]
    fn points_round_trip_through_scores() {
        let mut bench = bench();
        assert_eq!(bench.events(), ["new", "zadd"]);
        assert_eq!(bench.propagated(), ["ZADD sicily 3479099956230698 Palermo 3479447370796909 Catania"]);
        assert_eq!(bench.run("ZSCORE sicily Palermo"), "$16 3479099956230698");
        assert_eq!(bench.run("GEODIST sicily Palermo Catania"), "$11 166274.1516");
        assert_eq!(bench.run("GEODIST sicily Palermo Catania KM"), "$8 166.2742");
        assert_eq!(bench.run("GEODIST sicily Palermo Palermo mi"), "$6 0.0000");
        assert_eq!(bench.run("GEODIST sicily Palermo Rome"), "$-1");
        assert_eq!(bench.run("GEODIST none Palermo Rome"), "$-1");
        assert_eq!(bench.run("GEOHASH sicily Palermo Rome Catania"), "*3 $11 sqc8b49rny0 $-1 $11 sqdtr74hyu0");
        let palermo = "*2 $20 13.36138933897018433 $20 38.11555639549629859";
        assert_eq!(bench.run("GEOPOS sicily Palermo Rome"), format!("*2 {palermo} *-1"));
        bench.version = Version::Resp3;
        let palermo = "*2 ,13.36138933897018433 ,38.11555639549629859";
        assert_eq!(bench.run("GEOPOS sicily Palermo Rome"), format!("*2 {palermo} _"));
    }

    #[test]
    fn geoadd_takes_the_options_of_zadd() {
        let mut bench = bench();
        bench.propagated();
        assert_eq!(bench.run("GEOADD sicily NX 1 2 Palermo"), ":0");
        assert!(bench.propagated().is_empty());
        assert_eq!(bench.run("GEOADD sicily xx CH 1 2 Palermo 1 2 Rome"), ":1");
        assert_eq!(bench.propagated(), ["ZADD sicily xx CH 3378080408407459 Palermo 3378080408407459 Rome"]);
        assert_eq!(bench.run("GEOADD none XX 1 2 a"), ":0");
    }

    #[test]
    fn invalid_coordinates_are_rejected() {
        let mut bench = bench();
        for (command, error) in [
            ("GEOADD s 1 2 a 3", "syntax error"),
            ("GEOADD s nx xx 1 2 a", "syntax error"),
            ("GEOADD s nx ch ch", "syntax error"),
            ("GEOADD s gt 2 a", "value is not a valid float"),
            ("GEOADD s 1 x a", "value is not a valid float"),
            ("GEOADD s 181 2 a", "invalid longitude,latitude pair 181.000000,2.000000"),
            ("GEOADD s 1 -85.06 a", "invalid longitude,latitude pair 1.000000,-85.060000"),
            ("GEODIST s a b ly", "unsupported unit provided. please use M, KM, FT, MI"),
            ("GEODIST s a b m m", "syntax error"),
        ] {
            assert_eq!(bench.run(command), format!("-ERR {error}"), "{command}");
        }
    }
}
