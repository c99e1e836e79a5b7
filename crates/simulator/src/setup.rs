//! What a run is like: size, settings, network, disks and workload, all chosen by the seed.

use crate::network::Conditions;
use kvick_cluster::migration;
use kvick_cluster::state::Settings;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// What happens in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Crashes, stopped processes, partitions, slow links and clock jumps, with the elections that follow.
    Failover,
    /// Manual failovers with the primary's help, and only disturbances that are shorter than the node timeout.
    Manual,
    /// CLUSTER FAILOVER in all forms, also FORCE and TAKEOVER, together with crashes and partitions.
    Takeover,
    /// CLUSTER RESET, FORGET, and joining again.
    Reset,
    /// Restarts with another address.
    Address,
    /// Restarts of one node after the other.
    Rolling,
    /// Slots moved with SETSLOT and ASK, and manual failovers.
    Reshard,
    /// Slots moved with MIGRATESLOTS, and manual failovers.
    Atomic,
    /// The same with crashes, stopped processes and partitions.
    AtomicFaults,
    /// Crashes of replicas, so that others migrate to the primaries that lost theirs.
    Migration,
    /// Primaries restart without data, and have to leave their slots to a replica.
    Empty,
    /// All of these at once.
    Mixed,
}

/// Which acknowledged writes must not be lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Promise {
    /// All.
    All,
    /// Those that all nodes of the shard had when they were acknowledged.
    Everywhere,
    /// None.
    Nothing,
}

/// How often each fault or operation happens, relative to the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weights {
    pub(crate) kill: u32,
    pub(crate) power: u32,
    pub(crate) stop: u32,
    pub(crate) partition: u32,
    pub(crate) one_way: u32,
    pub(crate) slow: u32,
    pub(crate) break_links: u32,
    pub(crate) clock: u32,
    pub(crate) manual: u32,
    pub(crate) force: u32,
    pub(crate) takeover: u32,
    pub(crate) reset: u32,
    pub(crate) forget: u32,
    pub(crate) address: u32,
    pub(crate) restart: u32,
    pub(crate) set_slot: u32,
    pub(crate) migrate_slots: u32,
    pub(crate) cancel_migrations: u32,
    pub(crate) kill_replica: u32,
    pub(crate) kill_empty: u32,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Workload; 12] = [
        Workload::Failover,
        Workload::Manual,
        Workload::Takeover,
        Workload::Reset,
        Workload::Address,
        Workload::Rolling,
        Workload::Reshard,
        Workload::Atomic,
        Workload::AtomicFaults,
        Workload::Migration,
        Workload::Empty,
        Workload::Mixed,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Failover => "failover",
            Workload::Manual => "manual",
            Workload::Takeover => "takeover",
            Workload::Reset => "reset",
            Workload::Address => "address",
            Workload::Rolling => "rolling",
            Workload::Reshard => "reshard",
            Workload::Atomic => "atomic",
            Workload::AtomicFaults => "atomic-faults",
            Workload::Migration => "migration",
            Workload::Empty => "empty",
            Workload::Mixed => "mixed",
        }
    }

    pub(crate) fn weights(self) -> Weights {
        let faults = Weights {
            kill: 4,
            power: 4,
            stop: 4,
            partition: 4,
            one_way: 2,
            slow: 2,
            break_links: 2,
            clock: 1,
            ..Weights::default()
        };
        let disturbances = Weights { slow: 2, break_links: 2, clock: 1, ..Weights::default() };
        match self {
            Workload::Failover => faults,
            Workload::Manual => Weights { manual: 8, ..disturbances },
            Workload::Takeover => Weights { manual: 4, force: 6, takeover: 6, ..faults },
            Workload::Reset => Weights { reset: 6, forget: 3, kill: 2, power: 2, manual: 2, ..disturbances },
            Workload::Address => Weights { address: 6, stop: 1, partition: 1, manual: 2, ..disturbances },
            Workload::Rolling => Weights { restart: 10, manual: 3, ..disturbances },
            Workload::Reshard => Weights { set_slot: 10, manual: 3, ..disturbances },
            Workload::Atomic => Weights { migrate_slots: 12, cancel_migrations: 1, manual: 3, ..disturbances },
            Workload::AtomicFaults => Weights { migrate_slots: 24, cancel_migrations: 2, manual: 2, ..faults },
            Workload::Migration => Weights { kill_replica: 8, kill: 2, power: 1, ..disturbances },
            Workload::Empty => Weights { kill_empty: 6, ..disturbances },
            Workload::Mixed => Weights {
                manual: 2,
                force: 2,
                takeover: 2,
                reset: 2,
                forget: 1,
                address: 2,
                restart: 2,
                set_slot: 3,
                migrate_slots: 3,
                kill_replica: 2,
                ..faults
            },
        }
    }

    pub(crate) fn promise(self) -> Promise {
        match self {
            Workload::Manual | Workload::Reshard | Workload::Atomic => Promise::All,
            Workload::Takeover | Workload::Mixed => Promise::Nothing,
            _ => Promise::Everywhere,
        }
    }

    /// Whether an operator has to introduce nodes to each other again, and to remove what is left of old names.
    pub(crate) fn needs_operator(self) -> bool {
        let weights = self.weights();
        weights.reset > 0 || weights.forget > 0
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> Result<Workload, String> {
        let names = || Workload::ALL.map(Workload::name).join(", ");
        Workload::ALL
            .into_iter()
            .find(|workload| workload.name() == name)
            .ok_or_else(|| format!("no workload '{name}'; there are {}", names()))
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) hosts: usize,
    /// Primaries at the start; the other hosts are their replicas.
    pub(crate) shards: usize,
    pub(crate) settings: Settings,
    /// The same for atomic slot migration.
    pub(crate) jobs: migration::Settings,
    pub(crate) conditions: Conditions,
    pub(crate) workload: Workload,
    /// Data survives crashes.
    pub(crate) persistence: bool,
    /// Longest usual time to make `nodes.conf` durable; 0 for no time at all.
    pub(crate) save_ms_max: u64,
    /// Of `nodes.conf` only the epochs are kept: no process is started again.
    pub(crate) saves_only_epochs: bool,
    /// The process does nothing while it makes `nodes.conf` durable, as Valkey does.
    pub(crate) disk_blocks: bool,
    /// Hosts whose replicas never start failovers.
    pub(crate) no_failover: BTreeSet<usize>,
    pub(crate) writers: usize,
    /// Clients wait for all replicas.
    pub(crate) waits: bool,
    pub(crate) promise: Promise,
    /// How long faults last altogether.
    pub(crate) faults_ms: u64,
    /// The cluster is created by MEET, not from written configurations.
    pub(crate) by_meet: bool,
}

