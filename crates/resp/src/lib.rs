//! The Redis serialization protocol: requests in, replies out; no I/O.
