//! Nodes as pods.
//!
//! Which nodes exist, and to which shards they belong, is kept in a ConfigMap: a node has a record before its pod
//! exists, and until its pod and volume are deleted. A node whose pod is gone gets a new one with the same name, volume
//! and host name. Names are never used again.

use crate::objects::{self, CONTAINER, SHARD_LABEL, TEMPLATE_ANNOTATION};
use crate::spec::KvickCluster;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use kvick_load::transport::TlsSettings;
use kvick_operator::backend::{Backend, Member};
use kvick_operator::observe::Access;
use kvick_planner::ShardId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Owner of the fields that the operator sets.
pub const MANAGER: &str = "kvick-operator";
/// Key of the numbers in the ConfigMap. No pod can have this name.
const NUMBERS: &str = "_numbers";

/// A connection to the API server that waits for each reply.
#[derive(Clone)]
pub struct Connection {
    /// The client.
    pub client: Client,
    /// The runtime, which has a thread of its own.
    pub runtime: Handle,
}

impl Connection {
    /// Waits for a reply.
    ///
    /// # Errors
    /// If the API server does not answer, or refuses.
    pub fn wait<T>(&self, reply: impl Future<Output = kube::Result<T>>) -> io::Result<T> {
        self.runtime.block_on(reply).map_err(io::Error::other)
    }
}

/// What is known of a node without its pod.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    shard: u32,
    is_leaving: bool,
}

/// The highest numbers that were used.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Numbers {
    shards: u32,
    nodes: u32,
}

/// See the module's documentation.
pub struct Pods {
    connection: Connection,
    cluster: Arc<KvickCluster>,
    /// The ConfigMap as it was read or written last.
    stored: ConfigMap,
    numbers: Numbers,
    records: BTreeMap<String, Record>,
    pods: BTreeMap<String, Pod>,
}

impl Pods {
    /// Of a cluster that has been read.
    pub fn new(connection: Connection, cluster: Arc<KvickCluster>) -> Pods {
        let (stored, numbers) = (ConfigMap::default(), Numbers::default());
        Pods { connection, cluster, stored, numbers, records: BTreeMap::new(), pods: BTreeMap::new() }
    }

