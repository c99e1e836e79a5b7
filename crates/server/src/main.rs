//! The server binary.

use kvick_server::allocator::Allocator;
use std::ffi::c_char;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// The allocator's settings: huge pages, because a large keyspace is read at random and page table walks would cost more
/// than the reads. (There is no fork whose copying they would make dearer.) Large slabs for small elements, of which there
/// are many; small slabs for the classes through which collections grow, so that what they leave behind is given back; and
/// several blocks of lists to a slab, as what the allocator keeps for each slab is much beside one block.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: Option<&'static c_char> = {
    // SAFETY: a C string literal lives as long as the program.
    Some(unsafe { &*SETTINGS.as_ptr() })
};

const SETTINGS: &std::ffi::CStr =
    c"thp:always,metadata_thp:auto,slab_sizes:1-128:16|640-768:1|896-896:2|1280-1280:1|8192-8192:8,dirty_decay_ms:1000";

fn main() -> ExitCode {
    kvick_server::process::run_program()
}
