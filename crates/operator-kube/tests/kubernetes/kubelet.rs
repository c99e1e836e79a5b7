//! A small kubelet: runs the containers of pods as processes, each pod on a loopback address of its own.
//!
//! It registers some machines, binds pods to them, resolves environment, ConfigMaps, Secrets, claims and empty
//! directories as folders, probes readiness over HTTP, reports the state, and ends processes with SIGTERM and, after
//! the grace period, SIGKILL. There are no mounts: paths below a mount in the command line become paths of the folder.
//! There is no DNS and no proxy: the address of a service in the command line becomes that of one of its pods.

use k8s_openapi::api::core::v1::{
    ConfigMap, Container, Node, PersistentVolumeClaim, Pod, Secret, SecretKeySelector, Service, Volume,
};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

const MACHINES: [&str; 3] = ["machine-1", "machine-2", "machine-3"];
const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);
/// Time after which files of secrets are written again.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const PROBE_EVERY: Duration = Duration::from_millis(500);
const PROBE_LIMIT: Duration = Duration::from_millis(500);
/// Pause before a container starts again.
const BACK_OFF: Duration = Duration::from_secs(1);
/// Time for a node to say what it is before it ends.
const ROLE_LIMIT: Duration = Duration::from_secs(2);

/// What a test makes happen.
enum Fault {
    /// Kill the process of a pod. It does not start again before the test says so.
    Kill(String),
    /// Start it again.
    Resume(String),
    /// A reboot of all machines: processes are killed at once, and start again with other addresses.
    Reboot,
    /// The machine of a pod stops, and nothing is heard of it.
    Lose(String),
    /// All lost machines start again.
    Find,
}

/// The kubelet, on a thread of its own. Processes end with it.
pub struct Kubelet {
    faults: Option<Sender<Fault>>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// Pods that were told to end, and the role that each of them had at that moment: `master` or `slave`.
    ended: Arc<Mutex<Vec<(String, String)>>>,
}

impl Kubelet {
    pub fn start(client: Client, dir: PathBuf) -> Kubelet {
        let (faults, received) = channel();
        let ended = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&ended);
        let lost = Arc::default();
        // A thread of its own: a machine is not lost because starting a process or writing a file takes long.
        let heartbeats = beat(client.clone(), Arc::downgrade(&lost));
        std::thread::spawn(move || runtime().block_on(heartbeats));
        let thread = std::thread::spawn(move || {
            let (pods, addresses, refreshed_at) = (HashMap::new(), 0, Instant::now());
            let mut machine = Machine { client, dir, pods, addresses, ended: noted, lost, refreshed_at };
            runtime().block_on(machine.run(&received));
        });
        Kubelet { faults: Some(faults), thread: Some(thread), ended }
    }

    fn cause(&self, fault: Fault) {
        self.faults.as_ref().expect("it runs").send(fault).expect("it runs");
    }

    pub fn kill(&self, pod: &str) {
        self.cause(Fault::Kill(pod.to_owned()));
    }

    pub fn resume(&self, pod: &str) {
        self.cause(Fault::Resume(pod.to_owned()));
    }

    /// Pods that were told to end since the last call, with their roles.
    pub fn take_ended(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.ended.lock().expect("a list"))
    }

    /// Stops the machine of a pod.
    pub fn lose(&self, pod: &str) {
        self.cause(Fault::Lose(pod.to_owned()));
    }

    /// Starts machines again that were lost.
    pub fn find(&self) {
        self.cause(Fault::Find);
    }

    pub fn reboot(&self) {
        self.cause(Fault::Reboot);
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.faults = None;
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// A pod that runs here.
struct Running {
    uid: String,
    machine: String,
    ip: String,
    dir: PathBuf,
    child: Option<Child>,
    restarts: i32,
    /// How the process ended last.
    exit_code: i32,
    /// Whether it must not start.
    is_held: bool,
    ended_at: Option<Instant>,
    /// When it was told to end.
    ending_since: Option<Instant>,
    probed_at: Option<Instant>,
    is_ready: bool,
    reported: Value,
}

impl Running {
    fn signal(&self, signal: i32) {
        if let Some(child) = &self.child {
            // SAFETY: no memory is involved. The child has not been waited for, so its number is still its own.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
    }

    /// Whether the process runs. Notes its end.
    fn is_alive(&mut self) -> bool {
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                Ok(None) => return true,
                // 137 is what a container has that was killed.
                Ok(Some(status)) => self.exit_code = status.code().unwrap_or(137),
                Err(_) => self.exit_code = 137,
            }
            self.child = None;
            self.ended_at = Some(Instant::now());
            self.is_ready = false;
        }
        false
    }

    fn kill_now(&mut self) {
        self.signal(libc::SIGKILL);
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
        self.is_alive();
    }
}

