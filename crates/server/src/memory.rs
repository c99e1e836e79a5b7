//! The report of memory use behind INFO and MEMORY, and the settings of the allocator.

use kvick_config::Values;
use kvick_config::tables::memory::JEMALLOC_BG_THREAD;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::eviction;
use kvick_engine::services::Services;
use kvick_runtime::logging;
use kvick_runtime::memory::{self, Excess, Figures, excess, percent, ratio};
use kvick_store::usage::Usage;
use std::sync::atomic::Ordering;

/// Applies `jemalloc-bg-thread`.
pub fn configure_purging(values: &Values) {
    let enabled = values.read(JEMALLOC_BG_THREAD);
    if !memory::purge_in_background(enabled) && enabled {
        logging::warning(format_args!(
            "The allocator has no background thread here: workers return unused memory to the system."
        ));
    }
}

/// Memory use, for INFO and MEMORY.
pub struct Overview {
    /// The allocator's and system's figures.
    pub figures: Figures,
    /// Memory in use that does not count for eviction.
    pub not_counted: usize,
    /// Peak of memory in use.
    pub peak: usize,
    /// Memory in use after startup, without data.
    pub startup: usize,
    /// Memory of connections; that of replicas includes the part of the log that waits for them.
    pub connections: Connections,
    /// The write log's backlog.
    pub backlog: usize,
    /// The primary's log that a replica buffers while it loads a dump.
    pub kept: usize,
    /// Tables of the non-empty databases.
    pub databases: Vec<(usize, Usage)>,
}

/// Memory of connections, in bytes.
#[derive(Clone, Copy, Default)]
pub struct Connections {
    /// Of clients, except replicas and slot migrations.
    pub clients: usize,
    /// The number of these.
    pub clients_count: usize,
    /// Of replicas.
    pub replicas: usize,
    /// From the sources of slot imports.
    pub slot_imports: usize,
    /// To the targets of slot exports.
    pub slot_exports: usize,
}

impl Connections {
    /// The sums of all connections.
    pub fn of(server: &Services) -> Self {
        let mut sums = Connections::default();
        server.clients.visit(|client| sums.add(client));
        sums
    }

    /// Adds a connection.
    pub fn add(&mut self, client: &ClientInfo) {
        let sum = match client.flags() {
            flags if flags.contains(ClientFlags::SLOT_IMPORT) => &mut self.slot_imports,
            flags if flags.contains(ClientFlags::SLOT_EXPORT) => &mut self.slot_exports,
            flags if flags.contains(ClientFlags::REPLICA) => &mut self.replicas,
            _ => {
                self.clients_count += 1;
                &mut self.clients
            }
        };
        *sum += client.memory();
    }
}

impl Overview {
    /// Collects the figures. The caller is in a batch.
    pub fn of(server: &'static Services) -> Self {
        let tables = Self::tables(server, |look| Some(look()));
        Self::with(server, tables.unwrap_or_default(), Connections::of(server))
    }

    /// The tables of the non-empty databases. `in_batch` runs its argument in a batch; if it cannot, there is no
    /// result.
    pub fn tables(
        server: &'static Services,
        in_batch: impl Fn(&dyn Fn() -> Usage) -> Option<Usage>,
    ) -> Option<Vec<(usize, Usage)>> {
        let databases = (0..server.keyspace.databases()).filter(|number| !server.keyspace.is_empty(*number));
        databases.map(|number| Some((number, in_batch(&|| server.keyspace.usage(number))?))).collect()
    }

    /// Collects the other figures.
    pub fn with(server: &'static Services, databases: Vec<(usize, Usage)>, mut connections: Connections) -> Self {
        if connections.replicas > 0 {
            // Data waiting for replicas is part of the log, which they share.
            connections.replicas += server.keyspace.log.excess();
        }
        let log = &server.keyspace.log;
        let backlog = log.memory().saturating_sub(log.excess());
        let kept = server.replication.upstream.buffered_bytes.load(Ordering::Relaxed) as usize;
        let (figures, not_counted) = Self::measure(server);
        server.memory.note(figures.used);
        let (peak, startup) = (server.memory.peak(), server.memory.startup());
        Overview { figures, not_counted, peak, startup, connections, backlog, kept, databases }
    }

    /// The figures, and the memory that does not count for eviction, at the same moment: if the latter changes while
    /// the figures are read, for example because a replica was disconnected, they are read again.
    fn measure(server: &Services) -> (Figures, usize) {
        const ATTEMPTS_MAX: usize = 10;
        let mut not_counted = eviction::not_counted_for_evict(server);
        for _ in 1..ATTEMPTS_MAX {
            let figures = Figures::read();
            let before = std::mem::replace(&mut not_counted, eviction::not_counted_for_evict(server));
            if before == not_counted {
                return (figures, not_counted);
            }
        }
        (Figures::read(), not_counted)
    }

    /// Memory other than keys and values.
    pub fn overhead(&self) -> usize {
        self.startup
            + self.connections.clients
            + self.connections.replicas
            + self.connections.slot_imports
            + self.connections.slot_exports
            + self.backlog
            + self.kept
            + self.databases.iter().map(|(_, usage)| usage.table_bytes).sum::<usize>()
    }

    /// Memory of keys and values.
    pub fn dataset(&self) -> usize {
        self.figures.used.saturating_sub(self.overhead())
    }

    /// The share of the data set in the memory used since startup, in percent.
    pub fn dataset_percent(&self) -> f64 {
        percent(self.dataset(), self.figures.used.saturating_sub(self.startup).max(1))
    }

    /// Memory in use as a percentage of its peak.
    pub fn peak_percent(&self) -> f64 {
        percent(self.figures.used, self.peak)
    }

    /// Number of keys.
    pub fn keys(&self) -> usize {
        self.databases.iter().map(|(_, usage)| usage.keys).sum()
    }

    /// Fragmentation within small pages.
    pub fn fragmentation(&self) -> Excess {
        let Figures { allocated, small_free, .. } = self.figures;
        Excess { ratio: 1.0 + ratio(small_free, allocated), bytes: small_free as i64 }
    }

    /// Resident pages of the allocator beyond those in use.
    pub fn allocator_rss(&self) -> Excess {
        excess(self.figures.resident, self.figures.active)
    }

    /// Resident memory outside of the allocator.
    pub fn rss_overhead(&self) -> Excess {
        excess(self.figures.rss, self.figures.resident)
    }

    /// Resident memory beyond the memory in use.
    pub fn total_fragmentation(&self) -> Excess {
        excess(self.figures.rss, self.figures.used)
    }
}