    /// The cluster as it was read again.
    pub fn set_cluster(&mut self, cluster: Arc<KvickCluster>) {
        self.cluster = cluster;
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.connection.client.clone(), &self.cluster.namespace().unwrap_or_default())
    }

    /// Creates or corrects an object.
    fn apply<K>(&self, object: &K) -> io::Result<()>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize,
        K::DynamicType: Default,
    {
        let parameters = PatchParams::apply(MANAGER).force();
        let api = self.api::<K>();
        self.connection.wait(api.patch(&object.name_any(), &parameters, &Patch::Apply(object))).map(drop)
    }

    /// The password of the cluster.
    ///
    /// # Errors
    /// If there should be one and the secret does not have it.
    pub fn password(&self) -> io::Result<Option<String>> {
        let Some(name) = &self.cluster.spec.password_secret else { return Ok(None) };
        let secret = self.connection.wait(self.api::<Secret>().get(name))?;
        let password = secret.data.and_then(|mut data| data.remove("password"));
        let password = password.ok_or_else(|| io::Error::other(format!("secret {name} has no key password")))?;
        let password = String::from_utf8(password.0).map_err(io::Error::other)?;
        if password.is_empty() || password.contains(|letter: char| letter.is_control()) {
            return Err(io::Error::other(format!("the password of secret {name} is empty or has control characters")));
        }
        Ok(Some(password))
    }

    /// How the operator gets in.
    ///
    /// # Errors
    /// If a secret is missing, or lacks something.
    pub fn access(&self) -> io::Result<Access> {
        let password = self.password()?;
        let Some(name) = &self.cluster.spec.tls_secret else { return Ok(Access { password, tls: None }) };
        let data = self.connection.wait(self.api::<Secret>().get(name))?.data.unwrap_or_default();
        let part = |key: &str| {
            let part = data.get(key).map(|part| &part.0[..]);
            part.ok_or_else(|| io::Error::other(format!("secret {name} has no key {key}")))
        };
        let tls = TlsSettings::from_pem(part("ca.crt")?, Some((part("tls.crt")?, part("tls.key")?)));
        let tls = tls.map_err(|error| io::Error::other(format!("secret {name}: {error}")))?;
        Ok(Access { password, tls: Some(tls) })
    }

    /// Creates or corrects all objects but pods.
    ///
    /// # Errors
    /// If the API server does not answer, or refuses.
    pub fn apply_all(&self, password: Option<&str>) -> io::Result<()> {
        for service in objects::services(&self.cluster) {
            self.apply(&service)?;
        }
        if !self.cluster.spec.endpoint {
            self.delete::<Service>(&objects::endpoint_name(&self.cluster.name_any()), None)?;
        }
        self.apply(&objects::config_secret(&self.cluster, password))?;
        match objects::disruption_budget(&self.cluster) {
            Some(budget) => self.apply(&budget),
            None => self.delete::<PodDisruptionBudget>(&self.cluster.name_any(), None),
        }
    }

    /// Deletes an object, if it exists.
    fn delete<K>(&self, name: &str, uid: Option<String>) -> io::Result<()>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), ..Preconditions::default() });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        match self.connection.runtime.block_on(self.api::<K>().delete(name, &parameters)) {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Creates an object, unless it exists.
    fn create<K>(&self, object: &K) -> io::Result<()>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize,
        K::DynamicType: Default,
    {
        let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        match self.connection.runtime.block_on(self.api::<K>().create(&parameters, object)) {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Fails if an object belongs to a deleted cluster of the same name. It will be deleted soon.
    fn check_owner(&self, object: &impl ResourceExt) -> io::Result<()> {
        let own = self.cluster.uid();
        let is_own = |owner: &OwnerReference| Some(&owner.uid) == own.as_ref();
        if object.owner_references().iter().any(is_own) {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{} does not belong to this cluster; waiting until it is gone",
            object.name_any()
        )))
    }

    /// Reads the records, or creates the ConfigMap for them.
    fn load(&mut self) -> io::Result<()> {
        let api = self.api::<ConfigMap>();
        let name = objects::nodes_name(&self.cluster.name_any());
        self.stored = match self.connection.wait(api.get_opt(&name))? {
            Some(stored) => stored,
            None => self.connection.wait(api.create(&PostParams::default(), &objects::records(&self.cluster)))?,
        };
        self.check_owner(&self.stored)?;
        self.numbers = Numbers::default();
        self.records.clear();
        for (name, text) in self.stored.data.iter().flatten() {
            if name == NUMBERS {
                self.numbers = serde_json::from_str(text)?;
            } else {
                self.records.insert(name.clone(), serde_json::from_str(text)?);
            }
        }
        Ok(())
    }

    /// Writes the records. Fails if somebody else has changed them.
    fn save(&mut self) -> io::Result<()> {
        let mut data = BTreeMap::from([(NUMBERS.to_owned(), serde_json::to_string(&self.numbers)?)]);
        for (name, record) in &self.records {
            data.insert(name.clone(), serde_json::to_string(record)?);
        }
        let next = ConfigMap { data: Some(data), ..self.stored.clone() };
        let api = self.api::<ConfigMap>();
        self.stored = self.connection.wait(api.replace(&next.name_any(), &PostParams::default(), &next))?;
        Ok(())
    }

    /// Adds records of pods that have none, in case that the ConfigMap was deleted.
    fn adopt(&mut self) -> io::Result<()> {
        let mut is_changed = false;
        for (name, pod) in &self.pods {
            let shard = pod.labels().get(SHARD_LABEL).and_then(|shard| shard.parse().ok());
            let number: Option<u32> = name.rsplit('-').next().and_then(|number| number.parse().ok());
            let (Some(shard), Some(number)) = (shard, number) else { continue };
            if self.records.contains_key(name) || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            self.records.insert(name.clone(), Record { shard, is_leaving: false });
            self.numbers.shards = self.numbers.shards.max(shard);
            self.numbers.nodes = self.numbers.nodes.max(number);
            is_changed = true;
        }
        if is_changed { self.save() } else { Ok(()) }
    }

    fn start_pod(&self, name: &str, shard: u32) -> io::Result<()> {
        if let Some(claim) = objects::claim(&self.cluster, name) {
            self.create(&claim)?;
        }
        self.create(&objects::pod(&self.cluster, name, shard))
    }

    fn member(&self, name: &str, record: &Record) -> Member {
        let spec = &self.cluster.spec;
        let member = Member {
            name: name.to_owned(),
            shard: ShardId(record.shard),
            port: spec.port,
            bus_port: spec.bus_port(),
            hostname: objects::hostname(&self.cluster, name),
            is_leaving: record.is_leaving,
            ..Member::default()
        };
        let Some(pod) = self.pods.get(name) else { return member };
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
        let has_ended = ["Failed", "Succeeded"].contains(&phase);
        let container = status.and_then(|status| {
            status.container_statuses.as_ref()?.iter().find(|container| container.name == CONTAINER)
        });
        let has_crashed = container.is_some_and(|container| {
            let state = container.state.as_ref();
            let is_running = state.is_some_and(|state| state.running.is_some());
            let has_ended = state.is_some_and(|state| state.terminated.is_some());
            has_ended || (container.restart_count > 0 && !is_running)
        });
        let template = objects::pod(&self.cluster, name, record.shard).annotations()[TEMPLATE_ANNOTATION].clone();
        Member {
            host: status.and_then(|status| status.pod_ip.clone()).unwrap_or_default(),
            is_running: !has_ended && !has_crashed,
            restarts_itself: !has_ended,
            restarts_empty: spec.persistence.is_none(),
            is_ending: pod.metadata.deletion_timestamp.is_some(),
            is_outdated: pod.annotations().get(TEMPLATE_ANNOTATION) != Some(&template),
            ..member
        }
    }
}

