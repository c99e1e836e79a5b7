//! The memory settings in the form that workers use.

use kvick_config::Values;
use kvick_config::tables::memory;
use kvick_config::value::MemoryOrPercent;
use kvick_config::words::EvictionPolicy;
use kvick_store::eviction::{Order, Policy, Scope};
use std::time::Duration;

/// Smallest limit for all connections together: below it, no client could connect to raise the limit.
const CLIENTS_BYTES_MIN: u64 = 128 * 1024;

/// The memory limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `maxmemory`, in bytes; 0 for no limit.
    pub bytes: u64,
    /// `maxmemory-policy`; `None` for `noeviction`.
    pub policy: Option<Policy>,
    /// `maxmemory-samples`.
    pub samples: usize,
    /// How long eviction may delay a command, by `maxmemory-eviction-tenacity`.
    pub time_limit: Duration,
    /// `lazyfree-lazy-eviction`.
    pub lazy: bool,
    /// Limit for all connections together in bytes, by `maxmemory-clients`; 0 for no limit.
    pub clients_bytes: u64,
}

impl Limits {
    /// Reads the limits from the settings.
    pub fn read(values: &Values) -> Self {
        let bytes = values.read(memory::MAXMEMORY);
        Limits {
            bytes,
            policy: policy(values.read(memory::MAXMEMORY_POLICY)),
            samples: values.read(memory::MAXMEMORY_SAMPLES) as usize,
            time_limit: time_limit(values.read(memory::MAXMEMORY_EVICTION_TENACITY)),
            lazy: values.read(memory::LAZYFREE_LAZY_EVICTION),
            clients_bytes: clients_bytes(values.read(memory::MAXMEMORY_CLIENTS), bytes),
        }
    }
}

fn policy(word: EvictionPolicy) -> Option<Policy> {
    let (scope, order) = match word {
        EvictionPolicy::VolatileLru => (Scope::Volatile, Order::LeastRecent),
        EvictionPolicy::VolatileLfu => (Scope::Volatile, Order::LeastFrequent),
        EvictionPolicy::VolatileRandom => (Scope::Volatile, Order::Random),
        EvictionPolicy::VolatileTtl => (Scope::Volatile, Order::SoonestToExpire),
        EvictionPolicy::AllkeysLru => (Scope::All, Order::LeastRecent),
        EvictionPolicy::AllkeysLfu => (Scope::All, Order::LeastFrequent),
        EvictionPolicy::AllkeysRandom => (Scope::All, Order::Random),
        EvictionPolicy::NoEviction => return None,
    };
    Some(Policy { scope, order })
}

/// The time that eviction may take: 50 us per unit up to 10, then a factor of 1.15 per unit; unlimited at 100.
fn time_limit(tenacity: u32) -> Duration {
    match tenacity {
        0..=10 => Duration::from_micros(50 * u64::from(tenacity)),
        11..=99 => Duration::from_secs_f64(500e-6 * 1.15f64.powi(tenacity as i32 - 10)),
        _ => Duration::MAX,
    }
}

fn clients_bytes(setting: MemoryOrPercent, maxmemory: u64) -> u64 {
    let bytes = match setting {
        MemoryOrPercent::Bytes(bytes) => bytes,
        MemoryOrPercent::Percent(percent) => (u128::from(maxmemory) * u128::from(percent) / 100) as u64,
    };
    if bytes == 0 { 0 } else { bytes.max(CLIENTS_BYTES_MIN) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limit_grows_with_tenacity() {
        assert_eq!([0, 1, 10].map(time_limit), [0, 50, 500].map(Duration::from_micros));
        assert!(time_limit(11) > Duration::from_micros(574) && time_limit(11) < Duration::from_micros(576));
        assert!(time_limit(99) > Duration::from_secs(100) && time_limit(99) < Duration::from_secs(180));
        assert_eq!(time_limit(100), Duration::MAX);
    }

    #[test]
    fn maxmemory_clients_is_bytes_or_a_percentage_with_a_minimum() {
        let bytes = |setting| clients_bytes(setting, 100 << 20);
        assert_eq!(bytes(MemoryOrPercent::Bytes(0)), 0);
        assert_eq!(bytes(MemoryOrPercent::Bytes(5 << 20)), 5 << 20);
        assert_eq!(bytes(MemoryOrPercent::Bytes(1)), CLIENTS_BYTES_MIN);
        assert_eq!(bytes(MemoryOrPercent::Percent(7)), 7 << 20);
        assert_eq!(clients_bytes(MemoryOrPercent::Percent(7), 0), 0);
    }
}
