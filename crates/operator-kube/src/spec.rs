//! The resource `KvickCluster`: what its author writes, and what the operator says about it.

use k8s_openapi::api::core::v1::{ResourceRequirements, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use kvick_planner::Policy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Group of the resource, and prefix of labels and annotations.
pub const GROUP: &str = "kvick.dev";
/// Kind of the resource.
pub const KIND: &str = "KvickCluster";

/// A cluster of Kvick servers whose number follows the load.
#[derive(Clone, Debug, CustomResource, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(group = "kvick.dev", version = "v1alpha1", kind = "KvickCluster", namespaced, shortname = "kvick")]
#[kube(status = "KvickClusterStatus", derive = "PartialEq")]
#[kube(scale(
    spec_replicas_path = ".spec.shards.count",
    status_replicas_path = ".status.shardCount",
    label_selector_path = ".status.selector"
))]
#[kube(printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"))]
#[kube(printcolumn(name = "Shards", type_ = "integer", json_path = ".status.shardCount"))]
#[kube(printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"))]
#[serde(rename_all = "camelCase")]
#[allow(clippy::duplicated_attributes, reason = "columns have the same type")]
pub struct KvickClusterSpec {
    /// Container image of the servers.
    pub image: String,
    /// Program of the container and its first arguments, before those of the operator.
    #[serde(default = "default_command")]
    pub command: Vec<String>,
    /// Number of shards.
    #[serde(default)]
    pub shards: Shards,
    /// Replicas of each shard, against failures.
    #[serde(default)]
    #[schemars(range(min = 0, max = 16))]
    pub replicas_per_shard: u32,
    /// Resources of each pod. Without a directive `maxmemory` it is 70 percent of the memory limit; the number of
    /// workers is the CPU limit, rounded up.
    #[serde(default)]
    pub resources: ResourceRequirements,
    /// When the number of shards changes with the load.
    #[serde(default)]
    pub autoscale: Autoscale,
    /// Whether there is a service `NAME-endpoint` for clients that know nothing of clusters: each node answers for all
    /// slots there, on the port 2 above that of cluster clients.
    #[serde(default)]
    pub endpoint: bool,
    /// Port of cluster clients. The cluster bus uses the port 10,000 above, metrics the next one.
    #[serde(default = "default_port")]
    #[schemars(range(min = 1, max = 55535))]
    pub port: u16,
    /// Secret with the key `password`: the password of the default user, for clients and between nodes. It must not
    /// change while pods run. With `aclSecret`, the key `username` names the user of the operator, of replication and
    /// of backups.
    pub password_secret: Option<String>,
    /// Secret with the key `users.acl`: the users and their rights, as in an ACL file. A change is loaded by all nodes
    /// without restarts.
    pub acl_secret: Option<String>,
    /// Secret with the keys `tls.crt`, `tls.key` and `ca.crt`. With it, clients and nodes use TLS only. The certificate
    /// must be valid for the host names of pods, `*.NAME-nodes.NAMESPACE.svc`.
    pub tls_secret: Option<String>,
    /// Where data is kept. Without it, the data of a pod ends with the pod.
    pub persistence: Option<Persistence>,
    /// Backups of the data. Without it, there are none.
    pub backup: Option<Backup>,
    /// Pods that run and have joined as nodes without slots, so that a new shard need not wait for one.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100))]
    pub warm_spares: u32,
    /// Further directives of the servers.
    #[serde(default)]
    pub config: BTreeMap<String, String>,
    /// Whether evictions may disturb only one pod of the cluster at a time.
    #[serde(default = "default_true")]
    pub pod_disruption_budget: bool,
    /// How pods are spread over nodes and zones. Without it: those of a shard on different nodes, if possible.
    pub topology_spread: Option<Vec<TopologySpreadConstraint>>,
    /// Annotations of pods. A change replaces the pods one after the other.
    #[serde(default)]
    pub pod_annotations: BTreeMap<String, String>,
    /// Seconds that a server has to end by itself.
    #[serde(default = "default_grace")]
    pub termination_grace_period_seconds: u16,
}

