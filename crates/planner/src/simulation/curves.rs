//! Load curves: recorded and invented.

/// The load at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests per second.
    pub requests_s: f64,
    /// Memory of all keys, in bytes.
    pub bytes: f64,
    /// Share of the requests that are reads.
    pub reads: f64,
    /// Hot slots, each with its share of the requests. The others divide the rest.
    pub hot: Vec<(u16, f64)>,
}

/// A load over time.
#[derive(Clone, Copy, Debug)]
pub struct Curve {
    /// Its name.
    pub name: &'static str,
    /// How long it lasts.
    pub seconds: u32,
    /// Exponent of the distribution of requests over slots: 0 is even.
    pub skew: f64,
    load: fn(f64) -> Load,
}

impl Curve {
    /// A curve, from the load at each second.
    pub const fn new(name: &'static str, seconds: u32, load: fn(f64) -> Load) -> Curve {
        Curve { name, seconds, skew: 0.0, load }
    }

    /// The load after so many seconds.
    pub fn at(&self, second: f64) -> Load {
        (self.load)(second)
    }

    /// The shares of slots in the requests, without hot slots. Their sum is 1.
    pub fn weights(&self, slots: usize) -> Vec<f64> {
        // Large weights are spread over all slots by a step that has no common divisor with their number.
        let rank = |slot: usize| ((slot * 389) % slots + 1) as f64;
        let weights: Vec<f64> = (0..slots).map(|slot| rank(slot).powf(-self.skew)).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }
}

const K: f64 = 1e3;
const M: f64 = 1e6;
const GB: f64 = 1e9;

fn plain(requests_s: f64) -> Load {
    Load { requests_s, bytes: 8.0 * GB, reads: 0.8, hot: Vec::new() }
}

