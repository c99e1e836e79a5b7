//! The loop of the operator: observe, plan, act, show.

use crate::backend::Backend;
use crate::config::Config;
use crate::execute::execute;
use crate::local::Local;
use crate::observe::{Access, Observer};
use crate::reconcile::{Memory, step};
use crate::state::State;
use crate::view::View;
use kvick_planner::{Plan, Planner};
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Seconds since the operator began.
    pub at_s: f64,
    /// What, and why.
    pub text: String,
    /// How often it was repeated since.
    pub repeated: u32,
}

/// All that is shown.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// The nodes.
    pub state: State,
    /// The last plan.
    pub plan: Plan,
    /// What happened, the latest last.
    pub events: Vec<Event>,
}

/// Events that are kept.
const EVENTS_MAX: usize = 200;

struct File {
    path: PathBuf,
    modified: Option<SystemTime>,
}

impl File {
    /// Whether the file has changed since the last call.
    fn has_changed(&mut self) -> bool {
        let modified = std::fs::metadata(&self.path).and_then(|metadata| metadata.modified()).ok();
        std::mem::replace(&mut self.modified, modified) != modified
    }
}

/// Runs a cluster of local processes until the view ends.
///
/// # Errors
/// If the file is invalid at the start, or the directory or the terminal cannot be used.
pub fn run(path: &Path, view: &mut dyn View) -> io::Result<()> {
    let mut file = File { path: path.to_owned(), modified: None };
    file.has_changed();
    let mut config = Config::read(path)?;
    let mut backend = Local::open(config.clone())?;
    let mut observer = Observer::new(Access { password: config.password.clone(), ..Access::default() });
    let mut planner = Planner::new(config.policy());
    let mut memory = Memory::default();
    let mut picture = Picture::default();
    // Failed migrations that were noted. Those of the time before are not news.
    let mut failed: Option<HashSet<String>> = None;
    let began = Instant::now();
    loop {
        let turn = Instant::now();
        if file.has_changed() {
            match Config::read(path) {
                Ok(changed) => {
                    planner.set_policy(changed.policy());
                    backend.set_config(changed.clone());
                    config = changed;
                    note(&mut picture.events, began, "the configuration file has changed".into());
                }
                Err(error) => note(&mut picture.events, began, format!("the configuration file is ignored: {error}")),
            }
        }
        let is_first = failed.is_none();
        let members = backend.list()?;
        let state = observer.observe(members);
        let failed = failed.get_or_insert_default();
        for text in new_failures(&state, failed) {
            if !is_first {
                note(&mut picture.events, began, text);
            }
        }
        let plan = planner.plan(&state.observation(config.limits.workers_max));
        for task in step(&state, &plan, 0, &mut memory) {
            let outcome = execute(&task.operation, &state, &mut backend, &mut observer);
            let text = match outcome {
                Ok(()) => format!("{}: {}", task.operation, task.reason),
                Err(error) => format!("cannot {}: {error}", task.operation),
            };
            note(&mut picture.events, began, text);
        }
        (picture.state, picture.plan) = (state, plan);
        let interval = Duration::from_millis(config.interval_ms);
        if !view.show(&picture, interval.saturating_sub(turn.elapsed()))? {
            return Ok(());
        }
    }
}

/// Descriptions of failed migrations that are not `known` yet.
fn new_failures(state: &State, known: &mut HashSet<String>) -> Vec<String> {
    let failed =
        state.answering().flat_map(|(node, facts)| facts.failed_exports.iter().map(move |export| (node, export)));
    let now: Vec<_> = failed.collect();
    let news = now.iter().filter(|(_, export)| !known.contains(&export.name));
    let texts = news.map(|(node, export)| {
        format!("a migration from {} to {:.8} failed: {}", node.member.name, export.to, export.message)
    });
    let texts = texts.collect();
    *known = now.iter().map(|(_, export)| export.name.clone()).collect();
    texts
}

/// Adds an event, or counts the last one again if it is the same.
fn note(events: &mut Vec<Event>, began: Instant, text: String) {
    if let Some(last) = events.last_mut()
        && last.text == text
    {
        last.repeated += 1;
        return;
    }
    events.push(Event { at_s: began.elapsed().as_secs_f64(), text, repeated: 0 });
    if events.len() > EVENTS_MAX {
        events.remove(0);
    }
}

/// Ends all processes.
///
/// # Errors
/// If the file is invalid, or an operator uses the directory.
pub fn stop(path: &Path) -> io::Result<usize> {
    Local::open(Config::read(path)?)?.stop_all()
}

/// A line per shard for both views.
pub fn shard_rows(picture: &Picture) -> Vec<[String; 9]> {
    let counts: BTreeMap<_, _> = picture.state.slot_counts();
    let owners = picture.state.owners();
    let rows = picture.state.shards().into_iter().map(|shard| {
        let nodes: Vec<_> = picture.state.of_shard(shard).collect();
        let primary = picture.state.primary_of(shard, &owners);
        let facts = primary.and_then(|node| node.facts.as_ref());
        let load = facts.map(|facts| facts.load.clone()).unwrap_or_default();
        let is_leaving = nodes.iter().any(|node| node.member.is_leaving);
        let condition = match (facts, is_leaving) {
            (None, _) => "down",
            (Some(_), true) => "leaving",
            (Some(_), false) => "serving",
        };
        let synchronized = nodes
            .iter()
            .filter(|node| node.facts.as_ref().is_some_and(|facts| facts.primary.is_some() && facts.is_synchronized));
        [
            shard.0.to_string(),
            primary.map_or("-".to_owned(), |node| format!("{} :{}", node.member.name, node.member.port)),
            condition.to_owned(),
            counts.get(&shard).copied().unwrap_or(0).to_string(),
            format!("{:.2} of {}", load.busy_cores, load.workers),
            format!("{:.0}", load.commands_s),
            format!("{:.1}", load.memory_bytes as f64 / 1e6),
            format!("{:.2}", load.ping_ms),
            format!("{}/{}", synchronized.count(), nodes.len().saturating_sub(1)),
        ]
    });
    rows.collect()
}

/// A line per migration.
pub fn migration_rows(picture: &Picture) -> Vec<String> {
    let name = |id: &str| {
        let node = picture.state.nodes.iter().find(|node| node.id() == Some(id));
        node.map_or(id.to_owned(), |node| node.member.name.clone())
    };
    let exports = picture.state.answering().flat_map(|(node, facts)| facts.exports.iter().map(move |e| (node, e)));
    let rows = exports.map(|(node, export)| {
        format!("{} -> {}: {} slots, {}", node.member.name, name(&export.to), export.slots.len(), export.state)
    });
    rows.collect()
}