/// From this size on a run is not made more expensive than it has to be.
pub(crate) const LARGE: usize = 100;

/// From this size on the node timeout is a long one.
pub(crate) const HUGE: usize = 500;

impl Setup {
    /// The run of a seed. `hosts` and `workload` are chosen at random if they are not given.
    pub(crate) fn random(hosts: Option<usize>, workload: Option<Workload>, random: &mut fastrand::Rng) -> Setup {
        let hosts_by_seed = if random.u8(0..4) == 0 { random.usize(3..=30) } else { random.usize(3..=12) };
        let workload_by_seed = Workload::ALL[random.usize(0..Workload::ALL.len())];
        let (hosts, workload) = (hosts.unwrap_or(hosts_by_seed), workload.unwrap_or(workload_by_seed));
        let replicas = [0, 1, 1, 2, 2, 3][random.usize(0..6)];
        let shards = (hosts / (1 + replicas)).clamp(3.min(hosts), hosts);
        let promise = workload.promise();
        let is_calm = promise == Promise::All;

        let node_timeout_ms = if is_calm {
            [5_000, 15_000][random.usize(0..2)]
        } else {
            [1_000, 2_000, 2_000, 5_000, 15_000][random.usize(0..5)]
        };
        // Every node pings every other one in half of the node timeout: operators of large clusters choose a long one.
        let node_timeout_ms = if hosts >= HUGE { 15_000 } else { node_timeout_ms };
        let mut settings = Settings { node_timeout_ms, ..Settings::default() };
        settings.repl_ping_period_ms = [1_000, 10_000][random.usize(0..2)];
        settings.replica_validity_factor = if promise == Promise::Nothing && random.u8(0..4) == 0 { 0 } else { 10 };
        settings.migration_barrier = random.u32(0..=1);
        settings.allow_replica_migration = random.u8(0..4) != 0;
        settings.require_full_coverage = random.bool();
        settings.blacklist_ttl_seconds = random.u64(2..=20);
        settings.link_send_buffer_limit = if random.u8(0..8) == 0 { 64 * 1024 } else { 0 };
        settings.manual_failover_timeout_ms = [1_000, 5_000][random.usize(0..2)];
        settings.safety.fence_minority_primary = random.bool();
        let persistence = workload != Workload::Empty && (promise != Promise::Nothing || random.bool());
        if workload == Workload::Empty || (!persistence && random.bool()) {
            settings.safety.empty_primary_wait_ms = settings.node_timeout_ms * 10;
        }

        let conditions = Conditions {
            delay_ms: [0, 0, 1, 20][random.usize(0..4)],
            jitter_ms: [0, 2, 5, 40][random.usize(0..4)],
            loss: if is_calm || random.bool() { 0.0 } else { [0.001, 0.02][random.usize(0..2)] },
            raw: promise == Promise::Nothing && random.u8(0..4) == 0,
        };
        let save_ms_max = [0, 3, 20][random.usize(0..3)];
        let disk_blocks = random.bool();
        let is_large = hosts >= LARGE;
        let mut no_failover = BTreeSet::new();
        if random.u8(0..6) == 0 && !is_large && workload != Workload::Empty {
            no_failover.insert(random.usize(0..hosts));
        }
        // The messages of a run grow with the square of the nodes, and with the time in node timeouts.
        let timeouts = if hosts >= HUGE {
            2..=4
        } else if is_large {
            3..=6
        } else {
            8..=25
        };
        let faults_ms = settings.node_timeout_ms * random.u64(timeouts);
        let by_meet = !is_large && random.bool();
        let mut jobs = migration::Settings {
            manual_failover_timeout_ms: settings.manual_failover_timeout_ms,
            node_timeout_ms,
            ..migration::Settings::default()
        };
        if workload.weights().migrate_slots > 0 {
            jobs.repl_timeout_s = [10, 60][random.usize(0..2)];
            jobs.takeover_replicas = random.u64(0..=2).min(replicas as u64);
        }
        Setup {
            hosts,
            shards,
            conditions,
            workload,
            persistence,
            save_ms_max,
            saves_only_epochs: false,
            disk_blocks,
            no_failover,
            writers: if is_large { 2 } else { random.usize(1..=3) },
            waits: promise == Promise::Everywhere && !is_large,
            promise,
            faults_ms,
            by_meet,
            settings,
            jobs,
        }
    }
}
