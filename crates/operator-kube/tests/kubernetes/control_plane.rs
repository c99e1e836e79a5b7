//! A real control plane: etcd, API server and controller manager as processes. `tests/kube` builds them.

use crate::support::wait;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use kvick_testing::free_port;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tokio::runtime::Handle;

/// Namespace of the tests.
pub const NAMESPACE: &str = "kvick";
const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kube-controller-manager"];

/// The programs, in the directory of KVICK_TEST_KUBE or named by KVICK_TEST_ETCD and the like. `None` if one is absent.
pub fn programs() -> Option<[PathBuf; 3]> {
    let programs = PROGRAMS.map(|name| {
        let variable = format!("KVICK_TEST_{}", name.to_uppercase().replace('-', "_"));
        let directory = || std::env::var_os("KVICK_TEST_KUBE").map(|directory| Path::new(&directory).join(name));
        let program = std::env::var_os(&variable).map(PathBuf::from).or_else(directory);
        program.filter(|program| program.is_file())
    });
    let [Some(etcd), Some(server), Some(manager)] = programs else { return None };
    Some([etcd, server, manager])
}

/// A running control plane. Its processes end with it.
pub struct ControlPlane {
    children: Vec<Child>,
    dir: tempfile::TempDir,
    server: String,
}

impl ControlPlane {
    pub fn start([etcd, server, manager]: &[PathBuf; 3], runtime: &Handle) -> ControlPlane {
        let dir = tempfile::tempdir().expect("a directory");
        let [clients, peers, api, metrics] = [(); 4].map(|()| free_port());
        let key = rcgen::KeyPair::generate().expect("a key");
        fs::write(dir.path().join("sa.key"), key.serialize_pem()).expect("a file");
        fs::write(dir.path().join("sa.pub"), key.public_key_pem()).expect("a file");
        // The operator's token stands for its service account, so it has only the rights of its role.
        let account = format!("system:serviceaccount:{NAMESPACE}:kvick-operator");
        let tokens = format!("admin-token,admin,admin,system:masters\noperator-token,{account},operator\n");
        fs::write(dir.path().join("tokens.csv"), tokens).expect("a file");
        let mut plane = ControlPlane { children: Vec::new(), dir, server: format!("https://127.0.0.1:{api}") };
        for user in ["admin", "operator"] {
            plane.write_kubeconfig(user);
        }
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        plane.spawn(
            etcd,
            &[
                "--data-dir=etcd",
                &format!("--listen-client-urls={}", url(clients)),
                &format!("--advertise-client-urls={}", url(clients)),
                &format!("--listen-peer-urls={}", url(peers)),
                &format!("--initial-advertise-peer-urls={}", url(peers)),
                &format!("--initial-cluster=default={}", url(peers)),
                "--unsafe-no-fsync",
            ],
        );
        plane.spawn(
            server,
            &[
                &format!("--etcd-servers={}", url(clients)),
                "--bind-address=127.0.0.1",
                &format!("--secure-port={api}"),
                "--cert-dir=certs",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--service-account-issuer=https://kvick.test",
                "--service-account-key-file=sa.pub",
                "--service-account-signing-key-file=sa.key",
                "--token-auth-file=tokens.csv",
                "--authorization-mode=RBAC,Node",
                "--disable-admission-plugins=ServiceAccount",
                "--default-not-ready-toleration-seconds=2",
                "--default-unreachable-toleration-seconds=2",
            ],
        );
        let client = plane.client(runtime);
        wait("the API server is ready", || runtime.block_on(client.apiserver_version()).is_ok());
        plane.spawn(
            manager,
            &[
                "--kubeconfig=admin.kubeconfig",
                "--service-account-private-key-file=sa.key",
                "--use-service-account-credentials=false",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                &format!("--secure-port={metrics}"),
                "--cert-dir=certs",
                // A machine is lost soon, so that tests need not wait long for it.
                "--node-monitor-period=1s",
                "--node-monitor-grace-period=12s",
                // Endpoints of services may not have loopback addresses, and pods have no other ones here.
                "--controllers=garbage-collector-controller,disruption-controller,cronjob-controller,job-controller,\
                 node-lifecycle-controller,taint-eviction-controller,persistentvolumeclaim-protection-controller",
            ],
        );
        plane
    }

    fn spawn(&mut self, program: &Path, args: &[&str]) {
        let name = program.file_name().expect("a name").to_string_lossy().into_owned();
        let log = fs::File::create(self.dir.path().join(format!("{name}.log"))).expect("a log");
        let child = Command::new(program)
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("a process");
        self.children.push(child);
    }

    fn write_kubeconfig(&self, user: &str) {
        let server = &self.server;
        let text = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": user, "namespace": NAMESPACE } }],
            "clusters": [{ "name": "test", "cluster": { "server": server, "insecure-skip-tls-verify": true } }],
            "users": [{ "name": user, "user": { "token": format!("{user}-token") } }],
        });
        fs::write(self.kubeconfig(user), text.to_string()).expect("a file");
    }

    /// The configuration of a user: `admin` or `operator`.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.dir.path().join(format!("{user}.kubeconfig"))
    }

    /// A directory for what runs here.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A client with all rights.
    pub fn client(&self, runtime: &Handle) -> Client {
        let file = Kubeconfig::read_from(self.kubeconfig("admin")).expect("a configuration");
        runtime.block_on(async {
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            Client::try_from(config.expect("a configuration")).expect("a client")
        })
    }

    /// The last lines of all logs.
    pub fn print_logs(&self) {
        for name in PROGRAMS {
            let log = fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("-- {name}\n{}", lines[lines.len().saturating_sub(15)..].join("\n"));
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
