//! Clusters of a test, and what the test asks about them.

use crate::control_plane::{ControlPlane, NAMESPACE, programs};
use crate::kubelet::Kubelet;
use crate::support::{self, wait};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, NamespaceResourceScope};
use kube::{Client, Resource, ResourceExt};
use kvick_load::client::Client as Connection;
use kvick_load::transport::TlsSettings;
use kvick_operator::observe::Access;
use kvick_operator_kube::manifests;
use kvick_operator_kube::spec::{KvickCluster, KvickClusterSpec, KvickClusterStatus};
use kvick_testing::free_port;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tokio::runtime::{Handle, Runtime};

const PASSWORD: &str = "it's a \"secret\"";
/// User and password of operators that have one of their own.
pub const OPERATOR: (&str, &str) = ("operator", "their-secret");

/// The control plane, the kubelet and an operator.
pub struct Fixture {
    operator: Option<Operator>,
    pub kubelet: Kubelet,
    plane: ControlPlane,
    client: Client,
    server: PathBuf,
    metrics_port: u16,
    runtime: Runtime,
}

/// A running operator. It is killed with it.
pub struct Operator(Child);

impl Operator {
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Ends it as a kubelet does. Returns the exit code, if it has ended by itself.
    pub fn stop(&mut self) -> Option<i32> {
        // SAFETY: the call has no pointers, and the process has not been waited for.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
        self.0.wait().expect("a process").code()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Fixture {
    /// Starts everything. `None` if a program is absent.
    pub fn new() -> Option<Fixture> {
        let Some(programs) = programs() else {
            eprintln!("LEFT OUT: KVICK_TEST_KUBE names no directory with a control plane (see tests/kube/README.md).");
            return None;
        };
        let server = PathBuf::from(env!("CARGO_BIN_EXE_kvick-operator")).with_file_name("kvick-server");
        for program in [&server, &server.with_file_name("kvick-backup")] {
            if !program.is_file() {
                eprintln!("LEFT OUT: {} is absent; build it first (cargo build --bins).", program.display());
                return None;
            }
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let plane = ControlPlane::start(&programs, runtime.handle());
        let client = plane.client(runtime.handle());
        let kubelet = Kubelet::start(client.clone(), plane.dir().to_owned());
        let metrics_port = free_port();
        let mut fixture = Fixture { operator: None, kubelet, plane, client, server, metrics_port, runtime };
        fixture.install();
        fixture.start_operator();
        Some(fixture)
    }

    fn install(&self) {
        let namespace = json!({ "metadata": { "name": NAMESPACE } });
        let namespace: Namespace = serde_json::from_value(namespace).expect("a namespace");
        self.run(Api::all(self.client.clone()).create(&PostParams::default(), &namespace));
        for document in [manifests::definition(), manifests::rights(NAMESPACE)].concat() {
            let object: DynamicObject = serde_json::from_value(document).expect("an object");
            let types = object.types.clone().expect("a kind");
            let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
            let api: Api<DynamicObject> = match object.metadata.namespace {
                Some(_) => Api::namespaced_with(self.client.clone(), NAMESPACE, &resource),
                None => Api::all_with(self.client.clone(), &resource),
            };
            self.run(api.create(&PostParams::default(), &object));
        }
        self.write_secret("made-password", &[("password", PASSWORD)]);
        self.write_secret("own-user", &[("username", OPERATOR.0), ("password", OPERATOR.1)]);
        let clusters = self.api::<KvickCluster>();
        wait("the resource is served", || self.runtime.block_on(clusters.list(&ListParams::default())).is_ok());
    }

    fn run<T>(&self, reply: impl Future<Output = kube::Result<T>>) -> T {
        self.runtime.block_on(reply).expect("a reply")
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Creates or changes a secret.
    pub fn write_secret(&self, name: &str, data: &[(&str, &str)]) {
        let data: BTreeMap<&str, &str> = data.iter().copied().collect();
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data });
        let parameters = PatchParams::apply("test").force();
        self.run(self.api::<Secret>().patch(name, &parameters, &Patch::Apply(&secret)));
    }

    /// Creates a volume claim. Returns the directory that pods get.
    pub fn create_claim(&self, name: &str) -> PathBuf {
        let requests = json!({ "storage": "1Gi" });
        let spec = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": requests } });
        let claim = json!({ "metadata": { "name": name }, "spec": spec });
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).expect("a claim");
        let claim = self.run(self.api().create(&PostParams::default(), &claim));
        self.plane.dir().join("claims").join(claim.uid().expect("a UID"))
    }

    /// The program beside the server.
    pub fn program(&self, name: &str) -> PathBuf {
        self.server.with_file_name(name)
    }

    /// Creates a Job from the CronJob of a cluster, as `kubectl create job --from` does, and waits until it succeeds.
    pub fn run_backup(&self, cluster: &Cluster, job: &str) {
        let name = format!("{}-backup", cluster.name);
        wait("there is a CronJob", || self.exists::<CronJob>(&name));
        let template = self.run(self.api::<CronJob>().get(&name)).spec.job_template;
        let job = Job {
            metadata: kube::core::ObjectMeta { name: Some(job.to_owned()), ..template.metadata.unwrap_or_default() },
            spec: template.spec,
            ..Job::default()
        };
        let job = self.run(self.api().create(&PostParams::default(), &job)).name_any();
        wait("the backup is made", || {
            let status = self.run(self.api::<Job>().get(&job)).status.unwrap_or_default();
            assert_eq!(status.failed.unwrap_or_default(), 0, "the backup has failed");
            status.succeeded == Some(1)
        });
    }

    /// The reply of the operator to a request for a page.
    pub fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics_port)).expect("a connection");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n").expect("a request");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        reply
    }

    fn log(&self) -> PathBuf {
        self.plane.dir().join("operator.log")
    }

    /// Starts an operator.
    pub fn operator(&self, options: &[&str]) -> Operator {
        let log = fs::File::options().create(true).append(true).open(self.log()).expect("a log");
        let child = Command::new(env!("CARGO_BIN_EXE_kvick-operator"))
            .args(["kubernetes", "--namespace", NAMESPACE, "--interval", "200"])
            .args(options)
            .env("KUBECONFIG", self.plane.kubeconfig("operator"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn();
        Operator(child.expect("an operator"))
    }

    pub fn start_operator(&mut self) {
        self.operator = Some(self.operator(&["--metrics-port", &self.metrics_port.to_string()]));
    }

    pub fn stop_operator(&mut self) {
        self.operator = None;
    }

    /// Kills the operator and starts another one.
    pub fn replace_operator(&mut self) {
        self.stop_operator();
        self.start_operator();
    }

    /// Number of lines of operators that contain a text.
    pub fn lines(&self, text: &str) -> usize {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        // Only since the last operator that was started without an election.
        let since = log.rfind("waiting for the lease").map_or(&*log, |_| {
            let first = log.find("waiting for the lease").unwrap_or(0);
            &log[first..]
        });
        since.lines().filter(|line| line.contains(text)).count()
    }

    pub fn wait_for_lines(&self, text: &str, count: usize) {
        wait("an operator says so", || {
            fs::read_to_string(self.log()).is_ok_and(|log| log.contains("waiting for the lease"))
                && self.lines(text) >= count
        });
    }

    /// Creates a cluster with volumes, and one shard unless the change says otherwise.
    pub fn create(&self, name: &str, change: impl FnOnce(&mut KvickClusterSpec)) -> Cluster {
        // Pods have addresses of their own, so one port is enough, and the next one is for metrics.
        let port = free_port();
        let spec = json!({
            "image": "kvick:test",
            "command": [self.server],
            "shards": { "count": 1 },
            "port": port,
            "persistence": { "size": "1Gi" },
            "config": { "cluster-node-timeout": "3000", "repl-diskless-sync-delay": "0", "shutdown-timeout": "2" },
            "terminationGracePeriodSeconds": 20,
        });
        let mut spec: KvickClusterSpec = serde_json::from_value(spec).expect("a specification");
        change(&mut spec);
        let login = match (&spec.acl_secret, &spec.password_secret) {
            (Some(_), _) => (Some(OPERATOR.0), Some(OPERATOR.1)),
            (None, password) => (None, password.as_ref().map(|_| PASSWORD)),
        };
        let (username, password) = (login.0.map(str::to_owned), login.1.map(str::to_owned));
        let tls = spec.tls_secret.as_ref().map(|secret| self.create_certificate(secret, name));
        self.run(self.api().create(&PostParams::default(), &KvickCluster::new(name, spec)));
        Cluster { name: name.to_owned(), port, access: Access { username, password, tls } }
    }

    /// Creates a secret with a certificate for the pods of a cluster. Returns how clients use it.
    fn create_certificate(&self, secret: &str, cluster: &str) -> TlsSettings {
        let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key"));
        let authority = authority.expect("an authority");
        let names = vec![format!("*.{cluster}-nodes.{NAMESPACE}.svc")];
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::new(names).expect("parameters").signed_by(&key, &authority);
        let (certificate, key) = (certificate.expect("a certificate").pem(), key.serialize_pem());
        let data = json!({ "tls.crt": certificate, "tls.key": key, "ca.crt": authority.pem() });
        let object = json!({ "metadata": { "name": secret }, "stringData": data });
        let object: Secret = serde_json::from_value(object).expect("a secret");
        self.run(self.api::<Secret>().create(&PostParams::default(), &object));
        let identity = Some((certificate.as_bytes(), key.as_bytes()));
        let settings = TlsSettings::from_pem(authority.pem().as_bytes(), identity).expect("settings");
        settings.with_server_name(&format!("any.{cluster}-nodes.{NAMESPACE}.svc"))
    }

    pub fn pods_of(&self, cluster: &Cluster) -> Pods {
        let selected = ListParams::default().labels(&format!("kvick.dev/cluster={}", cluster.name));
        Pods { api: self.api(), selected, port: cluster.port, runtime: self.runtime.handle().clone() }
    }

    fn exists<K>(&self, name: &str) -> bool
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        self.run(self.api::<K>().get_opt(name)).is_some()
    }

    pub fn has_service(&self, name: &str) -> bool {
        self.exists::<Service>(name)
    }

    pub fn has_budget(&self, name: &str) -> bool {
        self.exists::<PodDisruptionBudget>(name)
    }

    pub fn has_cron_job(&self, name: &str) -> bool {
        self.exists::<CronJob>(name)
    }

    /// Number of volume claims.
    pub fn claims(&self, cluster: &Cluster) -> usize {
        let selected = ListParams::default().labels(&format!("kvick.dev/cluster={}", cluster.name));
        self.run(self.api::<PersistentVolumeClaim>().list(&selected)).items.len()
    }

    /// Reasons of the events about a cluster.
    pub fn events(&self, cluster: &Cluster) -> BTreeSet<String> {
        let events = self.run(self.api::<Event>().list(&ListParams::default())).items.into_iter();
        let own = events.filter(|event| event.involved_object.name.as_ref() == Some(&cluster.name));
        own.filter_map(|event| event.reason).collect()
    }

    pub fn print_logs(&self) {
        self.plane.print_logs();
        for entry in fs::read_dir(self.plane.dir()).into_iter().flatten().flatten() {
            let is_own = !["etcd.log", "kube-apiserver.log", "kube-controller-manager.log"]
                .contains(&&*entry.file_name().to_string_lossy());
            if is_own && entry.path().extension().is_some_and(|extension| extension == "log") {
                let log = fs::read_to_string(entry.path()).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(100)..].join("\n");
                eprintln!("-- {}\n{last}", entry.path().display());
            }
        }
        for cluster in self.run(self.api::<KvickCluster>().list(&ListParams::default())) {
            eprintln!("-- {}\n{:#?}", cluster.name_any(), cluster.status);
        }
    }
}