/// Number of shards.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Shards {
    /// Least number.
    #[schemars(range(min = 1, max = 1000))]
    pub min: u32,
    /// Greatest number.
    #[schemars(range(min = 1, max = 1000))]
    pub max: u32,
    /// If given, this number, whatever the load. `kubectl scale` sets it.
    #[schemars(range(min = 1, max = 1000))]
    pub count: Option<u32>,
}

impl Default for Shards {
    fn default() -> Shards {
        Shards { min: 1, max: 4, count: None }
    }
}

/// When the number of shards changes with the load. Fractions are of what a shard can do.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Autoscale {
    /// Busy fraction of the workers that capacity is planned for.
    #[schemars(range(min = 0.05, max = 1.0))]
    pub busy_target: f64,
    /// Busy fraction at which shards are added.
    #[schemars(range(min = 0.05, max = 1.0))]
    pub busy_grow: f64,
    /// Busy fraction that fewer shards may have.
    #[schemars(range(min = 0.05, max = 1.0))]
    pub busy_shrink: f64,
    /// Fraction of the memory that capacity is planned for.
    #[schemars(range(min = 0.05, max = 1.0))]
    pub memory_target: f64,
    /// Seconds for which fewer shards must have been enough.
    pub quiet_seconds: u32,
    /// Replicas that a shard may have in addition, for reads, if its load is one slot.
    #[schemars(range(min = 0, max = 16))]
    pub read_replicas_max: u32,
}

impl Default for Autoscale {
    fn default() -> Autoscale {
        let policy = Policy::default();
        Autoscale {
            busy_target: policy.busy_target,
            busy_grow: policy.busy_grow,
            busy_shrink: policy.busy_shrink,
            memory_target: policy.memory_target,
            quiet_seconds: policy.quiet.as_secs() as u32,
            read_replicas_max: 0,
        }
    }
}

/// Where data is kept: a volume for each pod, deleted with the cluster or when the shard leaves.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Persistence {
    /// Size of a volume, such as `10Gi`.
    pub size: String,
    /// Storage class; without it, the default one.
    pub storage_class: Option<String>,
}

/// Backups of a cluster, by a CronJob with the program `kvick-backup`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backup {
    /// When, in the format of cron and the time zone of the controller manager, such as `0 */6 * * *`.
    pub schedule: String,
    /// Backups that are kept; older ones are removed.
    #[serde(default = "default_keep")]
    #[schemars(range(min = 1, max = 10000))]
    pub keep: u32,
    /// Where backups are kept.
    pub destination: Destination,
    /// Container image with `kvick-backup`. Without it, that of the servers.
    pub image: Option<String>,
    /// Program of the container and its first arguments, before those of the operator.
    #[serde(default = "default_backup_command")]
    pub command: Vec<String>,
    /// Resources of the pod that makes a backup.
    #[serde(default)]
    pub resources: ResourceRequirements,
}

/// Where backups are kept: one of the two.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Destination {
    /// An object storage with the protocol of S3.
    pub s3: Option<S3>,
    /// Name of a volume claim. Backups are in the directory with the name of the cluster.
    pub volume_claim: Option<String>,
}

/// An object storage with the protocol of S3.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct S3 {
    /// Name of the bucket.
    pub bucket: String,
    /// First part of the names of objects. Without it, the name of the cluster.
    pub prefix: Option<String>,
    /// URL of the storage, if it is not that of Amazon.
    pub endpoint: Option<String>,
    /// Region.
    pub region: Option<String>,
    /// Secret with the keys `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`.
    pub credentials_secret: String,
}

