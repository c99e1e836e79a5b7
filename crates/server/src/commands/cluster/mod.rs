//! CLUSTER and ASKING.
//!
//! - `endpoint`: what the cluster looks like to clients whose requests are forwarded.
//! - `membership`: nodes, roles and epochs.
//! - `slot_migration`: atomic migration of slots.
//! - `slots`: owners of slots, and the keys in slots.
//! - `topology`: what the cluster looks like.

mod endpoint;
mod membership;
mod slot_migration;
mod slots;
mod topology;

use crate::cluster::ClusterNode;
use crate::server::HasServer;
use kvick_cluster::state::{Cluster, CommandError, Facts};

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_store::slot::slot;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[CLUSTER, ASKING];

const READ_ONLY: &[Flags] = &[Flags::LOADING, Flags::STALE];
const STALE: &[Flags] = &[Flags::STALE];
const ADMIN: &[Flags] = &[Flags::ADMIN, Flags::STALE];
const RESETS: &[Flags] = &[Flags::ADMIN, Flags::STALE, Flags::NOSCRIPT];
const CHANGES: &[Flags] = &[Flags::NO_ASYNC_LOADING, Flags::ADMIN, Flags::STALE];
const CHANGES_ALL: &[Flags] = &[Flags::NO_ASYNC_LOADING, Flags::ADMIN, Flags::STALE, Flags::ALL_DBS];
const CHANGES_REPLICATED: &[Flags] = &[Flags::NO_ASYNC_LOADING, Flags::ADMIN, Flags::STALE, Flags::MAY_REPLICATE];
const FLUSHES: &[Flags] = &[Flags::WRITE, Flags::NO_ASYNC_LOADING, Flags::ADMIN, Flags::ALL_DBS];

const VARYING: &[&str] = &["nondeterministic_output"];
const NODE: &[Arg] = &[Arg::string("node-id")];
const ENDS: &[Arg] = &[Arg::integer("start-slot"), Arg::integer("end-slot")];
const RANGE: Arg = Arg::block("range", ENDS);
const SETSLOT: &[Arg] = &[
    Arg::integer("slot"),
    Arg::one_of(
        "subcommand",
        &[
            Arg::string("importing").display("node-id").token("IMPORTING"),
            Arg::string("migrating").display("node-id").token("MIGRATING"),
            Arg::string("node").display("node-id").token("NODE"),
            Arg::word("stable", "STABLE"),
        ],
    ),
    Arg::integer("timeout").display("timeout").token("TIMEOUT").optional().since("8.0.0"),
];
const SLOT_STATS: &[Arg] = &[Arg::one_of(
    "filter",
    &[
        Arg::block("slotsrange", ENDS).token("SLOTSRANGE"),
        Arg::block(
            "orderby",
            &[
                Arg::string("metric"),
                Arg::integer("limit").token("LIMIT").optional(),
                Arg::one_of("order", &[Arg::word("asc", "ASC"), Arg::word("desc", "DESC")]).optional(),
            ],
        )
        .token("ORDERBY"),
    ],
)];