struct Machine {
    client: Client,
    dir: PathBuf,
    pods: HashMap<String, Running>,
    addresses: u32,
    ended: Arc<Mutex<Vec<(String, String)>>>,
    lost: Arc<Mutex<HashSet<String>>>,
    refreshed_at: Instant,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Says for all machines but lost ones that they live, as long as the kubelet does.
async fn beat(client: Client, lost: Weak<Mutex<HashSet<String>>>) {
    let api: Api<Node> = Api::all(client);
    while let Some(lost) = lost.upgrade() {
        let lost = lost.lock().expect("a set").clone();
        for machine in MACHINES.iter().filter(|machine| !lost.contains(**machine)) {
            // It may not be registered yet.
            let _ = api.patch_status(machine, &PatchParams::default(), &Patch::Strategic(alive())).await;
        }
        tokio::time::sleep(HEARTBEAT_EVERY).await;
    }
}

fn alive() -> Value {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let ready = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it runs",
        "lastHeartbeatTime": now, "lastTransitionTime": now });
    json!({ "status": { "conditions": [ready], "capacity": { "cpu": "64", "memory": "64Gi", "pods": "100" } } })
}

impl Machine {
    async fn run(&mut self, faults: &Receiver<Fault>) {
        self.register().await;
        loop {
            loop {
                match faults.try_recv() {
                    Ok(fault) => self.suffer(&fault),
                    Err(std::sync::mpsc::TryRecvError::Empty) => break,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                        self.pods.values_mut().for_each(Running::kill_now);
                        return;
                    }
                }
            }
            if let Err(error) = self.look().await {
                eprintln!("kubelet: {error}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn register(&self) {
        let api: Api<Node> = Api::all(self.client.clone());
        for machine in MACHINES {
            let node = json!({ "metadata": { "name": machine, "labels": { "kubernetes.io/hostname": machine } } });
            let node: Node = serde_json::from_value(node).expect("a node");
            api.create(&PostParams::default(), &node).await.expect("a node");
            api.patch_status(machine, &PatchParams::default(), &Patch::Strategic(alive())).await.expect("a node");
        }
    }

    fn suffer(&mut self, fault: &Fault) {
        match fault {
            Fault::Kill(name) => {
                let pod = self.pods.get_mut(name).unwrap_or_else(|| panic!("there is no pod {name}"));
                pod.kill_now();
                pod.is_held = true;
            }
            Fault::Resume(name) => {
                self.pods.get_mut(name).unwrap_or_else(|| panic!("there is no pod {name}")).is_held = false;
            }
            Fault::Lose(name) => {
                let machine = self.pods[name].machine.clone();
                self.pods.values_mut().filter(|pod| pod.machine == machine).for_each(Running::kill_now);
                self.lost.lock().expect("a set").insert(machine);
            }
            Fault::Find => self.lost.lock().expect("a set").clear(),
            Fault::Reboot => {
                self.pods.values_mut().for_each(Running::kill_now);
                for name in self.pods.keys().cloned().collect::<Vec<_>>() {
                    let ip = self.new_address();
                    if let Some(pod) = self.pods.get_mut(&name) {
                        pod.ip = ip;
                    }
                }
            }
        }
    }

    /// An address of 127.0.0.0/8 that no pod had before. Processes of this test have different ones.
    fn new_address(&mut self) -> String {
        self.addresses += 1;
        let process = std::process::id() % 200 + 16;
        format!("127.{process}.{}.{}", self.addresses / 250, self.addresses % 250 + 2)
    }

    async fn look(&mut self) -> kube::Result<()> {
        let all: Api<Pod> = Api::all(self.client.clone());
        let pods = all.list(&ListParams::default()).await?.items;
        let lost = self.lost.lock().expect("a set").clone();
        for pod in &pods {
            let machine = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            if !machine.is_some_and(|machine| lost.contains(machine)) {
                self.care(pod, &pods, &lost).await?;
            }
        }
        if self.refreshed_at.elapsed() >= REFRESH_EVERY {
            self.refreshed_at = Instant::now();
            self.refresh(&pods).await?;
        }
        // They were deleted without a grace period.
        self.pods.retain(|name, running| {
            let exists = pods.iter().any(|pod| pod.name_any() == *name && pod.uid().as_ref() == Some(&running.uid));
            if !exists {
                running.kill_now();
            }
            exists
        });
        Ok(())
    }

    /// Updates the files of secrets of all pods.
    async fn refresh(&self, pods: &[Pod]) -> kube::Result<()> {
        let api: Api<Secret> = Api::all(self.client.clone());
        let secrets = api.list(&ListParams::default()).await?.items;
        for pod in pods {
            let Some(running) = self.pods.get(&pod.name_any()).filter(|pod| pod.child.is_some()) else { continue };
            for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
                let name = volume.secret.as_ref().and_then(|source| source.secret_name.as_deref());
                let secret = secrets.iter().find(|secret| secret.metadata.name.as_deref() == name);
                if let Some(secret) = secret.filter(|_| name.is_some()) {
                    write_files(&running.dir.join(&volume.name), secret);
                }
            }
        }
        Ok(())
    }

    /// The machine with the fewest pods of the same cluster.
    fn choose(pod: &Pod, pods: &[Pod], lost: &HashSet<String>) -> &'static str {
        let cluster = |pod: &Pod| pod.labels().get("kvick.dev/cluster").cloned();
        let is_there = |other: &Pod, machine: &str| {
            cluster(other) == cluster(pod)
                && other.spec.as_ref().is_some_and(|s| s.node_name.as_deref() == Some(machine))
        };
        let alive = MACHINES.into_iter().filter(|machine| !lost.contains(*machine));
        let count = |machine: &str| pods.iter().filter(|other| is_there(other, machine)).count();
        alive.min_by_key(|machine| count(machine)).expect("a machine")
    }

