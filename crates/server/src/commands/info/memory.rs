//! The section on memory.

use super::Context;
use super::page::{Page, human};
use crate::memory::{Connections, Overview};
use crate::process::version;
use crate::server::Server;
use kvick_config::tables::memory as settings;
use kvick_metrics::{Value, fields};
use kvick_script::Kind;
use kvick_scripting::interpreters::Interpreters;

/// The version of the reference's scripting engine interface, which INFO shows.
const ENGINE_ABI_VERSION: u32 = 4;

/// Figures on the allocator, clients, logs and scripts.
pub struct Facts {
    server: &'static Server,
    overview: Overview,
    /// Whether the memory of the tables could be determined.
    has_tables: bool,
    /// Bytes of the interpreters of scripts and of functions.
    scripts: usize,
    functions: usize,
    /// Bytes of the texts of scripts and of libraries.
    script_texts: usize,
    libraries: usize,
}

fields! {
    /// All fields of the section.
    pub static FIELDS: Facts;
    used_memory: gauge redis_memory_used_bytes "Bytes that the allocator has given to the server."
        = |facts| Value::Bytes(facts.overview.figures.used as u64);
    used_memory_rss: gauge redis_memory_used_rss_bytes "Resident memory of the process, as the system counts it."
        = |facts| Value::Bytes(facts.overview.figures.rss as u64);
    used_memory_peak: gauge redis_memory_used_peak_bytes "Peak of redis_memory_used_bytes."
        = |facts| Value::Bytes(facts.overview.peak as u64);
    used_memory_peak_perc: info = |facts| Value::Percent(facts.overview.peak_percent());
    used_memory_overhead: gauge redis_memory_used_overhead_bytes "Memory other than keys and values."
        = |facts| facts.has_tables.then(|| facts.overview.overhead());
    used_memory_startup: gauge redis_memory_used_startup_bytes "Memory in use after the start, without data."
        = |facts| facts.overview.startup;
    used_memory_dataset: gauge redis_memory_used_dataset_bytes "Memory of keys and values."
        = |facts| facts.has_tables.then(|| facts.overview.dataset());
    used_memory_dataset_perc: info = |facts| Value::Percent(facts.overview.dataset_percent());
    allocator_allocated: gauge redis_allocator_allocated_bytes "Bytes in allocations."
        = |facts| facts.overview.figures.allocated;
    allocator_active: gauge redis_allocator_active_bytes "Bytes in pages with allocations."
        = |facts| facts.overview.figures.active;
    allocator_resident: gauge redis_allocator_resident_bytes "Resident bytes of the allocator."
        = |facts| facts.overview.figures.resident;
    allocator_muzzy: gauge redis_allocator_muzzy_bytes "Bytes that the allocator has returned lazily."
        = |facts| facts.overview.figures.muzzy;
    total_system_memory: gauge redis_total_system_memory_bytes "Memory of the machine."
        = |_facts| Value::Bytes(kvick_runtime::memory::system_total() as u64);
    used_memory_lua: gauge redis_memory_used_lua_bytes "Memory of the interpreters of scripts." = |facts| facts.scripts;
    used_memory_vm_eval: gauge redis_memory_used_vm_eval_bytes "The same as redis_memory_used_lua_bytes."
        = |facts| facts.scripts;
    used_memory_lua_human: info = |facts| human(facts.scripts as u64);
    used_memory_scripts_eval: gauge redis_memory_used_scripts_eval_bytes "Memory of the texts of scripts."
        = |facts| facts.script_texts;
    number_of_cached_scripts: gauge redis_number_of_cached_scripts "Cached scripts."
        = |facts| facts.server.scripting.scripts.lock().len();
    number_of_functions: gauge redis_number_of_functions "Functions in libraries."
        = |facts| facts.server.scripting.libraries.read().functions();
    number_of_libraries: gauge redis_number_of_libraries "Libraries of functions."
        = |facts| facts.server.scripting.libraries.read().len();
    used_memory_vm_functions: gauge redis_memory_used_vm_functions_bytes "Memory of the interpreters of functions."
        = |facts| facts.functions;
    used_memory_vm_total: gauge redis_memory_used_vm_total "Memory of all interpreters, in bytes."
        = |facts| Value::Bytes((facts.scripts + facts.functions) as u64);
    used_memory_functions: gauge redis_memory_used_functions_bytes "Memory of libraries." = |facts| facts.libraries;
    used_memory_scripts: gauge redis_memory_used_scripts_bytes "Memory of the texts of scripts and of libraries."
        = |facts| Value::Bytes((facts.script_texts + facts.libraries) as u64);
    maxmemory: gauge redis_memory_max_bytes "Memory limit; 0 is none."
        = |facts| Value::Bytes(facts.server.config.read(settings::MAXMEMORY));
    maxmemory_policy: info = |facts| policy(facts.server);
    allocator_frag_ratio: gauge redis_allocator_frag_ratio "Active by allocated memory of small allocations."
        = |facts| Value::Hundredths(facts.overview.fragmentation().ratio);
    allocator_frag_bytes: gauge redis_allocator_frag_bytes "Free bytes in pages of small allocations."
        = |facts| facts.overview.fragmentation().bytes;
    allocator_rss_ratio: gauge redis_allocator_rss_ratio "Resident by active memory of the allocator."
        = |facts| Value::Hundredths(facts.overview.allocator_rss().ratio);
    allocator_rss_bytes: gauge redis_allocator_rss_bytes "Resident bytes of the allocator that are not active."
        = |facts| facts.overview.allocator_rss().bytes;
    rss_overhead_ratio: info = |facts| Value::Hundredths(facts.overview.rss_overhead().ratio);
    rss_overhead_bytes: info = |facts| facts.overview.rss_overhead().bytes;
    mem_fragmentation_ratio: gauge redis_mem_fragmentation_ratio "Resident memory by memory in use."
        = |facts| Value::Hundredths(facts.overview.total_fragmentation().ratio);
    mem_fragmentation_bytes: gauge redis_mem_fragmentation_bytes "Resident memory beyond the memory in use."
        = |facts| facts.overview.total_fragmentation().bytes;
    mem_not_counted_for_evict: gauge redis_mem_not_counted_for_eviction_bytes
        "Memory that does not count towards maxmemory." = |facts| facts.overview.not_counted;
    // One log serves as backlog and as replica buffers: the part beyond the backlog's size counts as the latter.
    mem_replication_backlog: gauge redis_mem_replication_backlog_bytes "Memory of the replication backlog."
        = |facts| facts.overview.backlog;
    mem_total_replication_buffers: gauge redis_mem_total_replication_buffers_bytes
        "Memory of the backlog and of data that replicas have yet to read."
        = |facts| facts.server.keyspace.log.memory() + facts.overview.kept;
    mem_replicas_repl_buffer: info = |facts| facts.overview.kept;
    mem_clients_slaves: gauge redis_mem_clients_slaves "Memory of connections of replicas, in bytes."
        = |facts| facts.overview.connections.replicas;
    mem_clients_normal: gauge redis_mem_clients_normal "Memory of other client connections, in bytes."
        = |facts| facts.overview.connections.clients;
    mem_cluster_links: gauge redis_mem_cluster_links_bytes "Memory of links to other nodes of the cluster."
        = |facts| facts.server.cluster().map_or(0, |cluster| cluster.bus().links_memory());
    mem_cluster_slot_import: info = |facts| facts.overview.connections.slot_imports;
    mem_cluster_slot_export: info = |facts| facts.overview.connections.slot_exports;
    mem_aof_buffer: gauge redis_mem_aof_buffer_bytes "Always 0: the append-only file reads the write log."
        = |_facts| 0u64;
    mem_allocator: info = |_facts| version::allocator();
    mem_overhead_db_hashtable_rehashing: gauge redis_mem_overhead_db_hashtable_rehashing_bytes
        "Always 0: tables grow in place." = |_facts| 0u64;
    active_defrag_running: gauge redis_active_defrag_running "Effort of active defragmentation, in percent; 0 if idle."
        = |facts| u64::from(facts.server.defrag.percent());
    lazyfree_pending_objects: gauge redis_lazyfree_pending_objects "Values that wait to be freed in the background."
        = |facts| facts.server.keyspace.lazy_free.pending();
    lazyfreed_objects: gauge redis_lazyfreed_objects "Values that were freed in the background."
        = |facts| facts.server.keyspace.lazy_free.freed();
}

