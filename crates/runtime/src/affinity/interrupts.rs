//! Which CPUs serve the interrupts of network devices, as the kernel tells in `/sys` and `/proc`.
//!
//! A busy network device takes much of the CPU time of those: the kernel receives its packets where its interrupts
//! arrive.

use super::cpu_set::CpuSet;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A network device and the CPUs that serve its interrupts.
#[derive(Debug, PartialEq)]
pub struct Device {
    /// Its name, such as `eth0`.
    pub name: String,
    /// The CPUs, as a list.
    pub cpus: CpuSet,
}

/// The network devices that are up and have had interrupts, by name. `root` is the root directory.
pub fn network_devices(root: &Path) -> Vec<Device> {
    let Ok(entries) = fs::read_dir(root.join("sys/class/net")) else { return Vec::new() };
    let active = active_interrupts(root);
    let mut devices: Vec<Device> = entries
        .flatten()
        .filter_map(|entry| device(root, &entry.path(), &active))
        .filter(|device| !device.cpus.is_empty())
        .collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices
}

/// A network device with interrupts of its own: `lo` and virtual ones have none.
fn device(root: &Path, path: &Path, active: &HashSet<u32>) -> Option<Device> {
    let state = fs::read_to_string(path.join("operstate")).unwrap_or_default();
    if state.trim() == "down" {
        return None;
    }
    let numbers = interrupts_of(&fs::canonicalize(path.join("device")).ok()?)?;
    let mut cpus = CpuSet::none();
    for number in numbers.into_iter().filter(|number| active.contains(number)) {
        if let Some(served) = served_by(root, number) {
            cpus.extend(&served);
        }
    }
    Some(Device { name: path.file_name()?.to_string_lossy().into_owned(), cpus })
}

/// The interrupts of a device, or of the nearest device above that has some, as with virtio's.
fn interrupts_of(device: &Path) -> Option<Vec<u32>> {
    device.ancestors().take_while(|path| path.file_name().is_some_and(|name| name != "devices")).find_map(|path| {
        let of_messages = fs::read_dir(path.join("msi_irqs")).ok().map(|entries| {
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect::<Vec<u32>>()
        });
        let of_line = || fs::read_to_string(path.join("irq")).ok()?.trim().parse().ok().filter(|irq| *irq != 0);
        of_messages.or_else(|| Some(vec![of_line()?]))
    })
}

fn served_by(root: &Path, interrupt: u32) -> Option<CpuSet> {
    let directory: PathBuf = root.join(format!("proc/irq/{interrupt}"));
    let list = fs::read_to_string(directory.join("effective_affinity_list"))
        .ok()
        .filter(|list| !list.trim().is_empty())
        .or_else(|| fs::read_to_string(directory.join("smp_affinity_list")).ok())?;
    CpuSet::parse(list.trim())
}

/// The numbers of the interrupts that have ever come: a device may have more than it uses.
fn active_interrupts(root: &Path) -> HashSet<u32> {
    let text = fs::read_to_string(root.join("proc/interrupts")).unwrap_or_default();
    let active = |line: &str| {
        let (number, rest) = line.split_once(':')?;
        let has_come = rest.split_whitespace().map_while(|word| word.parse::<u64>().ok()).any(|count| count > 0);
        number.trim().parse().ok().filter(|_| has_come)
    };
    text.lines().filter_map(active).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A machine's files.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(interrupts: &str) -> Machine {
            let machine = Machine(tempfile::tempdir().expect("a directory"));
            machine.write("proc/interrupts", interrupts);
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        }

        /// A network device below a device of the bus.
        fn add(&self, name: &str, bus_device: &str, state: &str) {
            let directory = format!("sys/devices/{bus_device}/net/{name}");
            self.write(&format!("{directory}/operstate"), state);
            symlink("../..", self.0.path().join(&directory).join("device")).expect("a link");
            let class = self.0.path().join("sys/class/net");
            fs::create_dir_all(&class).expect("a directory");
            symlink(self.0.path().join(directory), class.join(name)).expect("a link");
        }

        fn devices(&self) -> Vec<(String, String)> {
            let devices = network_devices(self.0.path()).into_iter();
            devices.map(|device| (device.name, device.cpus.to_string())).collect()
        }
    }

    const INTERRUPTS: &str = "           CPU0       CPU1       CPU2\n \
         8:          1          0          0   IO-APIC   8-edge  rtc0\n \
        20:          0          0          0   PCI-MSIX-0000:00:03.0   0-edge   virtio2-config\n \
        21:          0       6732          0   PCI-MSIX-0000:00:03.0   1-edge   virtio2-input.0\n \
        22:          5          0          9   PCI-MSIX-0000:00:03.0   2-edge   virtio2-output.0\n \
        30:         11          0          0   PCI-MSI 512000-edge   enp1s0\n\
        LOC:     262871     251647          1   Local timer interrupts\n";

    #[test]
    fn devices_have_the_cpus_of_the_interrupts_that_come() {
        let machine = Machine::new(INTERRUPTS);
        machine.add("eth0", "pci0000:00/0000:00:03.0/virtio2", "up\n");
        for (number, list) in [(20, "0"), (21, "1"), (22, "2")] {
            machine.write(&format!("sys/devices/pci0000:00/0000:00:03.0/msi_irqs/{number}"), "msix\n");
            machine.write(&format!("proc/irq/{number}/smp_affinity_list"), "0-2\n");
            machine.write(&format!("proc/irq/{number}/effective_affinity_list"), &format!("{list}\n"));
        }
        // Without interrupts by message, and on a kernel that does not tell which CPU it chose.
        machine.add("enp1s0", "pci0000:00/0000:01:00.0", "unknown\n");
        machine.write("sys/devices/pci0000:00/0000:01:00.0/irq", "30\n");
        machine.write("proc/irq/30/smp_affinity_list", "0,2\n");
        machine.write("proc/irq/30/effective_affinity_list", "\n");
        assert_eq!(machine.devices(), [("enp1s0".into(), "0,2".into()), ("eth0".into(), "1-2".into())]);
    }

    #[test]
    fn devices_that_are_down_or_virtual_have_none() {
        let machine = Machine::new(INTERRUPTS);
        machine.add("eth1", "pci0000:00/0000:01:00.0", "down\n");
        machine.write("sys/devices/pci0000:00/0000:01:00.0/irq", "30\n");
        machine.write("proc/irq/30/smp_affinity_list", "0\n");
        machine.write("sys/devices/virtual/net/lo/operstate", "unknown\n");
        symlink(machine.0.path().join("sys/devices/virtual/net/lo"), machine.0.path().join("sys/class/net/lo"))
            .expect("a link");
        assert_eq!(machine.devices(), []);
    }

    #[test]
    fn files_that_are_absent_or_damaged_tell_nothing() {
        assert_eq!(network_devices(Path::new("/nonexistent")), []);
        let machine = Machine::new("garbage\n:::\n21: x\n\u{fffd}");
        machine.add("eth0", "pci0000:00/0000:00:03.0", "up");
        machine.write("sys/devices/pci0000:00/0000:00:03.0/msi_irqs/21", "");
        machine.write("sys/devices/pci0000:00/0000:00:03.0/msi_irqs/x", "");
        assert_eq!(machine.devices(), []);
    }
}