    async fn care(&mut self, pod: &Pod, pods: &[Pod], lost: &HashSet<String>) -> kube::Result<()> {
        let name = pod.name_any();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()) {
            let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
                "target": { "apiVersion": "v1", "kind": "Node", "name": Machine::choose(pod, pods, lost) } });
            api.create_subresource::<Value, Value>("binding", &name, &PostParams::default(), &binding).await?;
            return Ok(());
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return self.end(pod, &api).await;
        }
        if !self.pods.contains_key(&name) {
            let (uid, ip) = (pod.uid().unwrap_or_default(), self.new_address());
            let dir = self.dir.join("pods").join(&uid);
            fs::create_dir_all(&dir).expect("a directory");
            let running = Running {
                uid,
                machine: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
                exit_code: 0,
                ip,
                dir,
                child: None,
                restarts: -1,
                is_held: false,
                ended_at: None,
                ending_since: None,
                probed_at: None,
                is_ready: false,
                reported: Value::Null,
            };
            self.pods.insert(name.clone(), running);
        }
        let Some(mut running) = self.pods.remove(&name) else { return Ok(()) };
        let outcome = self.run_pod(pod, &mut running, &api).await;
        self.pods.insert(name, running);
        outcome
    }

    async fn run_pod(&self, pod: &Pod, running: &mut Running, api: &Api<Pod>) -> kube::Result<()> {
        let container = pod.spec.as_ref().and_then(|spec| spec.containers.first()).expect("a container");
        let ends = pod.spec.as_ref().is_some_and(|spec| spec.restart_policy.as_deref() == Some("Never"));
        let has_ended = ends && running.restarts >= 0;
        let may_start = !has_ended && !running.is_held && running.ended_at.is_none_or(|at| at.elapsed() >= BACK_OFF);
        if !running.is_alive() && may_start {
            running.child = self.spawn(pod, container, running).await?;
            running.restarts += i32::from(running.child.is_some());
        }
        if running.child.is_some() && running.probed_at.is_none_or(|at| at.elapsed() >= PROBE_EVERY) {
            running.probed_at = Some(Instant::now());
            running.is_ready = is_ready(container, &running.ip).await;
        }
        let status = status(pod, container, running);
        if running.reported != status {
            let patch = Patch::Strategic(json!({ "status": status }));
            api.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await?;
            running.reported = status;
        }
        Ok(())
    }

    async fn end(&mut self, pod: &Pod, api: &Api<Pod>) -> kube::Result<()> {
        let name = pod.name_any();
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(30).max(0) as u64;
        if let Some(running) = self.pods.get_mut(&name).filter(|running| Some(&running.uid) == pod.uid().as_ref()) {
            if running.ending_since.is_none() {
                let role = role(pod, &running.ip).await;
                self.ended.lock().expect("a list").push((name.clone(), role));
            }
            let since = *running.ending_since.get_or_insert_with(|| {
                if let Some(child) = &running.child {
                    // SAFETY: no memory is involved, and the child has not been waited for.
                    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
                }
                Instant::now()
            });
            if since.elapsed() > Duration::from_secs(grace) {
                running.kill_now();
            }
            if running.is_alive() {
                return Ok(());
            }
            let _ = fs::remove_dir_all(&running.dir);
            self.pods.remove(&name);
        }
        match api.delete(&name, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Starts the process of a container; `None` if something that it needs does not exist yet.
    async fn spawn(&self, pod: &Pod, container: &Container, running: &Running) -> kube::Result<Option<Child>> {
        let mut folders: BTreeMap<&str, PathBuf> = BTreeMap::new();
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let Some(folder) = self.folder(pod, volume, &running.dir).await? else { return Ok(None) };
            folders.insert(&volume.name, folder);
        }
        let mut environment: BTreeMap<&str, String> = BTreeMap::new();
        for variable in container.env.iter().flatten() {
            let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
            let value = match field.map(|field| &*field.field_path) {
                Some("status.podIP") => running.ip.clone(),
                Some("metadata.name") => pod.name_any(),
                Some(other) => panic!("the field {other} is not supported"),
                None => {
                    let reference = variable.value_from.as_ref().and_then(|from| from.secret_key_ref.as_ref());
                    match (reference, &variable.value) {
                        (None, value) => value.clone().unwrap_or_default(),
                        (Some(reference), _) => match self.secret_key(pod, reference).await? {
                            Some(value) => value,
                            None if reference.optional == Some(true) => continue,
                            None => return Ok(None),
                        },
                    }
                }
            };
            environment.insert(&variable.name, value);
        }
        let mut given = Vec::new();
        for word in container.command.iter().flatten().chain(container.args.iter().flatten()) {
            let Some(word) = self.resolve(pod, word).await? else { return Ok(None) };
            given.push(word);
        }
        let words = given.into_iter().map(|mut word| {
            for (name, value) in &environment {
                word = word.replace(&format!("$({name})"), value);
            }
            let mount = container.volume_mounts.iter().flatten().find_map(|mount| {
                let rest =
                    word.strip_prefix(&mount.mount_path).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
                Some(format!("{}{rest}", folders[&*mount.name].display()))
            });
            mount.unwrap_or(word)
        });
        let words: Vec<String> = words.collect();
        let log = || fs::File::options().create(true).append(true).open(self.dir.join(pod.name_any() + ".log"));
        let child = Command::new(&words[0])
            .args(&words[1..])
            .envs(environment)
            .current_dir(&running.dir)
            .stdin(Stdio::null())
            .stdout(log().expect("a log"))
            .stderr(log().expect("a log"))
            .spawn();
        if let Err(error) = &child {
            eprintln!("kubelet: {}: {error}", words[0]);
        }
        Ok(child.ok())
    }

    /// The value of a key of a secret.
    async fn secret_key(&self, pod: &Pod, reference: &SecretKeySelector) -> kube::Result<Option<String>> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let data = secrets.get_opt(&reference.name).await?.and_then(|secret| secret.data);
        let value = data.and_then(|mut data| data.remove(&reference.key));
        Ok(value.map(|value| String::from_utf8(value.0).expect("text")))
    }

    /// The word, or the address of a ready pod for the address of a service; `None` if it has no such pod.
    async fn resolve(&self, pod: &Pod, word: &str) -> kube::Result<Option<String>> {
        let Some((name, port)) = word.split_once(".svc:") else { return Ok(Some(word.to_owned())) };
        let (name, namespace) = name.split_once('.').expect("a service");
        assert_eq!(pod.namespace().as_deref(), Some(namespace));
        let services: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        let selector = services.get(name).await?.spec.and_then(|spec| spec.selector).unwrap_or_default();
        let selector: Vec<String> = selector.iter().map(|(label, value)| format!("{label}={value}")).collect();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pods = pods.list(&ListParams::default().labels(&selector.join(","))).await?.items;
        let ready = pods.iter().find_map(|pod| self.pods.get(&pod.name_any()).filter(|running| running.is_ready));
        Ok(ready.map(|running| format!("{}:{port}", running.ip)))
    }

    /// The folder of a volume; `None` if what it has does not exist yet.
    async fn folder(&self, pod: &Pod, volume: &Volume, dir: &Path) -> kube::Result<Option<PathBuf>> {
        let namespace = pod.namespace().unwrap_or_default();
        let own = dir.join(&volume.name);
        fs::create_dir_all(&own).expect("a directory");
        if let Some(source) = &volume.persistent_volume_claim {
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
            let claim = claims.get_opt(&source.claim_name).await?;
            let Some(uid) = claim.and_then(|claim| claim.uid()) else { return Ok(None) };
            let folder = self.dir.join("claims").join(uid);
            fs::create_dir_all(&folder).expect("a directory");
            return Ok(Some(folder));
        }
        if let Some(source) = &volume.secret {
            let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
            let Some(secret) = secrets.get_opt(source.secret_name.as_deref().unwrap_or_default()).await? else {
                return Ok(None);
            };
            write_files(&own, &secret);
        }
        if let Some(source) = &volume.config_map {
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &namespace);
            let Some(map) = maps.get_opt(&source.name).await? else { return Ok(None) };
            for (key, value) in map.data.iter().flatten() {
                fs::write(own.join(key), value).expect("a file");
            }
        }
        Ok(Some(own))
    }
}

