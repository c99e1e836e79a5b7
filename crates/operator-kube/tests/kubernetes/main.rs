//! `kvick-operator kubernetes` against a real API server, with pods as processes of a small kubelet.
//!
//! The scenarios share a control plane and run one after the other; `cargo test --test kubernetes NAME` runs those with
//! the name. Each has a cluster of its own, whose writes are numbered and checked. The operator has only the rights of
//! its role. Without the programs of the control plane (see `tests/kube`) this says so and passes.

mod control_plane;
mod fixture;
mod kubelet;
#[path = "../support/mod.rs"]
mod support;

use fixture::{Cluster, Fixture};
use kvick_load::reply::Value;
use kvick_operator_kube::spec::Backup;
use kvick_testing::SetOnDrop;
use kvick_testing::servers::ObjectStorage;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use support::{Follower, Writes, wait};

type Scenario = (&'static str, fn(&mut Fixture));

const SCENARIOS: &[Scenario] = &[
    ("a_cluster_is_created_with_all_that_belongs_to_it", is_created),
    ("a_cluster_with_tls_is_created_and_upgraded", encrypts),
    ("a_cluster_scales_under_load_without_losing_writes_and_drains_onto_all_shards", scales),
    ("an_upgrade_replaces_one_pod_at_a_time_and_no_primary_before_its_replica_has_synchronized", upgrades),
    ("a_deleted_pod_and_a_killed_primary_are_healed", heals),
    ("nodes_that_all_have_new_addresses_meet_again", moves),
    ("pods_without_volumes_are_healed_by_their_replicas", heals_without_volumes),
    ("backups_are_made_on_schedule_and_are_valid", backs_up),
    ("backups_go_to_object_storage", backs_up_to_bucket),
    ("changed_users_are_loaded_without_restarts_and_refused_if_they_are_not_valid", loads_users),
    ("a_warm_spare_becomes_a_shard_and_is_replaced", uses_spares),
    ("a_replica_takes_over_from_a_machine_that_is_lost", loses_a_machine),
    ("an_operator_that_is_killed_at_random_moments_still_converges", is_killed),
    ("of_two_operators_one_acts_and_the_other_takes_over", elects),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--list") {
        SCENARIOS.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let is_chosen = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let chosen: Vec<&Scenario> = SCENARIOS.iter().filter(|(name, _)| is_chosen(name)).collect();
    let Some(mut fixture) = (if chosen.is_empty() { None } else { Fixture::new() }) else {
        return ExitCode::SUCCESS;
    };
    let panics = keep_panics();
    // Where time is limited, the last scenarios are left out.
    let seconds = std::env::var("KVICK_TEST_KUBE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let (started, limit) = (Instant::now(), seconds.map(Duration::from_secs));
    for (name, scenario) in chosen {
        let began = Instant::now();
        if limit.is_some_and(|limit| started.elapsed() >= limit) {
            println!("test {name} ... LEFT OUT: the time is over");
            continue;
        }
        if catch_unwind(AssertUnwindSafe(|| scenario(&mut fixture))).is_err() {
            fixture.print_logs();
            // The logs are long, so the reasons come last.
            let panics = panics.lock().unwrap_or_else(PoisonError::into_inner);
            panics.iter().for_each(|panic| println!("{panic}"));
            println!("test {name} ... FAILED after {:.1} s", began.elapsed().as_secs_f64());
            return ExitCode::FAILURE;
        }
        println!("test {name} ... ok ({:.1} s)", began.elapsed().as_secs_f64());
    }
    ExitCode::SUCCESS
}

/// Keeps what panics of all threads say, beside printing it.
fn keep_panics() -> Arc<Mutex<Vec<String>>> {
    let panics = Arc::new(Mutex::new(Vec::new()));
    let (kept, print) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        kept.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
        print(panic);
    }));
    panics
}

/// Runs a change while a client writes, and checks the writes afterwards.
fn under_load(
    fixture: &mut Fixture,
    cluster: &Cluster,
    confirmations: i64,
    change: impl FnOnce(&mut Fixture, &Writes),
) {
    let (end, writes) = (AtomicBool::new(false), Writes::new());
    let follower = |confirmations| {
        let pods = fixture.pods_of(cluster);
        let mut follower = Follower::new(move || pods.endpoints());
        follower.confirmations = confirmations;
        follower
    };
    let (mut client, mut reader) = (follower(confirmations), follower(0));
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&end);
        let (writes, end) = (&writes, &end);
        scope.spawn(move || writes.write(&mut client, end));
        writes.go_on(500);
        change(fixture, writes);
        writes.go_on(500);
        end.store(true, std::sync::atomic::Ordering::SeqCst);
        writes.check(&mut reader);
    });
}

