//! What was measured on, and with what.

use std::{fs, process::Command, thread};

/// Cores, processor, memory and kernel.
pub fn describe() -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    let memory = field("/proc/meminfo", "MemTotal")
        .and_then(|size| size.split(' ').next()?.parse::<f64>().ok())
        .map_or(0.0, |kib| kib / 1_048_576.0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // Behind the first dash is how it was built.
    let kernel = kernel.trim().split('-').next().unwrap_or_default().to_owned();
    let hypervisor =
        fs::read_to_string("/proc/cpuinfo").unwrap_or_default().contains(" hypervisor");
    let kind = if hypervisor { "virtual machine" } else { "machine" };
    format!("{kind} with {cores} cores ({model}), {memory:.0} GiB, Linux {kernel}")
}

/// Servers and libraries with their versions.
pub fn versions() -> Vec<String> {
    let server = crate::support::process::server_binary();
    let server = output(server.to_str().unwrap_or("redis-server"), "--version");
    let server = server.split(' ').find_map(|word| word.strip_prefix("v=").map(str::to_owned));
    let mut versions = vec![
        format!("quorumlock {}", locked("quorumlock")),
        format!("Redis {}, nothing kept on disk", server.unwrap_or_else(|| "unknown".to_owned())),
    ];
    let libraries = ["fred", "rslock", "redis", "distributed-lock-redis", "tokio"];
    versions.extend(libraries.iter().map(|name| format!("{name} {}", locked(name))));
    if cfg!(feature = "etcd") {
        let etcd = output("etcd", "--version");
        let etcd = etcd.lines().next().unwrap_or_default().replace(" Version:", "");
        versions.push(format!("{etcd}, which writes to disk before it answers"));
        versions.push(format!("etcd-client {}", locked("etcd-client")));
    }
    versions
}

/// The versions of this library in the lock file.
fn locked(name: &str) -> String {
    let lock = include_str!("../Cargo.lock");
    let packages = lock
        .split("[[package]]")
        .filter(|package| package.lines().any(|line| line == format!("name = \"{name}\"")));
    let versions = packages
        .filter_map(|package| package.lines().find_map(|line| line.strip_prefix("version = ")));
    versions.map(|version| version.trim_matches('"')).collect::<Vec<_>>().join(" and ")
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn output(program: &str, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}
