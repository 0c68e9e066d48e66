//! The machine that a measurement was taken on, and the versions of what was compared.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::tools;

/// A command by which some of it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Session {
    pub command: String,
    pub started: String,
    pub machine: BTreeMap<String, String>,
}

impl Session {
    /// The one that begins now.
    pub fn now() -> Session {
        let words: Vec<String> = std::env::args().skip(1).collect();
        Session {
            command: format!("airdma {}", words.join(" ")),
            started: now(),
            machine: describe(),
        }
    }
}

/// Whether HTB overdraws its bucket before it asks for a timer, or asks for one with every packet, which is what an emulated link costs most by on
/// a virtual machine. A setting of the whole machine.
pub const HTB_HYSTERESIS: &str = "htb_hysteresis";

/// What of [`HTB_HYSTERESIS`] the kernel says, once it has had an HTB; it tells root alone.
pub fn htb_hysteresis() -> String {
    let text = fs::read_to_string(HTB_HYSTERESIS_FILE);
    text.map_or("unknown".into(), |text| text.trim().to_owned())
}

const HTB_HYSTERESIS_FILE: &str = "/sys/module/sch_htb/parameters/htb_hysteresis";

/// What a reader needs to judge the numbers.
pub fn describe() -> BTreeMap<String, String> {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let (cpus, memory, release) = (
        read("/proc/cpuinfo"),
        read("/proc/meminfo"),
        read("/etc/os-release"),
    );
    let virtual_machine = field(&cpus, "flags").is_some_and(|flags| flags.contains("hypervisor"));
    let cpu = field(&cpus, "model name").unwrap_or("unknown");
    let kib = field(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse().ok());
    let system = release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let facts = [
        (
            "cpu",
            format!("{cpu}{}", if virtual_machine { VIRTUAL } else { "" }),
        ),
        (
            "cores",
            std::thread::available_parallelism()
                .map_or("unknown".into(), |cores| cores.to_string()),
        ),
        ("load_before", load().unwrap_or_else(|| "unknown".into())),
        (
            "memory",
            kib.map_or("unknown".into(), |kib: u64| {
                format!("{:.0} GiB", kib as f64 / f64::from(1 << 20))
            }),
        ),
        (
            "kernel",
            format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
        ),
        (
            "system",
            system.unwrap_or("unknown").trim_matches('"').to_owned(),
        ),
    ];
    facts.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Versions of the programs compared, by package where there is one: perftest calls itself 6.06 in every release of
/// these years.
pub fn versions(airdma: &str, programs: &[&str]) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::from([("airdma".to_owned(), airdma.to_owned())]);
    for program in programs.iter().filter(|program| **program != "tcp_bbr") {
        let package = tools::package(program);
        versions
            .entry(package.to_owned())
            .or_insert_with(|| version(program, package));
    }
    versions
}

fn version(program: &str, package: &str) -> String {
    let query = ["-W", "-f", "${Version}", package];
    let packaged = output("dpkg-query", &query).filter(|text| !text.is_empty());
    let own = || {
        let path = tools::find(program)?;
        let text = output(path.to_str()?, &["--version"])?;
        Some(text.lines().next()?.trim().to_owned())
    };
    packaged.or_else(own).unwrap_or_else(|| "unknown".into())
}

/// What makes the numbers doubtful, if something does.
pub fn warning(machine: &BTreeMap<String, String>) -> Option<String> {
    let number = |name: &str| machine.get(name)?.parse::<f64>().ok();
    if number("cores") == Some(1.0) {
        return Some("there is one core: both hosts share it".into());
    }
    if let Some(load) = number("load_before").filter(|load| *load > BUSY) {
        return Some(format!(
            "the machine does something else (load {load}): the numbers will be rough"
        ));
    }
    let is_virtual = machine.get("cpu")?.contains(VIRTUAL);
    let asks_each_time = machine
        .get(HTB_HYSTERESIS)
        .is_some_and(|value| value == "0");
    (is_virtual && asks_each_time).then(|| {
        format!(
            "each packet of the link costs a timer, which is dear on a virtual machine: echo 1 > {HTB_HYSTERESIS_FILE}, as root"
        )
    })
}

const VIRTUAL: &str = ", virtual machine";

/// A load beyond which somebody else runs.
const BUSY: f64 = 0.7;

/// How busy the machine was before the measurement: the load of the last minute.
fn load() -> Option<String> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    Some(text.split(' ').next()?.to_owned())
}

/// The time of day, UTC.
pub fn now() -> String {
    // SAFETY: the time lives through its call; what `gmtime_r` fills is plain data.
    let parts = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts = std::mem::zeroed::<libc::tm>();
        libc::gmtime_r(&now, &mut parts);
        parts
    };
    let (year, month) = (parts.tm_year + 1900, parts.tm_mon + 1);
    format!(
        "{year}-{month:02}-{:02} {:02}:{:02} UTC",
        parts.tm_mday, parts.tm_hour, parts.tm_min
    )
}

/// What follows `name :` first.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_machine_is_told_of_timers_and_a_busy_one_of_its_load_first() {
        let machine = |cpu: &str, load: &str, hysteresis: Option<&str>| {
            let mut facts = BTreeMap::from([
                ("cores".to_owned(), "2".to_owned()),
                ("cpu".to_owned(), cpu.to_owned()),
                ("load_before".to_owned(), load.to_owned()),
            ]);
            let told = hysteresis.map(|value| (HTB_HYSTERESIS.to_owned(), value.to_owned()));
            facts.extend(told);
            warning(&facts).unwrap_or_default()
        };
        let virtual_cpu = &format!("some{VIRTUAL}");
        assert!(machine(virtual_cpu, "0.1", Some("0")).contains("as root"));
        assert!(machine(virtual_cpu, "3.0", Some("0")).contains("load 3"));
        for (cpu, value) in [
            (virtual_cpu.as_str(), Some("1")),
            (virtual_cpu, None),
            ("some", Some("0")),
        ] {
            assert_eq!(machine(cpu, "0.1", value), "", "{cpu} {value:?}");
        }
    }
}