/// Writes the files of a secret that differ.
fn write_files(folder: &Path, secret: &Secret) {
    for (key, value) in secret.data.iter().flatten() {
        let file = folder.join(key);
        if fs::read(&file).is_ok_and(|old| old == value.0) {
            continue;
        }
        let new = folder.join(format!(".{key}"));
        fs::write(&new, &value.0).expect("a file");
        fs::rename(new, file).expect("a file");
    }
}

/// What is reported of a pod.
fn status(pod: &Pod, container: &Container, running: &Running) -> Value {
    let is_running = running.child.is_some();
    let state = if is_running {
        json!({ "running": {}, "waiting": null, "terminated": null })
    } else if running.restarts < 0 {
        json!({ "waiting": { "reason": "ContainerCreating" }, "running": null, "terminated": null })
    } else {
        let reason = if running.exit_code == 0 { "Completed" } else { "Error" };
        json!({ "terminated": { "exitCode": running.exit_code, "reason": reason }, "running": null, "waiting": null })
    };
    let ends = pod.spec.as_ref().is_some_and(|spec| spec.restart_policy.as_deref() == Some("Never"));
    let phase = match (running.restarts < 0, is_running || !ends, running.exit_code) {
        (true, ..) => "Pending",
        (_, true, _) => "Running",
        (_, _, 0) => "Succeeded",
        _ => "Failed",
    };
    let ready = if running.is_ready { "True" } else { "False" };
    json!({
        "phase": phase,
        "podIP": running.ip,
        "podIPs": [{ "$patch": "replace" }, { "ip": running.ip }],
        "conditions": [
            { "type": "Ready", "status": ready },
            { "type": "ContainersReady", "status": ready },
            { "type": "PodScheduled", "status": "True" },
        ],
        "containerStatuses": [{
            "name": container.name,
            "image": container.image,
            "imageID": "",
            "ready": running.is_ready,
            "started": is_running,
            "restartCount": running.restarts.max(0),
            "state": state,
        }],
        "observedGeneration": pod.metadata.generation,
    })
}

