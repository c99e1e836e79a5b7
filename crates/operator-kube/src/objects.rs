//! The objects that belong to a cluster, as functions of its `KvickCluster`.

use crate::acl;
use crate::spec::{KvickCluster, KvickClusterSpec};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMap, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource,
    HTTPGetAction, ObjectFieldSelector, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource, Pod, PodAffinityTerm, PodAntiAffinity, PodSecurityContext, PodSpec, Probe,
    SeccompProfile, Secret, SecretVolumeSource, SecurityContext, Service, ServicePort, ServiceSpec, Volume,
    VolumeMount, VolumeResourceRequirements, WeightedPodAffinityTerm,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Label with the name of the cluster. It selects what belongs to one.
pub const CLUSTER_LABEL: &str = "kvick.dev/cluster";
/// Label with the number of the shard.
pub const SHARD_LABEL: &str = "kvick.dev/shard";
/// Annotation with the hash of what a pod was made from.
pub const TEMPLATE_ANNOTATION: &str = "kvick.dev/template";
/// Name of the container.
pub const CONTAINER: &str = "kvick";
/// User and group of the processes.
pub const USER: i64 = 999;
const CONFIG_FILE: &str = "kvick.conf";
const CONFIG_PATH: &str = "/etc/kvick";
const DATA_PATH: &str = "/data";
/// Where the certificate is mounted.
pub const TLS_PATH: &str = "/etc/kvick-tls";
const ACL_PATH: &str = "/etc/kvick-acl";

/// Directives that come from other fields of the resource, or that the operator depends on.
const RESERVED: &[&str] = &[
    "aclfile",
    "bind",
    "cluster-announce-bus-port",
    "cluster-announce-hostname",
    "cluster-announce-ip",
    "cluster-announce-port",
    "cluster-config-file",
    "cluster-enabled",
    "cluster-forward",
    "cluster-forward-password",
    "cluster-forward-port",
    "cluster-forward-tls-port",
    "cluster-forward-user",
    "cluster-port",
    "cluster-slot-stats-enabled",
    "daemonize",
    "dir",
    "include",
    "logfile",
    "masterauth",
    "masteruser",
    "metrics-port",
    "port",
    "primaryauth",
    "primaryuser",
    "requirepass",
    "tls-ca-cert-file",
    "tls-cert-file",
    "tls-cluster",
    "tls-key-file",
    "tls-port",
    "tls-replication",
    "user",
];

/// Whether `config` must not have this directive.
pub fn is_reserved(directive: &str) -> bool {
    RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(directive))
}

/// Name of the headless service that gives pods their host names, and of the ConfigMap with the records of nodes.
pub fn nodes_name(cluster: &str) -> String {
    format!("{cluster}-nodes")
}

/// Name of the secret with the configuration file.
pub fn config_name(cluster: &str) -> String {
    format!("{cluster}-config")
}

/// The host name of a pod, which stays when its address changes.
pub fn hostname(cluster: &KvickCluster, pod: &str) -> String {
    format!("{pod}.{}.{}.svc", nodes_name(&cluster.name_any()), cluster.namespace().unwrap_or_default())
}

/// Where clients reach any node of the cluster: its service.
pub fn service_endpoint(cluster: &KvickCluster) -> String {
    format!("{}.{}.svc:{}", cluster.name_any(), cluster.namespace().unwrap_or_default(), cluster.spec.port)
}

/// The selector of all pods of a cluster, as text.
pub fn selector(cluster: &str) -> String {
    format!("{CLUSTER_LABEL}={cluster}")
}

fn labels(cluster: &str) -> BTreeMap<String, String> {
    let labels = [
        ("app.kubernetes.io/name", "kvick"),
        ("app.kubernetes.io/instance", cluster),
        ("app.kubernetes.io/managed-by", "kvick-operator"),
        (CLUSTER_LABEL, cluster),
    ];
    labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn selected(cluster: &str) -> BTreeMap<String, String> {
    [(CLUSTER_LABEL.to_owned(), cluster.to_owned())].into()
}

/// Metadata of an object that is deleted with the cluster.
pub fn metadata(cluster: &KvickCluster, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: cluster.namespace(),
        labels: Some(labels(&cluster.name_any())),
        owner_references: Some(cluster.controller_owner_ref(&()).into_iter().collect()),
        ..ObjectMeta::default()
    }
}

