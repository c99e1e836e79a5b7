//! Nodes as pods.
//!
//! Which nodes exist, and to which shards they belong, is kept in a ConfigMap: a node has a record before its pod
//! exists, and until its pod and volume are deleted. A node whose pod is gone gets a new one with the same name, volume
//! and host name. Names are never used again.
//!
//! Pods are known from a watch, which may lag behind. What this operator has created or deleted itself is remembered
//! until the watch shows it; otherwise a pod that is being replaced could look untouched when the next one is due.

use crate::acl::{self, PASSWORD_KEY, USERNAME_KEY};
use crate::backup;
use crate::objects::{self, CONTAINER, SHARD_LABEL, TEMPLATE_ANNOTATION};
use crate::spec::KvickCluster;
use crate::watch::Watched;
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
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
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Owner of the fields that the operator sets.
pub const MANAGER: &str = "kvick-operator";
/// Time after which the ConfigMap is read again, in case another program has changed it.
const LOAD_EVERY: Duration = Duration::from_secs(15);
/// Time for which a pod that was created is believed to exist if the watch does not show it.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
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
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    shard: u32,
    is_leaving: bool,
    #[serde(default)]
    is_spare: bool,
}

/// The highest numbers that were used.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Numbers {
    shards: u32,
    nodes: u32,
}

/// What was done to pods, and may not have been seen yet.
#[derive(Default)]
struct Pending {
    created: BTreeMap<String, (Arc<Pod>, Instant)>,
    /// UIDs of pods that were told to end.
    deleted: BTreeMap<String, String>,
}

impl Pending {
    /// The pods that exist: those that the watch shows, and those that were created since.
    fn apply(&mut self, seen: Vec<Arc<Pod>>) -> BTreeMap<String, Arc<Pod>> {
        let mut pods: BTreeMap<String, Arc<Pod>> = seen.into_iter().map(|pod| (pod.name_any(), pod)).collect();
        self.created.retain(|name, (_, at)| !pods.contains_key(name) && at.elapsed() < SEEN_WITHIN);
        pods.extend(self.created.iter().map(|(name, (pod, _))| (name.clone(), Arc::clone(pod))));
        self.deleted.retain(|name, uid| pods.get(name).is_some_and(|pod| pod.metadata.uid.as_ref() == Some(uid)));
        pods
    }

    fn is_deleted(&self, pod: &Pod) -> bool {
        self.deleted.get(&pod.name_any()).is_some_and(|uid| pod.metadata.uid.as_ref() == Some(uid))
    }
}

/// See the module's documentation.
pub struct Pods {
    connection: Connection,
    watched: Watched,
    cluster: Arc<KvickCluster>,
    /// The ConfigMap as it was read or written last, and when it was read.
    stored: ConfigMap,
    loaded_at: Option<Instant>,
    numbers: Numbers,
    records: BTreeMap<String, Record>,
    pods: BTreeMap<String, Arc<Pod>>,
    pending: Pending,
}