/// CLUSTER
pub const CLUSTER: Command<SessionHandler> = Command::container(
    Spec::new("cluster", -2).doc(
        Group::Cluster,
        "3.0.0",
        "Depends on subcommand.",
        "A container for cluster commands.",
    ),
    &[
        Command::new(
            about("addslots", -3, CHANGES)
                .lock(LockRule::Global)
                .doc(Group::Cluster, "3.0.0", "O(N), N being the slots", "Assigns slots to this node.")
                .args(&[Arg::integer("slot").multiple()]),
            slots::add_slots,
        ),
        Command::new(
            about("addslotsrange", -4, CHANGES)
                .lock(LockRule::Global)
                .doc(
                    Group::Cluster,
                    "7.0.0",
                    "O(N), N being the slots in the ranges",
                    "Assigns ranges of slots to this node.",
                )
                .args(&[RANGE.multiple()]),
            slots::add_slot_ranges,
        ),
        Command::new(
            about("bumpepoch", 2, CHANGES)
                .lock(LockRule::Global)
                .doc(Group::Cluster, "3.0.0", "O(1)", "Increments the configuration epoch.")
                .tips(VARYING),
            membership::bump_epoch,
        ),
        Command::new(
            about("cancelslotmigrations", 2, CHANGES_ALL).doc(
                Group::Cluster,
                "9.0.0",
                "O(N), N being the migrations",
                "Cancels slot migrations from this node.",
            ),
            slot_migration::cancel,
        ),
        Command::new(
            about("count-failure-reports", 3, ADMIN)
                .lock(LockRule::Global)
                .doc(
                    Group::Cluster,
                    "3.0.0",
                    "O(N), N being the reports",
                    "Returns the number of active failure reports of a node.",
                )
                .tips(VARYING)
                .history(&[("9.0.0", "Reports of failed nodes are no longer counted.")])
                .args(NODE),
            membership::count_failure_reports,
        ),
        Command::new(
            about("countkeysinslot", 3, STALE)
                .doc(Group::Cluster, "3.0.0", "O(1)", "Returns the number of keys in a slot.")
                .args(&[Arg::integer("slot")]),
            slots::count_keys,
        ),
        Command::new(
            about("delslots", -3, CHANGES)
                .lock(LockRule::Global)
                .doc(Group::Cluster, "3.0.0", "O(N), N being the slots", "Marks slots as unassigned on this node.")
                .args(&[Arg::integer("slot").multiple()]),
            slots::del_slots,
        ),
        Command::new(
            about("delslotsrange", -4, CHANGES)
                .lock(LockRule::Global)
                .doc(
                    Group::Cluster,
                    "7.0.0",
                    "O(N), N being the slots in the ranges",
                    "Marks ranges of slots as unassigned on this node.",
                )
                .args(&[RANGE.multiple()]),
            slots::del_slot_ranges,
        ),
        Command::new(
            about("failover", -2, CHANGES)
                .lock(LockRule::Global)
                .doc(Group::Cluster, "3.0.0", "O(1)", "Starts a failover from a replica to itself.")
                .args(&[Arg::one_of("options", &[Arg::word("force", "FORCE"), Arg::word("takeover", "TAKEOVER")])
                    .optional()]),
            membership::failover,
        ),
        Command::new(
            about("flushslot", -3, FLUSHES)
                .lock(LockRule::Global)
                .doc(Group::Cluster, "9.0.0", "O(N), N being the keys in the slot", "Deletes all keys of a slot.")
                .acl(&[Categories::KEYSPACE])
                .args(&[
                    Arg::integer("slot"),
                    Arg::one_of("flush-type", &[Arg::word("async", "ASYNC"), Arg::word("sync", "SYNC")]).optional(),
                ]),
            slots::flush_slot,
        ),
        Command::new(
            about("flushslots", 2, CHANGES).lock(LockRule::Global).doc(
                Group::Cluster,
                "3.0.0",
                "O(1)",
                "Removes all slot assignments of this node.",
            ),
            slots::flush_slots,
        ),
        Command::new(
            about("forget", 3, CHANGES)
                .lock(LockRule::Global)
                .doc(Group::Cluster, "3.0.0", "O(1)", "Removes a node from the node table.")
                .args(NODE),
            membership::forget,
        ),
        Command::new(
            about("getkeysinslot", 4, STALE)
                .doc(Group::Cluster, "3.0.0", "O(N), N being the requested keys", "Returns keys of a slot.")
                .tips(VARYING)
                .args(&[Arg::integer("slot"), Arg::integer("count")]),
            slots::get_keys,
        ),
        Command::new(
            about("getslotmigrations", 2, CHANGES).doc(
                Group::Cluster,
                "9.0.0",
                "O(N), N being the migrations",
                "Returns the state of slot migrations.",
            ),
            slot_migration::list,
        ),
        Command::new(
            about("help", 2, READ_ONLY).doc(Group::Cluster, "5.0.0", "O(1)", "Returns help about the subcommands."),
            topology::help,
        ),
        Command::new(
            about("info", 2, READ_ONLY)
                .doc(Group::Cluster, "3.0.0", "O(1)", "Returns the state of the cluster as seen by this node.")
                .tips(VARYING),
            topology::info,
        ),
        Command::new(
            about("keyslot", 3, STALE)
                .doc(Group::Cluster, "3.0.0", "O(N), N being the bytes of the key", "Returns the slot of a key.")
                .args(&[Arg::string("key")]),
            keyslot,
        ),
        Command::new(
            about("links", 2, STALE)
                .doc(Group::Cluster, "7.0.0", "O(N), N being the nodes", "Lists the connections to other nodes.")
                .tips(VARYING),
            topology::links,
        ),
        Command::new(
            about("meet", -4, CHANGES)
                .lock(LockRule::Global)
                .doc(Group::Cluster, "3.0.0", "O(1)", "Makes this node handshake with another node.")
                .history(&[("4.0.0", "The argument `cluster_bus_port`.")])
                .args(&[
                    Arg::string("ip"),
                    Arg::integer("port"),
                    Arg::integer("cluster-bus-port").optional().since("4.0.0"),
                ]),
            membership::meet,
        ),
        Command::new(
            about("migrateslots", -4, CHANGES_ALL)
                .doc(
                    Group::Cluster,
                    "9.0.0",
                    "O(N), N being the slots in the ranges",
                    "Starts migrating slots to other nodes.",
                )
                .args(&[Arg::block(
                    "migration-group",
                    &[
                        Arg::word("slotsrange-token", "SLOTSRANGE"),
                        RANGE.multiple(),
                        Arg::word("node-token", "NODE"),
                        Arg::string("node-id"),
                    ],
                )
                .multiple()]),
            slot_migration::migrate,
        ),
        Command::new(
            about("myid", 2, READ_ONLY).doc(Group::Cluster, "3.0.0", "O(1)", "Returns the ID of this node."),
            topology::my_id,
        ),
        Command::new(
            about("myshardid", 2, READ_ONLY)
                .doc(Group::Cluster, "7.2.0", "O(1)", "Returns the shard ID of this node.")
                .tips(VARYING),
            topology::my_shard_id,
        ),
        Command::new(
            about("nodes", 2, READ_ONLY)
                .doc(Group::Cluster, "3.0.0", "O(N), N being the nodes", "Lists the nodes that this node knows.")
                .tips(VARYING),
            topology::nodes,
        ),
        Command::new(
            about("replicas", 3, ADMIN)
                .doc(Group::Cluster, "5.0.0", "O(N), N being the replicas", "Lists the replicas of a node.")
                .tips(VARYING)
                .args(NODE),
            topology::replicas,
        ),
        Command::new(
            about("replicate", -3, CHANGES)
                .lock(LockRule::Global)
                .doc(Group::Cluster, "3.0.0", "O(1)", "Makes this node a replica of another node, or of none.")
                .history(&[("9.0.0", "NO ONE, for no node.")])
                .args(&[Arg::one_of(
                    "args",
                    &[
                        Arg::string("node-id"),
                        Arg::block("no-one", &[Arg::word("no", "NO"), Arg::word("one", "ONE")]).since("9.0.0"),
                    ],
                )]),
            membership::replicate,
        ),
        Command::new(
            about("reset", -2, RESETS)
                .lock(LockRule::Global)
                .doc(
                    Group::Cluster,
                    "3.0.0",
                    "O(N), N being the nodes; a FLUSHALL may be part of it",
                    "Resets the cluster state of this node.",
                )
                .args(&[Arg::one_of("reset-type", &[Arg::word("hard", "HARD"), Arg::word("soft", "SOFT")]).optional()]),
            membership::reset,
        ),
        Command::new(
            about("saveconfig", 2, CHANGES).lock(LockRule::Global).doc(
                Group::Cluster,
                "3.0.0",
                "O(1)",
                "Saves the cluster state to the configuration file of this node.",
            ),
            membership::save_config,
        ),
        Command::new(
            about("set-config-epoch", 3, CHANGES)
                .lock(LockRule::Global)
                .doc(Group::Cluster, "3.0.0", "O(1)", "Sets the configuration epoch of a new node.")
                .args(&[Arg::integer("config-epoch")]),
            membership::set_config_epoch,
        ),
        Command::new(
            about("setslot", -4, CHANGES_REPLICATED)
                .lock(LockRule::Global)
                .doc(Group::Cluster, "3.0.0", "O(1)", "Assigns a slot to a node, or marks it as migrating.")
                .history(&[("8.0.0", "The option `TIMEOUT`.")])
                .args(SETSLOT),
            slots::set_slot,
        ),
        Command::new(
            about("shards", 2, READ_ONLY)
                .doc(Group::Cluster, "7.0.0", "O(N), N being the nodes", "Lists the shards with their nodes and slots.")
                .tips(VARYING)
                .history(&[("9.1.0", "`id` of shards, and `availability-zone` of nodes.")]),
            topology::shards,
        ),
        Command::new(
            about("slaves", 3, ADMIN)
                .doc(Group::Cluster, "3.0.0", "O(N), N being the replicas", "Lists the replicas of a node.")
                .deprecated("5.0.0", "`CLUSTER REPLICAS`")
                .tips(VARYING)
                .args(NODE),
            topology::replicas,
        ),
        Command::new(
            about("slot-stats", -4, READ_ONLY)
                .doc(
                    Group::Cluster,
                    "8.0.0",
                    "O(N), N being the slots; O(N*log(N)) with ORDERBY",
                    "Returns usage statistics of slots.",
                )
                .tips(&["nondeterministic_output", "request_policy:all_shards"])
                .args(SLOT_STATS),
            super::slot_stats::slot_stats,
        ),
        Command::new(
            about("slots", 2, READ_ONLY)
                .doc(Group::Cluster, "3.0.0", "O(N), N being the nodes", "Lists ranges of slots with their nodes.")
                .tips(VARYING)
                .history(&[
                    ("4.0.0", "Names of nodes."),
                    ("7.0.0", "More about how nodes are reached."),
                    ("9.1.0", "`availability-zone` among that."),
                ]),
            topology::slots,
        ),
        Command::new(
            about("syncslots", -3, CHANGES_REPLICATED)
                .doc(
                    Group::Cluster,
                    "9.0.0",
                    "Depends on subcommand.",
                    "Internal command of slot migrations between nodes.",
                )
                .internal(),
            slot_migration::synchronise,
        ),
    ],
);

