//! The free memory of the machine and of the process's control groups.

use std::fs;
use std::path::Path;

/// What this process can still allocate, in bytes: the least that the machine and its control groups leave.
pub fn free_memory() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_machine = of_machine(&info).unwrap_or(4 << 30);
    of_groups(Path::new("/sys/fs/cgroup"), &groups).map_or(of_machine, |of_groups| of_machine.min(of_groups))
}

fn of_machine(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// The least that any of this process's groups leaves. `None` without limits.
fn of_groups(root: &Path, groups: &str) -> Option<u64> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let number = |group: &Path, file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    let left = |group: &Path| {
        let limit = number(group, "memory.max")?; // or "max"
        let statistics = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        // The kernel frees pages of files when memory is needed.
        let files = statistics.lines().find_map(|line| line.strip_prefix("file ")?.parse::<u64>().ok()).unwrap_or(0);
        Some(limit.saturating_sub(number(group, "memory.current")?.saturating_sub(files)))
    };
    root.join(own).ancestors().take_while(|group| group.starts_with(root)).filter_map(left).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_free_memory_of_a_group_respects_its_limit_and_those_of_its_parents() {
        let folder = tempfile::tempdir().unwrap();
        let write = |group: &str, max: &str, current: u64, file: u64| {
            let group = folder.path().join(group);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("memory.max"), format!("{max}\n")).unwrap();
            fs::write(group.join("memory.current"), format!("{current}\n")).unwrap();
            fs::write(group.join("memory.stat"), format!("anon 1\nfile {file}\nfile_mapped 3\n")).unwrap();
        };
        let left = || of_groups(folder.path(), "1:name=systemd:/x\n0::/services/chat\n");
        assert_eq!(left(), None);
        write("services/chat", "max", 900, 0);
        assert_eq!(left(), None);
        write("services", "1000", 900, 300);
        assert_eq!(left(), Some(400));
        write("services/chat", "500", 450, 100);
        assert_eq!(left(), Some(150));
        assert_eq!(of_groups(folder.path(), "0::/\n"), None);
    }

    #[test]
    fn the_machines_memory_is_read_in_kilobytes() {
        assert_eq!(of_machine("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
    }
}
