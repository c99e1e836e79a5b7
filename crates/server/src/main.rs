//! The server binary.

use std::ffi::c_char;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The allocator's settings: huge pages, because a large keyspace is read at random and page table walks would cost more
/// than the reads. (There is no fork whose copying they would make dearer.)
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: Option<&'static c_char> = {
    // SAFETY: a C string literal lives as long as the program.
    Some(unsafe { &*c"thp:always,metadata_thp:auto,slab_sizes:1-1024:16,dirty_decay_ms:1000".as_ptr() })
};

fn main() -> ExitCode {
    kvick_server::process::run_program()
}