impl Facts {
    /// Collects them.
    pub fn of(context: &Context) -> Facts {
        let server = context.server;
        let [scripts, functions] =
            [Kind::Scripts, Kind::Functions].map(|kind| server.scripting.interpreter_memory(kind));
        let [script_texts, libraries] = server.scripting.text_memory();
        let tables = Overview::tables(server, |look| context.in_batch(look));
        let has_tables = tables.is_some();
        let connections = context.clients.get().map(|clients| clients.memory);
        let connections = connections.unwrap_or_else(|| Connections::of(server));
        let overview = Overview::with(server, tables.unwrap_or_default(), connections);
        Facts { server, overview, has_tables, scripts, functions, script_texts, libraries }
    }
}

/// `maxmemory-policy`.
pub fn policy(server: &Server) -> String {
    String::from_utf8_lossy(&server.config.get(b"maxmemory-policy").unwrap_or_default()).into_owned()
}

/// Writes the section.
pub fn write(context: &Context, page: &mut Page) {
    page.section("Memory");
    page.write(FIELDS, &Facts::of(context));
}

/// The section on scripting engines.
pub fn write_engines(context: &Context, page: &mut Page) {
    let scripting = &context.server.scripting;
    let used = [Kind::Scripts, Kind::Functions].map(|kind| scripting.interpreter_memory(kind)).iter().sum::<usize>();
    let overhead = size_of::<Interpreters>();
    page.section("Scripting Engines");
    page.field("engines_count", 1);
    page.field("engines_total_used_memory", used);
    page.field("engines_total_memory_overhead", overhead);
    page.field(
        "engine_0",
        format_args!(
            "name=LUA,module=built-in,abi_version={ENGINE_ABI_VERSION},used_memory={used},memory_overhead={overhead}"
        ),
    );
}