/// ASKING
pub const ASKING: Command<SessionHandler> = Command::new(
    Spec::new("asking", 1).flags(&[Flags::FAST]).acl(&[Categories::CONNECTION]).doc(
        Group::Cluster,
        "3.0.0",
        "O(1)",
        "Allows the next command to access a slot that is being imported.",
    ),
    asking,
);

const fn about(name: &'static str, arity: i16, flags: &'static [Flags]) -> Spec {
    Spec::new(name, arity).flags(flags)
}

fn asking(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    node(cx)?;
    cx.client.ask_next();
    cx.reply.ok();
    Ok(())
}

/// The cluster node that this server is.
fn node(cx: &Session<'_>) -> Result<&'static ClusterNode, Error> {
    cx.server().cluster().ok_or(Error::text("ERR This instance has cluster support disabled"))
}

/// Changes the state machine, and this server as it follows from that. Needs the global lock.
fn changed<T>(
    cx: &mut Session<'_>,
    node: &'static ClusterNode,
    change: impl FnOnce(&mut Cluster, &Facts<'_>) -> Result<T, CommandError>,
) -> Result<T, Error> {
    node.change(cx.locked, change).map_err(|error| Error::new(format!("ERR {error}")))
}

fn lower(word: &[u8]) -> Vec<u8> {
    word.to_ascii_lowercase()
}

/// The error for arguments that fit no form of a subcommand.
fn syntax_error(name: &str) -> Error {
    Error::new(format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try CLUSTER HELP."))
}

/// Works without a cluster.
fn keyslot(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    cx.reply.uint(slot(&args[2]).into());
    Ok(())
}
