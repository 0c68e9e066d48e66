//! The machine of a measurement, and the versions of the compared programs.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::tools;

/// A command that took some of the samples.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Session {
    pub command: String,
    pub started: String,
    pub machine: BTreeMap<String, String>,
}

impl Session {
    /// The session that begins now, with the kernel settings that matter for it.
    pub fn now(settings: &[Setting]) -> Session {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let mut machine = describe();
        let found = settings
            .iter()
            .map(|setting| (setting.name.into(), setting.read()));
        machine.extend(found);
        Session {
            command: format!("airdma {}", words.join(" ")),
            started: now(),
            machine,
        }
    }
}

/// Idle time of this machine's cores, all together, whose difference shows how busy they were.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    at: Instant,
    cores: u32,
    idle: Duration,
}

impl Idle {
    /// Reads it; none if the kernel does not report it.
    pub fn now() -> Option<Idle> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let (cores, ticks) = idle_of(&text)?;
        // SAFETY: reads a constant.
        let ticks_per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
        Some(Idle {
            at: Instant::now(),
            cores,
            idle: Duration::from_nanos(ticks * (1_000_000_000 / ticks_per_s.max(1))),
        })
    }

    /// Core seconds worked since then.
    pub fn busy_since(self) -> Option<Duration> {
        let now = Idle::now()?;
        let all = now.at.duration_since(self.at) * self.cores;
        Some(all.saturating_sub(now.idle.saturating_sub(self.idle)))
    }
}

/// Number of cores, and ticks spent idle or waiting for a disk, from /proc/stat (proc_stat(5)).
fn idle_of(text: &str) -> Option<(u32, u64)> {
    let mut lines = text.lines().take_while(|line| line.starts_with("cpu"));
    let fields: Vec<&str> = lines.next()?.split_ascii_whitespace().collect();
    let [idle, waiting] = [4, 5].map(|field| fields.get(field)?.parse::<u64>().ok());
    Some((lines.count() as u32, idle? + waiting?))
}

/// A kernel setting that makes the numbers of a virtual machine worse.
#[derive(Clone)]
pub struct Setting {
    /// Name of the kernel parameter, and key in [`describe`]'s list.
    name: &'static str,
    file: &'static str,
    /// Values that make the numbers worse.
    bad: RangeInclusive<i64>,
    /// Description of the effect.
    cost: &'static str,
    /// Recommended value.
    better: i64,
}

/// Whether HTB overdraws its bucket before it arms a timer, or arms one for every packet.
///
/// The latter is an emulated link's largest cost on a virtual machine. The file exists once the
/// kernel has had an HTB, and only root can read it.
pub const HTB_HYSTERESIS: Setting = Setting {
    name: "htb_hysteresis",
    file: "/sys/module/sch_htb/parameters/htb_hysteresis",
    bad: 0..=0,
    cost: "each packet of the link costs a timer, which is dear on a virtual machine",
    better: 1,
};

/// Order of the smallest free block that is returned to the host every two seconds.
///
/// The next access to such memory waits for the host. The kernel's largest block has order 10;
/// without a host that takes them the value is 0 or -1.
pub const PAGE_REPORTING: Setting = Setting {
    name: "page_reporting_order",
    file: "/sys/module/page_reporting/parameters/page_reporting_order",
    bad: 1..=10,
    cost: "this virtual machine returns free memory to its host, and the next access pays for that",
    better: 11,
};

impl Setting {
    /// Reads the kernel's value.
    fn read(&self) -> String {
        let text = fs::read_to_string(self.file);
        text.map_or("unknown".into(), |text| text.trim().to_owned())
    }

    /// Advice, if the value is a bad one.
    fn warning(&self, machine: &BTreeMap<String, String>) -> Option<String> {
        let value = machine.get(self.name)?.parse().ok()?;
        let Setting {
            file, cost, better, ..
        } = self;
        self.bad
            .contains(&value)
            .then(|| format!("{cost}: echo {better} > {file}, as root, for steady numbers"))
    }
}

/// Facts that a reader needs to judge the numbers.
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

/// Versions of the compared programs, by package where there is one.
///
/// perftest calls itself 6.06 in every release of these years.
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

/// Conditions that make the numbers doubtful.
pub fn warnings(machine: &BTreeMap<String, String>) -> Vec<String> {
    let number = |name: &str| machine.get(name)?.parse::<f64>().ok();
    let mut warnings = Vec::new();
    if number("cores") == Some(1.0) {
        warnings.push("there is one core: both hosts share it".into());
    }
    if let Some(load) = number("load_before").filter(|load| *load > BUSY) {
        warnings.push(format!(
            "the machine is busy (load {load}): the numbers will be rough"
        ));
    }
    if machine.get("cpu").is_some_and(|cpu| cpu.contains(VIRTUAL)) {
        let settings = [HTB_HYSTERESIS, PAGE_REPORTING];
        warnings.extend(
            settings
                .iter()
                .filter_map(|setting| setting.warning(machine)),
        );
    }
    warnings
}

const VIRTUAL: &str = ", virtual machine";

/// Load above which other programs run.
const BUSY: f64 = 0.7;

/// Load of the last minute before the measurement.
fn load() -> Option<String> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    Some(text.split(' ').next()?.to_owned())
}

/// Current time, UTC.
pub fn now() -> String {
    // SAFETY: the time lives through its call; `gmtime_r` fills plain data.
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

/// First value after `name :`.
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
    fn a_machine_is_busy_when_it_is_not_idle() {
        let text = "cpu  10 0 20 300 40 0 5 0 0 0\ncpu0 5 0 10 150 20 0 5 0 0 0\ncpu1 5 0 10 150 20 0 0 0 0 0\nintr 1 2\n";
        assert_eq!(idle_of(text), Some((2, 340)));
        assert_eq!(idle_of("intr 1 2\n"), None);
        let before = Idle::now().unwrap();
        while before.at.elapsed() < Duration::from_millis(200) {
            std::hint::spin_loop();
        }
        // This thread is busy, on a machine that others use as well.
        let busy = before.busy_since().unwrap();
        assert!(busy > Duration::from_millis(50), "{busy:?}");
    }

    #[test]
    fn bad_settings_and_a_busy_machine_give_warnings() {
        let told = |cpu: &str, load: &str, (name, value): (&str, &str)| {
            let facts = [
                ("cores", "2"),
                ("cpu", cpu),
                ("load_before", load),
                (name, value),
            ];
            warnings(
                &facts
                    .map(|(name, value)| (name.into(), value.into()))
                    .into(),
            )
        };
        let virtual_cpu = &format!("some{VIRTUAL}");
        let (timers, memory) = (HTB_HYSTERESIS.name, PAGE_REPORTING.name);
        for (setting, say) in [((timers, "0"), "echo 1 > "), ((memory, "9"), "echo 11 > ")] {
            let said = told(virtual_cpu, "0.1", setting);
            assert!(said.len() == 1 && said[0].contains(say), "{said:?}");
            let busy = told(virtual_cpu, "3.0", setting);
            assert!(busy.len() == 2 && busy[0].contains("load 3"), "{busy:?}");
            assert!(told("some", "0.1", setting).is_empty());
        }
        for setting in [
            (timers, "1"),
            (timers, "unknown"),
            (memory, "11"),
            (memory, "0"),
            (memory, "-1"),
            (memory, "unknown"),
        ] {
            let said = told(virtual_cpu, "0.1", setting);
            assert!(said.is_empty(), "{setting:?}: {said:?}");
        }
    }
}