/// What the operator says about a cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KvickClusterStatus {
    /// Generation of the resource that this is about.
    pub observed_generation: i64,
    /// What the cluster is doing, in one word.
    pub phase: String,
    /// Number of shards.
    pub shard_count: u32,
    /// Selects the pods of the cluster.
    pub selector: String,
    /// The shards.
    pub shards: Vec<ShardStatus>,
    /// Pods that wait as nodes without slots, and have joined.
    pub warm_spares_ready: u32,
    /// `Ready`, `Progressing` and `SpecValid`; with `aclSecret` also `AclLoaded`.
    pub conditions: Vec<Condition>,
}

/// A shard.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ShardStatus {
    /// Its number.
    pub id: u32,
    /// Pod of its primary.
    pub primary: Option<String>,
    /// Number of slots that it owns.
    pub slots: u32,
    /// Replicas that have the primary's data.
    pub replicas_ready: u32,
    /// Whether its slots are moving away.
    pub is_leaving: bool,
}

fn default_command() -> Vec<String> {
    vec!["kvick-server".to_owned()]
}

fn default_keep() -> u32 {
    7
}

fn default_backup_command() -> Vec<String> {
    vec!["kvick-backup".to_owned()]
}

fn default_port() -> u16 {
    6379
}

fn default_true() -> bool {
    true
}

fn default_grace() -> u16 {
    60
}

impl KvickClusterSpec {
    /// The port of the cluster bus.
    pub fn bus_port(&self) -> u16 {
        self.port.saturating_add(10_000)
    }

    /// The CPU limit, rounded up; 1 without a limit.
    pub fn workers_max(&self) -> u32 {
        let limit = self.resources.limits.as_ref().and_then(|limits| limits.get("cpu"));
        limit.and_then(|limit| quantity(&limit.0)).map_or(1, |cores| (cores.ceil() as u32).clamp(1, 1024))
    }

    /// The value of `maxmemory`, in bytes, if the pods have a memory limit.
    pub fn memory_max(&self) -> Option<u64> {
        let limit = self.resources.limits.as_ref()?.get("memory")?;
        quantity(&limit.0).map(|bytes| (bytes * 0.7) as u64)
    }

    /// What is wrong with it, beyond what the schema excludes.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn validate(&self) -> Result<(), String> {
        let Autoscale { busy_target, busy_grow, busy_shrink, .. } = self.autoscale;
        let reserved = self.config.keys().find(|name| crate::objects::is_reserved(name));
        for (is_valid, rule) in [
            (self.shards.min >= 1 && self.shards.max >= self.shards.min, "shards: 1 <= min <= max".to_owned()),
            (self.shards.count != Some(0), "shards.count must be at least 1".to_owned()),
            (self.port >= 1 && self.port <= 55_535, "port must be from 1 to 55535".to_owned()),
            (
                busy_shrink > 0.0 && busy_shrink <= busy_target && busy_target <= busy_grow && busy_grow <= 1.0,
                "autoscale: 0 < busyShrink <= busyTarget <= busyGrow <= 1".to_owned(),
            ),
            (!self.command.is_empty(), "command must not be empty".to_owned()),
            (reserved.is_none(), format!("config: {} is set by the operator", reserved.map_or("", |name| name))),
        ] {
            if !is_valid {
                return Err(rule);
            }
        }
        if let Some(backup) = &self.backup {
            backup.validate()?;
        }
        if self.acl_secret.is_some() && self.password_secret.is_none() {
            return Err("aclSecret needs a passwordSecret: the operator and the nodes log in with it".to_owned());
        }
        let is_plain = |text: &String| !text.contains(['\n', '\r', '"', '\\']);
        match self.config.iter().find(|(name, value)| !is_plain(name) || !is_plain(value) || name.contains(' ')) {
            Some((name, _)) => Err(format!("config: {name:?} has a quotation mark, a backslash or a line break")),
            None => Ok(()),
        }
    }

    /// The settings of the planner.
    pub fn policy(&self) -> Policy {
        let Shards { min, max, count } = self.shards;
        Policy {
            shards_min: count.unwrap_or(min),
            shards_max: count.unwrap_or(max),
            replicas: self.replicas_per_shard,
            read_replicas_max: self.autoscale.read_replicas_max,
            busy_target: self.autoscale.busy_target,
            busy_grow: self.autoscale.busy_grow,
            busy_shrink: self.autoscale.busy_shrink,
            memory_target: self.autoscale.memory_target,
            quiet: Duration::from_secs(self.autoscale.quiet_seconds.into()),
            ..Policy::default()
        }
    }
}

