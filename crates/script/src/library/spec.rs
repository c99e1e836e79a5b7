//! A function of a library, as it is registered.

use crate::lua::reference::Ref;
use crate::{CallSite, ScriptFlags};

/// A function that a library registered.
#[derive(Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    /// Its name, which has not been validated.
    pub name: Vec<u8>,
    /// Its description.
    pub description: Option<Vec<u8>>,
    /// Its flags.
    pub flags: ScriptFlags,
    /// The commands that it calls, if all of them are known.
    pub calls: Option<Vec<CallSite>>,
    /// Whether its library may keep state between calls.
    pub keeps_state: bool,
    /// The handle to call and drop it.
    pub handle: FunctionHandle,
}

/// A function in one virtual machine. It exists until it is passed to [`Vm::drop_function`](crate::Vm::drop_function).
#[derive(Debug, PartialEq, Eq)]
pub struct FunctionHandle(pub(crate) Ref);
