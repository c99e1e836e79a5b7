//! A Helm chart of the operator, made from the same objects as the plain manifests.
//!
//! The objects are printed with words that stand for what differs, and these are replaced by expressions of templates.

use crate::manifests::{self, Installation};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::Path;

/// Words that stand for values, and the expressions in their place.
const NAMESPACE: &str = "HELM-NAMESPACE";
const IMAGE: &str = "HELM-IMAGE";
const REPLICAS: &str = "HELM-REPLICAS";
const RESOURCES: &str = "HELM-RESOURCES";
const EXPRESSIONS: &[(&str, &str)] = &[
    (NAMESPACE, "{{ .Values.namespace | default .Release.Namespace }}"),
    (IMAGE, "{{ .Values.image | quote }}"),
    (REPLICAS, "{{ .Values.replicas }}"),
    (RESOURCES, "{{- .Values.resources | toYaml | nindent 12 }}"),
];

/// A file of the chart: its path and its text.
pub type File = (&'static str, String);

/// All files of the chart.
pub fn files() -> Vec<File> {
    let stands_for = |word: &str| Value::String(word.to_owned());
    let installation = Installation {
        replicas: stands_for(REPLICAS),
        resources: stands_for(RESOURCES),
        ..Installation::new(NAMESPACE, IMAGE)
    };
    vec![
        ("Chart.yaml", chart()),
        ("values.yaml", values()),
        // Helm installs what is in this directory before the rest, and never deletes it.
        ("crds/kvickclusters.yaml", manifests::yaml(&manifests::definition())),
        ("templates/rbac.yaml", template(&manifests::rights(NAMESPACE))),
        ("templates/deployment.yaml", template(&manifests::deployment(&installation))),
    ]
}

/// Writes the chart into a directory, which is created.
///
/// # Errors
/// If a file cannot be written.
pub fn write(directory: &Path) -> io::Result<()> {
    for (path, text) in files() {
        let path = directory.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, text)?;
    }
    Ok(())
}

fn template(documents: &[Value]) -> String {
    let text = manifests::yaml(documents);
    EXPRESSIONS.iter().fold(text, |text, (word, expression)| text.replace(word, expression))
}

fn chart() -> String {
    let version = env!("CARGO_PKG_VERSION");
    manifests::yaml(&[json!({
        "apiVersion": "v2",
        "name": manifests::NAME,
        "description": "Runs Kvick clusters that follow their load",
        "type": "application",
        "version": version,
        "appVersion": version,
    })])
}

fn values() -> String {
    let value = |name: &str, value: Value| {
        let text = manifests::yaml(&[json!({ name: value })]);
        text.trim_start_matches("---\n").to_owned()
    };
    let parts = [
        ("Container image of the operator.", value("image", json!(manifests::IMAGE))),
        ("Namespace of the operator and its clusters. Empty: that of the release.", value("namespace", json!(""))),
        ("Number of operators. One acts, the others take over.", value("replicas", json!(manifests::REPLICAS))),
        ("Resources of each operator.", value("resources", manifests::resources())),
    ];
    parts.map(|(comment, text)| format!("# {comment}\n{text}")).join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::process::Command;

    #[test]
    fn committed_files_are_what_the_operator_writes() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/helm/kvick-operator");
        for (file, text) in files() {
            let committed = fs::read_to_string(format!("{directory}/{file}")).unwrap_or_default();
            let command = "kvick-operator manifests --helm contrib/helm/kvick-operator";
            assert_eq!(committed, text, "contrib/helm/kvick-operator/{file} is not what `{command}` writes");
        }
    }

    /// The program of KVICK_TEST_HELM or in PATH.
    fn helm() -> Option<PathBuf> {
        let named = std::env::var_os("KVICK_TEST_HELM").map(PathBuf::from);
        let directories = std::env::var_os("PATH").unwrap_or_default();
        let found =
            || std::env::split_paths(&directories).map(|directory| directory.join("helm")).find(|p| p.is_file());
        named.or_else(found)
    }

    /// Objects by kind and name.
    fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
        let name = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
        objects.into_iter().map(|object| (name(&object), object)).collect()
    }

    #[test]
    fn helm_renders_the_objects_of_the_plain_manifests() {
        let Some(helm) = helm() else {
            eprintln!("LEFT OUT: there is no helm in PATH, and KVICK_TEST_HELM names none.");
            return;
        };
        let directory = tempfile::tempdir().expect("a directory");
        write(directory.path()).expect("a chart");
        let run = |args: &[&str]| {
            let output = Command::new(&helm).args(args).arg(directory.path()).output().expect("helm runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).expect("text")
        };
        run(&["lint", "--strict"]);
        let rendered = |more: &[&str], namespace: &str| {
            let first = ["template", "kvick-operator", "--include-crds", "--namespace", namespace];
            let text = run(&[&first[..], more].concat());
            let documents = text.split("---\n").filter(|document| document.contains("kind:"));
            by_name(documents.map(|text| serde_saphyr::from_str(text).expect("YAML")).collect())
        };
        let plain = |installation: &Installation| {
            let rights = manifests::rights(&installation.namespace);
            by_name([manifests::definition(), rights, manifests::deployment(installation)].concat())
        };
        let defaults = Installation::new(manifests::NAMESPACE, manifests::IMAGE);
        assert_eq!(rendered(&[], manifests::NAMESPACE), plain(&defaults));
        let other = Installation {
            replicas: json!(3),
            resources: json!({ "limits": { "memory": "1Gi" }, "requests": { "cpu": "50m", "memory": "64Mi" } }),
            ..Installation::new("data", "registry.example.com/kvick-operator:1")
        };
        let set = [
            "--set=image=registry.example.com/kvick-operator:1,replicas=3,namespace=data",
            "--set=resources.limits.memory=1Gi",
        ];
        assert_eq!(rendered(&set, "elsewhere"), plain(&other));
    }
}
