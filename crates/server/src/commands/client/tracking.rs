//! Client-side caching: CLIENT TRACKING, CACHING, TRACKINGINFO, GETREDIR. The implementation is
//! [`kvick_core::tracking`].

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, Spec};
use kvick_core::clients::ClientFlags;
use kvick_core::tracking::prefixes::first_overlap;
use kvick_core::tracking::{ClientTracking, Mode};
use kvick_engine::session::{Client, Session, SessionHandler};
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use std::ops::Bound;
use std::sync::Arc;

/// `CLIENT TRACKING ON | OFF [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT]
/// [NOLOOP]`
pub const TRACKING: Command<SessionHandler> = Command::new(
    Spec::new("tracking", -3)
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "6.0.0", "O(N), N being the prefixes", "Controls server-assisted client-side caching.")
        .args(&[
            Arg::one_of("status", &[Arg::word("on", "ON"), Arg::word("off", "OFF")]),
            Arg::integer("client-id").token("REDIRECT").optional(),
            Arg::string("prefix").token("PREFIX").optional().multiple().multiple_token(),
            Arg::word("bcast", "BCAST").optional(),
            Arg::word("optin", "OPTIN").optional(),
            Arg::word("optout", "OPTOUT").optional(),
            Arg::word("noloop", "NOLOOP").optional(),
        ]),
    tracking,
);

/// The options of CLIENT TRACKING.
struct Request<'a> {
    mode: Mode,
    prefixes: Vec<&'a [u8]>,
}

fn tracking(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let request = parse_request(cx, args)?;
    if args[2].eq_ignore_ascii_case(b"on") {
        check(cx.client, &request)?;
        cx.client.start_tracking(cx.server, &request.mode, &request.prefixes);
    } else if args[2].eq_ignore_ascii_case(b"off") {
        cx.client.stop_tracking(cx.server);
    } else {
        return Err(Error::SYNTAX);
    }
    cx.reply.ok();
    Ok(())
}

fn parse_request<'a>(cx: &Session<'_>, args: Args<'a>) -> Result<Request<'a>, Error> {
    let mut request = Request { mode: Mode { flags: ClientFlags::empty(), redirect: 0 }, prefixes: Vec::new() };
    let mut words = args.iter().skip(3);
    while let Some(word) = words.next() {
        let flags = [
            (&b"bcast"[..], ClientFlags::BROADCAST),
            (b"optin", ClientFlags::OPTIN),
            (b"optout", ClientFlags::OPTOUT),
            (b"noloop", ClientFlags::NOLOOP),
        ];
        if let Some((_, flag)) = flags.iter().find(|(name, _)| word.eq_ignore_ascii_case(name)) {
            request.mode.flags.insert(*flag);
            continue;
        }
        let value = words.next().ok_or(Error::SYNTAX)?;
        if word.eq_ignore_ascii_case(b"prefix") {
            request.prefixes.push(value);
        } else if !word.eq_ignore_ascii_case(b"redirect") {
            return Err(Error::SYNTAX);
        } else if request.mode.redirect != 0 {
            return Err(Error::text("ERR A client can only redirect to a single other client"));
        } else {
            request.mode.redirect = read_redirect(cx, value)?;
        }
    }
    Ok(request)
}

fn read_redirect(cx: &Session<'_>, value: &[u8]) -> Result<u64, Error> {
    let id = parse_i64(value).ok_or(Error::NOT_INTEGER)?;
    let client = u64::try_from(id).ok().and_then(|id| cx.server.clients.get(id));
    client.map(|client| client.id).ok_or(Error::text("ERR The client ID you want redirect to does not exist"))
}

/// Refuses options that contradict each other or the client's present mode.
fn check(client: &Client, request: &Request<'_>) -> Result<(), Error> {
    let (flags, had) = (request.mode.flags, client.info.flags());
    let broadcasts = flags.contains(ClientFlags::BROADCAST);
    let choices = ClientFlags::OPTIN | ClientFlags::OPTOUT;
    if !broadcasts && !request.prefixes.is_empty() {
        return Err(Error::text("ERR PREFIX option requires BCAST mode to be enabled"));
    }
    if client.tracking.is_some() && broadcasts != had.contains(ClientFlags::BROADCAST) {
        return Err(Error::text(
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it \
             with a different mode.",
        ));
    }
    if broadcasts && flags.intersects(choices) {
        return Err(Error::text("ERR OPTIN and OPTOUT are not compatible with BCAST"));
    }
    if flags.contains(choices) {
        return Err(Error::text("ERR You can't specify both OPTIN mode and OPTOUT mode"));
    }
    if ((flags | had) & choices) == choices {
        return Err(Error::text(
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it \
             with a different mode.",
        ));
    }
    check_overlaps(client.tracking.as_deref(), &request.prefixes)
}

/// Refuses prefixes that overlap with each other or with the client's present prefixes: one is a prefix of the other.
fn check_overlaps(own: Option<&ClientTracking>, prefixes: &[&[u8]]) -> Result<(), Error> {
    let among_them = first_overlap(prefixes);
    // An overlap with a present prefix is reported first.
    let until = among_them.map_or(prefixes.len(), |(first, _)| first + 1);
    let with_own =
        own.and_then(|own| prefixes[..until].iter().find_map(|prefix| Some((*prefix, overlapping(own, prefix)?))));
    let (prefix, which, other) = match (with_own, among_them) {
        (Some((prefix, existing)), _) => (prefix, "an existing", &**existing),
        (None, Some((first, second))) => (prefixes[first], "another provided", prefixes[second]),
        (None, None) => return Ok(()),
    };
    let which = format!("' overlaps with {which} prefix '");
    let end = b"'. Prefixes for a single client must not overlap.";
    Err(Error::quoting(&[b"ERR Prefix '", prefix, which.as_bytes(), other, end]))
}

