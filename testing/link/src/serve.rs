//! The life of a link: its controller's process from start to end, and how others end it.

use std::fs;
use std::io;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use airdma_lab::{Interrupts, LabError, enter, unname};

use crate::air::Side;
use crate::controller::{Controller, Status, clear};
use crate::error::{LinkError, Tried};
use crate::folder::{Folder, Record, began};
use crate::hosts::{Hosts, ipv4};
use crate::join::end_programs;
use crate::options::Options;

/// Time between SIGTERM and SIGKILL of a controller: its programs' time, and some.
const STOP: Duration = Duration::from_secs(8);
const POLL: Duration = Duration::from_millis(10);

/// Makes a link and drives it until SIGINT, SIGTERM or SIGHUP; then, as after an error, nothing of
/// it is left. To be called before the process has a second thread. `ready` is called when packets
/// can cross, `each` twice a second.
///
/// # Errors
///
/// If there is a link of this name, something is refused, or an interface goes.
pub fn serve(
    folder: &Folder,
    options: &Options,
    ready: impl FnOnce(&Record),
    mut each: impl FnMut(&Status),
) -> Result<(), LinkError> {
    let plan = options.plan()?;
    claim(folder)?;
    folder.save_end(None);
    let _removed = Removed(folder);
    let interrupts = Interrupts::block().tried("waiting for signals")?;
    let hosts = match &options.between {
        Some(places) => Hosts::given(places)?,
        None => {
            enter()?;
            Hosts::new(&folder.name(), options.whole || !options.plain)?
        }
    };
    let _cleared = options.between.as_ref().map(|_| Cleared(&hosts));
    let mut controller = match plan.plain {
        true => None,
        false => Some(Controller::new(&hosts, &plan)?),
    };
    let process = std::process::id();
    let record = Record {
        name: folder.name(),
        process,
        began: began(process).unwrap_or(0),
        id: format!("{}-{:016x}", folder.name(), unique()?),
        descriptors: hosts.descriptors(),
        namespaces: hosts.numbers().tried("looking at the namespaces")?,
        names: hosts.names(),
        addresses: Side::BOTH.map(|side| ipv4(side).to_string()),
        words: options.words(),
        given: options.between.clone(),
    };
    if let Some(controller) = &mut controller {
        folder.save_status(&controller.status())?;
    }
    folder.save_record(&record)?;
    ready(&record);
    let outcome = match &mut controller {
        Some(controller) => drive(controller, &interrupts, folder, &mut each),
        None => {
            while interrupts.take().is_none() {
                wait_until(Instant::now() + STOP, &interrupts);
            }
            Ok(())
        }
    };
    if options.between.is_none() {
        end_programs(&record);
    }
    if let Err(error) = &outcome {
        folder.save_end(Some(&error.to_string()));
    }
    outcome
}

fn drive(
    controller: &mut Controller,
    interrupts: &Interrupts,
    folder: &Folder,
    each: &mut impl FnMut(&Status),
) -> Result<(), LinkError> {
    loop {
        wait_until(controller.due(), interrupts);
        if interrupts.take().is_some() {
            return Ok(());
        }
        if let Some(status) = controller.step()? {
            folder.save_status(&status)?;
            each(&status);
        }
    }
}

/// Until this moment, or a signal.
fn wait_until(due: Instant, interrupts: &Interrupts) {
    let left = due.saturating_duration_since(Instant::now());
    let timeout = libc::timespec {
        tv_sec: left.as_secs() as libc::time_t,
        tv_nsec: left.subsec_nanos().into(),
    };
    let mut waits = libc::pollfd {
        fd: interrupts.raw(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, and a time, which both live through the call. Whatever it says, the
    // caller looks again.
    unsafe { libc::ppoll(&mut waits, 1, &timeout, ptr::null()) };
}

/// Claims the folder: it must be free, or left by a controller that is gone.
fn claim(folder: &Folder) -> Result<(), LinkError> {
    for _ in 0..2 {
        if folder.make()? {
            return Ok(());
        }
        match folder.record() {
            Some(record) if record.is_up() => {
                let name = folder.name();
                return Err(LinkError::Asked(format!(
                    "a link called {name} is up (process {}): airdma link down {name}, or --name ANOTHER",
                    record.process
                )));
            }
            _ => drop(down(folder)?),
        }
    }
    Err(LinkError::Asked(format!(
        "another process is making a link called {}",
        folder.name()
    )))
}

/// Ends a link, whatever is left of it: its programs, its controller, its names, its folder.
/// Returns how many programs there were.
///
/// # Errors
///
/// If the controller does not end, which only a kernel can do to it, or the folder cannot be
/// removed.
pub fn down(folder: &Folder) -> Result<usize, LinkError> {
    let Some(record) = folder.record() else {
        folder.remove()?;
        return Ok(0);
    };
    // Programs on given interfaces are not the link's.
    let programs = match record.given {
        Some(_) => 0,
        None => end_programs(&record),
    };
    if record.is_up() {
        end(&record)?;
    }
    // Only after SIGKILL there is something left.
    if folder.record().is_some_and(|left| left.id == record.id) {
        for name in record.names.iter().flatten() {
            unname(name);
        }
        if let Some(hosts) = record
            .given
            .as_ref()
            .and_then(|places| Hosts::given(places).ok())
        {
            clear(&hosts);
        }
        folder.remove()?;
    }
    Ok(programs)
}

fn end(record: &Record) -> Result<(), LinkError> {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let deadline = Instant::now() + STOP;
        // SAFETY: takes numbers alone. The process was there a moment ago, and is the one that was
        // recorded.
        unsafe { libc::kill(record.process as libc::pid_t, signal) };
        while record.is_up() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        if !record.is_up() {
            return Ok(());
        }
    }
    Err(LinkError::Asked(format!(
        "process {} does not end",
        record.process
    )))
}

/// A number that no other link has.
fn unique() -> Result<u64, LinkError> {
    use io::Read;
    let mut bytes = [0; 8];
    let mut source = fs::File::open("/dev/urandom").tried("opening /dev/urandom")?;
    source
        .read_exact(&mut bytes)
        .tried("reading /dev/urandom")?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Takes away what was put at given interfaces when it is dropped.
struct Cleared<'a>(&'a Hosts);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        clear(self.0);
    }
}

/// Removes the folder when it is dropped.
struct Removed<'a>(&'a Folder);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = self.0.remove();
    }
}

/// Namespaces, but no permission to make them: the same words everywhere.
impl LinkError {
    /// Whether namespaces are forbidden here.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, LinkError::Lab(LabError::NoNamespaces(_)))
    }
}
