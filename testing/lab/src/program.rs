//! A running program, its result and its cost.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::ptr;
use std::time::{Duration, Instant};

use crate::error::{LabError, Tried, checked};
use crate::interrupts::{Interrupts, unblock_all};
use crate::namespace::Namespace;

/// End of a program: status, output and cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// End of the program in words, for `explain`.
    pub end: String,
    /// Whether it ended by itself with status 0, or when asked to.
    pub ok: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// From start to end, in seconds.
    pub wall_s: f64,
    /// User plus system time of the process and its children, in seconds.
    pub cpu_s: f64,
}

impl Outcome {
    /// All facts that a reader of a failed run needs.
    pub fn explain(&self) -> String {
        let command = self.command.join(" ");
        let Outcome {
            end,
            wall_s,
            stdout,
            stderr,
            ..
        } = self;
        format!("$ {command}\n{end} after {wall_s:.1} s\n{stdout}{stderr}")
    }
}

/// A child process whose output goes to memory, so that it never blocks on this process. Killed on
/// drop.
pub struct Program {
    command: Vec<String>,
    child: Child,
    exit: OwnedFd,
    stdout: File,
    stderr: File,
    started: Instant,
    ended: bool,
}

impl fmt::Debug for Program {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} ({})", self.command.join(" "), self.child.id())
    }
}

impl Program {
    /// Starts `command` in `namespace`, on one core, with these variables added to the environment.
    ///
    /// It dies with the calling thread.
    pub(crate) fn start(
        command: &[String],
        namespace: &Namespace,
        core: usize,
        variables: &[(String, String)],
    ) -> Result<Program, LabError> {
        let (name, arguments) = command.split_first().ok_or_else(|| LabError::Refused {
            what: "starting a program".into(),
            error: io::ErrorKind::InvalidInput.into(),
        })?;
        let started = Instant::now();
        Program::spawn(name, arguments, namespace, core, variables)
            .map(|(child, exit, stdout, stderr)| Program {
                command: command.to_vec(),
                child,
                exit,
                stdout,
                stderr,
                started,
                ended: false,
            })
            .tried(format!("starting {name}"))
    }

    fn spawn(
        name: &str,
        arguments: &[String],
        namespace: &Namespace,
        core: usize,
        variables: &[(String, String)],
    ) -> io::Result<(Child, OwnedFd, File, File)> {
        let (stdout, stderr) = (memory_file()?, memory_file()?);
        let network = namespace.raw();
        let mut command = Command::new(name);
        command
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?);
        // SAFETY: `in_child` only makes system calls, allocates nothing, and `network` stays open
        // until `spawn` returns.
        unsafe { command.pre_exec(move || in_child(network, core)) };
        let child = command.spawn()?;
        // SAFETY: the child is not yet waited for, so the number is its own; the new descriptor has
        // no other owner.
        let exit = unsafe {
            let exit = libc::syscall(libc::SYS_pidfd_open, child.id(), 0);
            OwnedFd::from_raw_fd(checked(exit as libc::c_int)?)
        };
        Ok((child, exit, stdout, stderr))
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end; kills the program at the deadline.
    pub(crate) fn wait(
        mut self,
        limit: Duration,
        interrupts: &Interrupts,
    ) -> Result<Outcome, LabError> {
        let exited = self.has_exited(limit, Some(interrupts))?;
        self.finish(!exited)
    }

    /// Asks the program to end. One that obeys counts as successful.
    pub(crate) fn stop(mut self, interrupts: &Interrupts) -> Result<Outcome, LabError> {
        let asked = !self.has_exited(Duration::ZERO, None)?;
        if asked {
            self.signal(libc::SIGTERM);
        }
        let exited = self.has_exited(STOP, Some(interrupts))?;
        let outcome = self.finish(!exited)?;
        Ok(Outcome {
            ok: outcome.ok || (asked && exited),
            ..outcome
        })
    }

    /// Whether the program has ended, or does within `limit`.
    pub(crate) fn has_exited(
        &mut self,
        limit: Duration,
        interrupts: Option<&Interrupts>,
    ) -> Result<bool, LabError> {
        let deadline = Instant::now() + limit;
        loop {
            let signals = interrupts.map_or(-1, Interrupts::raw);
            let mut waits = [self.exit.as_raw_fd(), signals].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            let left = deadline.saturating_duration_since(Instant::now());
            let left_ms = left.as_millis().min(i32::MAX as u128) as i32;
            // SAFETY: two descriptors, both open or -1, which poll skips.
            let found = unsafe { libc::poll(waits.as_mut_ptr(), 2, left_ms) };
            if waits[0].revents != 0 {
                return Ok(true);
            }
            if let Some(signal) = interrupts.and_then(Interrupts::take) {
                return Err(LabError::Interrupted(signal));
            }
            if found == 0 && deadline <= Instant::now() + Duration::from_millis(1) {
                return Ok(false);
            }
        }
    }

