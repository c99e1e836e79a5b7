//! Where memory goes: the report behind INFO and MEMORY.

use kvick_core::clients::ClientFlags;
use kvick_core::eviction;
use kvick_engine::services::Services;
use kvick_runtime::memory::{Figures, excess, percent, ratio};
use kvick_store::usage::Usage;
use std::sync::atomic::Ordering;

/// Where memory goes, for INFO and MEMORY.
pub struct Overview {
    /// The figures that it was made from.
    pub figures: Figures,
    /// Memory in use that eviction does not count.
    pub not_counted: usize,
    /// The most ever in use.
    pub peak: usize,
    /// What the empty server takes.
    pub startup: usize,
    /// What connections take, but for those of replicas.
    pub clients: usize,
    /// What these take.
    pub replicas: usize,
    /// The write log's backlog.
    pub backlog: usize,
    /// What a replica keeps of its primary's log while it loads a dump.
    pub kept: usize,
    /// Tables of the databases that hold keys.
    pub databases: Vec<(usize, Usage)>,
}

impl Overview {
    /// Takes stock.
    pub fn of(server: &'static Services) -> Self {
        let databases = (0..server.keyspace.databases()).filter(|number| !server.keyspace.is_empty(*number));
        let databases = databases.map(|number| (number, server.keyspace.usage(number))).collect();
        let (mut clients, mut replicas) = (0, 0);
        for client in server.clients.all() {
            let is_replica = client.flags().contains(ClientFlags::REPLICA);
            *if is_replica { &mut replicas } else { &mut clients } += client.memory();
        }
        if replicas > 0 {
            // What is yet to be sent to them is the log's, which they share.
            replicas += server.keyspace.log.excess();
        }
        let log = &server.keyspace.log;
        let backlog = log.memory().saturating_sub(log.excess());
        let kept = server.replication.upstream.kept_bytes.load(Ordering::Relaxed) as usize;
        let (figures, not_counted) = Self::measure(server);
        server.memory.note(figures.used);
        let (peak, startup) = (server.memory.peak(), server.memory.startup());
        Overview { figures, not_counted, peak, startup, clients, replicas, backlog, kept, databases }
    }

    /// The figures, and the memory that eviction does not count, at the same moment: if that changes while the figures
    /// are read, for example because a replica has been disconnected, they are read again.
    fn measure(server: &Services) -> (Figures, usize) {
        const ATTEMPTS_MAX: usize = 10;
        let mut not_counted = eviction::not_counted(server);
        for _ in 1..ATTEMPTS_MAX {
            let figures = Figures::read();
            let before = std::mem::replace(&mut not_counted, eviction::not_counted(server));
            if before == not_counted {
                return (figures, not_counted);
            }
        }
        (Figures::read(), not_counted)
    }

    /// What is not keys and values.
    pub fn overhead(&self) -> usize {
        self.startup
            + self.clients
            + self.replicas
            + self.backlog
            + self.kept
            + self.databases.iter().map(|(_, usage)| usage.table_bytes).sum::<usize>()
    }

    /// What is.
    pub fn dataset(&self) -> usize {
        self.figures.used.saturating_sub(self.overhead())
    }

    /// Its share of all that was put to use since the start, in percent.
    pub fn dataset_percent(&self) -> f64 {
        percent(self.dataset(), self.figures.used.saturating_sub(self.startup).max(1))
    }

    /// Memory in use in percent of its peak.
    pub fn peak_percent(&self) -> f64 {
        percent(self.figures.used, self.peak)
    }

    /// Number of keys.
    pub fn keys(&self) -> usize {
        self.databases.iter().map(|(_, usage)| usage.keys).sum()
    }

    /// Waste within small pages: ratio and bytes.
    pub fn fragmentation(&self) -> (f64, usize) {
        let Figures { allocated, small_free, .. } = self.figures;
        (1.0 + ratio(small_free, allocated), small_free)
    }

    /// Pages that the allocator holds beyond those in use: ratio and bytes.
    pub fn allocator_rss(&self) -> (f64, i64) {
        excess(self.figures.resident, self.figures.active)
    }

    /// Memory of the process that is not the allocator's: ratio and bytes.
    pub fn rss_overhead(&self) -> (f64, i64) {
        excess(self.figures.rss, self.figures.resident)
    }

    /// Memory of the process beyond what is in use: ratio and bytes.
    pub fn total_fragmentation(&self) -> (f64, i64) {
        excess(self.figures.rss, self.figures.used)
    }
}