/// A number between 0 and 1 that depends only on the argument.
fn noise(of: f64) -> f64 {
    let mut bits = (of as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// A wave between two rates.
fn wave(at: f64, period: f64, low: f64, high: f64) -> f64 {
    low + (high - low) * (0.5 - 0.5 * (at / period * std::f64::consts::TAU).cos())
}

/// Linear from `low` to `high` within each period.
fn saw(at: f64, period: f64, low: f64, high: f64) -> f64 {
    low + (high - low) * (at % period / period)
}

fn square(at: f64, period: f64, low: f64, high: f64) -> f64 {
    if at % period < period / 2.0 { low } else { high }
}

/// Requests per minute, recorded.
fn recorded(at: f64) -> f64 {
    static TEXT: &str = include_str!("../../curves/nasa-1995-07-13.txt");
    static MINUTES: std::sync::OnceLock<Vec<f64>> = std::sync::OnceLock::new();
    let minutes = MINUTES.get_or_init(|| {
        let lines = TEXT.lines().filter(|line| !line.starts_with('#'));
        lines.flat_map(str::split_whitespace).filter_map(|word| word.parse().ok()).collect()
    });
    let minute = (at / 60.0) as usize;
    let value = |minute: usize| minutes[minute % minutes.len()];
    let part = at / 60.0 - minute as f64;
    value(minute) * (1.0 - part) + value(minute + 1) * part
}

/// The offered load jumps to 5M requests per second after a minute.
pub static JUMP: Curve = Curve::new("0 to 5M at once", 3600, |at| plain(if at < 60.0 { 50.0 * K } else { 5.0 * M }));

/// The offered load doubles every 30 seconds, up to 5M requests per second.
pub static DOUBLING: Curve = Curve::new("0 to 5M, doubling every 30 s", 1200, |at| {
    plain((50.0 * K * 2_f64.powf((at - 60.0).max(0.0) / 30.0)).min(5.0 * M))
});

/// The same every 60 and every 120 seconds. The latter is the growth that AWS documents for ElastiCache Serverless.
pub static DOUBLING_60: Curve = Curve::new("0 to 5M, doubling every 60 s", 1200, |at| {
    plain((50.0 * K * 2_f64.powf((at - 60.0).max(0.0) / 60.0)).min(5.0 * M))
});

/// See [`DOUBLING_60`].
pub static DOUBLING_120: Curve = Curve::new("0 to 5M, doubling every 120 s", 1800, |at| {
    plain((50.0 * K * 2_f64.powf((at - 60.0).max(0.0) / 120.0)).min(5.0 * M))
});

/// The curves of the comparison.
pub static CURVES: [Curve; 22] = [
    Curve::new("constant", 3600, |_| plain(1.5 * M)),
    Curve::new("noise of 20 percent", 3600, |at| plain(1.5 * M * (0.8 + 0.4 * noise(at)))),
    Curve::new("slow growth, tenfold in an hour", 3600, |at| plain(400.0 * K * 10_f64.powf(at / 3600.0))),
    DOUBLING,
    Curve::new("flash crowd, tenfold in 60 s", 3600, |at| {
        plain(match at {
            ..600.0 => 300.0 * K,
            600.0..660.0 => 300.0 * K + 2.7 * M * (at - 600.0) / 60.0,
            660.0..1860.0 => 3.0 * M,
            _ => (3.0 * M * 0.5_f64.powf((at - 1860.0) / 300.0)).max(300.0 * K),
        })
    }),
    Curve::new("flash crowd, tenfold at once", 3600, |at| {
        plain(if (600.0..1800.0).contains(&at) { 3.0 * M } else { 300.0 * K })
    }),
    Curve::new("burst of one minute each 20 minutes", 7200, |at| {
        plain(if at % 1200.0 > 1140.0 { 2.0 * M } else { 500.0 * K })
    }),
    Curve::new("random bursts of 10 s", 7200, |at| plain(if noise(at / 10.0) > 0.97 { 1.8 * M } else { 600.0 * K })),
    Curve::new("day and night, 6 hours", 21_600, |at| plain(wave(at, 21_600.0, 200.0 * K, 3.0 * M))),
    Curve::new("day and night with noise", 21_600, |at| {
        plain(wave(at, 10_800.0, 200.0 * K, 3.0 * M) * (0.9 + 0.2 * noise(at)))
    }),
    Curve::new("wave of 10 minutes", 7200, |at| plain(wave(at, 600.0, 500.0 * K, 2.5 * M))),
    Curve::new("sawtooth of 2 minutes", 3600, |at| plain(saw(at, 120.0, 500.0 * K, 2.0 * M))),
    Curve::new("sawtooth of 20 minutes", 7200, |at| plain(saw(at, 1200.0, 500.0 * K, 3.0 * M))),
    Curve::new("on and off, 4 minutes each", 7200, |at| plain(square(at, 480.0, 400.0 * K, 2.0 * M))),
    Curve::new("on and off, 15 minutes each", 14_400, |at| plain(square(at, 1800.0, 400.0 * K, 2.0 * M))),
    Curve::new("hot key with 30 percent", 3600, |at| {
        let hot = if (900.0..2400.0).contains(&at) { vec![(77, 0.3)] } else { Vec::new() };
        Load { hot, ..plain(1.5 * M) }
    }),
    Curve::new("hot key beyond one shard", 3600, |at| {
        let hot = if (900.0..2400.0).contains(&at) { vec![(77, 0.5)] } else { Vec::new() };
        Load { hot, ..plain(2.0 * M) }
    }),
    Curve::new("hot key that changes each 10 minutes", 7200, |at| Load {
        hot: vec![((at / 600.0) as u16 * 101 % 1024, 0.25)],
        ..plain(1.2 * M)
    }),
    Curve { skew: 0.9, ..Curve::new("skewed slots", 3600, |at| plain(wave(at, 3600.0, 500.0 * K, 2.0 * M))) },
    Curve::new("memory growth to 200 GB", 7200, |at| Load {
        bytes: 8.0 * GB + (192.0 * GB * at / 3600.0).min(192.0 * GB),
        ..plain(600.0 * K)
    }),
    Curve::new("bulk load of 100 GB, deleted later", 7200, |at| {
        let bytes = match at {
            ..600.0 => 8.0 * GB,
            600.0..1200.0 => 8.0 * GB + 100.0 * GB * (at - 600.0) / 600.0,
            1200.0..3600.0 => 108.0 * GB,
            _ => 8.0 * GB,
        };
        Load { bytes, ..plain(600.0 * K) }
    }),
    Curve::new("recorded: a web server's launch day", 86_400, |at| plain(8.0 * K * recorded(at))),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_have_a_load_at_all_times() {
        for curve in &CURVES {
            for second in (0..curve.seconds).step_by(7) {
                let load = curve.at(second.into());
                assert!(load.requests_s >= 0.0 && load.requests_s < 10.0 * M && load.bytes > 0.0, "{}", curve.name);
            }
            assert!((curve.weights(1024).iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
        assert_eq!(recorded(12.0 * 3600.0).fract(), 0.0);
    }
}
