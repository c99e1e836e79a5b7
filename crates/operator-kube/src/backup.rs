//! Backups of a cluster: a CronJob that runs `kvick-backup`.

use crate::acl::{PASSWORD_KEY, USERNAME_KEY};
use crate::objects::{self, TLS_PATH};
use crate::spec::{Backup, KvickCluster, S3};
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, JobSpec, JobTemplateSpec};
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, EnvVar, EnvVarSource, PersistentVolumeClaimVolumeSource, PodSpec, PodTemplateSpec,
    SecretKeySelector, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use std::collections::BTreeMap;

/// Label of the pods that make backups, with the name of the cluster. They are no pods of the cluster.
pub const BACKUP_LABEL: &str = "kvick.dev/backup";
const BACKUPS_PATH: &str = "/backups";
const SCRATCH_PATH: &str = "/tmp";
/// Attempts for each backup, beside the first one.
const RETRIES: i32 = 2;

/// Name of the CronJob.
pub fn name(cluster: &str) -> String {
    format!("{cluster}-backup")
}

/// The CronJob, if there are to be backups.
pub fn cron_job(cluster: &KvickCluster) -> Option<CronJob> {
    let backup = cluster.spec.backup.as_ref()?;
    let labels = BTreeMap::from([(BACKUP_LABEL.to_owned(), cluster.name_any())]);
    let labeled = || Some(ObjectMeta { labels: Some(labels.clone()), ..ObjectMeta::default() });
    let pod = PodTemplateSpec { metadata: labeled(), spec: Some(pod(cluster, backup)) };
    let job = JobSpec { backoff_limit: Some(RETRIES), template: pod, ..JobSpec::default() };
    Some(CronJob {
        metadata: objects::metadata(cluster, name(&cluster.name_any())),
        spec: CronJobSpec {
            // A backup that takes longer than the time between two of them is not disturbed.
            concurrency_policy: Some("Forbid".to_owned()),
            job_template: JobTemplateSpec { metadata: labeled(), spec: Some(job) },
            schedule: backup.schedule.clone(),
            ..CronJobSpec::default()
        },
        ..CronJob::default()
    })
}

/// Where `kvick-backup` puts backups.
fn storage(cluster: &KvickCluster, backup: &Backup) -> String {
    let name = cluster.name_any();
    match &backup.destination.s3 {
        Some(S3 { bucket, prefix, .. }) => {
            let prefix = prefix.as_deref().unwrap_or(&name).trim_matches('/');
            format!("s3://{bucket}/{prefix}").trim_end_matches('/').to_owned()
        }
        None => format!("{BACKUPS_PATH}/{name}"),
    }
}

fn from_secret(variable: &str, secret: &str, key: &str, is_optional: bool) -> EnvVar {
    let selector =
        SecretKeySelector { name: secret.to_owned(), key: key.to_owned(), optional: is_optional.then_some(true) };
    EnvVar {
        name: variable.to_owned(),
        value_from: Some(EnvVarSource { secret_key_ref: Some(selector), ..EnvVarSource::default() }),
        ..EnvVar::default()
    }
}

fn environment(cluster: &KvickCluster, backup: &Backup) -> Vec<EnvVar> {
    let mut variables = Vec::new();
    if let Some(secret) = &cluster.spec.password_secret {
        variables.push(from_secret("KVICK_BACKUP_PASSWORD", secret, PASSWORD_KEY, false));
        if cluster.spec.acl_secret.is_some() {
            variables.push(from_secret("KVICK_BACKUP_USER", secret, USERNAME_KEY, true));
        }
    }
    let Some(s3) = &backup.destination.s3 else { return variables };
    for key in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
        variables.push(from_secret(key, &s3.credentials_secret, key, false));
    }
    for (name, value) in [("AWS_REGION", &s3.region), ("AWS_ENDPOINT_URL", &s3.endpoint)] {
        let variable = |value| EnvVar { name: name.to_owned(), value: Some(value), ..EnvVar::default() };
        variables.extend(value.clone().map(variable));
    }
    variables
}

