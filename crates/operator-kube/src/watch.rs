//! Objects of Kubernetes as the API server reports their changes: clusters, their pods, and machines.
//!
//! A watch lags behind the operator's own writes for a moment. [`crate::pods`] remembers these until they are seen.
//!
//! Only what a step depends on wakes the loop of a cluster. The status that it writes itself must not: steps would
//! follow each other closely, and the load of so short times is noise that the planner would act on.

use crate::objects::CLUSTER_LABEL;
use crate::pods::Connection;
use crate::spec::KvickCluster;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ContainerState, Node, Pod};
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::error::Error;
use std::fmt::Debug;
use std::hash::Hash;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time after which a watch is renewed. A connection that broke silently is noticed then.
const RENEW_S: u32 = 60;

/// Numbers that grow with each change of a cluster or its pods.
#[derive(Default)]
pub struct Changes {
    counts: Mutex<HashMap<String, u64>>,
    grown: Condvar,
}

impl Changes {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, cluster: &str) {
        *self.lock().entry(cluster.to_owned()).or_default() += 1;
        self.grown.notify_all();
    }

    /// Waits until the number of a cluster is another one, but not longer than this. Returns the number.
    pub fn wait(&self, cluster: &str, seen: u64, limit: Duration) -> u64 {
        let count = |counts: &HashMap<String, u64>| counts.get(cluster).copied().unwrap_or(0);
        let unchanged = |counts: &mut HashMap<String, u64>| count(counts) == seen;
        let waited = self.grown.wait_timeout_while(self.lock(), limit, unchanged);
        count(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// What the API server has reported so far. Clones are the same.
#[derive(Clone)]
pub struct Watched {
    clusters: Store<KvickCluster>,
    pods: Store<Pod>,
    machines: Store<Node>,
    /// See [`Changes`].
    pub changes: Arc<Changes>,
}

impl Watched {
    /// Watches the objects of a namespace, with a client that lets requests take as long as they want. Returns when
    /// all objects are known.
    ///
    /// # Errors
    /// If the runtime has ended.
    pub fn start(connection: &Connection, client: &Client, namespace: &str) -> io::Result<Watched> {
        let changes = Arc::new(Changes::default());
        let noted = Arc::clone(&changes);
        let config = watcher::Config::default().timeout(RENEW_S);
        let clusters = watch(
            connection,
            Api::<KvickCluster>::namespaced(client.clone(), namespace),
            config.clone(),
            |cluster| cluster.managed_fields_mut().clear(),
            |cluster| {
                let metadata = &cluster.metadata;
                format!("{:?} {:?} {}", metadata.uid, metadata.generation, metadata.deletion_timestamp.is_some())
            },
            move |cluster: &KvickCluster| noted.note(&cluster.name_any()),
        );
        let noted = Arc::clone(&changes);
        let pods = watch(
            connection,
            Api::<Pod>::namespaced(client.clone(), namespace),
            config.clone().labels(CLUSTER_LABEL),
            |pod| pod.managed_fields_mut().clear(),
            pod_signature,
            move |pod: &Pod| pod.labels().get(CLUSTER_LABEL).into_iter().for_each(|cluster| noted.note(cluster)),
        );
        let machines = watch(connection, Api::<Node>::all(client.clone()), config, slim, |_| String::new(), |_| ());
        connection.runtime.block_on(async {
            clusters.wait_until_ready().await.map_err(io::Error::other)?;
            pods.wait_until_ready().await.map_err(io::Error::other)
        })?;
        Ok(Watched { clusters, pods, machines, changes })
    }

    /// All clusters.
    pub fn clusters(&self) -> Vec<Arc<KvickCluster>> {
        self.clusters.state()
    }

    /// A cluster.
    pub fn cluster(&self, namespace: &str, name: &str) -> Option<Arc<KvickCluster>> {
        self.clusters.get(&ObjectRef::new(name).within(namespace))
    }

    /// The pods of a cluster.
    pub fn pods_of(&self, cluster: &str) -> Vec<Arc<Pod>> {
        self.pods.state_filter(|pod| pod.labels().get(CLUSTER_LABEL).is_some_and(|label| label == cluster))
    }

    /// Whether a machine has not been heard of for so long that Kubernetes does not count on it. False if the operator
    /// may not know.
    pub fn is_lost(&self, machine: &str) -> bool {
        self.machines.get(&ObjectRef::new(machine)).is_some_and(|machine| !is_ready(&machine))
    }
}

fn is_ready(machine: &Node) -> bool {
    let conditions = machine.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    // A new machine has not said anything yet.
    ready.is_none_or(|ready| ready.status == "True")
}

/// What a step depends on of a pod.
fn pod_signature(pod: &Pod) -> String {
    let is_ending = pod.metadata.deletion_timestamp.is_some();
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    let runs = |state: &ContainerState| (state.running.is_some(), state.terminated.is_some());
    let containers: Vec<_> =
        containers.map(|container| (container.restart_count, container.state.as_ref().map(runs))).collect();
    let (phase, ip) = status.map(|status| (&status.phase, &status.pod_ip)).unzip();
    format!("{:?} {is_ending} {phase:?} {ip:?} {containers:?}", pod.metadata.uid)
}

/// Drops what the operator does not need, which is most of it.
fn slim(machine: &mut Node) {
    machine.managed_fields_mut().clear();
    machine.metadata.annotations = None;
    machine.spec = None;
    if let Some(status) = &mut machine.status {
        let conditions = status.conditions.take();
        *status = Default::default();
        status.conditions = conditions;
    }
}

/// Keeps a store up to date with a task of the runtime. `note` is called with each object whose signature changes, and
/// that is deleted.
fn watch<K>(
    connection: &Connection,
    api: Api<K>,
    config: watcher::Config,
    slim: fn(&mut K),
    signature: fn(&K) -> String,
    note: impl Fn(&K) + Send + 'static,
) -> Store<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Clone + Debug + Default + Eq + Hash + Send + Sync,
{
    let (store, writer) = reflector::store();
    connection.runtime.spawn(async move {
        let events = watcher(api, config).default_backoff().modify(slim);
        let mut events = std::pin::pin!(reflector::reflector(writer, events));
        let mut has_failed = false;
        let mut signatures: HashMap<String, String> = HashMap::new();
        while let Some(event) = events.next().await {
            // Of errors in a row, the first one is enough.
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    let now = signature(&object);
                    if signatures.insert(object.name_any(), now.clone()) != Some(now) {
                        note(&object);
                    }
                }
                Ok(Event::Delete(object)) => {
                    signatures.remove(&object.name_any());
                    note(&object);
                }
                // An attempt to list the objects, which may fail.
                Ok(Event::Init) => continue,
                Ok(Event::InitDone) => {}
                Err(error) => {
                    if !has_failed {
                        let cause = root_cause(&error);
                        eprintln!("cannot watch {}: {error}: {cause}", K::plural(&K::DynamicType::default()));
                    }
                    has_failed = true;
                    continue;
                }
            }
            has_failed = false;
        }
    });
    store
}

