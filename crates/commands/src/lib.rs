//! The data commands: one module per family, each command beside its description.
