//! Checks of the kernel's settings, of the user's limits, and of what is installed.

use std::env;
use std::fs;
use std::process::Command;

use airdma_engine::selftest::SelfTest;
use airdma_engine::short_slices_offered;

use super::Finding;
use crate::run::REFUTED;
use crate::run::artefact::{self, Installed, how_to_get_drop_in};
use crate::run::environment::{Remark, remark};
use crate::run::host::Host;
use crate::run::ports::PORT;

/// All checks but the self-test.
pub fn findings() -> Vec<Finding> {
    let mut findings = vec![buffers(number("net/core/rmem_max"))];
    findings.extend(low_ports(
        number("net/ipv4/ip_unprivileged_port_start"),
        is_root(),
    ));
    findings.push(slices(short_slices_offered()));
    findings.extend(cores(
        std::thread::available_parallelism().map_or(1, usize::from),
    ));
    findings.push(memory(limit(libc::RLIMIT_MEMLOCK).0));
    findings.extend(descriptors(limit(libc::RLIMIT_NOFILE).1));
    findings.push(namespaces());
    findings.extend(libraries());
    findings.extend(variables());
    findings
}

/// The check on loopback how packets are numbered.
pub fn self_test(found: &SelfTest) -> Finding {
    if found.refuted() {
        let remedy = "use IPv6 addresses; `airdma selftest` has the details";
        return Finding::hint("selftest", REFUTED, remedy);
    }
    Finding::ok(
        "selftest",
        "this kernel numbers packets as RoCE peers need it",
    )
}

/// The longest receive buffer of an unprivileged process. Some namespaces do not show it.
fn buffers(bytes: Option<u64>) -> Finding {
    let Some(bytes) = bytes else {
        return Finding::skip(
            "buffers",
            "net.core.rmem_max is not visible in this namespace",
        );
    };
    let says = format!(
        "receive buffers of up to {} KiB (net.core.rmem_max)",
        bytes >> 10
    );
    if bytes >= WANTED_BYTES {
        return Finding::ok("buffers", says);
    }
    let remedy = format!("for many peers `sysctl -w net.core.rmem_max={WANTED_BYTES}`");
    Finding::hint("buffers", says, remedy)
}

/// Whether the port is one that only root may have.
fn low_ports(first: Option<u64>, root: bool) -> Option<Finding> {
    let first = first.filter(|first| *first > u64::from(PORT) && !root)?;
    Some(Finding::bad(
        "port",
        format!("ports below {first} are for root, and RoCEv2 has {PORT}"),
        Some(format!(
            "`sysctl -w net.ipv4.ip_unprivileged_port_start={PORT}`"
        )),
    ))
}

fn slices(offered: bool) -> Finding {
    if offered {
        return Finding::ok(
            "slices",
            "the kernel gives threads the short slices that they request",
        );
    }
    Finding::hint(
        "slices",
        "the kernel has no short slices: beside busy programs, packets may wait for hundreds of ms",
        "Linux 6.12 or newer",
    )
}

fn cores(count: usize) -> Option<Finding> {
    (count < 2).then(|| {
        Finding::hint(
            "cores",
            "one core: a program that spins on memory competes with airdma's thread for it",
            "poll the completion queue, or allow a second core (`taskset`, the container's limit)",
        )
    })
}

fn memory(bytes: u64) -> Finding {
    let limit = match bytes {
        libc::RLIM_INFINITY => "unlimited".to_owned(),
        bytes => format!("limited to {} KiB", bytes >> 10),
    };
    Finding::ok(
        "memlock",
        format!("locked memory is {limit}; airdma locks none"),
    )
}

fn descriptors(hard: u64) -> Option<Finding> {
    (hard <= 1024).then(|| {
        Finding::hint(
            "files",
            format!("at most {hard} descriptors for each process, of which a device takes a dozen"),
            "raise the hard limit: `prlimit --nofile=65536:65536 --pid $$` as root",
        )
    })
}

/// Whether `airdma link`, `lab` and `bench` can make networks.
fn namespaces() -> Finding {
    let unshare: &[&str] = if is_root() {
        &["--net"]
    } else {
        &["--user", "--map-root-user", "--net"]
    };
    // The second one: AppArmor permits a user namespace, and then refuses everything in it.
    let made = Command::new("unshare")
        .args(unshare)
        .args(["unshare", "--net", "true"])
        .output();
    match made {
        Ok(done) if done.status.success() => Finding::ok(
            "namespaces",
            "`airdma link`, `lab` and `bench` can make networks",
        ),
        Ok(_) => Finding::hint(
            "namespaces",
            "`airdma link` and `airdma bench` cannot make networks here",
            namespaces_remedy(
                number("kernel/apparmor_restrict_unprivileged_userns"),
                number("kernel/unprivileged_userns_clone"),
                number("user/max_user_namespaces"),
            ),
        ),
        Err(error) => Finding::skip("namespaces", format!("unshare (util-linux): {error}")),
    }
}

