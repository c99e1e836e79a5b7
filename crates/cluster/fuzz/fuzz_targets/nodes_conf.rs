//! Any bytes as the content of nodes.conf are read or refused, and what was read can be written and read again without
//! repairs.

#![no_main]

use kvick_cluster::NodeFlags;
use kvick_cluster::nodes_conf::NodesConf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let tls_bus = bytes.len() % 2 == 1;
    let Ok((conf, _)) = NodesConf::parse(bytes, tls_bus) else { return };
    let text = conf.write().expect("what was read can be written");
    if conf.nodes.iter().any(|node| node.flags.contains(NodeFlags::HANDSHAKE)) {
        // These are not written, but others may refer to them.
        return;
    }
    let (again, repairs) = NodesConf::parse(text.as_bytes(), tls_bus).expect("what was written can be read");
    assert_eq!(repairs, []);
    assert_eq!(again.write(), Ok(text));
});