/// A cluster of a test.
pub struct Cluster {
    name: String,
    port: u16,
    access: Access,
}

impl Cluster {
    pub fn status(&self, fixture: &Fixture) -> KvickClusterStatus {
        fixture.run(fixture.api::<KvickCluster>().get(&self.name)).status.unwrap_or_default()
    }

    /// The pod of the only shard's primary; empty if there is none.
    pub fn primary(&self, fixture: &Fixture) -> String {
        self.status(fixture).shards.first().and_then(|shard| shard.primary.clone()).unwrap_or_default()
    }

    pub fn change(&self, fixture: &Fixture, change: impl FnOnce(&mut KvickClusterSpec)) {
        let api = fixture.api::<KvickCluster>();
        let mut spec = fixture.run(api.get(&self.name)).spec;
        change(&mut spec);
        let patch = Patch::Merge(json!({ "spec": spec }));
        fixture.run(api.patch(&self.name, &PatchParams::default(), &patch));
    }

    /// Changes fields of the specification; null removes one.
    pub fn change_raw(&self, fixture: &Fixture, spec: &serde_json::Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        fixture.run(fixture.api::<KvickCluster>().patch(&self.name, &PatchParams::default(), &patch));
    }

    /// Wanted shards, shards, and selector of the /scale subresource.
    pub fn scale(&self, fixture: &Fixture) -> (i32, i32, String) {
        let scale = fixture.run(fixture.api::<KvickCluster>().get_scale(&self.name));
        let status = scale.status.unwrap_or_default();
        let wanted = scale.spec.and_then(|spec| spec.replicas).unwrap_or_default();
        (wanted, status.replicas, status.selector.unwrap_or_default())
    }