fn is_created(fixture: &mut Fixture) {
    let cluster = fixture.create("made", |spec| {
        spec.shards.count = Some(2);
        spec.replicas_per_shard = 1;
        spec.endpoint = true;
        spec.password_secret = Some("made-password".into());
    });
    cluster.wait_running(fixture, 2);
    let pods = fixture.pods_of(&cluster);
    wait("all pods are ready", || pods.ready() == 4);
    let status = cluster.status(fixture);
    assert_eq!((status.shard_count, status.shards.len()), (2, 2));
    assert!(status.shards.iter().all(|shard| shard.slots > 4000 && shard.replicas_ready == 1), "{status:?}");
    let condition = |name: &str| status.conditions.iter().find(|condition| condition.type_ == name).cloned();
    assert_eq!(condition("Ready").map(|ready| ready.status).as_deref(), Some("True"));
    assert_eq!(cluster.scale(fixture), (2, 2, "kvick.dev/cluster=made".to_owned()));
    let reasons = fixture.events(&cluster);
    for reason in ["StartShard", "StartReplica", "Join", "AssignSlots", "Replicate"] {
        assert!(reasons.contains(reason), "there is no event {reason}: {reasons:?}");
    }
    assert!(
        fixture.has_service("made")
            && fixture.has_service("made-nodes")
            && fixture.has_service("made-endpoint")
            && fixture.has_budget("made")
    );
    // The operator says the same about itself.
    assert!(
        fixture.page("/readyz").starts_with("HTTP/1.1 200") && fixture.page("/healthz").starts_with("HTTP/1.1 200")
    );
    let metrics = fixture.page("/metrics");
    for line in [
        "kvick_operator_leader 1",
        "kvick_operator_clusters{phase=\"Running\"} 1",
        "kvick_operator_shards_wanted{cluster=\"made\"} 2",
        "kvick_operator_shards{cluster=\"made\"} 2",
        "kvick_operator_pods_answering{cluster=\"made\"} 4",
        "kvick_operator_operations_total{cluster=\"made\",operation=\"StartReplica\",outcome=\"ok\"} 2",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is missing in:\n{metrics}");
    }
    // Any node answers for any slot, with the password of the secret.
    let mut client = cluster.endpoint_client(&pods);
    for number in 0..50 {
        assert_eq!(client.ask(&["SET", &format!("k{number}"), "v"]).expect("a reply").text(), "OK");
    }
    // A specification that is not valid changes nothing, and says why.
    cluster.change(fixture, |spec| {
        spec.config.insert("port".into(), "1".into());
    });
    wait("the problem is in the status", || {
        cluster.status(fixture).conditions.iter().any(|condition| condition.message.contains("port is set by"))
    });
    assert_eq!(pods.ready(), 4);
    cluster.delete(fixture);
}

fn encrypts(fixture: &mut Fixture) {
    fixture.create_claim("sealed-backups");
    let cluster = fixture.create("sealed", |spec| {
        spec.replicas_per_shard = 1;
        spec.endpoint = true;
        spec.tls_secret = Some("sealed-certificate".into());
        spec.backup = Some(backup(fixture, "0 3 * * *", &serde_json::json!({ "volumeClaim": "sealed-backups" })));
    });
    cluster.wait_running(fixture, 1);
    let pods = fixture.pods_of(&cluster);
    let mut client = cluster.endpoint_client(&pods);
    assert_eq!(client.ask(&["SET", "key", "value"]).expect("a reply").text(), "OK");
    fixture.run_backup(&cluster, "sealed-once");
    let plain = support::connect(&pods.endpoints()[0]).and_then(|mut client| client.ask(&["PING"]));
    assert!(plain.is_err(), "a connection without TLS was accepted");
    let before = pods.uids();
    cluster.change(fixture, |spec| {
        spec.pod_annotations.insert("example.com/version".into(), "2".into());
    });
    wait("all pods are new", || pods.uids().is_disjoint(&before) && pods.uids().len() == 2);
    cluster.wait_running(fixture, 1);
    assert_eq!(cluster.endpoint_client(&pods).ask(&["GET", "key"]).expect("a reply").text(), "value");
    cluster.delete(fixture);
}

