//! A model of a shard's primary: what it serves of an offered load, and how long requests take.
//!
//! Requests arrive at random. A worker spends [`NodeModel::request_us`] on each, but not one after the other: a turn of
//! its event loop serves all that have arrived, so a request waits for the rest of the turn, which is longer the busier
//! the worker is. The waiting time of the M/M/c queue with a service time of one turn describes that; the length of the
//! turn is fitted to measured latencies (see `docs/elasticity.md`). What exceeds the capacity waits in a backlog, until
//! clients give up.

/// The figures of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeModel {
    /// The most workers, each on a core of its own.
    pub workers: u32,
    /// CPU time of a request, in microseconds.
    pub request_us: f64,
    /// Part of it that counts as execution time of a slot.
    pub execution_ratio: f64,
    /// Time of a request on an idle node, including the network, in milliseconds.
    pub base_ms: f64,
    /// Length of a turn under load, in milliseconds.
    pub turn_ms: f64,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Seconds after which clients give a request up.
    pub timeout_s: f64,
    /// Seconds until a new shard can own slots.
    pub start_s: f64,
    /// Bytes per second that move between two shards.
    pub migration_bytes_s: f64,
    /// Bytes per second that one shard can send, or receive, over all pairs.
    pub migration_bytes_s_max: f64,
    /// Seconds that a migration takes in addition to its transfer.
    pub migration_overhead_s: f64,
    /// Cores that a migration at `migration_bytes_s` takes from the workers of its target; its source spends half.
    pub migration_cores: f64,
    /// Seconds in which writes to slots wait when they change their owner.
    pub handover_s: f64,
}

impl Default for NodeModel {
    fn default() -> NodeModel {
        NodeModel {
            workers: 4,
            request_us: 5.0,
            execution_ratio: 0.2,
            base_ms: 0.2,
            turn_ms: 0.25,
            memory_bytes: 16 << 30,
            timeout_s: 1.0,
            start_s: 1.0,
            migration_bytes_s: 400e6,
            migration_bytes_s_max: 800e6,
            migration_overhead_s: 0.2,
            migration_cores: 0.8,
            handover_s: 0.010,
        }
    }
}

/// What a node did in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// Requests.
    pub requests: f64,
    /// Requests that clients have given up.
    pub lost: f64,
    /// Requests that wait at the end of the step.
    pub backlog: f64,
    /// Cores in use.
    pub busy_cores: f64,
    /// Waiting time of the backlog, in milliseconds.
    pub delay_ms: f64,
    /// Probability that a request waits for a turn, and the rate at which waits end, per millisecond.
    pub waits: f64,
    /// See `waits`.
    pub wait_rate_ms: f64,
}

impl NodeModel {
    /// Requests per second that so many cores serve.
    pub fn requests_s(&self, cores: f64) -> f64 {
        cores.max(0.05) * 1e6 / self.request_us
    }

    /// Serves an offered rate for a step with this number of workers. `other_cores` are busy with migrations.
    pub fn serve(&self, offered_s: f64, backlog: f64, workers: u32, other_cores: f64, step_s: f64) -> Served {
        let cores = (f64::from(workers) - other_cores).max(0.5);
        let capacity_s = self.requests_s(cores);
        let pending = backlog + offered_s * step_s;
        let requests = pending.min(capacity_s * step_s);
        let waiting = pending - requests;
        let backlog_max = capacity_s * self.timeout_s;
        let backlog = waiting.min(backlog_max);
        let used = requests / step_s / capacity_s;
        let (waits, wait_rate_ms) = self.queue(cores, used.min(0.999));
        Served {
            requests,
            lost: waiting - backlog,
            backlog,
            busy_cores: used * cores + other_cores,
            delay_ms: backlog / capacity_s * 1e3,
            waits,
            wait_rate_ms,
        }
    }