fn port(name: &str, port: u16) -> ServicePort {
    ServicePort { name: Some(name.to_owned()), port: port.into(), ..ServicePort::default() }
}

/// Name of the service whose nodes answer for all slots.
pub fn endpoint_name(cluster: &str) -> String {
    format!("{cluster}-endpoint")
}

/// The port on which a node answers for all slots.
fn endpoint_port(spec: &KvickClusterSpec) -> u16 {
    spec.port + 2
}

/// The services: for cluster clients, for the host names of pods, and the endpoint for all other clients.
pub fn services(cluster: &KvickCluster) -> Vec<Service> {
    let name = cluster.name_any();
    let spec = &cluster.spec;
    let service = |name: String, spec: ServiceSpec| Service {
        metadata: metadata(cluster, name),
        spec: Some(ServiceSpec { selector: Some(selected(&cluster.name_any())), ..spec }),
        ..Service::default()
    };
    let clients = ServiceSpec { ports: Some(vec![port("clients", spec.port)]), ..ServiceSpec::default() };
    let nodes = ServiceSpec {
        ports: Some(vec![port("clients", spec.port), port("bus", spec.bus_port())]),
        cluster_ip: Some("None".to_owned()),
        publish_not_ready_addresses: Some(true),
        ..ServiceSpec::default()
    };
    let mut services = vec![service(nodes_name(&name), nodes), service(name.clone(), clients)];
    if spec.endpoint {
        let target_port = Some(IntOrString::String("endpoint".to_owned()));
        let ports = vec![ServicePort { target_port, ..port("endpoint", spec.port) }];
        services.push(service(endpoint_name(&name), ServiceSpec { ports: Some(ports), ..ServiceSpec::default() }));
    }
    services
}

/// The disruption budget, if it is wanted.
pub fn disruption_budget(cluster: &KvickCluster) -> Option<PodDisruptionBudget> {
    let name = cluster.name_any();
    cluster.spec.pod_disruption_budget.then(|| PodDisruptionBudget {
        metadata: metadata(cluster, name.clone()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector { match_labels: Some(selected(&name)), ..LabelSelector::default() }),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    })
}

/// The records of nodes, without data.
pub fn records(cluster: &KvickCluster) -> ConfigMap {
    ConfigMap { metadata: metadata(cluster, nodes_name(&cluster.name_any())), ..ConfigMap::default() }
}

/// The configuration file, without the password.
fn config(spec: &KvickClusterSpec) -> String {
    let yes = || "yes".to_owned();
    let mut directives: BTreeMap<&str, String> = [
        ("appendonly", yes()),
        ("cluster-allow-replica-migration", "no".to_owned()),
        // A primary that restarts without its data waits for its replica.
        ("cluster-empty-primary-wait", "10000".to_owned()),
        ("cluster-enabled", yes()),
        ("cluster-node-timeout", "5000".to_owned()),
        ("cluster-port", spec.bus_port().to_string()),
        ("cluster-resolve-hostnames", yes()),
        ("cluster-slot-stats-enabled", yes()),
        ("io-threads", spec.workers_max().to_string()),
        ("io-threads-min", "1".to_owned()),
        ("metrics-port", (spec.port + 1).to_string()),
        ("port", spec.port.to_string()),
        // Pods have addresses that other pods reach; a password or network policies protect them.
        ("protected-mode", "no".to_owned()),
        ("save", String::new()),
    ]
    .into();
    let has_tls = spec.tls_secret.is_some();
    if has_tls {
        let port = directives.insert("port", "0".to_owned()).unwrap_or_default();
        directives.insert("tls-port", port);
        directives.extend(["tls-cluster", "tls-replication"].map(|name| (name, yes())));
        // Pods see a new certificate in the secret soon after it has changed.
        directives.insert("tls-auto-reload-interval", "3600".to_owned());
    }
    if spec.endpoint {
        let name = if has_tls { "cluster-forward-tls-port" } else { "cluster-forward-port" };
        directives.insert(name, endpoint_port(spec).to_string());
    }
    if let Some(bytes) = spec.memory_max() {
        directives.insert("maxmemory", bytes.to_string());
    }
    for (name, value) in &spec.config {
        directives.insert(name, value.clone());
    }
    let mut text = String::new();
    for (name, value) in directives {
        if value.is_empty() {
            let _ = writeln!(text, "{name} \"\"");
        } else {
            let _ = writeln!(text, "{name} {value}");
        }
    }
    text
}

