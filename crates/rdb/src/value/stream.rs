//! Streams: the blocks unchanged, the history of the log, and the consumer groups.

use super::Loaded;
use crate::decode::Decoder;
use crate::encode::{Encoder, Sink};
use crate::error::{Corrupt, Error};
use crate::format::Type;
use crate::input::Input;
use kvick_store::collections::stream::block::Block;
use kvick_store::collections::stream::{BadGroup, Group, Groups, History, Id, Loader, Log, Stream};
use kvick_store::{IntBuf, Str};

/// Represents an unknown number of entries read by a group.
const UNKNOWN: u64 = u64::MAX;

pub(super) fn save<S: Sink>(stream: &Stream, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    save_head(stream, encoder)?;
    stream.log().blocks().try_for_each(|(id, block)| save_block(id, block, encoder))?;
    save_tail(stream, encoder)
}

/// Writes the part before the blocks.
pub(super) fn save_head<S: Sink>(stream: &Stream, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    encoder.length(stream.log().blocks_len() as u64)
}

pub(super) fn save_block<S: Sink>(id: Id, block: &Block, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    encoder.string(&id.to_bytes())?;
    encoder.string(block.view().bytes())
}

/// Writes the part after the blocks.
pub(super) fn save_tail<S: Sink>(stream: &Stream, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    let (log, groups) = (stream.log(), stream.groups());
    let History { first_id, max_deleted_id, entries_added } = log.history();
    encoder.length(log.len())?;
    for id in [log.last_id(), first_id, max_deleted_id] {
        save_id(id, encoder)?;
    }
    encoder.length(entries_added)?;
    encoder.length(groups.len() as u64)?;
    groups.iter().try_for_each(|group| save_group(group, encoder))
}

fn save_id<S: Sink>(id: Id, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    encoder.length(id.ms)?;
    encoder.length(id.seq)
}

fn save_group<S: Sink>(group: &Group, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    encoder.string(group.name())?;
    save_id(group.last_id, encoder)?;
    encoder.length(group.entries_read.unwrap_or(UNKNOWN))?;
    encoder.length(group.pending().len() as u64)?;
    for (id, pending) in group.pending().iter() {
        encoder.raw(&id.to_bytes())?;
        encoder.time(pending.delivered_ms)?;
        encoder.length(pending.deliveries)?;
    }
    let consumers = group.consumers();
    encoder.length(consumers.len() as u64)?;
    for consumer in consumers {
        encoder.string(consumer.name())?;
        encoder.time(consumer.seen_ms())?;
        encoder.time(consumer.active_ms)?;
        encoder.length(consumer.pending_len() as u64)?;
        for (id, _) in group.pending_of(consumer, Id::MIN) {
            encoder.raw(&id.to_bytes())?;
        }
    }
    Ok(())
}

pub(super) fn load<I: Input>(kind: Type, decoder: &mut Decoder<I>) -> Result<Loaded, Error> {
    let mut loader = Loader::default();
    for _ in 0..decoder.number()? {
        let Some(id) = block_id(decoder.string()?) else {
            return Err(decoder.corrupt(Corrupt::Stream("Stream node key entry is not the size of a stream ID")));
        };
        let sound = match decoder.string()? {
            Str::Bytes(bytes) => loader.block(id, bytes).is_ok(),
            Str::Int(_) => false,
        };
        if !sound {
            return Err(decoder.corrupt(Corrupt::Stream("Stream listpack integrity check failed.")));
        }
    }
    let len = decoder.number()?;
    let last_id = load_id(decoder)?;
    let history = match kind {
        Type::Stream => None,
        _ => Some(History {
            first_id: load_id(decoder)?,
            max_deleted_id: load_id(decoder)?,
            entries_added: decoder.number()?,
        }),
    };
    let inconsistent = Corrupt::Stream("Stream length inconsistent with the number of valid entries");
    let mut stream = loader.finish(len, last_id, history).map_err(|_| decoder.corrupt(inconsistent))?;
    let (log, groups) = stream.groups_mut();
    for _ in 0..decoder.number()? {
        load_group(kind, decoder, log, groups)?;
    }
    Ok(stream.into())
}

fn block_id(key: Str<'_>) -> Option<Id> {
    match key {
        Str::Bytes(bytes) => bytes.try_into().ok().map(Id::from_bytes),
        Str::Int(number) => Str::Int(number).bytes(&mut IntBuf::default()).try_into().ok().map(Id::from_bytes),
    }
}

fn load_id<I: Input>(decoder: &mut Decoder<I>) -> Result<Id, Error> {
    Ok(Id::new(decoder.number()?, decoder.number()?))
}

fn load_group<I: Input>(kind: Type, decoder: &mut Decoder<I>, log: &Log, groups: &mut Groups) -> Result<(), Error> {
    let name = decoder.owned()?;
    let last_id = load_id(decoder)?;
    let entries_read = match kind {
        Type::Stream => log.entries_up_to(last_id),
        _ => Some(decoder.number()?).filter(|read| *read != UNKNOWN),
    };
    let Some(group) = groups.create(&name, last_id, entries_read) else {
        return Err(decoder.corrupt(Corrupt::Duplicate("consumer group name")));
    };
    for _ in 0..decoder.number()? {
        let id = Id::from_bytes(decoder.array()?);
        let (delivered_ms, deliveries) = (decoder.time()?, decoder.number()?);
        group.load_pending(id, delivered_ms, deliveries).map_err(|bad| decoder.corrupt(corruption(bad)))?;
    }
    for _ in 0..decoder.number()? {
        load_consumer(kind, decoder, group)?;
    }
    group.loaded().map_err(|bad| decoder.corrupt(corruption(bad)))
}

fn load_consumer<I: Input>(kind: Type, decoder: &mut Decoder<I>, group: &mut Group) -> Result<(), Error> {
    let name = decoder.owned()?;
    let seen_ms = decoder.time()?;
    let active_ms = if kind == Type::Stream3 { decoder.time()? } else { seen_ms };
    let consumer = group.load_consumer(&name, seen_ms, active_ms).map_err(|bad| decoder.corrupt(corruption(bad)))?;
    for _ in 0..decoder.number()? {
        let id = Id::from_bytes(decoder.array()?);
        group.load_owner(id, consumer).map_err(|bad| decoder.corrupt(corruption(bad)))?;
    }
    Ok(())
}

fn corruption(bad: BadGroup) -> Corrupt {
    match bad {
        BadGroup::ConsumerTwice => Corrupt::Duplicate("stream consumer"),
        BadGroup::PendingTwice => Corrupt::Stream("Duplicated global PEL entry loading stream consumer group"),
        BadGroup::NotPending => Corrupt::Stream("Consumer entry not found in group global PEL"),
        BadGroup::OwnedTwice => Corrupt::Stream("Duplicated consumer PEL entry loading a stream consumer group"),
        BadGroup::OwnedByAnother => Corrupt::Stream("NACK already assigned to a different consumer"),
        BadGroup::NotOwned => Corrupt::Stream("Stream CG PEL entry without consumer"),
    }
}