fn pod(cluster: &KvickCluster, backup: &Backup) -> PodSpec {
    let spec = &cluster.spec;
    let (program, first) = backup
        .command
        .split_first()
        .map_or((String::new(), Vec::new()), |(program, first)| (program.clone(), first.to_vec()));
    let own = ["create".to_owned(), storage(cluster, backup), "--keep".to_owned(), backup.keep.to_string()];
    let endpoint = objects::service_endpoint(cluster);
    let mut args: Vec<String> = first.into_iter().chain(own).chain(["--endpoint".to_owned(), endpoint]).collect();
    let mut volumes = Vec::new();
    let mut mounts = Vec::new();
    let mut mount = |volume: Volume, path: &str, read_only| {
        mounts.push(VolumeMount {
            name: volume.name.clone(),
            mount_path: path.to_owned(),
            read_only: Some(read_only),
            ..VolumeMount::default()
        });
        volumes.push(volume);
    };
    match &backup.destination.volume_claim {
        Some(claim) => {
            let source = PersistentVolumeClaimVolumeSource {
                claim_name: claim.clone(),
                ..PersistentVolumeClaimVolumeSource::default()
            };
            let volume =
                Volume { name: "backups".to_owned(), persistent_volume_claim: Some(source), ..Volume::default() };
            mount(volume, BACKUPS_PATH, false);
        }
        // Dumps wait here until they are uploaded.
        None => {
            let empty_dir = Some(EmptyDirVolumeSource::default());
            mount(Volume { name: "scratch".to_owned(), empty_dir, ..Volume::default() }, SCRATCH_PATH, false);
        }
    }
    if let Some(secret) = &spec.tls_secret {
        mount(objects::secret_volume("tls", secret.clone()), TLS_PATH, true);
        for (option, file) in [("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key")] {
            args.extend([format!("--tls-{option}"), format!("{TLS_PATH}/{file}")]);
        }
        // Connections go to the service and to addresses, certificates are those of nodes.
        args.extend(["--tls-server-name".to_owned(), objects::hostname(cluster, "backup")]);
    }
    PodSpec {
        automount_service_account_token: Some(false),
        containers: vec![Container {
            name: "backup".to_owned(),
            image: Some(backup.image.clone().unwrap_or_else(|| spec.image.clone())),
            command: Some(vec![program]),
            args: Some(args),
            env: Some(environment(cluster, backup)),
            resources: Some(backup.resources.clone()),
            security_context: Some(objects::container_security()),
            volume_mounts: Some(mounts),
            ..Container::default()
        }],
        enable_service_links: Some(false),
        restart_policy: Some("Never".to_owned()),
        security_context: Some(objects::pod_security()),
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::cluster;
    use serde_json::json;

    fn with_backup(destination: serde_json::Value) -> KvickCluster {
        let mut cluster = cluster();
        let backup = json!({ "schedule": "0 3 * * *", "destination": destination });
        cluster.spec.backup = Some(serde_json::from_value(backup).expect("backups"));
        cluster
    }

    fn container(cluster: &KvickCluster) -> Container {
        let job = cron_job(cluster).and_then(|job| job.spec.job_template.spec).expect("a job");
        job.template.spec.expect("a pod").containers.remove(0)
    }

    #[test]
    fn without_backups_there_is_no_cron_job() {
        assert_eq!(cron_job(&cluster()), None);
    }

    #[test]
    fn a_backup_goes_into_a_volume_with_the_password_of_the_cluster() {
        let mut cluster = with_backup(json!({ "volumeClaim": "store" }));
        cluster.spec.password_secret = Some("p".into());
        let container = container(&cluster);
        assert_eq!(container.image.as_deref(), Some("kvick:1"));
        let words = container.args.unwrap_or_default().join(" ");
        assert_eq!(words, "create /backups/c --keep 7 --endpoint c.n.svc:6379");
        let variable = &container.env.unwrap_or_default()[0];
        let reference = variable.value_from.clone().and_then(|from| from.secret_key_ref).expect("a secret");
        assert_eq!((&*variable.name, &*reference.name, &*reference.key), ("KVICK_BACKUP_PASSWORD", "p", "password"));
    }

    #[test]
    fn a_backup_goes_into_an_object_storage() {
        let s3 = json!({ "bucket": "b", "prefix": "x/y/", "endpoint": "http://store", "credentialsSecret": "k" });
        let mut cluster = with_backup(json!({ "s3": s3 }));
        cluster.spec.tls_secret = Some("certificate".into());
        let container = container(&cluster);
        let words = container.args.unwrap_or_default();
        assert_eq!(words[1], "s3://b/x/y");
        assert!(words.join(" ").ends_with("--tls-server-name backup.c-nodes.n.svc"), "{words:?}");
        let names: Vec<String> = container.env.unwrap_or_default().into_iter().map(|variable| variable.name).collect();
        assert_eq!(names, ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"]);
    }
}
