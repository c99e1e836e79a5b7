//! The keyspace: partitions, tables, entries, values, expiry; no networking.
