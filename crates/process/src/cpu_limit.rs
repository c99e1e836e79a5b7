//! The processor time that the process may use: its CPUs, or less by the quotas of its cgroups.

use kvick_runtime::affinity::CpuSet;
use std::fs;
use std::path::Path;

/// The number of cores that the process may use, such as 0.5.
pub fn cores() -> f64 {
    let cpus = CpuSet::present().map_or(1, |present| present.len().max(1)) as f64;
    quota(Path::new("/")).map_or(cpus, |quota| quota.min(cpus))
}

/// The least quota of the process's cgroups, in cores; `None` if there is none. `root` is the root directory.
fn quota(root: &Path) -> Option<f64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let of_line = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            // Version 2: one hierarchy, mounted here alone or beside those of version 1.
            let mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];
            return mounts.iter().find_map(|mount| least(root, mount, path, &quota_of_version_2));
        }
        let is_for_cpu = controllers.split(',').any(|controller| controller == "cpu");
        let mounts = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpuacct,cpu"];
        let quota_of = |mount: &&str| least(root, mount, path, &quota_of_version_1);
        if is_for_cpu { mounts.iter().find_map(quota_of) } else { None }
    };
    groups.lines().filter_map(of_line).reduce(f64::min)
}

/// The least quota of a cgroup and those above it. In a container the path may be one that only the host sees; then the
/// mount itself is the cgroup.
fn least(root: &Path, mount: &str, path: &str, quota_of: &dyn Fn(&Path) -> Option<f64>) -> Option<f64> {
    let mount = root.join(mount);
    let group = mount.join(path);
    group.ancestors().take_while(|directory| directory.starts_with(&mount)).filter_map(quota_of).reduce(f64::min)
}

/// `cpu.max` is `QUOTA PERIOD` or `max PERIOD`.
fn quota_of_version_2(group: &Path) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    cores_of(quota, period)
}

fn quota_of_version_1(group: &Path) -> Option<f64> {
    let quota = fs::read_to_string(group.join("cpu.cfs_quota_us")).ok()?;
    cores_of(quota.trim(), fs::read_to_string(group.join("cpu.cfs_period_us")).ok()?.trim())
}

/// Both in microseconds. A quota that is no positive number is none.
fn cores_of(quota: &str, period: &str) -> Option<f64> {
    let number = |text: &str| text.parse().ok().filter(|number: &f64| *number > 0.0 && number.is_finite());
    Some(number(quota)? / number(period)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota_with(files: &[(&str, &str)]) -> Option<f64> {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        quota(root.path())
    }

    #[test]
    fn the_least_quota_of_all_groups_counts() {
        let files = [
            ("proc/self/cgroup", "0::/kubepods/pod1/container\n"),
            ("sys/fs/cgroup/kubepods/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/kubepods/pod1/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/kubepods/pod1/container/cpu.max", "200000 100000\n"),
        ];
        assert_eq!(quota_with(&files), Some(1.5));
    }

    #[test]
    fn groups_of_version_1_have_quotas() {
        let files = [
            ("proc/self/cgroup", "9:name=systemd:/\n4:memory:/a\n1:cpu,cpuacct:/shard-1\n0::/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/shard-1/cpu.cfs_quota_us", "1000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/shard-1/cpu.cfs_period_us", "16000\n"),
        ];
        assert_eq!(quota_with(&files), Some(0.0625));
    }

    #[test]
    fn a_container_sees_its_group_at_the_mount() {
        let files = [("proc/self/cgroup", "0::/kubepods/pod1\n"), ("sys/fs/cgroup/cpu.max", "50000 100000\n")];
        assert_eq!(quota_with(&files), Some(0.5));
    }

    #[test]
    fn files_that_are_absent_or_damaged_are_no_limit() {
        assert_eq!(quota_with(&[]), None);
        for text in ["", "max 100000", "0 100000", "-1 100000", "1000", "NaN 1", "1 0", "inf 1"] {
            assert_eq!(quota_with(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", text)]), None, "{text}");
        }
        assert_eq!(quota_with(&[("proc/self/cgroup", "garbage\n:\n1:cpu\n")]), None);
    }
}
