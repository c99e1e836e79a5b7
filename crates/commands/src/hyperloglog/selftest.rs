//! PFSELFTEST: checks on the running machine that registers keep their values and that estimates have the specified
//! accuracy.

use std::hash::{BuildHasher, RandomState};

use super::dense::{self, PACKED_LEN, REGISTERS};
use super::estimate::cardinality;
use super::hash::Mark;
use super::value::{Corrupt, Registers, Sketch};
use crate::context::{Args, Context, Error, Handler};
use crate::spec::{Categories, Command, Flags, Group, Spec};

/// Number of times that all registers are written and read.
const REGISTER_CYCLES: u32 = 1000;
/// Number of elements counted.
const ELEMENTS: u64 = 10_000_000;

/// PFSELFTEST
pub const PFSELFTEST: Command<Handler> = Command::new(
    Spec::new("pfselftest", 1)
        .flags(&[Flags::ADMIN])
        .acl(&[Categories::HYPERLOGLOG])
        .doc(Group::HyperLogLog, "2.8.9", "N/A", "Tests the HyperLogLog implementation.")
        .internal(),
    pfselftest,
);

fn pfselftest(cx: &mut Context<'_>, _args: Args<'_>) -> Result<(), Error> {
    let seed = RandomState::new().hash_one(0);
    test_registers(seed, REGISTER_CYCLES).map_err(Error::new)?;
    test_estimates(seed, ELEMENTS, cx.settings.hll_sparse_max_bytes).map_err(Error::new)?;
    cx.reply.ok();
    Ok(())
}

/// Sets all registers to random values, `cycles` times, and reads them back.
fn test_registers(seed: u64, cycles: u32) -> Result<(), String> {
    let mut random = seed | 1;
    let mut packed = [0; PACKED_LEN];
    for _ in 0..cycles {
        let raw: [u8; REGISTERS] = std::array::from_fn(|_| {
            // Marsaglia's xorshift, which never produces zero.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 32) as u8 & 63
        });
        raw.iter().enumerate().for_each(|(index, value)| dense::set(&mut packed, index, *value));
        for (index, expected) in raw.iter().enumerate() {
            let value = dense::get(&packed, index);
            if value != *expected {
                return Err(format!("TESTFAILED Register {index} should be {expected} but is {value}"));
            }
        }
    }
    Ok(())
}

/// Counts up to `elements` distinct elements, dense and sparse, and compares the estimates with each other and, at
/// every power of ten, with the exact count.
fn test_estimates(seed: u64, elements: u64, sparse_len_max: usize) -> Result<(), String> {
    let corrupt = |_: Corrupt| "TESTFAILED sparse registers are malformed".to_owned();
    let mut packed = [0; PACKED_LEN];
    let mut sketch = Sketch::new(sparse_len_max);
    let mut checkpoint = 1;
    for number in 1..=elements {
        let mark = Mark::of(&(number ^ seed).to_le_bytes());
        dense::raise(&mut packed, mark);
        sketch.add(mark).map_err(corrupt)?;
        if number != checkpoint {
            continue;
        }
        let view = sketch.view().map_err(corrupt)?;
        if number < sparse_len_max as u64 / 2 && matches!(view.registers(), Registers::Dense(_)) {
            return Err("TESTFAILED sparse encoding not used".to_owned());
        }
        let estimate = cardinality(&dense::histogram(&packed));
        if estimate != view.estimate().map_err(corrupt)? {
            return Err("TESTFAILED dense/sparse disagree".to_owned());
        }
        let error = estimate.abs_diff(number);
        if error > error_max(number) {
            return Err(format!("TESTFAILED Too big error. card:{number} abserr:{error}"));
        }
        checkpoint *= 10;
    }
    Ok(())
}

/// The maximum error of an estimate: six standard errors.
fn error_max(cardinality: u64) -> u64 {
    let standard_error = 1.04 / (REGISTERS as f64).sqrt();
    (standard_error * 6.0 * cardinality as f64).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn self_test_passes_at_small_scale() {
        test_registers(7, 3).unwrap();
        for seed in 0..10 {
            test_estimates(seed, 10_000, 3000).unwrap();
        }
    }
}
