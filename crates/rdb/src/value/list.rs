//! Lists: blocks of elements, or a sequence of elements in the oldest format.

use super::{Loaded, sequence};
use crate::decode::Decoder;
use crate::encode::{Encoder, Sink};
use crate::error::{Corrupt, Error};
use crate::format::Type;
use crate::input::Input;
use crate::read::ValueOptions;
use kvick_store::collections::list::{BlockView, Builder, List};
use kvick_store::{Collection, IntBuf};

/// The format of a block.
const PLAIN: u64 = 1;
const PACKED: u64 = 2;

pub(super) fn save<S: Sink>(list: &List, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    if let Some(view) = list.listpack() {
        encoder.length(1)?;
        encoder.length(PACKED)?;
        return encoder.string(view.bytes());
    }
    save_head(list, encoder)?;
    let Some((mut blocks, _)) = list.blocks() else { return Ok(()) };
    blocks.try_for_each(|block| save_block(block, encoder))
}

/// Writes the part before the blocks of a large list.
pub(super) fn save_head<S: Sink>(list: &List, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    encoder.length(list.blocks().map_or(0, |(blocks, _)| blocks.len()) as u64)
}

pub(super) fn save_block<S: Sink>(block: BlockView<'_>, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    match block {
        BlockView::Plain(element) => {
            encoder.length(PLAIN)?;
            encoder.string(element)
        }
        BlockView::Packed(view) => {
            encoder.length(PACKED)?;
            encoder.string(view.bytes())
        }
        BlockView::Compressed(packed, len) => {
            encoder.length(PACKED)?;
            encoder.packed(packed, len)
        }
    }
}

pub(super) fn load<I: Input>(kind: Type, decoder: &mut Decoder<I>, options: &ValueOptions) -> Result<Loaded, Error> {
    let mut builder = Builder::new(options.encoding.list);
    if kind == Type::ListZiplist {
        builder.listpack(sequence::from_ziplist(decoder, "List ziplist")?);
    } else {
        for _ in 0..decoder.number()? {
            match kind {
                Type::List => builder.element(decoder.string()?.bytes(&mut IntBuf::default())),
                Type::ListQuicklist => builder.listpack(sequence::from_ziplist(decoder, "Ziplist")?),
                _ => load_block(decoder, &mut builder)?,
            }
        }
    }
    let list = builder.finish();
    Ok(if list.is_empty() { Loaded::Empty } else { list.into() })
}

fn load_block<I: Input>(decoder: &mut Decoder<I>, builder: &mut Builder) -> Result<(), Error> {
    match decoder.number()? {
        PACKED => builder.listpack(sequence::listpack(decoder, "Listpack")?),
        PLAIN => {
            let element = decoder.owned()?;
            if element.is_empty() {
                return Err(decoder.corrupt(Corrupt::ListBlock));
            }
            builder.plain(element);
        }
        _ => return Err(decoder.corrupt(Corrupt::ListBlock)),
    }
    Ok(())
}
