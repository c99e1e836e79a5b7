//! The server binary.

use kvick_runtime::allocator::Allocator;
use std::ffi::c_char;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// The allocator's settings: large slabs for small elements, of which there are many; small slabs for the classes
/// through which collections grow, so that what they leave behind is given back; and several blocks of lists to a slab,
/// as what the allocator keeps for each slab is much beside one block. Huge pages are not asked for: the kernel clears
/// one at its first byte, which has a worker wait for as long as hundreds of commands take.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: Option<&'static c_char> = {
    // SAFETY: a C string literal lives as long as the program.
    Some(unsafe { &*SETTINGS.as_ptr() })
};

const SETTINGS: &std::ffi::CStr =
    c"slab_sizes:1-128:16|640-768:1|896-896:2|1280-1280:1|8192-8192:8,dirty_decay_ms:1000";

fn main() -> ExitCode {
    kvick_server::process::run_script_call()
}