/// A secret with the configuration file, which has the password. With an ACL file, passwords of users are there.
pub fn config_secret(cluster: &KvickCluster, username: Option<&str>, password: Option<&str>) -> Secret {
    let mut text = config(&cluster.spec);
    let mut write = |directives: &[&str], value: Option<&str>| {
        let Some(value) = value else { return };
        let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
        for directive in directives {
            let _ = writeln!(text, "{directive} \"{quoted}\"");
        }
    };
    write(&["primaryauth", "cluster-forward-password"], password);
    write(&["primaryuser", "cluster-forward-user"], username);
    if cluster.spec.acl_secret.is_none() {
        write(&["requirepass"], password);
    }
    Secret {
        metadata: metadata(cluster, config_name(&cluster.name_any())),
        string_data: Some([(CONFIG_FILE.to_owned(), text)].into()),
        ..Secret::default()
    }
}

/// The claim of a pod's volume, if data is kept.
pub fn claim(cluster: &KvickCluster, name: &str) -> Option<PersistentVolumeClaim> {
    let persistence = cluster.spec.persistence.as_ref()?;
    let requests = [("storage".to_owned(), Quantity(persistence.size.clone()))];
    Some(PersistentVolumeClaim {
        metadata: metadata(cluster, name.to_owned()),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: persistence.storage_class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(requests.into()),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    })
}

/// A pod. Its annotation tells from which settings it was made.
pub fn pod(cluster: &KvickCluster, name: &str, shard: u32) -> Pod {
    let mut metadata = metadata(cluster, name.to_owned());
    metadata.labels.get_or_insert_default().insert(SHARD_LABEL.to_owned(), shard.to_string());
    let spec = pod_spec(cluster, name, shard);
    let mut annotations = cluster.spec.pod_annotations.clone();
    let source = serde_json::json!([spec, annotations, config(&cluster.spec)]).to_string();
    annotations.insert(TEMPLATE_ANNOTATION.to_owned(), hash(source.as_bytes()));
    metadata.annotations = Some(annotations);
    Pod { metadata, spec: Some(spec), ..Pod::default() }
}

fn pod_spec(cluster: &KvickCluster, name: &str, shard: u32) -> PodSpec {
    let spec = &cluster.spec;
    let cluster_name = cluster.name_any();
    let data = match spec.persistence {
        Some(_) => Volume {
            name: "data".to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: name.to_owned(),
                ..PersistentVolumeClaimVolumeSource::default()
            }),
            ..Volume::default()
        },
        None => {
            Volume { name: "data".to_owned(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() }
        }
    };
    let mut volumes = vec![secret_volume("config", config_name(&cluster_name)), data];
    volumes.extend(spec.tls_secret.clone().map(|name| secret_volume("tls", name)));
    if spec.acl_secret.is_some() {
        volumes.push(secret_volume("acl", acl::secret_name(&cluster_name)));
    }
    PodSpec {
        affinity: spec.topology_spread.is_none().then(|| apart(&cluster_name, shard)),
        automount_service_account_token: Some(false),
        containers: vec![container(cluster, name)],
        enable_service_links: Some(false),
        hostname: Some(name.to_owned()),
        security_context: Some(pod_security()),
        subdomain: Some(nodes_name(&cluster_name)),
        termination_grace_period_seconds: Some(spec.termination_grace_period_seconds.into()),
        topology_spread_constraints: spec.topology_spread.clone(),
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

/// A volume with the keys of a secret as files.
pub fn secret_volume(name: &str, secret: String) -> Volume {
    Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource { secret_name: Some(secret), ..SecretVolumeSource::default() }),
        ..Volume::default()
    }
}