    /// Result of a program that has ended, or is ended now by SIGKILL.
    fn finish(&mut self, killed: bool) -> Result<Outcome, LabError> {
        let wall_s = self.started.elapsed().as_secs_f64();
        let (status, cpu_s) = self.reap(killed).tried("waiting for a program")?;
        Ok(Outcome {
            command: mem::take(&mut self.command),
            end: if killed {
                "still running, killed".into()
            } else {
                status.to_string()
            },
            ok: status.success(),
            stdout: contents(&mut self.stdout),
            stderr: contents(&mut self.stderr),
            wall_s,
            cpu_s,
        })
    }

    fn reap(&mut self, kill: bool) -> io::Result<(ExitStatus, f64)> {
        if kill {
            self.signal(libc::SIGKILL);
        }
        let (mut status, mut usage) = (0, mem::MaybeUninit::<libc::rusage>::uninit());
        self.ended = true;
        let usage = loop {
            // SAFETY: both live through the call, and `usage` is read only after the kernel filled
            // it.
            unsafe {
                let pid = self.child.id() as libc::pid_t;
                match checked(libc::wait4(pid, &mut status, 0, usage.as_mut_ptr())) {
                    Ok(_) => break usage.assume_init(),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        let cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
        Ok((ExitStatus::from_raw(status), cpu_s))
    }

    fn signal(&self, signal: libc::c_int) {
        let nothing = ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor stays that of the child, whatever becomes of its number; no
        // details are passed.
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.exit.as_raw_fd(),
                signal,
                nothing,
                0,
            )
        };
    }

    /// Content of a file in /proc/PID, if the program is still there.
    pub(crate) fn proc(&self, file: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).ok()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.reap(true);
        }
    }
}

/// Longest time until a program must have obeyed SIGTERM.
const STOP: Duration = Duration::from_secs(5);

/// A file in memory for a program's output: unlike a pipe it never blocks.
///
/// # Errors
///
/// If the kernel has none.
pub fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a C string; the new descriptor has no other owner.
    unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL;
        let fd = match checked(libc::memfd_create(c"output".as_ptr(), flags)) {
            // Before Linux 6.3.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                checked(libc::memfd_create(c"output".as_ptr(), libc::MFD_CLOEXEC))?
            }
            made => made?,
        };
        Ok(File::from(OwnedFd::from_raw_fd(fd)))
    }
}

fn contents(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Turns the calling process, which has one thread, into `command` on the host of `namespace`.
///
/// The command may use one core if `core` is given. It keeps the process' number and ends with the
/// process' parent. Returns only if it cannot be run.
pub fn exec(command: &mut Command, namespace: &Namespace, core: Option<usize>) -> io::Error {
    // SAFETY: takes numbers alone.
    let entered = checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
        .and_then(|_| enter_host(namespace.raw(), core));
    match entered {
        Ok(()) => command.exec(),
        Err(error) => error,
    }
}

/// Prepares the child before it executes the program: only system calls.
fn in_child(network: libc::c_int, core: usize) -> io::Result<()> {
    unblock_all();
    // SAFETY: both take numbers and concern only the child.
    unsafe {
        // However this process ends, even by SIGKILL, no program stays behind.
        checked(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        // A session of its own, and so a scheduling group of its own (sched_autogroup): otherwise
        // two hosts share one weight when a client spins on one core and a server sleeps on the
        // other, and the server then waits hundreds of milliseconds for any third program on its
        // core.
        checked(libc::setsid())?;
    }
    enter_host(network, Some(core))
}

/// Moves the calling thread to a host and, if given, to a core: only system calls.
fn enter_host(network: libc::c_int, core: Option<usize>) -> io::Result<()> {
    // SAFETY: strings are C strings, `cores` is plain data that lives through its call.
    unsafe {
        if let Some(core) = core {
            let mut cores: libc::cpu_set_t = mem::zeroed();
            libc::CPU_SET(core, &mut cores);
            checked(libc::sched_setaffinity(0, mem::size_of_val(&cores), &cores))?;
        }
        checked(libc::setns(network, libc::CLONE_NEWNET))?;
        // /sys shows the namespace of the process that mounted it. Where mounting is forbidden
        // (some containers) the program sees the outer host's interfaces there; no measured program
        // reads them.
        if libc::unshare(libc::CLONE_NEWNS) == 0 {
            let none = ptr::null();
            let private = libc::MS_REC | libc::MS_SLAVE;
            libc::mount(none, c"/".as_ptr(), none, private, ptr::null());
            libc::mount(
                c"sysfs".as_ptr(),
                c"/sys".as_ptr(),
                c"sysfs".as_ptr(),
                0,
                ptr::null(),
            );
        }
    }
    Ok(())
}
