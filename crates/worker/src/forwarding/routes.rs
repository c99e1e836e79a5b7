//! The addresses of the nodes, from the current slot map.

use kvick_config::tables::network::PORT;
use kvick_config::tables::tls::{TLS_CLUSTER, TLS_PORT};
use kvick_core::routing::{NO_NODE, NodeIndex, RouteNode, SlotMap, Viewer};
use kvick_engine::services::Services;
use kvick_forward::Target;
use kvick_store::slot::SLOTS;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// See the module's documentation.
#[derive(Default)]
pub struct Routes {
    map: Option<Arc<SlotMap>>,
    /// The generation of the map.
    pub generation: u64,
    /// The address of each node of the map.
    addresses: Vec<Option<SocketAddr>>,
    /// The nodes that own slots, in the order of their first slots, which a failover does not change.
    owners: Vec<NodeIndex>,
    /// Whether nodes are reached by TLS.
    pub tls: bool,
}

impl Routes {
    /// Reads the current map, if it has changed.
    #[inline]
    pub fn update(&mut self, server: &Services) {
        let Some(routing) = &server.routing else { return };
        if self.map.is_none() || self.generation != routing.generation() {
            self.read(server);
        }
    }

    #[cold]
    fn read(&mut self, server: &Services) {
        let Some(routing) = &server.routing else { return };
        self.generation = routing.generation();
        let map = routing.current();
        self.tls = server.config.read(TLS_CLUSTER);
        let own_port = if self.tls { server.config.read(TLS_PORT) } else { server.config.read(PORT) };
        let address = |(index, node): (usize, &RouteNode)| {
            let is_myself = index == usize::from(map.myself);
            let port = if self.tls { node.address.tls_port } else { node.address.tcp_port };
            match node.address.ip.parse::<IpAddr>() {
                Ok(ip) if port != 0 => Some(SocketAddr::new(ip, port)),
                _ if is_myself => Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), own_port)),
                _ => None,
            }
        };
        self.addresses = map.nodes.iter().enumerate().map(address).collect();
        self.owners.clear();
        for slot in 0..SLOTS {
            let owner = map.owner(slot);
            if owner != NO_NODE && !self.owners.contains(&owner) {
                self.owners.push(owner);
            }
        }
        self.map = Some(map);
    }

    /// The address of the node that owns a slot.
    #[inline]
    pub fn owner(&self, slot: u16) -> Option<SocketAddr> {
        let map = self.map.as_ref()?;
        self.addresses.get(usize::from(map.owner(slot))).copied().flatten()
    }

    /// The addresses of the healthy replicas of the node that owns a slot.
    pub fn replicas(&self, slot: u16) -> Vec<SocketAddr> {
        let Some(map) = &self.map else { return Vec::new() };
        let replicas = map.replicas.get(&map.owner(slot)).into_iter().flatten();
        replicas.filter_map(|node| self.addresses.get(usize::from(*node)).copied().flatten()).collect()
    }

    /// Whether this node's shard owns a slot.
    pub fn is_mine(&self, slot: u16) -> bool {
        self.map.as_ref().is_some_and(|map| map.is_mine(slot))
    }

    /// Whether this is the address of this node.
    pub fn is_myself(&self, address: SocketAddr) -> bool {
        self.myself() == Some(address)
    }

    /// The address of this node.
    pub fn myself(&self) -> Option<SocketAddr> {
        let map = self.map.as_ref()?;
        self.addresses.get(usize::from(map.myself)).copied().flatten()
    }

    /// The addresses of the nodes that own slots. `None` if one of them is not known.
    pub fn owners(&self) -> Option<Vec<SocketAddr>> {
        self.owners.iter().map(|owner| self.addresses.get(usize::from(*owner)).copied().flatten()).collect()
    }

    /// The node that continues a scan at a cursor, whose slot it owns, and the cursor behind the end of its keys: the
    /// first slot of the next node, or 0. A cursor has its slot in the low bits, on nodes of Valkey too.
    pub fn scanned(&self, cursor: u64) -> Option<(SocketAddr, u64)> {
        let map = self.map.as_ref()?;
        let owner = map.owner((cursor % u64::from(SLOTS)) as u16);
        let at = if cursor == 0 { 0 } else { self.owners.iter().position(|known| *known == owner)? };
        let address = self.addresses.get(usize::from(*self.owners.get(at)?)).copied().flatten()?;
        let next = self.owners.get(at + 1).and_then(|next| (0..SLOTS).find(|slot| map.owner(*slot) == *next));
        Some((address, next.unwrap_or(0).into()))
    }

    /// Whether a node with this address owns slots.
    pub fn has_owner(&self, address: SocketAddr) -> bool {
        self.owners.iter().any(|owner| self.addresses.get(usize::from(*owner)) == Some(&Some(address)))
    }

    /// The address of the known node that a redirection names. No other address is ever connected to: a script may
    /// reply with an error that looks like a redirection. `from` is the node that sent it.
    pub fn find(&self, target: &Target, from: SocketAddr) -> Option<SocketAddr> {
        let map = self.map.as_ref()?;
        let names = |(node, address): &(&RouteNode, &Option<SocketAddr>)| {
            let is_there = |address: SocketAddr| match target.host.parse::<IpAddr>() {
                Ok(ip) => ip == address.ip(),
                Err(_) => target.host.is_empty() && address.ip() == from.ip(),
            };
            let endpoint = format!("{}:{}", target.host, target.port);
            let announced = || [false, true].map(|ipv6| node.endpoint(Viewer { tls: self.tls, ipv6 }) == endpoint);
            address.is_some_and(|address| address.port() == target.port && is_there(address))
                || announced().contains(&true)
        };
        map.nodes.iter().zip(&self.addresses).find(names).and_then(|(_, address)| *address)
    }
}
