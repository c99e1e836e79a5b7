//! Chooses which commands of a worker are sampled.
//!
//! Each command is chosen with the same probability, independently of the others. Instead of a random number for each
//! command this takes one for each sample: the number of commands up to the next one, which has a geometric
//! distribution. So a worker that executes many commands in a row need only limit their number.

/// See the module's documentation.
#[derive(Debug)]
pub struct Sampler {
    /// Number of commands up to and including the next sample.
    left: usize,
    percentage: u32,
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler { left: usize::MAX, percentage: 0 }
    }
}

impl Sampler {
    /// Sets the percentage of commands that are chosen; with 0 none is.
    pub fn set_percentage(&mut self, percentage: u32, random: u64) {
        if percentage != self.percentage {
            self.percentage = percentage;
            self.restart(random);
        }
    }

    /// Number of commands up to and including the next sample, from 1 on.
    #[inline]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Counts commands, at most [`left`](Self::left); true if the last of them is a sample. Then the caller must
    /// [restart](Self::restart) the sampler.
    #[inline]
    pub fn advance(&mut self, commands: usize) -> bool {
        self.left -= commands;
        self.left == 0
    }

    /// Chooses the next sample with a random number.
    pub fn restart(&mut self, random: u64) {
        self.left = distance(self.percentage, random);
    }
}

/// The number of trials up to and including the first success, each with a probability of `percentage` percent.
fn distance(percentage: u32, random: u64) -> usize {
    match percentage {
        0 => usize::MAX,
        1..=99 => {
            // In (0, 1].
            let uniform = ((random >> 11) + 1) as f64 / (1u64 << 53) as f64;
            let failures = uniform.ln() / (1.0 - f64::from(percentage) / 100.0).ln();
            1 + failures as usize
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot_keys::zipf::Random;

    #[test]
    fn samples_have_their_share() {
        let mut random = Random::new(1);
        for percentage in [1, 10, 50, 99, 100] {
            let mut sampler = Sampler::default();
            sampler.set_percentage(percentage, random.next());
            let (mut samples, commands) = (0u32, 200_000);
            for _ in 0..commands {
                if sampler.advance(1) {
                    samples += 1;
                    sampler.restart(random.next());
                }
            }
            let expected = commands / 100 * percentage;
            assert!(samples.abs_diff(expected) < expected / 10 + 1, "{samples} of {expected}");
        }
    }

    #[test]
    fn nothing_is_sampled_while_it_is_off() {
        let mut sampler = Sampler::default();
        assert!((0..1000).all(|_| !sampler.advance(1000)));
        sampler.set_percentage(100, 0);
        assert!(sampler.advance(1));
        sampler.restart(0);
        sampler.set_percentage(0, 0);
        assert_eq!(sampler.left(), usize::MAX);
        assert_eq!([distance(1, 0), distance(1, u64::MAX)], [3656, 1]);
    }
}