/// What a node says that it is; empty if it does not answer, or requires a password.
async fn role(pod: &Pod, ip: &str) -> String {
    let ports = pod.spec.iter().flat_map(|spec| spec.containers.iter().flat_map(|c| c.ports.iter().flatten()));
    let port = ports.filter(|port| port.name.as_deref() == Some("clients")).map(|port| port.container_port).next();
    let question = async {
        let mut stream = TcpStream::connect((ip, port? as u16)).await.ok()?;
        stream.write_all(b"ROLE\r\n").await.ok()?;
        // An array whose first element is the role.
        let mut lines = BufReader::new(stream).lines();
        let _array = lines.next_line().await.ok()??;
        let _length = lines.next_line().await.ok()??;
        lines.next_line().await.ok()?
    };
    tokio::time::timeout(ROLE_LIMIT, question).await.ok().flatten().unwrap_or_default()
}

/// Whether the readiness probe succeeds.
async fn is_ready(container: &Container, ip: &str) -> bool {
    let Some(action) = container.readiness_probe.as_ref().and_then(|probe| probe.http_get.as_ref()) else {
        return true;
    };
    let port = match &action.port {
        k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(port) => Some(*port),
        k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            ports.find(|port| port.name.as_ref() == Some(name)).map(|port| port.container_port)
        }
    };
    let path = action.path.as_deref().unwrap_or("/");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {ip}\r\nConnection: close\r\n\r\n");
    let probe = async {
        let mut stream = TcpStream::connect((ip, port? as u16)).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut reply = [0; 12];
        stream.read_exact(&mut reply).await.ok()?;
        reply.starts_with(b"HTTP/1.1 2").then_some(())
    };
    tokio::time::timeout(PROBE_LIMIT, probe).await.is_ok_and(|reply| reply.is_some())
}
