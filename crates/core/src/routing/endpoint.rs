//! The addresses of a node, and which of them a client is redirected to.

use kvick_config::words::EndpointType;

/// The addresses that a node announces. An empty text or port 0 means that it announces none.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct NodeAddress {
    /// Its IP address.
    pub ip: String,
    /// Its host name.
    pub hostname: String,
    /// Its port for clients without TLS.
    pub tcp_port: u16,
    /// Its port for clients with TLS.
    pub tls_port: u16,
    /// The address for clients that connect by IPv4, instead of `ip`.
    pub client_ipv4: String,
    /// The address for clients that connect by IPv6, instead of `ip`.
    pub client_ipv6: String,
    /// The port for clients without TLS, instead of `tcp_port`.
    pub client_tcp_port: u16,
    /// The port for clients with TLS, instead of `tls_port`.
    pub client_tls_port: u16,
}

/// What the addresses in a reply depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Viewer {
    /// Whether the client is connected by TLS.
    pub tls: bool,
    /// Whether the client is connected by IPv6.
    pub ipv6: bool,
}

impl NodeAddress {
    /// The IP address for a client.
    pub fn ip_for(&self, viewer: Viewer) -> &str {
        let own = if viewer.ipv6 { &self.client_ipv6 } else { &self.client_ipv4 };
        if own.is_empty() { &self.ip } else { own }
    }

    /// The port for a client.
    pub fn port_for(&self, viewer: Viewer) -> u16 {
        let (own, port) =
            if viewer.tls { (self.client_tls_port, self.tls_port) } else { (self.client_tcp_port, self.tcp_port) };
        if own == 0 { port } else { own }
    }

    /// The host that a client should use, according to `cluster-preferred-endpoint-type`.
    pub fn host_for(&self, viewer: Viewer, preferred: EndpointType) -> &str {
        match preferred {
            EndpointType::Ip => self.ip_for(viewer),
            EndpointType::Hostname if self.hostname.is_empty() => "?",
            EndpointType::Hostname => &self.hostname,
            EndpointType::Unknown => "",
        }
    }
}

/// A node that requests may be redirected to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteNode {
    /// Its ID.
    pub id: [u8; 40],
    /// Its addresses.
    pub address: NodeAddress,
    /// `host:port` for each kind of client.
    endpoints: [Box<str>; 4],
}

impl RouteNode {
    /// A node with prepared endpoints.
    pub fn new(id: [u8; 40], address: NodeAddress, preferred: EndpointType) -> Self {
        let endpoints = [0, 1, 2, 3].map(|index: usize| {
            let viewer = Viewer { tls: index & 1 != 0, ipv6: index & 2 != 0 };
            let (host, port) = (address.host_for(viewer, preferred), address.port_for(viewer));
            format!("{host}:{port}").into_boxed_str()
        });
        RouteNode { id, address, endpoints }
    }

    /// The `host:port` that a client is redirected to.
    pub fn endpoint(&self, viewer: Viewer) -> &str {
        &self.endpoints[usize::from(viewer.tls) | usize::from(viewer.ipv6) << 1]
    }
}