/// Keeps the pods of a shard on different nodes, if possible.
fn apart(cluster: &str, shard: u32) -> Affinity {
    let mut labels = selected(cluster);
    labels.insert(SHARD_LABEL.to_owned(), shard.to_string());
    let term = PodAffinityTerm {
        label_selector: Some(LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }),
        topology_key: "kubernetes.io/hostname".to_owned(),
        ..PodAffinityTerm::default()
    };
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                pod_affinity_term: term,
                weight: 100,
            }]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn container(cluster: &KvickCluster, name: &str) -> Container {
    let spec = &cluster.spec;
    let (program, first) = spec
        .command
        .split_first()
        .map_or((String::new(), Vec::new()), |(program, first)| (program.clone(), first.to_vec()));
    let hostname = hostname(cluster, name);
    let config = format!("{CONFIG_PATH}/{CONFIG_FILE}");
    let own = [
        &*config,
        "--bind",
        "$(POD_IP)",
        "--cluster-announce-ip",
        "$(POD_IP)",
        "--cluster-announce-hostname",
        &hostname,
        "--dir",
        DATA_PATH,
    ];
    let mut args: Vec<String> = first.into_iter().chain(own.map(str::to_owned)).collect();
    if spec.tls_secret.is_some() {
        for (option, file) in [("cert", "tls.crt"), ("key", "tls.key"), ("ca-cert", "ca.crt")] {
            args.extend([format!("--tls-{option}-file"), format!("{TLS_PATH}/{file}")]);
        }
    }
    if spec.acl_secret.is_some() {
        args.extend(["--aclfile".to_owned(), format!("{ACL_PATH}/{}", acl::FILE)]);
    }
    let mount = |name: &str, path: &str, read_only| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    };
    let port = |name: &str, port: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: port.into(),
        ..ContainerPort::default()
    };
    let probe = |path: &str, failures| Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("metrics".to_owned()),
            ..HTTPGetAction::default()
        }),
        failure_threshold: Some(failures),
        period_seconds: Some(5),
        ..Probe::default()
    };
    let mut mounts = vec![mount("config", CONFIG_PATH, true), mount("data", DATA_PATH, false)];
    if spec.tls_secret.is_some() {
        mounts.push(mount("tls", TLS_PATH, true));
    }
    if spec.acl_secret.is_some() {
        mounts.push(mount("acl", ACL_PATH, true));
    }
    let mut ports = vec![port("clients", spec.port), port("bus", spec.bus_port()), port("metrics", spec.port + 1)];
    if spec.endpoint {
        ports.push(port("endpoint", endpoint_port(spec)));
    }
    Container {
        name: CONTAINER.to_owned(),
        image: Some(spec.image.clone()),
        command: Some(vec![program]),
        args: Some(args),
        env: Some(vec![EnvVar {
            name: "POD_IP".to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: "status.podIP".to_owned(),
                    ..ObjectFieldSelector::default()
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        }]),
        ports: Some(ports),
        readiness_probe: Some(probe("/readyz", 1)),
        resources: Some(spec.resources.clone()),
        security_context: Some(container_security()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// Pods do not run as root.
pub fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        fs_group: Some(USER),
        run_as_group: Some(USER),
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
        ..PodSecurityContext::default()
    }
}

/// Containers write to their volumes only.
pub fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}