impl Backend for Pods {
    fn list(&mut self) -> io::Result<Vec<Member>> {
        self.load()?;
        let selected = ListParams::default().labels(&objects::selector(&self.cluster.name_any()));
        let pods = self.connection.wait(self.api::<Pod>().list(&selected))?;
        for pod in &pods.items {
            self.check_owner(pod)?;
        }
        self.pods = pods.items.into_iter().map(|pod| (pod.name_any(), pod)).collect();
        self.adopt()?;
        let mut members: Vec<Member> = self.records.iter().map(|(name, record)| self.member(name, record)).collect();
        // `c-10` follows `c-9`.
        members.sort_by_key(|member| (member.name.len(), member.name.clone()));
        Ok(members)
    }

    fn new_shard(&mut self) -> io::Result<ShardId> {
        self.numbers.shards += 1;
        self.save()?;
        Ok(ShardId(self.numbers.shards))
    }

    fn start(&mut self, shard: ShardId) -> io::Result<Member> {
        self.numbers.nodes += 1;
        let name = format!("{}-{}", self.cluster.name_any(), self.numbers.nodes);
        let record = Record { shard: shard.0, is_leaving: false };
        self.records.insert(name.clone(), record.clone());
        self.save()?;
        self.start_pod(&name, shard.0)?;
        Ok(self.member(&name, &record))
    }

    fn restart(&mut self, name: &str) -> io::Result<()> {
        let record = self.records.get(name).cloned();
        let record = record.ok_or_else(|| io::Error::other(format!("{name} has no record")))?;
        match self.pods.get(name) {
            // A pod that has ended is in the way of its successor.
            Some(pod) => self.delete::<Pod>(name, pod.uid()),
            None => self.start_pod(name, record.shard),
        }
    }

    fn replace(&mut self, name: &str) -> io::Result<()> {
        let Some(pod) = self.pods.get(name) else { return Ok(()) };
        self.delete::<Pod>(name, pod.uid())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        if let Some(pod) = self.pods.get(name) {
            self.delete::<Pod>(name, pod.uid())?;
        }
        self.delete::<PersistentVolumeClaim>(name, None)?;
        self.records.remove(name);
        self.save()
    }

    fn set_leaving(&mut self, shard: ShardId, is_leaving: bool) -> io::Result<()> {
        for record in self.records.values_mut().filter(|record| record.shard == shard.0) {
            record.is_leaving = is_leaving;
        }
        self.save()
    }
}