/// The innermost error, which the texts of the outer ones leave out.
fn root_cause<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_change_ends_the_wait_for_its_cluster_only() {
        let changes = Changes::default();
        changes.note("a");
        assert_eq!(changes.wait("a", 0, Duration::from_secs(60)), 1);
        assert_eq!(changes.wait("b", 0, Duration::from_millis(1)), 0);
        assert_eq!(changes.wait("a", 1, Duration::from_millis(1)), 1);
    }

    #[test]
    fn a_pod_wakes_a_step_when_it_starts_moves_or_ends_but_not_when_it_is_ready() {
        let pod = |ip: &str, ready: bool, state: &str| -> Pod {
            let container = json!({ "name": "kvick", "image": "", "imageID": "", "ready": ready, "restartCount": 0,
                "state": { state: { "exitCode": 1 } } });
            let conditions = json!([{ "type": "Ready", "status": if ready { "True" } else { "False" } }]);
            let status = json!({ "podIP": ip, "conditions": conditions, "containerStatuses": [container] });
            serde_json::from_value(json!({ "status": status })).expect("a pod")
        };
        let before = pod_signature(&pod("10.0.0.1", false, "running"));
        assert_eq!(before, pod_signature(&pod("10.0.0.1", true, "running")));
        assert_ne!(before, pod_signature(&pod("10.0.0.2", false, "running")));
        assert_ne!(before, pod_signature(&pod("10.0.0.1", false, "terminated")));
    }

    #[test]
    fn a_machine_is_lost_when_it_is_not_ready() {
        let machine = |status: &str| {
            let conditions = json!([{ "type": "Ready", "status": status }]);
            let images = json!([{ "names": ["kvick"] }]);
            let status = json!({ "conditions": conditions, "images": images });
            let mut machine: Node = serde_json::from_value(json!({ "status": status })).expect("a machine");
            slim(&mut machine);
            assert!(machine.status.as_ref().is_some_and(|status| status.images.is_none()));
            machine
        };
        assert!(is_ready(&machine("True")) && is_ready(&Node::default()));
        assert!(!is_ready(&machine("False")) && !is_ready(&machine("Unknown")));
    }
}
