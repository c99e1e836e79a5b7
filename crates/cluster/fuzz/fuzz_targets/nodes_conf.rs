//! Any bytes as the content of nodes.conf are read or refused, and what was read can be written and read again without
//! repairs.

#![no_main]

use kvick_cluster::nodes_conf::NodesConf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let tls_bus = bytes.len() % 2 == 1;
    let Ok((conf, _)) = NodesConf::parse(bytes, tls_bus) else { return };
    // Nodes in handshake are not written, and the node itself never is one.
    let Ok(text) = conf.write() else { panic!("what was read can be written") };
    let Ok((again, repairs)) = NodesConf::parse(text.as_bytes(), tls_bus) else { return };
    assert_eq!(repairs, []);
    assert_eq!(again.write(), Ok(text));
});