    /// Probability of waiting by Erlang's formula, and the rate at which waits end.
    fn queue(&self, cores: f64, used: f64) -> (f64, f64) {
        let servers = cores.round().max(1.0) as u32;
        let offered = used * f64::from(servers);
        let mut blocking = 1.0;
        for server in 1..=servers {
            blocking = offered * blocking / (f64::from(server) + offered * blocking);
        }
        let waits = blocking / (1.0 - used * (1.0 - blocking));
        (waits, f64::from(servers) * (1.0 - used) / self.turn_ms)
    }

    /// The response time in milliseconds that this fraction of requests does not exceed.
    pub fn quantile_ms(&self, served: &Served, fraction: f64) -> f64 {
        let beyond = 1.0 - fraction;
        let wait =
            if beyond < served.waits { (served.waits / beyond.max(1e-9)).ln() / served.wait_rate_ms } else { 0.0 };
        self.base_ms + self.request_us / 1e3 + served.delay_ms + wait
    }
}

/// Response times, weighted by requests, in classes that grow by 5 percent.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    classes: Vec<f64>,
}

/// Fractions at which the response times of a step are taken, and the weight of each.
const POINTS: [(f64, f64); 10] = [
    (0.125, 0.25),
    (0.375, 0.25),
    (0.6, 0.2),
    (0.8, 0.2),
    (0.925, 0.05),
    (0.965, 0.03),
    (0.985, 0.01),
    (0.993, 0.006),
    (0.997, 0.003),
    (0.9995, 0.001),
];

impl Latencies {
    /// Adds requests with one response time.
    pub fn add(&mut self, ms: f64, requests: f64) {
        let class = ((ms.max(0.01) / 0.01).ln() / 1.05_f64.ln()).round() as usize;
        if self.classes.len() <= class {
            self.classes.resize(class + 1, 0.0);
        }
        self.classes[class] += requests;
    }

    /// Adds the requests of a step.
    pub fn add_served(&mut self, model: &NodeModel, served: &Served) {
        for (fraction, weight) in POINTS {
            self.add(model.quantile_ms(served, fraction), served.requests * weight);
        }
    }

    /// The response time in milliseconds that this fraction of requests does not exceed.
    pub fn quantile_ms(&self, fraction: f64) -> f64 {
        let total: f64 = self.classes.iter().sum();
        let mut sum = 0.0;
        for (class, requests) in self.classes.iter().enumerate() {
            sum += requests;
            if sum >= total * fraction && sum > 0.0 {
                return 0.01 * 1.05_f64.powi(class as i32);
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_serves_what_its_workers_can() {
        let model = NodeModel::default();
        let served = model.serve(400_000.0, 0.0, 4, 0.0, 1.0);
        assert_eq!((served.requests, served.backlog, served.lost), (400_000.0, 0.0, 0.0));
        assert!((served.busy_cores - 2.0).abs() < 1e-9);
        let served = model.serve(2_000_000.0, 0.0, 4, 0.0, 1.0);
        assert_eq!((served.requests, served.backlog, served.lost), (800_000.0, 800_000.0, 400_000.0));
        assert_eq!(served.delay_ms, 1000.0);
    }

    #[test]
    fn response_times_rise_with_the_load() {
        let model = NodeModel::default();
        let at = |used: f64| {
            let served = model.serve(used * 800_000.0, 0.0, 4, 0.0, 1.0);
            (model.quantile_ms(&served, 0.5), model.quantile_ms(&served, 0.99))
        };
        let times: Vec<(f64, f64)> = [0.1, 0.3, 0.6, 0.9, 0.99].map(at).into();
        assert!(times.is_sorted_by(|one, other| one.0 <= other.0 && one.1 < other.1), "{times:?}");
        assert!(times[2].1 < 1.0 && times[4].1 > 5.0, "{times:?}");
    }

    #[test]
    fn quantiles_of_latencies_are_weighted() {
        let mut latencies = Latencies::default();
        latencies.add(1.0, 98.0);
        latencies.add(50.0, 2.0);
        assert!((latencies.quantile_ms(0.5) - 1.0).abs() < 0.05);
        assert!((latencies.quantile_ms(0.99) - 50.0).abs() < 2.5);
    }
}