/// The first prefix of a client that overlaps with this one.
fn overlapping<'a>(own: &'a ClientTracking, prefix: &[u8]) -> Option<&'a Arc<[u8]>> {
    let all = own.prefixes.first().filter(|first| first.is_empty());
    // The client's prefixes do not overlap with each other, so a prefix of this one directly precedes it.
    let shorter = || own.prefixes.range::<[u8], _>((Bound::Unbounded, Bound::Included(prefix))).next_back();
    let longer = || own.prefixes.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded)).next();
    all.or_else(|| shorter().filter(|existing| prefix.starts_with(existing)))
        .or_else(|| longer().filter(|existing| existing.starts_with(prefix)))
}

/// CLIENT CACHING YES | NO
pub const CACHING: Command<SessionHandler> = Command::new(
    Spec::new("caching", 3)
        .flags(&[Flags::ALLOW_BUSY, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "6.0.0", "O(1)", "Sets whether the keys of the next command are tracked.")
        .args(&[Arg::one_of("mode", &[Arg::word("yes", "YES"), Arg::word("no", "NO")])]),
    caching,
);

fn caching(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let info = &cx.client.info;
    if cx.client.tracking.is_none() {
        return Err(Error::text(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode \
             enabled",
        ));
    }
    if args[2].eq_ignore_ascii_case(b"yes") {
        if !info.flags().contains(ClientFlags::OPTIN) {
            return Err(Error::text("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode."));
        }
    } else if !args[2].eq_ignore_ascii_case(b"no") {
        return Err(Error::SYNTAX);
    } else if !info.flags().contains(ClientFlags::OPTOUT) {
        return Err(Error::text("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode."));
    }
    info.set_flags(ClientFlags::CACHING, true);
    cx.reply.ok();
    Ok(())
}

/// CLIENT GETREDIR
pub const GETREDIR: Command<SessionHandler> = Command::new(
    Spec::new("getredir", 2)
        .flags(&[Flags::ALLOW_BUSY, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "6.0.0", "O(1)", "Returns the ID of the client that receives the invalidations."),
    |cx, _| {
        cx.reply.int(cx.client.info.redirection());
        Ok(())
    },
);

/// CLIENT TRACKINGINFO
pub const TRACKINGINFO: Command<SessionHandler> = Command::new(
    Spec::new("trackinginfo", 2)
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(
            Group::Connection,
            "6.2.0",
            "O(N), N being the prefixes",
            "Returns the client-side caching state of the connection.",
        ),
    trackinginfo,
);

fn trackinginfo(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let flags = cx.client.info.flags();
    let caching = flags.contains(ClientFlags::CACHING);
    let words = [
        (!flags.contains(ClientFlags::TRACKING), "off"),
        (flags.contains(ClientFlags::TRACKING), "on"),
        (flags.contains(ClientFlags::BROADCAST), "bcast"),
        (flags.contains(ClientFlags::OPTIN), "optin"),
        (flags.contains(ClientFlags::OPTIN) && caching, "caching-yes"),
        (flags.contains(ClientFlags::OPTOUT), "optout"),
        (flags.contains(ClientFlags::OPTOUT) && caching, "caching-no"),
        (flags.contains(ClientFlags::NOLOOP), "noloop"),
        (flags.contains(ClientFlags::BROKEN_REDIRECT), "broken_redirect"),
    ];
    let words = words.into_iter().filter_map(|(has_retained_replies, word)| has_retained_replies.then_some(word));
    cx.reply.map(3);
    cx.reply.bulk(b"flags");
    cx.reply.set(words.clone().count());
    words.for_each(|word| cx.reply.bulk(word.as_bytes()));
    cx.reply.bulk(b"redirect");
    cx.reply.int(cx.client.info.redirection());
    cx.reply.bulk(b"prefixes");
    let prefixes = cx.client.tracking.iter().flat_map(|own| &own.prefixes);
    cx.reply.array(prefixes.clone().count());
    prefixes.for_each(|prefix| cx.reply.bulk(prefix));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_error_names_the_existing_prefix_first() {
        let text = |own: &[&str], prefixes: &[&str]| {
            let own = ClientTracking { prefixes: own.iter().map(|prefix| prefix.as_bytes().into()).collect() };
            let prefixes: Vec<_> = prefixes.iter().map(|prefix| prefix.as_bytes()).collect();
            let error = check_overlaps(Some(&own), &prefixes).err()?;
            let words = error.to_string().split('\'').map(str::to_owned).collect::<Vec<_>>();
            Some((words[1].clone(), words[3].clone(), error.to_string().contains("existing")))
        };
        let told = |prefix: &str, other: &str, existing| Some((prefix.to_owned(), other.to_owned(), existing));
        assert_eq!(text(&[], &["a", "b"]), None);
        assert_eq!(text(&["foo", "bar"], &["baz", "fo:"]), None);
        assert_eq!(text(&["foo", "bar"], &["fo"]), told("fo", "foo", true));
        assert_eq!(text(&["foo", "bar"], &["x", "barb"]), told("barb", "bar", true));
        assert_eq!(text(&["foo", "fop"], &["f"]), told("f", "foo", true));
        assert_eq!(text(&["", "foo"], &["foo"]), told("foo", "", true));
        assert_eq!(text(&["c"], &["x", "xy", "c"]), told("x", "xy", false));
        assert_eq!(text(&["x"], &["x", "xy"]), told("x", "x", true));
        assert_eq!(text(&["c"], &["c", "x", "xy"]), told("c", "c", true));
    }
}