impl Pods {
    /// Of a cluster that has been read.
    pub fn new(connection: Connection, watched: Watched, cluster: Arc<KvickCluster>) -> Pods {
        Pods {
            connection,
            watched,
            cluster,
            stored: ConfigMap::default(),
            loaded_at: None,
            numbers: Numbers::default(),
            records: BTreeMap::new(),
            pods: BTreeMap::new(),
            pending: Pending::default(),
        }
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

    /// A key of a secret, if it has it.
    fn secret_key(&self, secret: &str, key: &str) -> io::Result<Option<String>> {
        let data = self.connection.wait(self.api::<Secret>().get(secret))?.data;
        let value = data.and_then(|mut data| data.remove(key));
        value.map(|value| String::from_utf8(value.0).map_err(io::Error::other)).transpose()
    }

    /// A key of the secret of the password, which must not be empty.
    fn login_key(&self, secret: &str, key: &str) -> io::Result<Option<String>> {
        let value = self.secret_key(secret, key)?;
        if value.as_ref().is_some_and(|value| value.is_empty() || value.contains(|letter: char| letter.is_control())) {
            return Err(io::Error::other(format!("the {key} of secret {secret} is empty or has control characters")));
        }
        Ok(value)
    }

    /// How the operator gets in.
    ///
    /// # Errors
    /// If a secret is missing, or lacks something.
    pub fn access(&self) -> io::Result<Access> {
        let mut access = Access::default();
        if let Some(secret) = &self.cluster.spec.password_secret {
            let password = self.login_key(secret, PASSWORD_KEY)?;
            let lacks = || io::Error::other(format!("secret {secret} has no key {PASSWORD_KEY}"));
            access.password = Some(password.ok_or_else(lacks)?);
            if self.cluster.spec.acl_secret.is_some() {
                let username = self.login_key(secret, USERNAME_KEY)?;
                access.username = Some(username.unwrap_or_else(|| acl::DEFAULT_USER.to_owned()));
            }
        }
        let Some(name) = &self.cluster.spec.tls_secret else { return Ok(access) };
        let data = self.connection.wait(self.api::<Secret>().get(name))?.data.unwrap_or_default();
        let part = |key: &str| {
            let part = data.get(key).map(|part| &part.0[..]);
            part.ok_or_else(|| io::Error::other(format!("secret {name} has no key {key}")))
        };
        let tls = TlsSettings::from_pem(part("ca.crt")?, Some((part("tls.crt")?, part("tls.key")?)));
        access.tls = Some(tls.map_err(|error| io::Error::other(format!("secret {name}: {error}")))?);
        Ok(access)
    }

    /// Creates or corrects all objects but pods.
    ///
    /// # Errors
    /// If the API server does not answer, or refuses.
    pub fn apply_all(&self, access: &Access) -> io::Result<()> {
        for service in objects::services(&self.cluster) {
            self.apply(&service)?;
        }
        if !self.cluster.spec.endpoint {
            self.delete::<Service>(&objects::endpoint_name(&self.cluster.name_any()), None)?;
        }
        let (username, password) = (access.username.as_deref(), access.password.as_deref());
        self.apply(&objects::config_secret(&self.cluster, username, password))?;
        match backup::cron_job(&self.cluster) {
            Some(job) => self.apply(&job)?,
            None => self.delete::<CronJob>(&backup::name(&self.cluster.name_any()), None)?,
        }
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

    /// Creates an object, unless it exists. Returns what was created.
    fn create<K>(&self, object: &K) -> io::Result<Option<K>>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize,
        K::DynamicType: Default,
    {
        let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        match self.connection.runtime.block_on(self.api::<K>().create(&parameters, object)) {
            Ok(created) => Ok(Some(created)),
            Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(None),
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
        if self.loaded_at.is_some_and(|at| at.elapsed() < LOAD_EVERY) {
            return Ok(());
        }
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
        self.loaded_at = Some(Instant::now());
        Ok(())
    }

    /// Writes the records. Fails if another program has changed them; then they are read again.
    fn save(&mut self) -> io::Result<()> {
        let mut data = BTreeMap::from([(NUMBERS.to_owned(), serde_json::to_string(&self.numbers)?)]);
        for (name, record) in &self.records {
            data.insert(name.clone(), serde_json::to_string(record)?);
        }
        let next = ConfigMap { data: Some(data), ..self.stored.clone() };
        let api = self.api::<ConfigMap>();
        let loaded_at = self.loaded_at.take();
        self.stored = self.connection.wait(api.replace(&next.name_any(), &PostParams::default(), &next))?;
        self.loaded_at = loaded_at;
        Ok(())
    }

    /// Adds records of pods that have none, in case that the ConfigMap was deleted.
    fn adopt(&mut self) -> io::Result<()> {
        let mut is_changed = false;
        for (name, pod) in &self.pods {
            let shard = pod.labels().get(SHARD_LABEL).and_then(|shard| shard.parse().ok());
            let number: Option<u32> = name.rsplit('-').next().and_then(|number| number.parse().ok());
            let (Some(shard), Some(number)) = (shard, number) else { continue };
            let is_ending = pod.metadata.deletion_timestamp.is_some() || self.pending.is_deleted(pod);
            if self.records.contains_key(name) || is_ending {
                continue;
            }
            self.records.insert(name.clone(), Record { shard, ..Record::default() });
            self.numbers.shards = self.numbers.shards.max(shard);
            self.numbers.nodes = self.numbers.nodes.max(number);
            is_changed = true;
        }
        if is_changed { self.save() } else { Ok(()) }
    }

    fn start_pod(&mut self, name: &str, shard: u32) -> io::Result<()> {
        if let Some(claim) = objects::claim(&self.cluster, name) {
            self.create(&claim)?;
        }
        if let Some(pod) = self.create(&objects::pod(&self.cluster, name, shard))? {
            self.pending.created.insert(name.to_owned(), (Arc::new(pod), Instant::now()));
        }
        Ok(())
    }

    /// Deletes a pod, if it still is this one.
    fn delete_pod(&mut self, pod: &Pod) -> io::Result<()> {
        let (name, uid) = (pod.name_any(), pod.uid());
        self.delete::<Pod>(&name, uid.clone())?;
        self.pending.created.remove(&name);
        self.pending.deleted.extend(uid.map(|uid| (name, uid)));
        Ok(())
    }

    /// Starts a new node.
    fn start_with(&mut self, shard: ShardId, is_spare: bool) -> io::Result<Member> {
        self.numbers.nodes += 1;
        let name = format!("{}-{}", self.cluster.name_any(), self.numbers.nodes);
        let record = Record { shard: shard.0, is_spare, ..Record::default() };
        self.records.insert(name.clone(), record.clone());
        self.save()?;
        self.start_pod(&name, shard.0)?;
        Ok(self.member(&name, &record))
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
            is_spare: record.is_spare,
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
        let machine = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let template = objects::pod(&self.cluster, name, record.shard).annotations()[TEMPLATE_ANNOTATION].clone();
        Member {
            host: status.and_then(|status| status.pod_ip.clone()).unwrap_or_default(),
            is_running: !has_ended && !has_crashed,
            restarts_itself: !has_ended,
            restarts_empty: spec.persistence.is_none(),
            is_ending: pod.metadata.deletion_timestamp.is_some() || self.pending.is_deleted(pod),
            is_lost: machine.is_some_and(|machine| self.watched.is_lost(machine)),
            is_outdated: pod.annotations().get(TEMPLATE_ANNOTATION) != Some(&template),
            ..member
        }
    }
}

impl Backend for Pods {
    fn list(&mut self) -> io::Result<Vec<Member>> {
        self.load()?;
        let pods = self.watched.pods_of(&self.cluster.name_any());
        for pod in &pods {
            self.check_owner(&**pod)?;
        }
        self.pods = self.pending.apply(pods);
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
        self.start_with(shard, false)
    }

    fn start_spare(&mut self) -> io::Result<Member> {
        let shard = self.new_shard()?;
        self.start_with(shard, true)
    }

    fn use_spare(&mut self, name: &str) -> io::Result<()> {
        let record = self.records.get_mut(name);
        record.ok_or_else(|| io::Error::other(format!("{name} has no record")))?.is_spare = false;
        self.save()
    }

    fn restart(&mut self, name: &str) -> io::Result<()> {
        let record = self.records.get(name).cloned();
        let record = record.ok_or_else(|| io::Error::other(format!("{name} has no record")))?;
        match self.pods.get(name).cloned() {
            // A pod that has ended is in the way of its successor.
            Some(pod) => self.delete_pod(&pod),
            None => self.start_pod(name, record.shard),
        }
    }

    fn replace(&mut self, name: &str) -> io::Result<()> {
        let Some(pod) = self.pods.get(name).cloned() else { return Ok(()) };
        self.delete_pod(&pod)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        if let Some(pod) = self.pods.get(name).cloned() {
            self.delete_pod(&pod)?;
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

impl acl::Source for Pods {
    fn author_file(&self) -> io::Result<String> {
        let secret = self.cluster.spec.acl_secret.as_deref().unwrap_or_default();
        let file = self.secret_key(secret, acl::FILE)?;
        file.ok_or_else(|| io::Error::other(format!("secret {secret} has no key {}", acl::FILE)))
    }

    fn login(&self) -> io::Result<Access> {
        self.access()
    }

    fn own_secret(&self) -> io::Result<Option<Secret>> {
        self.connection.wait(self.api::<Secret>().get_opt(&acl::secret_name(&self.cluster.name_any())))
    }

    fn write_own_secret(&self, text: &str) -> io::Result<()> {
        self.apply(&acl::secret(&self.cluster, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::cluster;

    fn pod(name: &str, uid: &str) -> Arc<Pod> {
        let mut pod = objects::pod(&cluster(), name, 1);
        pod.metadata.uid = Some(uid.to_owned());
        Arc::new(pod)
    }

    #[test]
    fn own_changes_count_before_the_watch_shows_them() {
        let mut pending = Pending::default();
        pending.deleted.insert("c-1".into(), "a".into());
        pending.created.insert("c-2".into(), (pod("c-2", "b"), Instant::now()));
        let pods = pending.apply(vec![pod("c-1", "a")]);
        assert_eq!(pods.keys().collect::<Vec<_>>(), ["c-1", "c-2"]);
        assert!(pending.is_deleted(&pods["c-1"]) && !pending.is_deleted(&pods["c-2"]));
        // The successor is another pod, and one that the watch has shown may disappear.
        let pods = pending.apply(vec![pod("c-1", "c"), pod("c-2", "b")]);
        assert!(!pending.is_deleted(&pods["c-1"]));
        assert_eq!(pending.apply(vec![]).len(), 0);
    }
}
