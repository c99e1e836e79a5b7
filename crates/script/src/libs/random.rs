//! `math.random` with its own generator, so that the same seed produces the same numbers on every machine.
//!
//! The [generator](crate::random) starts with a fixed seed and is not reset between scripts.

use super::check;
use crate::lua::{Lua, Results};

/// Exclusive upper bound of the numbers.
const NUMBER_MAX: i32 = i32::MAX;

/// Replaces the functions in the table `math`.
pub(super) fn install(lua: Lua<'_>, global: i32) {
    lua.raw_get_field(global, "math");
    lua.add_function("random", random);
    lua.add_function("randomseed", random_seed);
    lua.pop(1);
}

/// `math.random([[first,] last])`: a number from 0 up to but excluding 1, from 1 to `last`, or from `first` to `last`.
fn random(lua: Lua<'_>) -> Results {
    let fraction = f64::from(lua.state().random.next() % NUMBER_MAX) / f64::from(NUMBER_MAX);
    let int = |n| check::integer(lua, n).map(|n| f64::from(n as i32));
    let number = match lua.top() {
        0 => fraction,
        1 => {
            let last = int(1)?;
            if last < 1.0 {
                return Err(check::error(lua, 1, format_args!("interval is empty")));
            }
            (fraction * last).floor() + 1.0
        }
        2 => {
            let (first, last) = (int(1)?, int(2)?);
            if last < first {
                return Err(check::error(lua, 2, format_args!("interval is empty")));
            }
            // Valkey computes the width in 32 bits.
            let width = f64::from((last as i32).wrapping_sub(first as i32).wrapping_add(1));
            (fraction * width).floor() + first
        }
        _ => return Err(lua.error(format_args!("wrong number of arguments"))),
    };
    lua.push_number(number);
    Ok(1)
}

/// `math.randomseed(seed)`.
fn random_seed(lua: Lua<'_>) -> Results {
    let seed = check::integer(lua, 1)? as i32;
    lua.state().random.seed(seed);
    Ok(0)
}
