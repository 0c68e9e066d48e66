//! Programs on the hosts of a link: how a process gets there, and how those that are there end.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use crate::air::Side;
use crate::error::{LinkError, Tried};
use crate::folder::Record;

/// In the environment of every program in a link: which one.
const ID: &str = "AIRDMA_LINK_ID";
/// Time between SIGTERM and SIGKILL.
const STOP: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// This process, on a host.
#[derive(Debug)]
pub struct Joined {
    /// Environment variables of programs there.
    pub variables: [(&'static str, String); 4],
}

impl Joined {
    /// Moves the process, which must have one thread, to a host of a link: into its user namespace,
    /// if it has one of its own, its network, and a view of /sys that shows it.
    pub fn new(record: &Record, side: Side) -> Result<Joined, LinkError> {
        let of = |what: &str| format!("/proc/{}/{what}", record.process);
        let user = of("ns/user");
        let descriptor = record.descriptors[side.index()];
        let vanished = format!("the namespace of host {side:?} has vanished");
        let network = File::open(of(&format!("fd/{descriptor}"))).tried(vanished.clone())?;
        let number = network.metadata().tried(vanished.clone())?.ino();
        if number != record.namespaces[side.index()] {
            return Err(LinkError::Asked(format!(
                "{vanished}: airdma link down {}",
                record.name
            )));
        }
        let here = fs::metadata("/proc/self/ns/user").tried("finding the user namespace")?;
        let there = fs::metadata(&user).tried("finding the link's user namespace")?;
        if here.ino() != there.ino() {
            let user = File::open(&user).tried("opening the link's user namespace")?;
            enter(&user, libc::CLONE_NEWUSER).tried("joining the link's user namespace")?;
        }
        enter(&network, libc::CLONE_NEWNET).tried(format!("joining host {side:?}"))?;
        show_own_interfaces();
        let other = &record.addresses[1 - side.index()];
        Ok(Joined {
            variables: [
                (ID, record.id.clone()),
                ("AIRDMA_LINK", record.name.clone()),
                ("AIRDMA_LINK_HOST", format!("{side:?}")),
                ("AIRDMA_LINK_PEER", other.clone()),
            ],
        })
    }
}

fn enter(namespace: &File, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open; what changes is the kernel's idea of this thread.
    if unsafe { libc::setns(namespace.as_raw_fd(), kind) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Mounts /sys anew: it shows the network namespace of its mounter. Where mounting is forbidden
/// (some containers) programs see the interfaces of the outer host there.
fn show_own_interfaces() {
    // SAFETY: C strings; only this process' view of the files changes.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) == 0 {
            let none = ptr::null();
            let private = libc::MS_REC | libc::MS_SLAVE;
            libc::mount(none, c"/".as_ptr(), none, private, ptr::null());
            let sysfs = c"sysfs".as_ptr();
            libc::mount(sysfs, c"/sys".as_ptr(), sysfs, 0, ptr::null());
        }
    }
}

/// Ends all programs on the hosts of a link, but not its controller. Returns how many there were.
pub fn end_programs(record: &Record) -> usize {
    let deadline = Instant::now() + STOP;
    let mut most = 0;
    loop {
        let programs = programs(record);
        most = most.max(programs.len());
        if programs.is_empty() {
            return most;
        }
        let is_late = Instant::now() > deadline;
        let signal = if is_late {
            libc::SIGKILL
        } else {
            libc::SIGTERM
        };
        for program in programs {
            // SAFETY: takes numbers alone. The process was on the link a moment ago.
            unsafe { libc::kill(program, signal) };
        }
        if Instant::now() > deadline + STOP {
            return most;
        }
        thread::sleep(POLL);
    }
}

fn programs(record: &Record) -> Vec<libc::pid_t> {
    let is_up = record.is_up();
    let names = record.namespaces.map(|number| format!("net:[{number}]"));
    let id = format!("{ID}={}", record.id);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let others =
        numbers.filter(|number| *number != record.process && *number != std::process::id());
    others
        .filter(|number| {
            let network = fs::read_link(format!("/proc/{number}/ns/net")).unwrap_or_default();
            let is_there = names
                .iter()
                .any(|name| network.as_os_str() == name.as_str());
            // Once the controller is gone, the namespace may be gone too, and its number reused.
            is_there && (is_up || has_variable(*number, &id))
        })
        .filter_map(|number| number.try_into().ok())
        .collect()
}

fn has_variable(process: u32, variable: &str) -> bool {
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .any(|found| found == variable.as_bytes())
}
