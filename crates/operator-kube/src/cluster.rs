//! The loop of one cluster: read the resource, observe, plan, act, say so.

use crate::acl::{Progress, Users};
use crate::metrics::{Gauges, Metrics};
use crate::pods::{Connection, MANAGER, Pods};
use crate::spec::{KvickCluster, KvickClusterStatus};
use crate::status::{Situation, reason};
use crate::watch::Watched;
use k8s_openapi::api::core::v1::{Event, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use kvick_operator::backend::Backend;
use kvick_operator::execute::execute;
use kvick_operator::observe::Observer;
use kvick_operator::reconcile::{Memory, Task, step};
use kvick_operator::state::State;
use kvick_planner::{Plan, Planner};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which all objects are corrected, even if nothing is known to have changed.
const APPLY_EVERY: Duration = Duration::from_secs(60);
/// Least time between two steps, however much changes.
const PAUSE: Duration = Duration::from_millis(50);
/// Time after which an event that is the same as the last one is written again.
const EVENT_REPEAT: Duration = Duration::from_secs(30);

/// Which cluster, and how to reach it.
#[derive(Clone)]
pub struct Target {
    /// The API server.
    pub connection: Connection,
    /// What the API server has reported.
    pub watched: Watched,
    /// Where the figures go.
    pub metrics: Metrics,
    /// Where the cluster is.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Time between two observations.
    pub interval: Duration,
}

/// What is known between two steps. All of it can be lost.
struct Running {
    uid: Option<String>,
    target: Target,
    backend: Pods,
    observer: Observer,
    planner: Planner,
    memory: Memory,
    users: Users,
    /// Generation whose objects were applied, and when.
    applied: Option<(i64, Instant)>,
    status: KvickClusterStatus,
    event: Option<(String, Instant)>,
    events: u64,
}

/// Runs a cluster until its resource is deleted. Each step asks all nodes; the next one follows after the interval, or
/// earlier if the resource or a pod changes.
pub fn run(target: &Target) {
    let mut running: Option<Running> = None;
    let mut seen = 0;
    loop {
        let began = Instant::now();
        seen = target.watched.changes.wait(&target.name, seen, Duration::ZERO);
        let outcome = turn(target, &mut running);
        match &outcome {
            Ok(true) => {}
            Ok(false) => {
                target.metrics.remove(&target.name);
                return;
            }
            // What is missing is done in the next step.
            Err(error) => eprintln!("{}/{}: {error}", target.namespace, target.name),
        }
        target.metrics.note_reconcile(&target.name, began.elapsed(), outcome.is_err());
        std::thread::sleep(PAUSE);
        target.watched.changes.wait(&target.name, seen, target.interval.saturating_sub(began.elapsed()));
    }
}

/// One step. Returns whether the cluster still exists.
fn turn(target: &Target, running: &mut Option<Running>) -> io::Result<bool> {
    let cluster = target.watched.cluster(&target.namespace, &target.name);
    let Some(cluster) = cluster.filter(|cluster| cluster.metadata.deletion_timestamp.is_none()) else {
        return Ok(false);
    };
    if running.as_ref().is_some_and(|running| running.uid != cluster.uid()) {
        // It was deleted, and another one was created with its name.
        *running = None;
    }
    let running = match running {
        Some(running) => running,
        None => {
            let backend = Pods::new(target.connection.clone(), target.watched.clone(), Arc::clone(&cluster));
            let access = backend.access()?;
            running.insert(Running {
                uid: cluster.uid(),
                target: target.clone(),
                backend,
                observer: Observer::new(access),
                planner: Planner::new(cluster.spec.policy()),
                memory: Memory::default(),
                users: Users::default(),
                applied: None,
                status: cluster.status.clone().unwrap_or_default(),
                event: None,
                events: 0,
            })
        }
    };
    running.step(&cluster)?;
    Ok(true)
}

impl Running {
    fn step(&mut self, cluster: &Arc<KvickCluster>) -> io::Result<()> {
        let generation = cluster.metadata.generation.unwrap_or_default();
        if let Err(problem) = cluster.spec.validate() {
            let state = State::default();
            let status = situation(cluster, &state, &[], &self.status).invalid(&problem);
            return self.write_status(cluster, status);
        }
        self.backend.set_cluster(Arc::clone(cluster));
        self.planner.set_policy(cluster.spec.policy());
        if self.applied.is_none_or(|(applied, at)| applied != generation || at.elapsed() > APPLY_EVERY) {
            let access = self.backend.access()?;
            self.backend.apply_all(&access)?;
            // The operator's own certificate may be a new one.
            self.observer.set_access(access);
            self.applied = Some((generation, Instant::now()));
        }
        let members = self.backend.list()?;
        let state = self.observer.observe(members);
        let plan = self.planner.plan(&state.observation(cluster.spec.workers_max()));
        // Pods that are started now find the users.
        let users = self.load_users(cluster, &state)?;
        let tasks = step(&state, &plan, cluster.spec.warm_spares, &mut self.memory);
        for task in &tasks {
            let outcome = execute(&task.operation, &state, &mut self.backend, &mut self.observer);
            self.target.metrics.note_operation(&self.target.name, &task.operation, outcome.is_err());
            self.tell(cluster, task, outcome);
        }
        let situation = Situation { users: users.as_ref(), ..situation(cluster, &state, &tasks, &self.status) };
        let status = situation.status();
        self.target.metrics.set_gauges(&self.target.name, gauges(cluster, &state, &plan, &status));
        self.write_status(cluster, status)
    }

    /// Has nodes load the users of the cluster's secret.
    fn load_users(&mut self, cluster: &KvickCluster, state: &State) -> io::Result<Option<Progress>> {
        if cluster.spec.acl_secret.is_none() {
            return Ok(None);
        }
        let Running { users, backend, observer, .. } = self;
        let progress = users.step(backend, state, observer)?;
        if let Progress::Refused(problem) = &progress {
            self.write_event(cluster, "Warning", "RefuseUsers", format!("the users are not valid: {problem}"));
        }
        Ok(Some(progress))
    }

    fn write_status(&mut self, cluster: &KvickCluster, status: KvickClusterStatus) -> io::Result<()> {
        if cluster.status.as_ref() != Some(&status) {
            let patch = Patch::Merge(serde_json::json!({ "status": status }));
            let api: Api<KvickCluster> = Api::namespaced(self.target.connection.client.clone(), &self.target.namespace);
            let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            let written = api.patch_status(&self.target.name, &parameters, &patch);
            self.target.connection.wait(written)?;
        }
        self.status = status;
        Ok(())
    }

    /// Writes what was done, and why, to the log and as an event. Events are a service: the cluster does not depend on
    /// them.
    fn tell(&mut self, cluster: &KvickCluster, task: &Task, outcome: io::Result<()>) {
        let (type_, text) = match outcome {
            Ok(()) => ("Normal", format!("{}: {}", task.operation, task.reason)),
            Err(error) => ("Warning", format!("cannot {}: {error}", task.operation)),
        };
        self.write_event(cluster, type_, reason(&task.operation), text);
    }

    fn write_event(&mut self, cluster: &KvickCluster, type_: &str, reason: &str, text: String) {
        let is_repeated = |(last, at): &(String, Instant)| *last == text && at.elapsed() < EVENT_REPEAT;
        if self.event.as_ref().is_some_and(is_repeated) {
            return;
        }
        println!("{}/{}: {text}", self.target.namespace, self.target.name);
        self.events += 1;
        let now = k8s_openapi::jiff::Timestamp::now();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{:x}.{:x}", cluster.name_any(), now.as_nanosecond(), self.events)),
                namespace: cluster.namespace(),
                ..ObjectMeta::default()
            },
            involved_object: cluster.object_ref(&()),
            reason: Some(reason.to_owned()),
            message: Some(text.clone()),
            type_: Some(type_.to_owned()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource { component: Some(MANAGER.to_owned()), ..EventSource::default() }),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.target.connection.client.clone(), &self.target.namespace);
        if let Err(error) = self.target.connection.wait(api.create(&PostParams::default(), &event)) {
            eprintln!("{}/{}: cannot write an event: {error}", self.target.namespace, self.target.name);
        }
        self.event = Some((text, Instant::now()));
    }
}

/// What metrics say about a step.
fn gauges(cluster: &KvickCluster, state: &State, plan: &Plan, status: &KvickClusterStatus) -> Gauges {
    let owners = state.owners();
    Gauges {
        phase: status.phase.clone(),
        shards_wanted: cluster.spec.shards.count.unwrap_or(plan.figures.shards_needed),
        shards: status.shard_count,
        pods: state.nodes.len() as u32,
        pods_answering: state.answering().count() as u32,
        spares: status.warm_spares_ready,
        slots_unserved: owners.iter().filter(|owner| owner.is_none_or(|node| !node.is_primary())).count() as u32,
        migrations: state.answering().map(|(_, facts)| facts.exports.len() as u32).sum(),
    }
}

fn situation<'a>(
    cluster: &'a KvickCluster,
    state: &'a State,
    tasks: &'a [Task],
    before: &'a KvickClusterStatus,
) -> Situation<'a> {
    Situation {
        name: cluster.metadata.name.as_deref().unwrap_or_default(),
        generation: cluster.metadata.generation.unwrap_or_default(),
        spec: &cluster.spec,
        state,
        tasks,
        users: None,
        before,
    }
}
