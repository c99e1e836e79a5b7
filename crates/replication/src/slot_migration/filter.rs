//! Picks the writes to some slots out of the bytes of the write log.
//!
//! The log is a sequence of requests. Those whose keys are in the slots are passed on as they are, preceded by SELECT
//! where the database changes. Requests without keys, such as MULTI and EXEC, are left out: the target shows all of it
//! at once.

use kvick_cluster::Slots;
use kvick_cluster::migration::RangeList;
use kvick_commands::table::{Catalogue, Resolved};
use kvick_resp::format::parse_u64;
use kvick_resp::{Args, Limits, Parsed, Parser, Span};
use kvick_store::log::encode;
use kvick_store::slot::slot;

/// Input kept between calls, in bytes.
const INPUT_KEPT: usize = 256 * 1024;

/// See the module's documentation.
pub(super) struct Filter {
    catalogue: &'static Catalogue,
    slots: Slots,
    parser: Parser,
    input: Vec<u8>,
    spans: Vec<Span>,
    /// The database of the next request of the log.
    database: u64,
    /// The database that the target has selected, if known.
    selected: Option<u64>,
}

/// Why the stream cannot continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unfit {
    /// The data was flushed.
    Flushed,
    /// A request has keys in the slots and in others.
    CrossSlot,
    /// The log is not a sequence of requests.
    Malformed,
}

/// What a request is to the slots.
enum Part {
    Elsewhere,
    Here,
}

impl Filter {
    pub(super) fn new(catalogue: &'static Catalogue, ranges: &RangeList) -> Filter {
        let mut slots = Slots::EMPTY;
        ranges.slots().for_each(|slot| _ = slots.insert(slot));
        Filter {
            catalogue,
            slots,
            parser: Parser::new(),
            input: Vec::new(),
            spans: Vec::new(),
            database: 0,
            selected: None,
        }
    }

    /// Appends to `out` what the next bytes of the log have for the slots.
    pub(super) fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let (mut at, mut start, mut big) = (0, 0, Vec::new());
        let limits = Limits { replicated: true, bulk_len_max: u64::MAX, ..Limits::default() };
        let result = loop {
            self.spans.clear();
            match self.parser.parse(&input, &mut at, &mut self.spans, &mut big, &limits) {
                Parsed::Request => {}
                Parsed::Incomplete => break Ok(()),
                Parsed::Big { .. } | Parsed::Error(_) => break Err(Unfit::Malformed),
            }
            let request = &input[start..at];
            start = at;
            let spans = std::mem::take(&mut self.spans);
            let part = self.examine(Args::new(&input, &spans, &big));
            self.spans = spans;
            match part {
                Ok(Part::Elsewhere) => {}
                Ok(Part::Here) => self.pass(request, out),
                Err(unfit) => break Err(unfit),
            }
        };
        // The parser has consumed the beginning of an incomplete request, or nothing of it.
        self.input = input;
        self.input.drain(..start);
        if self.input.is_empty() {
            self.input.shrink_to(INPUT_KEPT);
        }
        if start != at {
            self.parser = Parser::new();
        }
        result
    }

    fn examine(&mut self, args: Args<'_>) -> Result<Part, Unfit> {
        let name = args.get(0).unwrap_or_default();
        if name.eq_ignore_ascii_case(b"SELECT") {
            self.database = args.get(1).and_then(parse_u64).ok_or(Unfit::Malformed)?;
            return Ok(Part::Elsewhere);
        }
        if [&b"FLUSHALL"[..], b"FLUSHDB", b"SWAPDB"].iter().any(|flush| name.eq_ignore_ascii_case(flush)) {
            return Err(Unfit::Flushed);
        }
        let Resolved::Command(command) = self.catalogue.resolve(args) else { return Ok(Part::Elsewhere) };
        let positions = command.spec.key_positions(args).unwrap_or_default();
        let (mut here, mut elsewhere) = (false, false);
        for key in positions.iter().filter_map(|position| args.get(position.index)) {
            match self.slots.contains(slot(key)) {
                true => here = true,
                false => elsewhere = true,
            }
        }
        match (here, elsewhere) {
            (true, true) => Err(Unfit::CrossSlot),
            (true, false) => Ok(Part::Here),
            (false, _) => Ok(Part::Elsewhere),
        }
    }

    fn pass(&mut self, request: &[u8], out: &mut Vec<u8>) {
        if self.selected != Some(self.database) {
            self.selected = Some(self.database);
            encode(out, [&b"SELECT"[..], self.database.to_string().as_bytes()].into_iter());
        }
        out.extend_from_slice(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_commands::table::CommandTable;

    fn requests(lines: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for line in lines {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            encode(&mut out, words.into_iter());
        }
        out
    }

    /// Filters the slots of the keys `a` (15495) and `{a}x`.
    fn filter() -> Filter {
        let table: &'static CommandTable<()> = Box::leak(Box::new(CommandTable::new()));
        Filter::new(table.catalogue(), &RangeList::new([(15_495, 15_495)]).expect("valid"))
    }

    #[test]
    fn writes_to_the_slots_pass_in_their_databases() {
        let log = requests(&[
            "SELECT 0",
            "SET a 1",
            "SET b 1",
            "MULTI",
            "SELECT 3",
            "INCR {a}x",
            "DEL b",
            "EXEC",
            "SELECT 0",
            "PING",
            "SET b 2",
            "DEL a {a}x",
        ]);
        let expected = requests(&["SELECT 0", "SET a 1", "SELECT 3", "INCR {a}x", "SELECT 0", "DEL a {a}x"]);
        for piece in [1, 2, 3, 7, 10, 31, log.len()] {
            let (mut filter, mut out) = (filter(), Vec::new());
            log.chunks(piece).for_each(|bytes| assert_eq!(filter.feed(bytes, &mut out), Ok(())));
            assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&expected), "pieces of {piece}");
        }
    }

    #[test]
    fn flushes_and_cross_slot_writes_end_the_stream() {
        for (line, expected) in [
            ("FLUSHALL", Unfit::Flushed),
            ("flushdb async", Unfit::Flushed),
            ("SWAPDB 0 1", Unfit::Flushed),
            ("MSET a 1 b 2", Unfit::CrossSlot),
            ("RENAME b a", Unfit::CrossSlot),
            ("SELECT x", Unfit::Malformed),
        ] {
            let mut out = Vec::new();
            assert_eq!(filter().feed(&requests(&["SELECT 0", "SET a 1", line]), &mut out), Err(expected), "{line}");
            assert_eq!(out, requests(&["SELECT 0", "SET a 1"]));
        }
        assert_eq!(filter().feed(b"*1\r\n+\r\n", &mut Vec::new()), Err(Unfit::Malformed));
    }
}
