//! What a Kubernetes cluster needs for the operator: the definition of the resource, the rights of the operator, and
//! its deployment.

use crate::spec::{GROUP, KvickCluster};
use kube::CustomResourceExt;
use serde_json::{Value, json};
use std::fmt::Write;

/// Namespace of the files in `contrib/kubernetes`.
pub const NAMESPACE: &str = "kvick";
/// Image of the files in `contrib/kubernetes`.
pub const IMAGE: &str = "kvick-operator:latest";
/// Operators of the files in `contrib/kubernetes`. One acts.
pub const REPLICAS: u32 = 2;
/// Port of the operator's metrics and probes.
pub const METRICS_PORT: u16 = 8080;
/// Name of the operator's objects.
pub const NAME: &str = "kvick-operator";

/// What differs between installations.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Namespace of the operator and its clusters.
    pub namespace: String,
    /// Container image of the operator.
    pub image: String,
    /// Number of operators.
    pub replicas: Value,
    /// Resources of each operator.
    pub resources: Value,
}

impl Installation {
    /// With the defaults of the others.
    pub fn new(namespace: &str, image: &str) -> Installation {
        let (namespace, image) = (namespace.to_owned(), image.to_owned());
        Installation { namespace, image, replicas: json!(REPLICAS), resources: resources() }
    }
}

/// The resources of an operator.
pub fn resources() -> Value {
    json!({ "requests": { "cpu": "50m", "memory": "64Mi" }, "limits": { "memory": "256Mi" } })
}

/// The definition of the resource.
pub fn definition() -> Vec<Value> {
    vec![json!(KvickCluster::crd())]
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

fn rights_object(kind: &str, metadata: &Value, rest: Value) -> Value {
    let mut object = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata });
    if let (Value::Object(object), Value::Object(rest)) = (&mut object, rest) {
        object.extend(rest);
    }
    object
}

/// The rights of the operator. They are limited to its namespace, except for reading the state of machines.
pub fn rights(namespace: &str) -> Vec<Value> {
    let metadata = json!({ "name": NAME, "namespace": namespace });
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata });
    let rules = json!([
        rule(GROUP, &["kvickclusters"], &["get", "list", "watch"]),
        rule(GROUP, &["kvickclusters/status"], &["patch"]),
        // Owners may block their deletion until objects are gone; to say so takes this right.
        rule(GROUP, &["kvickclusters/finalizers"], &["update"]),
        rule("", &["pods"], &["list", "watch", "create", "delete"]),
        rule("", &["persistentvolumeclaims"], &["create", "delete"]),
        rule("", &["configmaps"], &["get", "create", "update"]),
        rule("", &["secrets"], &["get", "create", "patch"]),
        rule("", &["services"], &["create", "patch", "delete"]),
        rule("", &["events"], &["create"]),
        rule("batch", &["cronjobs"], &["create", "patch", "delete"]),
        rule("policy", &["poddisruptionbudgets"], &["create", "patch", "delete"]),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update"]),
    ]);
    let bind = |kind: &str| {
        json!({
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": cluster_name(kind, namespace) },
            "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": namespace }],
        })
    };
    let everywhere = json!({ "name": cluster_name("ClusterRole", namespace) });
    let machines = json!({ "rules": [rule("", &["nodes"], &["list", "watch"])] });
    vec![
        account,
        rights_object("Role", &metadata, json!({ "rules": rules })),
        rights_object("RoleBinding", &metadata, bind("Role")),
        rights_object("ClusterRole", &everywhere, machines),
        rights_object("ClusterRoleBinding", &everywhere, bind("ClusterRole")),
    ]
}

/// The name of a role. Those outside of namespaces have the namespace in their names.
fn cluster_name(kind: &str, namespace: &str) -> String {
    if kind == "ClusterRole" { format!("{NAME}-{namespace}") } else { NAME.to_owned() }
}

