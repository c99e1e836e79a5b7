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
const NAME: &str = "kvick-operator";

/// The definition of the resource.
pub fn definition() -> Vec<Value> {
    vec![json!(KvickCluster::crd())]
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

/// The rights of the operator, which it has in its namespace only.
pub fn rights(namespace: &str) -> Vec<Value> {
    let metadata = json!({ "name": NAME, "namespace": namespace });
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata,
        "rules": [
            rule(GROUP, &["kvickclusters"], &["get", "list"]),
            rule(GROUP, &["kvickclusters/status"], &["patch"]),
            // Owners may block their deletion until objects are gone; to say so takes this right.
            rule(GROUP, &["kvickclusters/finalizers"], &["update"]),
            rule("", &["pods"], &["list", "create", "delete"]),
            rule("", &["persistentvolumeclaims"], &["create", "delete"]),
            rule("", &["configmaps"], &["get", "create", "update"]),
            rule("", &["secrets"], &["get", "create", "patch"]),
            rule("", &["services"], &["create", "patch", "delete"]),
            rule("", &["events"], &["create"]),
            rule("policy", &["poddisruptionbudgets"], &["create", "patch", "delete"]),
            rule("coordination.k8s.io", &["leases"], &["get", "create", "update"]),
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME },
        "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": namespace }],
    });
    vec![account, role, binding]
}

/// The deployment: two operators, of which one acts.
pub fn deployment(namespace: &str, image: &str) -> Vec<Value> {
    let labels = json!({ "app.kubernetes.io/name": NAME });
    vec![json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": NAME, "namespace": namespace, "labels": labels },
        "spec": {
            "replicas": 2,
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
                        "args": ["kubernetes", "--namespace", namespace, "--leader-election"],
                        "resources": {
                            "requests": { "cpu": "50m", "memory": "64Mi" },
                            "limits": { "memory": "256Mi" },
                        },
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
            ("deployment.yaml", deployment(NAMESPACE, IMAGE)),
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