impl Backup {
    fn validate(&self) -> Result<(), String> {
        let Destination { s3, volume_claim } = &self.destination;
        let fields = self.schedule.split_whitespace().count();
        let has_fields = fields == 5 || (fields == 1 && self.schedule.starts_with('@'));
        let is_name = |text: &str| {
            !text.is_empty() && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./".contains(letter))
        };
        let names = s3.iter().flat_map(|s3| [Some(s3.bucket.as_str()), s3.prefix.as_deref()]).flatten();
        for (is_valid, rule) in [
            (
                has_fields,
                "backup.schedule must have five fields, as in cron, or be one of @hourly, @daily and the like",
            ),
            (self.keep >= 1, "backup.keep must be at least 1"),
            (!self.command.is_empty(), "backup.command must not be empty"),
            (s3.is_some() != volume_claim.is_some(), "backup.destination needs either s3 or volumeClaim"),
            (names.into_iter().all(is_name), "backup.destination.s3: bucket and prefix must be plain names"),
        ] {
            if !is_valid {
                return Err(rule.to_owned());
            }
        }
        Ok(())
    }
}

/// The value of a quantity of Kubernetes, such as `500m`, `2`, `512Mi` or `4G`.
fn quantity(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1.0,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        _ => return None,
    };
    digits.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0).map(|number| number * unit)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A cluster with nothing but an image.
    pub(crate) fn spec() -> KvickClusterSpec {
        serde_json::from_value(serde_json::json!({ "image": "kvick:1" })).expect("a spec")
    }

    #[test]
    fn quantities_are_read() {
        for (text, value) in [("500m", Some(0.5)), ("2", Some(2.0)), ("1Gi", Some(1_073_741_824.0)), ("x", None)] {
            assert_eq!(quantity(text), value, "{text}");
        }
    }

    #[test]
    fn defaults_are_valid_and_a_count_fixes_the_number_of_shards() {
        let mut spec = spec();
        assert_eq!(spec.validate(), Ok(()));
        assert_eq!((spec.policy().shards_min, spec.policy().shards_max), (1, 4));
        spec.shards.count = Some(7);
        assert_eq!((spec.policy().shards_min, spec.policy().shards_max), (7, 7));
    }

    #[test]
    fn broken_rules_are_named() {
        let mut broken = spec();
        broken.shards.min = 5;
        assert!(broken.validate().expect_err("an error").contains("min <= max"));
        let mut broken = spec();
        broken.config.insert("port".into(), "1".into());
        assert!(broken.validate().expect_err("an error").contains("port is set"));
        let mut broken = spec();
        broken.config.insert("save".into(), "\"\nport 1".into());
        assert!(broken.validate().is_err());
        let mut broken = spec();
        broken.acl_secret = Some("users".into());
        assert!(broken.validate().expect_err("an error").contains("passwordSecret"));
        let backup = serde_json::json!({ "schedule": "0 * * * *", "destination": { "volumeClaim": "backups" } });
        let backup: Backup = serde_json::from_value(backup).expect("backups");
        assert_eq!(backup.validate(), Ok(()));
        let nowhere = Backup { destination: Destination::default(), ..backup.clone() };
        assert!(nowhere.validate().expect_err("an error").contains("either"));
        let never = Backup { schedule: "hourly".into(), ..backup };
        assert!(never.validate().expect_err("an error").contains("schedule"));
    }
}