/// FNV-1a with 64 bits, in hexadecimal digits: the same in every version of the operator.
pub fn hash(bytes: &[u8]) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::spec::tests::spec;

    pub(crate) fn cluster() -> KvickCluster {
        let mut cluster = KvickCluster::new("c", spec());
        cluster.metadata.namespace = Some("n".into());
        cluster.metadata.uid = Some("u".into());
        cluster
    }

    fn template(cluster: &KvickCluster) -> String {
        pod(cluster, "c-1", 1).annotations()[TEMPLATE_ANNOTATION].clone()
    }

    #[test]
    fn what_pods_are_made_from_decides_whether_they_are_outdated() {
        let before = cluster();
        assert_eq!(template(&before), template(&cluster()));
        let changes: [fn(&mut KvickClusterSpec); 4] = [
            |spec| spec.image = "kvick:2".into(),
            |spec| drop(spec.config.insert("hz".into(), "20".into())),
            |spec| drop(spec.pod_annotations.insert("a".into(), "b".into())),
            |spec| spec.command.push("--verbose".into()),
        ];
        for change in changes {
            let mut after = cluster();
            change(&mut after.spec);
            assert_ne!(template(&before), template(&after));
        }
        let mut after = cluster();
        after.spec.shards.count = Some(3);
        assert_eq!(template(&before), template(&after));
    }

    #[test]
    fn the_configuration_has_the_password_and_further_directives() {
        let mut cluster = cluster();
        cluster.spec.config.insert("appendonly".into(), "no".into());
        cluster.spec.endpoint = true;
        cluster.spec.resources.limits = Some([("memory".to_owned(), Quantity("1000".to_owned()))].into());
        let secret = config_secret(&cluster, None, Some("a\"b"));
        let text = &secret.string_data.expect("data")["kvick.conf"];
        for line in ["appendonly no\n", "cluster-forward-port 6381\n", "maxmemory 700\n", "requirepass \"a\\\"b\"\n"] {
            assert!(text.contains(line), "{line} is missing in:\n{text}");
        }
        assert!(!text.contains("appendonly yes"));
    }

    #[test]
    fn with_a_certificate_there_are_no_ports_without_tls() {
        let mut cluster = cluster();
        cluster.spec.endpoint = true;
        cluster.spec.tls_secret = Some("certificate".into());
        let text = config(&cluster.spec);
        for line in ["port 0\n", "tls-port 6379\n", "tls-cluster yes\n", "cluster-forward-tls-port 6381\n"] {
            assert!(text.contains(line), "{line} is missing in:\n{text}");
        }
        assert!(!text.contains("cluster-forward-port"));
        let spec = pod(&cluster, "c-1", 1).spec.expect("a specification");
        let args = spec.containers[0].args.clone().unwrap_or_default().join(" ");
        assert!(args.ends_with("--tls-ca-cert-file /etc/kvick-tls/ca.crt"), "{args}");
    }

    #[test]
    fn with_an_acl_file_the_users_have_their_passwords_there() {
        let mut cluster = cluster();
        cluster.spec.acl_secret = Some("users".into());
        let secret = config_secret(&cluster, Some("op"), Some("p"));
        let text = &secret.string_data.expect("data")["kvick.conf"];
        for line in ["primaryuser \"op\"\n", "primaryauth \"p\"\n", "cluster-forward-user \"op\"\n"] {
            assert!(text.contains(line), "{line} is missing in:\n{text}");
        }
        assert!(!text.contains("requirepass"));
        let spec = pod(&cluster, "c-1", 1).spec.expect("a specification");
        let args = spec.containers[0].args.clone().unwrap_or_default().join(" ");
        assert!(args.ends_with("--aclfile /etc/kvick-acl/users.acl"), "{args}");
    }

    #[test]
    fn everything_is_deleted_with_the_cluster() {
        let cluster = cluster();
        let owned = |metadata: &ObjectMeta| metadata.owner_references.as_ref().is_some_and(|owners| owners.len() == 1);
        assert!(services(&cluster).iter().all(|service| owned(&service.metadata)));
        assert!(owned(&pod(&cluster, "c-1", 1).metadata));
        assert!(owned(&config_secret(&cluster, None, None).metadata));
    }
}
