//! The bitwise operations of BITOP on whole strings.
//!
//! An [`Accumulator`] takes one operand at a time, because the keyspace lends one value at a time. Shorter operands are
//! treated as padded with zero bytes, so the result is as long as the longest operand.

use crate::wide::widened;

/// A bitwise operation on several operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Bits set in every operand.
    And,
    /// Bits set in some operand.
    Or,
    /// Bits set in an odd number of operands.
    Xor,
    /// The complement of the only operand.
    Not,
}

impl Operation {
    /// Finds an operation by name, case-insensitively.
    pub fn parse(name: &[u8]) -> Option<Operation> {
        const NAMES: [(&str, Operation); 4] =
            [("and", Operation::And), ("or", Operation::Or), ("xor", Operation::Xor), ("not", Operation::Not)];
        NAMES.iter().find(|(word, _)| name.eq_ignore_ascii_case(word.as_bytes())).map(|(_, operation)| *operation)
    }
}

/// The intermediate result of an operation.
pub struct Accumulator {
    operation: Operation,
    result: Option<Vec<u8>>,
}

impl Accumulator {
    /// An accumulator without operands.
    pub fn new(operation: Operation) -> Self {
        Accumulator { operation, result: None }
    }

    /// Takes the next operand.
    pub fn take(&mut self, operand: &[u8]) {
        let Some(result) = &mut self.result else {
            let mut first = operand.to_vec();
            if self.operation == Operation::Not {
                invert(&mut first);
            }
            self.result = Some(first);
            return;
        };
        let common = result.len().min(operand.len());
        let (head, tail) = operand.split_at(common);
        match self.operation {
            Operation::And => {
                and(&mut result[..common], head);
                result[common..].fill(0);
                result.resize(common.max(result.len()) + tail.len(), 0);
            }
            Operation::Or => {
                or(&mut result[..common], head);
                result.extend_from_slice(tail);
            }
            Operation::Xor => {
                xor(&mut result[..common], head);
                result.extend_from_slice(tail);
            }
            // The caller passes one operand; further operands have no effect.
            Operation::Not => {}
        }
    }

    /// The result.
    pub fn finish(self) -> Vec<u8> {
        self.result.unwrap_or_default()
    }
}

widened! {
    fn invert(bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
    }
}

widened! {
    fn and(into: &mut [u8], operand: &[u8]) {
        into.iter_mut().zip(operand).for_each(|(into, byte)| *into &= byte);
    }
}

widened! {
    fn or(into: &mut [u8], operand: &[u8]) {
        into.iter_mut().zip(operand).for_each(|(into, byte)| *into |= byte);
    }
}

widened! {
    fn xor(into: &mut [u8], operand: &[u8]) {
        into.iter_mut().zip(operand).for_each(|(into, byte)| *into ^= byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn combined(operation: Operation, operands: &[Vec<u8>]) -> Vec<u8> {
        let mut accumulator = Accumulator::new(operation);
        operands.iter().for_each(|operand| accumulator.take(operand));
        accumulator.finish()
    }

    #[test]
    fn operation_names_ignore_case() {
        assert_eq!(Operation::parse(b"AnD"), Some(Operation::And));
        assert_eq!(Operation::parse(b"NOT"), Some(Operation::Not));
        assert_eq!(Operation::parse(b"nand"), None);
    }

    proptest! {
        #[test]
        fn results_match_byte_by_byte_computation(
            operands in vec(vec(any::<u8>(), 0..100), 1..5),
            operation in prop::sample::select(vec![Operation::And, Operation::Or, Operation::Xor]),
        ) {
            let len = operands.iter().map(Vec::len).max().unwrap_or(0);
            let byte_at = |operand: &Vec<u8>, at: usize| operand.get(at).copied().unwrap_or(0);
            let expected: Vec<u8> = (0..len)
                .map(|at| {
                    operands.iter().map(|operand| byte_at(operand, at)).reduce(|a, b| match operation {
                        Operation::And => a & b,
                        Operation::Or => a | b,
                        _ => a ^ b,
                    }).unwrap_or(0)
                })
                .collect();
            prop_assert_eq!(combined(operation, &operands), expected);
        }

        #[test]
        fn double_complement_is_the_operand(operand in vec(any::<u8>(), 0..100)) {
            let once = combined(Operation::Not, std::slice::from_ref(&operand));
            prop_assert!(once.iter().zip(&operand).all(|(a, b)| a ^ b == 0xff));
            prop_assert_eq!(combined(Operation::Not, &[once]), operand);
        }
    }
}