    pub fn set_scale(&self, fixture: &Fixture, shards: i32) {
        let patch = Patch::Merge(json!({ "spec": { "replicas": shards } }));
        fixture.run(fixture.api::<KvickCluster>().patch_scale(&self.name, &PatchParams::default(), &patch));
    }

    /// Waits until the operator says that all is done and the nodes agree. Returns the slots of each shard.
    pub fn wait_running(&self, fixture: &Fixture, shards: u32) -> Vec<usize> {
        let pods = fixture.pods_of(self);
        let mut counts = Vec::new();
        wait(&format!("{} has {shards} shards and runs", self.name), || {
            let cluster = fixture.run(fixture.api::<KvickCluster>().get(&self.name));
            let status = cluster.status.unwrap_or_default();
            let is_current = Some(status.observed_generation) == cluster.metadata.generation;
            if !is_current || status.phase != "Running" || status.shard_count != shards {
                return false;
            }
            let Some(found) = support::slots(&pods.endpoints(), &self.access) else { return false };
            counts = found.into_iter().filter(|count| *count > 0).collect();
            counts.len() == shards as usize
        });
        counts
    }

    /// A connection to a node.
    pub fn client(&self, pods: &Pods) -> Connection {
        support::connect_with(&pods.endpoints()[0], &self.access).expect("a connection")
    }

