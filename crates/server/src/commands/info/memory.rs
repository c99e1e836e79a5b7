//! The section on memory.

use super::Context;
use super::page::{Page, human};
use crate::memory::Overview;
use crate::process::version;
use kvick_config::tables::memory as settings;
use kvick_runtime::memory::Excess;
use kvick_script::Kind;
use kvick_scripting::Scripting;
use kvick_scripting::interpreters::Interpreters;

/// The version of the reference's scripting engine interface, which INFO shows.
const ENGINE_ABI_VERSION: u32 = 4;

pub fn write(context: &Context, page: &mut Page) {
    let server = context.server;
    let overview = Overview::of(server);
    page.section("Memory");
    write_used(&overview, page);
    write_scripts(&server.scripting, page);
    page.bytes("maxmemory", server.config.read(settings::MAXMEMORY));
    let policy = server.config.get(b"maxmemory-policy").unwrap_or_default();
    page.field("maxmemory_policy", String::from_utf8_lossy(&policy));
    write_ratios(&overview, page);
    page.field("mem_not_counted_for_evict", overview.not_counted);
    // One log serves as backlog and as replica buffers: the part beyond the backlog's size counts as the latter.
    page.field("mem_replication_backlog", overview.backlog);
    page.field("mem_total_replication_buffers", server.keyspace.log.memory() + overview.kept);
    page.field("mem_replicas_repl_buffer", overview.kept);
    page.field("mem_clients_slaves", overview.replicas);
    page.field("mem_clients_normal", overview.clients);
    page.field("mem_cluster_links", server.cluster().map_or(0, |cluster| cluster.bus().links_memory()));
    page.field("mem_cluster_slot_import", overview.slot_imports);
    page.field("mem_cluster_slot_export", overview.slot_exports);
    page.field("mem_aof_buffer", 0);
    page.field("mem_allocator", version::allocator());
    page.field("mem_overhead_db_hashtable_rehashing", 0);
    page.field("active_defrag_running", server.defrag.percent());
    page.field("lazyfree_pending_objects", server.keyspace.lazy_free.pending());
    page.field("lazyfreed_objects", server.keyspace.lazy_free.freed());
}

fn write_used(overview: &Overview, page: &mut Page) {
    let figures = &overview.figures;
    page.bytes("used_memory", figures.used as u64);
    page.bytes("used_memory_rss", figures.rss as u64);
    page.bytes("used_memory_peak", overview.peak as u64);
    page.field("used_memory_peak_perc", format_args!("{:.2}%", overview.peak_percent()));
    page.field("used_memory_overhead", overview.overhead());
    page.field("used_memory_startup", overview.startup);
    page.field("used_memory_dataset", overview.dataset());
    page.field("used_memory_dataset_perc", format_args!("{:.2}%", overview.dataset_percent()));
    page.fields([
        ("allocator_allocated", figures.allocated),
        ("allocator_active", figures.active),
        ("allocator_resident", figures.resident),
        ("allocator_muzzy", figures.muzzy),
    ]);
    page.bytes("total_system_memory", kvick_runtime::memory::system_total() as u64);
}

fn write_scripts(scripting: &Scripting, page: &mut Page) {
    let [scripts, functions] = [Kind::Scripts, Kind::Functions].map(|kind| scripting.interpreter_memory(kind));
    let [script_texts, libraries] = scripting.text_memory();
    page.fields(["used_memory_lua", "used_memory_vm_eval"].map(|name| (name, scripts)));
    page.field("used_memory_lua_human", human(scripts as u64));
    page.field("used_memory_scripts_eval", script_texts);
    page.field("number_of_cached_scripts", scripting.scripts.lock().len());
    page.field("number_of_functions", scripting.libraries.read().functions());
    page.field("number_of_libraries", scripting.libraries.read().len());
    page.field("used_memory_vm_functions", functions);
    page.bytes("used_memory_vm_total", (scripts + functions) as u64);
    page.field("used_memory_functions", libraries);
    page.bytes("used_memory_scripts", (script_texts + libraries) as u64);
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

fn write_ratios(overview: &Overview, page: &mut Page) {
    let Excess { ratio, bytes } = overview.fragmentation();
    page.field("allocator_frag_ratio", format_args!("{ratio:.2}"));
    page.field("allocator_frag_bytes", bytes);
    for (name, ratio_name, Excess { ratio, bytes }) in [
        ("allocator_rss", "allocator_rss_ratio", overview.allocator_rss()),
        ("rss_overhead", "rss_overhead_ratio", overview.rss_overhead()),
        ("mem_fragmentation", "mem_fragmentation_ratio", overview.total_fragmentation()),
    ] {
        page.field(ratio_name, format_args!("{ratio:.2}"));
        page.field(format_args!("{name}_bytes"), bytes);
    }
}
