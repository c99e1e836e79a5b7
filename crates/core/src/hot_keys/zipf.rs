//! Keys drawn from a Zipf distribution, for tests.

/// Random numbers from a seed (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> u64 {
        kvick_store::chance::below(self.next(), limit) as u64
    }
}

/// The cumulated probabilities of keys 0, 1, 2, ..., of which each is less likely than the one before.
pub struct Zipf(Vec<f64>);

impl Zipf {
    pub fn new(keys: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let cumulated = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf(cumulated.collect())
    }

    pub fn draw(&self, random: &mut Random) -> usize {
        let total = self.0.last().copied().unwrap_or(0.0);
        let point = random.next() as f64 / u64::MAX as f64 * total;
        self.0.partition_point(|sum| *sum < point).min(self.0.len() - 1)
    }
}