    /// Connections to all nodes that can be reached.
    pub fn clients(&self, pods: &Pods) -> Vec<Connection> {
        pods.endpoints().iter().filter_map(|endpoint| support::connect_with(endpoint, &self.access).ok()).collect()
    }

    /// The message of a condition that has this status.
    pub fn message(&self, fixture: &Fixture, condition: &str, status: &str) -> Option<String> {
        let conditions = self.status(fixture).conditions.into_iter();
        let mut matching = conditions.filter(|other| other.type_ == condition && other.status == status);
        matching.next().map(|condition| condition.message)
    }

    /// A connection to a port where a node answers for all slots.
    pub fn endpoint_client(&self, pods: &Pods) -> Connection {
        support::connect_with(&pods.endpoints_at(self.port + 2)[0], &self.access).expect("a connection")
    }

    /// Deletes the cluster, and waits until nothing of it is left.
    pub fn delete(self, fixture: &Fixture) {
        fixture.run(fixture.api::<KvickCluster>().delete(&self.name, &DeleteParams::default()));
        let pods = fixture.pods_of(&self);
        wait("pods, volumes and services are deleted", || {
            pods.names().is_empty() && fixture.claims(&self) == 0 && !fixture.has_service(&self.name)
        });
    }
}

/// The pods of a cluster.
pub struct Pods {
    api: Api<Pod>,
    selected: ListParams,
    port: u16,
    runtime: Handle,
}

impl Pods {
    fn list(&self) -> Vec<Pod> {
        self.runtime.block_on(self.api.list(&self.selected)).expect("pods").items
    }

    pub fn names(&self) -> Vec<String> {
        self.list().iter().map(ResourceExt::name_any).collect()
    }

    pub fn uids(&self) -> BTreeSet<String> {
        self.list().iter().filter_map(ResourceExt::uid).collect()
    }

    pub fn endpoints(&self) -> Vec<String> {
        self.endpoints_at(self.port)
    }

    fn endpoints_at(&self, port: u16) -> Vec<String> {
        let pods = self.list().into_iter();
        pods.filter_map(|pod| Some(format!("{}:{port}", pod.status?.pod_ip?))).collect()
    }

    /// Number of pods that are ready.
    pub fn ready(&self) -> usize {
        let is_ready = |pod: &Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        self.list().iter().filter(|pod| is_ready(pod)).count()
    }

    /// How many of so many pods are missing, are ending, or have not started.
    pub fn away(&self, count: usize) -> usize {
        let is_there = |pod: &&Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.metadata.deletion_timestamp.is_none() && phase == Some("Running")
        };
        count - self.list().iter().filter(is_there).count()
    }

    /// Whether a pod was told to end, but has not.
    pub fn is_ending(&self, name: &str) -> bool {
        self.list().iter().any(|pod| pod.name_any() == name && pod.metadata.deletion_timestamp.is_some())
    }

    pub fn delete(&self, name: &str) {
        self.runtime.block_on(self.api.delete(name, &DeleteParams::default())).expect("a deletion");
    }
}