/// The deployment of operators, of which one acts.
pub fn deployment(installation: &Installation) -> Vec<Value> {
    let Installation { namespace, image, replicas, resources } = installation;
    let labels = json!({ "app.kubernetes.io/name": NAME });
    let port = METRICS_PORT.to_string();
    let args = ["kubernetes", "--namespace", namespace, "--leader-election", "--metrics-port", &port];
    let probe = |path: &str| json!({ "httpGet": { "path": path, "port": "metrics" }, "periodSeconds": 10 });
    vec![json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": NAME, "namespace": namespace, "labels": labels },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": NAME,
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": 999,
                        "runAsGroup": 999,
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    "containers": [{
                        "name": "operator",
                        "image": image,
                        "command": [NAME],
                        "args": args,
                        "ports": [{ "name": "metrics", "containerPort": METRICS_PORT }],
                        "livenessProbe": probe("/healthz"),
                        "readinessProbe": probe("/readyz"),
                        "resources": resources,
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "readOnlyRootFilesystem": true,
                            "capabilities": { "drop": ["ALL"] },
                        },
                    }],
                },
            },
        },
    })]
}

/// Documents of YAML.
pub fn yaml(documents: &[Value]) -> String {
    let mut text = String::new();
    for document in documents {
        text.push_str("---\n");
        write_value(&mut text, document, 0, false);
    }
    text
}

/// Writes a value. `is_inline`: behind the dash of a list, so that the first line has its indentation already.
fn write_value(text: &mut String, value: &Value, depth: usize, is_inline: bool) {
    let indent = |text: &mut String, is_first: bool| {
        if !(is_first && is_inline) {
            text.push_str(&"  ".repeat(depth));
        }
    };
    match value {
        Value::Object(fields) => {
            for (position, (name, value)) in fields.iter().enumerate() {
                indent(text, position == 0);
                let _ = write!(text, "{}:", scalar(&Value::String(name.clone())));
                write_nested(text, value, depth);
            }
        }
        Value::Array(values) => {
            for (position, value) in values.iter().enumerate() {
                indent(text, position == 0);
                text.push_str("- ");
                if is_block(value) {
                    write_value(text, value, depth + 1, true);
                } else {
                    let _ = writeln!(text, "{}", scalar(value));
                }
            }
        }
        value => {
            let _ = writeln!(text, "{}", scalar(value));
        }
    }
}

fn write_nested(text: &mut String, value: &Value, depth: usize) {
    if is_block(value) {
        text.push('\n');
        write_value(text, value, depth + 1, false);
    } else {
        let _ = writeln!(text, " {}", scalar(value));
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(values) => !values.is_empty(),
        _ => false,
    }
}

/// A value on one line. Every JSON value is one of YAML; plain words need no quotes.
fn scalar(value: &Value) -> String {
    const WORDS: &[&str] = &["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    match value {
        Value::String(text) => {
            let is_plain = text.starts_with(|letter: char| letter.is_ascii_alphabetic())
                && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./".contains(letter))
                && !WORDS.contains(&text.to_ascii_lowercase().as_str());
            if is_plain { text.clone() } else { value.to_string() }
        }
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_files_are_what_the_operator_prints() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/kubernetes");
        for (file, documents) in [
            ("crd.yaml", definition()),
            ("rbac.yaml", rights(NAMESPACE)),
            ("deployment.yaml", deployment(&Installation::new(NAMESPACE, IMAGE))),
        ] {
            let committed = std::fs::read_to_string(format!("{directory}/{file}")).unwrap_or_default();
            let command = format!("kvick-operator manifests {}", file.trim_end_matches(".yaml"));
            assert_eq!(committed, yaml(&documents), "contrib/kubernetes/{file} is not what `{command}` prints");
        }
    }

    #[test]
    fn yaml_is_read_as_it_was_meant() {
        let value =
            json!({ "a": [{ "b": 1, "c": [] }, "no", [1, 2]], "d": { "e": "x: \"y\"\n", "f": null }, "g": 0.5 });
        let text = yaml(std::slice::from_ref(&value));
        let read: Value = serde_saphyr::from_str(text.trim_start_matches("---\n")).expect("YAML");
        assert_eq!(read, value, "{text}");
    }
}
