//! Proves, on loopback, what the UDP backend takes for granted about the IP identification (see
//! [`crate::udp`]):
//!
//! 1. an unconnected UDP socket with DF set sends identification 0;
//! 2. the segments of one segmented send carry 0, 1, 2, ... when the kernel cuts them.
//!
//! A UDP socket cannot see either, so a raw socket watches, and checks each packet's ICRC against
//! the very header it arrived with. That needs privilege, which a new network namespace gives to
//! every user on most systems: the test runs in a child process with a loopback of its own, where
//! segmentation offload can be switched off to make the kernel cut. Where namespaces are refused it
//! tries to watch the loopback that is there, and can then prove the first rule only.
//!
//! The packets really sent are those of [`UdpPort`](crate::UdpPort), so the test also shows that
//! segmented sends arrive whole where nothing on the way needs them cut (loopback, veth).

mod child;
mod loopback;
mod raw;

use std::fmt;
use std::io::{self, PipeReader, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use child::{Outcome, REPORT_LEN, Report, Stage};

/// What the self-test found. Its `Display` says it in a few lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfTest {
    /// Plain sends: identification 0, DF set, ICRC right for the header.
    pub plain_id: Finding,
    /// Segments of one send: identifications 0, 1, 2, ..., DF set, ICRC right for the header.
    pub segment_ids: Finding,
    /// A segmented send arrives uncut, in one coalesced buffer.
    pub coalesced: Finding,
    /// The kernel has UDP_SEGMENT, and takes it on loopback. `None`: not known.
    pub segmentation: Option<bool>,
    /// The kernel has UDP_GRO. `None`: not known.
    pub coalescing: Option<bool>,
    /// The test had a network namespace to itself.
    pub isolated: bool,
}

/// What became of one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It holds here.
    Confirmed,
    /// It does not: with what was seen instead.
    Refuted(String),
    /// It could not be tried: why.
    NotVerified(String),
}

impl SelfTest {
    /// A rule that correct ICRCs depend on does not hold: other RoCE hosts will drop our packets.
    pub fn refuted(&self) -> bool {
        [&self.plain_id, &self.segment_ids]
            .iter()
            .any(|finding| matches!(finding, Finding::Refuted(_)))
    }
}

/// The child answers in milliseconds; a kernel that makes it wait longer than this has other
/// problems.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the test; takes some milliseconds, at most ten seconds.
///
/// **It forks.** Call it from a launcher that is still single-threaded, before anything else is
/// started: in a process with several threads the child could find a lock of the C library held by
/// a thread that it does not have.
pub fn run() -> SelfTest {
    match report_of_child() {
        Ok(report) => SelfTest::from_report(&report),
        Err(error) => SelfTest::not_verified(&format!("no child process to test in: {error}")),
    }
}

fn report_of_child() -> io::Result<Report> {
    let (mut reader, mut writer) = pipe()?;
    // SAFETY: the child only runs the code below, which ends in `_exit`; the caller was told not to
    // have other threads.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        drop(reader);
        let report = panic::catch_unwind(AssertUnwindSafe(child::examine)).unwrap_or_default();
        let written = writer.write_all(&report.to_bytes());
        // SAFETY: ends the child without running what the parent registered for its own end.
        unsafe { libc::_exit(i32::from(written.is_err())) }
    }
    drop(writer);
    let report = read_report(&mut reader);
    // SAFETY: `pid` is our child, not yet reaped. Killing it is harmless if it has ended.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    report
}

fn read_report(reader: &mut PipeReader) -> io::Result<Report> {
    let mut descriptor = libc::pollfd {
        fd: reader.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, ours.
    let ready = unsafe { libc::poll(&raw mut descriptor, 1, TIMEOUT.as_millis() as libc::c_int) };
    if ready == 0 {
        return Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "it did not answer in time",
        ));
    }
    let mut bytes = [0; REPORT_LEN];
    reader.read_exact(&mut bytes)?;
    Ok(Report::from_bytes(&bytes))
}

impl SelfTest {
    fn not_verified(reason: &str) -> Self {
        let finding = || Finding::NotVerified(reason.to_owned());
        SelfTest {
            plain_id: finding(),
            segment_ids: finding(),
            coalesced: finding(),
            segmentation: None,
            coalescing: None,
            isolated: false,
        }
    }

    fn from_report(report: &Report) -> Self {
        let finding = |outcome: Outcome| match outcome {
            Outcome::Confirmed => Finding::Confirmed,
            Outcome::Refuted(seen) => Finding::Refuted(seen.to_string()),
            Outcome::Untried => Finding::NotVerified(why_untried(report)),
        };
        let known = report.stage > Stage::Bind;
        SelfTest {
            plain_id: finding(report.plain),
            segment_ids: finding(report.segments),
            coalesced: finding(report.coalesced),
            segmentation: known.then_some(report.segmentation),
            coalescing: known.then_some(report.coalescing),
            isolated: report.isolated,
        }
    }
}

fn why_untried(report: &Report) -> String {
    let error = io::Error::from_raw_os_error(report.errno);
    match report.stage {
        Stage::Done if !report.segmentation => "this kernel lacks UDP_SEGMENT".to_owned(),
        Stage::Done if !report.coalescing => "this kernel lacks UDP_GRO".to_owned(),
        Stage::Done => {
            "network namespaces are refused, and on the shared loopback sends are not cut"
                .to_owned()
        }
        Stage::Panicked => "the test itself failed".to_owned(),
        Stage::LoopbackUp => format!("the loopback of a new network namespace stays down: {error}"),
        Stage::Bind => format!("UDP sockets on loopback are refused: {error}"),
        Stage::RawSocket if report.isolated => {
            format!("a raw socket is refused even in a network namespace of its own: {error}")
        }
        Stage::RawSocket => {
            format!(
                "watching packets takes a network namespace or a raw socket, and both are refused: {error}"
            )
        }
        Stage::Transfer => format!("packets did not arrive on loopback: {error}"),
        Stage::SegmentationOff => {
            format!("segmentation offload of loopback cannot be switched off: {error}")
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Confirmed => f.write_str("confirmed"),
            Finding::Refuted(seen) => write!(f, "REFUTED: {seen}"),
            Finding::NotVerified(reason) => write!(f, "not verified: {reason}"),
        }
    }
}

impl fmt::Display for SelfTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |there| match there {
            Some(true) => "available",
            Some(false) => "missing",
            None => "not known",
        };
        writeln!(
            f,
            "plain UDP sends carry DF and identification 0: {}",
            self.plain_id
        )?;
        writeln!(
            f,
            "segments of one send carry 0, 1, 2, ...: {}",
            self.segment_ids
        )?;
        writeln!(
            f,
            "segmented sends arrive whole over loopback: {}",
            self.coalesced
        )?;
        write!(
            f,
            "UDP_SEGMENT: {}, UDP_GRO: {}",
            has(self.segmentation),
            has(self.coalescing)
        )
    }
}

#[cfg(test)]
mod tests;