fn scales(fixture: &mut Fixture) {
    let cluster = fixture.create("grows", |_| ());
    cluster.wait_running(fixture, 1);
    under_load(fixture, &cluster, 0, |fixture, writes| {
        cluster.set_scale(fixture, 4);
        cluster.wait_running(fixture, 4);
        writes.go_on(2000);
        cluster.set_scale(fixture, 2);
        let counts = cluster.wait_running(fixture, 2);
        assert!(counts.iter().all(|count| *count > 6000), "the slots were drained onto one shard: {counts:?}");
        writes.go_on(2000);
        cluster.set_scale(fixture, 1);
        cluster.wait_running(fixture, 1);
    });
    wait("volumes of removed nodes are deleted", || fixture.claims(&cluster) == 1);
    cluster.delete(fixture);
}

fn upgrades(fixture: &mut Fixture) {
    let cluster = fixture.create("renewed", |spec| {
        spec.shards.count = Some(2);
        spec.replicas_per_shard = 1;
    });
    cluster.wait_running(fixture, 2);
    under_load(fixture, &cluster, 1, |fixture, _| {
        let pods = fixture.pods_of(&cluster);
        let before = pods.uids();
        fixture.kubelet.take_ended();
        cluster.change(fixture, |spec| {
            spec.pod_annotations.insert("example.com/version".into(), "2".into());
        });
        let began = Instant::now();
        let mut away_max = 0;
        while pods.uids().intersection(&before).next().is_some() {
            assert!(began.elapsed() < support::LIMIT, "waited in vain until all pods are new");
            away_max = away_max.max(pods.away(4));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(away_max, 1, "pods were replaced together");
        let ended = fixture.kubelet.take_ended();
        assert!(ended.len() == 4 && ended.iter().all(|(_, role)| role == "slave"), "{ended:?}");
        cluster.wait_running(fixture, 2);
    });
    let reasons = fixture.events(&cluster);
    assert!(reasons.contains("Replace") && reasons.contains("HandOver"), "{reasons:?}");
    cluster.delete(fixture);
}

fn heals(fixture: &mut Fixture) {
    let cluster = fixture.create("healed", |spec| spec.replicas_per_shard = 1);
    cluster.wait_running(fixture, 1);
    under_load(fixture, &cluster, 1, |fixture, writes| {
        let pods = fixture.pods_of(&cluster);
        // A pod that is deleted comes back with its data, here the replica and then the primary.
        for is_primary in [false, true] {
            let primary = cluster.primary(fixture);
            let name = pods.names().into_iter().find(|name| (*name == primary) == is_primary).expect("a pod");
            let before = pods.uids();
            pods.delete(&name);
            wait("the pod is a new one", || !pods.uids().is_superset(&before) && pods.uids().len() == 2);
            cluster.wait_running(fixture, 1);
            writes.go_on(200);
        }
        // The process of the primary is killed: the replica takes over.
        let primary = cluster.primary(fixture);
        fixture.kubelet.kill(&primary);
        wait("another node is the primary", || !["", &primary].contains(&&*cluster.primary(fixture)));
        fixture.kubelet.resume(&primary);
        cluster.wait_running(fixture, 1);
        writes.go_on(200);
    });
    cluster.delete(fixture);
}

fn moves(fixture: &mut Fixture) {
    let cluster = fixture.create("moved", |spec| {
        spec.shards.count = Some(3);
        spec.replicas_per_shard = 1;
    });
    cluster.wait_running(fixture, 3);
    under_load(fixture, &cluster, 1, |fixture, _| {
        let pods = fixture.pods_of(&cluster);
        let before: BTreeSet<String> = pods.endpoints().into_iter().collect();
        fixture.kubelet.reboot();
        wait("all pods have new addresses", || {
            let now: BTreeSet<String> = pods.endpoints().into_iter().collect();
            now.len() == before.len() && now.is_disjoint(&before)
        });
        cluster.wait_running(fixture, 3);
    });
    cluster.delete(fixture);
}

fn heals_without_volumes(fixture: &mut Fixture) {
    let cluster = fixture.create("fleeting", |spec| {
        spec.replicas_per_shard = 1;
        spec.persistence = None;
    });
    cluster.wait_running(fixture, 1);
    under_load(fixture, &cluster, 1, |fixture, writes| {
        let pods = fixture.pods_of(&cluster);
        for _ in 0..2 {
            let (primary, before) = (cluster.primary(fixture), pods.uids());
            pods.delete(&primary);
            wait("the pod is a new one", || !pods.uids().is_superset(&before) && pods.uids().len() == 2);
            cluster.wait_running(fixture, 1);
            assert_ne!(cluster.primary(fixture), primary);
            writes.go_on(200);
        }
    });
    cluster.delete(fixture);
}

fn backup(fixture: &Fixture, schedule: &str, destination: &serde_json::Value) -> Backup {
    let backup = serde_json::json!({
        "schedule": schedule,
        "keep": 1,
        "destination": destination,
        "command": [fixture.program("kvick-backup")],
    });
    serde_json::from_value(backup).expect("backups")
}

fn backs_up(fixture: &mut Fixture) {
    let folder = fixture.create_claim("stored-backups").join("stored");
    let cluster = fixture.create("stored", |spec| {
        spec.shards.count = Some(2);
        spec.password_secret = Some("made-password".into());
        spec.endpoint = true;
        spec.backup = Some(backup(fixture, "* * * * *", &serde_json::json!({ "volumeClaim": "stored-backups" })));
    });
    cluster.wait_running(fixture, 2);
    let mut client = cluster.endpoint_client(&fixture.pods_of(&cluster));
    for number in 0..100 {
        assert_eq!(client.ask(&["SET", &format!("k{number}"), "v"]).expect("a reply").text(), "OK");
    }
    let ask = |action: &str| {
        let output = Command::new(fixture.program("kvick-backup")).arg(action).arg(&folder).output().expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    };
    // The controller of CronJobs makes the first one, which may have begun before the keys were there.
    wait("a backup is made on schedule", || !ask("list").is_empty());
    let first = ask("list");
    fixture.run_backup(&cluster, "stored-once");
    let verified = ask("verify");
    assert!(verified.contains("2 shards, 100 keys") && verified.contains("valid"), "{verified}");
    // One is kept.
    assert_eq!((verified.lines().count(), ask("list") == first), (1, false), "{first}\n{verified}");
    // Without the field, there is no CronJob.
    cluster.change_raw(fixture, &serde_json::json!({ "backup": null }));
    wait("the CronJob is deleted", || !fixture.has_cron_job("stored-backup"));
    cluster.delete(fixture);
}

fn backs_up_to_bucket(fixture: &mut Fixture) {
    let Some(storage) = ObjectStorage::start(&[]) else { return };
    let keys = [("AWS_ACCESS_KEY_ID", ObjectStorage::ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", ObjectStorage::SECRET_KEY)];
    fixture.write_secret("bucket-keys", &keys);
    let bucket = serde_json::json!({
        "bucket": ObjectStorage::BUCKET,
        "prefix": "all/remote",
        "region": ObjectStorage::REGION,
        "endpoint": storage.url("http"),
        "credentialsSecret": "bucket-keys",
    });
    let cluster = fixture.create("remote", |spec| {
        spec.shards.count = Some(2);
        spec.endpoint = true;
        spec.backup = Some(backup(fixture, "0 3 * * *", &serde_json::json!({ "s3": bucket })));
    });
    cluster.wait_running(fixture, 2);
    let mut client = cluster.endpoint_client(&fixture.pods_of(&cluster));
    for number in 0..100 {
        assert_eq!(client.ask(&["SET", &format!("k{number}"), "v"]).expect("a reply").text(), "OK");
    }
    fixture.run_backup(&cluster, "remote-once");
    let url = format!("s3://{}/all/remote", ObjectStorage::BUCKET);
    let verified = Command::new(fixture.program("kvick-backup"))
        .args(["verify", &url])
        .envs(storage.environment())
        .output()
        .expect("it runs");
    let verified = String::from_utf8(verified.stdout).expect("text");
    assert!(verified.contains("2 shards, 100 keys") && verified.contains("valid"), "{verified}");
    cluster.delete(fixture);
}

fn loads_users(fixture: &mut Fixture) {
    let (own, password) = fixture::OPERATOR;
    let users = |rules: &str| format!("user default off\nuser {own} on >{password} ~* &* +@all\nuser app {rules}\n");
    fixture.write_secret("users", &[("users.acl", &users("on >app ~first:* +@all"))]);
    let cluster = fixture.create("guarded", |spec| {
        spec.replicas_per_shard = 1;
        spec.password_secret = Some("own-user".into());
        spec.acl_secret = Some("users".into());
    });
    cluster.wait_running(fixture, 1);
    let pods = fixture.pods_of(&cluster);
    let before = pods.uids();
    // The replica may be the node that is asked, so the rights themselves are.
    let may_write = |key: &str| {
        let words = ["ACL", "DRYRUN", "app", "SET", key, "v"];
        pods.endpoints().len() == 2
            && cluster.clients(&pods).iter_mut().all(|client| {
                client.ask(&words).is_ok_and(|reply| !matches!(reply, Value::Error(_)) && reply.text() == "OK")
            })
    };
    wait("the users are loaded", || cluster.message(fixture, "AclLoaded", "True").is_some());
    assert!(may_write("first:1") && !may_write("second:1"));
    let unknown = support::connect(&pods.endpoints()[0]).and_then(|mut client| client.ask(&["PING"]));
    assert!(!unknown.is_ok_and(|reply| reply.text() == "PONG"), "a client without a login was served");
    fixture.write_secret("users", &[("users.acl", &users("on >app ~first:* ~second:* +@all"))]);
    wait("all nodes have the new users", || may_write("second:1"));
    wait("the status says so", || cluster.message(fixture, "AclLoaded", "True").is_some());
    // Users that are not valid change nothing, wherever they are not: in a rule, or without the operator's rights.
    for (text, problem) in [
        (users("on +nonsense"), "the user 'app'"),
        (users("on").replace("&* +@all", "&* +@all -psync"), "may not run PSYNC"),
        (users("on").replace(password, "another"), "has another password"),
    ] {
        fixture.write_secret("users", &[("users.acl", &text)]);
        wait("the problem is in the status", || {
            cluster.message(fixture, "AclLoaded", "False").is_some_and(|message| message.contains(problem))
        });
        assert!(may_write("second:1"));
    }
    assert!(fixture.events(&cluster).contains("RefuseUsers"));
    fixture.write_secret("users", &[("users.acl", &users("on >app ~third:* +@all"))]);
    wait("all nodes have the last users", || may_write("third:1") && !may_write("second:1"));
    assert_eq!(pods.uids(), before, "pods were replaced");
    let users = cluster.client(&pods).ask(&["ACL", "USERS"]).expect("a reply");
    assert_eq!(users.elements().len(), 4, "{users:?}");
    // A pod that starts again finds them.
    pods.delete(&cluster.primary(fixture));
    wait("the pod is a new one", || !pods.uids().is_superset(&before) && pods.uids().len() == 2);
    cluster.wait_running(fixture, 1);
    wait("both nodes have the users", || may_write("third:1") && !may_write("second:1"));
    cluster.delete(fixture);
}

fn uses_spares(fixture: &mut Fixture) {
    let cluster = fixture.create("eager", |spec| spec.warm_spares = 1);
    cluster.wait_running(fixture, 1);
    let pods = fixture.pods_of(&cluster);
    assert_eq!((pods.names().len(), cluster.status(fixture).warm_spares_ready), (2, 1));
    let spare = pods.names().into_iter().find(|name| *name != cluster.primary(fixture)).expect("a spare");
    under_load(fixture, &cluster, 0, |fixture, _| {
        cluster.set_scale(fixture, 2);
        cluster.wait_running(fixture, 2);
    });
    let status = cluster.status(fixture);
    assert!(
        status.shards.iter().any(|shard| shard.primary.as_ref() == Some(&spare) && shard.slots > 6000),
        "{status:?}"
    );
    assert_eq!((pods.names().len(), status.warm_spares_ready), (3, 1));
    assert!(fixture.events(&cluster).contains("UseSpare"));
    // Spares are upgraded like all others, and removed when they are not wanted.
    let before = pods.uids();
    cluster.change(fixture, |spec| {
        spec.pod_annotations.insert("example.com/version".into(), "2".into());
    });
    wait("all pods are new", || pods.uids().is_disjoint(&before) && pods.uids().len() == 3);
    cluster.wait_running(fixture, 2);
    cluster.change(fixture, |spec| spec.warm_spares = 0);
    wait("the spare is removed", || pods.names().len() == 2 && fixture.claims(&cluster) == 2);
    cluster.wait_running(fixture, 2);
    cluster.delete(fixture);
}

fn loses_a_machine(fixture: &mut Fixture) {
    let cluster = fixture.create("bereft", |spec| spec.replicas_per_shard = 2);
    cluster.wait_running(fixture, 1);
    // A write counts when one of the two replicas has it. The one with the most data takes over, so none is lost.
    under_load(fixture, &cluster, 1, |fixture, writes| {
        let pods = fixture.pods_of(&cluster);
        let primary = cluster.primary(fixture);
        fixture.kubelet.lose(&primary);
        wait("another node is the primary", || !["", &primary].contains(&&*cluster.primary(fixture)));
        writes.go_on(200);
        wait("Kubernetes wants to end the pod", || pods.is_ending(&primary));
        writes.go_on(200);
        // Its machine is lost, so the pod cannot end, and it gets no successor until it has.
        assert!(pods.is_ending(&primary) && pods.names().len() == 3);
        assert_eq!(cluster.status(fixture).phase, "Healing");
        fixture.kubelet.find();
        cluster.wait_running(fixture, 1);
        assert!(!pods.is_ending(&primary) && pods.names().len() == 3);
    });
    cluster.delete(fixture);
}

fn is_killed(fixture: &mut Fixture) {
    let seed = std::env::var("KVICK_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("the operator is killed with KVICK_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let cluster = fixture.create("resumed", |spec| spec.replicas_per_shard = 1);
    let mut kill_often = |fixture: &mut Fixture, count: usize| {
        for _ in 0..count {
            std::thread::sleep(Duration::from_millis(random.u64(50..1500)));
            fixture.replace_operator();
        }
    };
    kill_often(fixture, 6);
    cluster.wait_running(fixture, 1);
    under_load(fixture, &cluster, 1, |fixture, _| {
        cluster.set_scale(fixture, 2);
        kill_often(fixture, 6);
        cluster.wait_running(fixture, 2);
        let before = fixture.pods_of(&cluster).uids();
        cluster.change(fixture, |spec| {
            spec.pod_annotations.insert("example.com/version".into(), "2".into());
        });
        kill_often(fixture, 6);
        let pods = fixture.pods_of(&cluster);
        wait("all pods are new", || pods.uids().is_disjoint(&before));
        cluster.wait_running(fixture, 2);
        let addresses: BTreeSet<String> = pods.endpoints().into_iter().collect();
        fixture.kubelet.reboot();
        kill_often(fixture, 4);
        wait("all pods have new addresses", || {
            let now: BTreeSet<String> = pods.endpoints().into_iter().collect();
            now.len() == addresses.len() && now.is_disjoint(&addresses)
        });
        cluster.wait_running(fixture, 2);
        cluster.set_scale(fixture, 1);
        kill_often(fixture, 6);
        cluster.wait_running(fixture, 1);
        let (before, primary) = (pods.uids(), cluster.primary(fixture));
        pods.delete(&primary);
        kill_often(fixture, 4);
        wait("the pod is a new one", || !pods.uids().is_superset(&before) && pods.uids().len() == 2);
        cluster.wait_running(fixture, 1);
        let primary = cluster.primary(fixture);
        fixture.kubelet.lose(&primary);
        kill_often(fixture, 4);
        wait("another node is the primary", || !["", &primary].contains(&&*cluster.primary(fixture)));
        fixture.kubelet.find();
        cluster.wait_running(fixture, 1);
    });
    cluster.delete(fixture);
}

fn elects(fixture: &mut Fixture) {
    fixture.stop_operator();
    let elected = ["--leader-election", "--lease", "2"];
    let mut first = fixture.operator(&elected);
    fixture.wait_for_lines("running the clusters", 1);
    let mut second = fixture.operator(&elected);
    let cluster = fixture.create("elected", |_| ());
    cluster.wait_running(fixture, 1);
    assert_eq!(fixture.lines("running the clusters"), 1, "both act");
    first.kill();
    fixture.wait_for_lines("running the clusters", 2);
    cluster.set_scale(fixture, 2);
    cluster.wait_running(fixture, 2);
    assert_eq!(second.stop(), Some(0), "it is not killed by the signal");
    fixture.start_operator();
    cluster.delete(fixture);
}