fn namespaces_remedy(apparmor: Option<u64>, clone: Option<u64>, most: Option<u64>) -> &'static str {
    match (apparmor, clone, most) {
        (Some(1..), _, _) => "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`",
        (_, Some(0), _) => "`sysctl -w kernel.unprivileged_userns_clone=1`",
        (_, _, Some(0)) => "`sysctl -w user.max_user_namespaces=1000`",
        _ => "run them as root; a container needs `--privileged`",
    }
}

/// What `airdma run` and `airdma sockets` need.
fn libraries() -> Vec<Finding> {
    let installed = match Installed::look() {
        Ok(installed) => installed,
        Err(message) => {
            return vec![Finding::bad(
                "libraries",
                message.replace("\n ", "").replace('\n', ": "),
                None,
            )];
        }
    };
    let missing = Host::look().missing();
    let preload = installed.preload.as_deref();
    let verbs = match (&installed.drop_in, preload) {
        (None, Some(preload)) if !missing.is_empty() => Finding::hint(
            "libraries",
            format!("this host has no {}", missing.join(" and no ")),
            format!("install rdma-core; or {}", how_to_get_drop_in(preload)),
        ),
        (Some(folder), None) => Finding::ok("libraries", folder.display().to_string()),
        (_, preload) => Finding::ok(
            "libraries",
            preload.map_or_else(String::new, |preload| preload.display().to_string()),
        ),
    };
    let sockets = artefact::sockets().err().map(|message| {
        let first = message
            .lines()
            .next()
            .unwrap_or_default()
            .trim_end_matches(':');
        Finding::hint("libraries", first, "needed by `airdma sockets` only")
    });
    [verbs].into_iter().chain(sockets).collect()
}

/// Variables that keep programs from the devices, or have no effect.
fn variables() -> Vec<Finding> {
    let names: Vec<String> = airdma_engine::devices()
        .unwrap_or_default()
        .into_iter()
        .map(|device| device.name)
        .collect();
    let mut set: Vec<(String, String)> = env::vars_os()
        .map(|(name, value)| {
            let text = |it: std::ffi::OsString| it.to_string_lossy().into_owned();
            (text(name), text(value))
        })
        .collect();
    set.sort();
    let careful = |(name, value): (String, String)| match remark(&name, &value, &names)? {
        Remark::Careful(text) => {
            let says = format!("{name}={value}: {text}");
            Some(Finding::hint("variable", says, format!("`unset {name}`")))
        }
        Remark::Fine(_) => None,
    };
    set.into_iter().filter_map(careful).collect()
}

/// A number of `/proc/sys`.
fn number(name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    text.trim().parse().ok()
}

fn is_root() -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// The soft and the hard limit of a resource.
fn limit(resource: libc::__rlimit_resource_t) -> (u64, u64) {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: fills in the structure. If it fails, the structure stays as it is.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    (limit.rlim_cur, limit.rlim_max)
}

/// A receive buffer for many peers: docs/operations.md.
const WANTED_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn a_short_buffer_is_a_hint_with_the_command() {
        let short = buffers(Some(212_992));
        assert_eq!(short.state, State::Hint);
        assert!(short.line().contains("sysctl -w net.core.rmem_max=4194304"));
        assert_eq!(buffers(Some(4 << 20)).state, State::Ok);
        assert_eq!(buffers(None).state, State::Skip);
    }

    #[test]
    fn a_port_that_is_for_root_is_bad_for_others_only() {
        let state = |first, root| low_ports(first, root).map(|it| it.state);
        assert_eq!(state(Some(5000), false), Some(State::Bad));
        assert_eq!(state(Some(5000), true), None);
        assert_eq!(state(Some(4791), false), None);
        assert_eq!(state(None, false), None);
    }

    #[test]
    fn the_setting_that_forbids_namespaces_is_named() {
        assert!(namespaces_remedy(Some(1), None, Some(9)).contains("apparmor"));
        assert!(namespaces_remedy(Some(0), Some(0), Some(9)).contains("userns_clone"));
        assert!(namespaces_remedy(None, None, Some(0)).contains("max_user"));
        assert!(namespaces_remedy(None, None, None).contains("root"));
    }

    #[test]
    fn few_descriptors_one_core_and_old_slices_are_hints() {
        assert_eq!(descriptors(1024).map(|it| it.state), Some(State::Hint));
        assert_eq!(descriptors(65_536), None);
        assert_eq!(cores(1).map(|it| it.state), Some(State::Hint));
        assert_eq!(cores(2), None);
        assert_eq!(slices(false).state, State::Hint);
        assert!(memory(8 << 20).says.contains("8192 KiB"));
    }
}
