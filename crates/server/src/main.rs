//! The server binary.

use kvick_runtime::allocator::Allocator;
use std::ffi::c_char;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// The allocator's settings: large slabs for the many small elements; small slabs for the size classes through which
/// collections grow, so that freed slabs are returned; several list blocks per slab, because the allocator's metadata
/// of a slab is large compared with one block. No huge pages: the kernel clears a whole page on its first access, which
/// delays a worker for as long as hundreds of commands take.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: Option<&'static c_char> = {
    // SAFETY: a C string literal lives as long as the program.
    Some(unsafe { &*SETTINGS.as_ptr() })
};

const SETTINGS: &std::ffi::CStr =
    c"slab_sizes:1-128:16|640-768:1|896-896:2|1280-1280:1|8192-8192:8,dirty_decay_ms:1000,\
      max_background_threads:1";

fn main() -> ExitCode {
    kvick_server::process::run()
}
