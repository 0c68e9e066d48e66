//! Time of the kernel's soft interrupts for packets, on the cores of the hosts.
//!
//! If the kernel accounts interrupt time (CONFIG_IRQ_TIME_ACCOUNTING, as in distributions, with a
//! suitable clock), it subtracts it from the interrupted program, and most of receiving is charged
//! to none. Otherwise the interrupted program pays, and only the threads `ksoftirqd/N` are
//! separate. A measurement tells which one applies.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Soft interrupts of two cores, which may be the same.
#[derive(Debug)]
pub struct SoftInterrupts {
    cores: Vec<usize>,
    /// Whether their time is not charged to programs.
    apart: bool,
    /// Process ids of the cores' `ksoftirqd`, if visible.
    threads: Vec<u32>,
}

impl SoftInterrupts {
    /// Takes the cores, and the result of [`are_apart`].
    pub fn new(mut cores: Vec<usize>, apart: bool) -> SoftInterrupts {
        cores.dedup();
        let threads = cores.iter().filter_map(|core| thread_of(*core)).collect();
        SoftInterrupts {
            cores,
            apart,
            threads,
        }
    }

    /// Seconds since boot that were charged to no program.
    pub fn total_s(&self) -> f64 {
        let ticks: u64 = if self.apart {
            let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
            self.cores.iter().map(|core| of_core(&stat, *core)).sum()
        } else {
            self.threads.iter().map(|thread| of_thread(*thread)).sum()
        };
        ticks as f64 / TICKS_PER_S
    }
}

/// Ticks of /proc, the same on every architecture.
const TICKS_PER_S: f64 = 100.0;

/// Whether soft interrupt time is not charged to programs.
///
/// Sends unread datagrams from the calling thread for a moment. Time in which the thread neither
/// ran nor waited to run was taken from it.
pub fn are_apart(sender: &UdpSocket) -> io::Result<bool> {
    let payload = [0; 1400];
    let (started, before) = (Instant::now(), scheduled()?);
    while started.elapsed() < PROBE {
        // The receiver's buffer is soon full: datagrams are dropped there, after the work.
        let _ = sender.send(&payload);
    }
    let passed = started.elapsed();
    let accounted = scheduled()?.saturating_sub(before);
    Ok(accounted.as_secs_f64() < passed.as_secs_f64() * ACCOUNTED_MIN)
}

const PROBE: Duration = Duration::from_millis(100);
/// Receiving takes far more than this share of sending to oneself, and a hypervisor steals less in
/// a tenth of a second.
const ACCOUNTED_MIN: f64 = 0.85;

/// Time that the calling thread ran or was ready to.
fn scheduled() -> io::Result<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let numbers = text.split_ascii_whitespace().take(2);
    let nanoseconds = numbers
        .filter_map(|number| number.parse::<u64>().ok())
        .sum();
    Ok(Duration::from_nanos(nanoseconds))
}

/// Ticks in interrupts, from the line "cpuN user nice system idle iowait irq softirq ..." of
/// /proc/stat.
fn of_core(stat: &str, core: usize) -> u64 {
    let name = format!("cpu{core}");
    let line = stat
        .lines()
        .find(|line| line.split(' ').next() == Some(&name));
    let numbers = line.unwrap_or_default().split_ascii_whitespace().skip(6);
    let numbers = numbers
        .take(2)
        .filter_map(|number| number.parse::<u64>().ok());
    numbers.sum()
}

/// Process id of `ksoftirqd/CORE`; none if the kernel's threads are not visible.
fn thread_of(core: usize) -> Option<u32> {
    let name = format!("ksoftirqd/{core}\n");
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.find(|number| {
        fs::read_to_string(format!("/proc/{number}/comm")).is_ok_and(|found| found == name)
    })
}

fn of_thread(number: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    crate::pair::ticks(&stat).map_or(0, |(_, ticks)| ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  9 9 9 9 9 9 9 9 0 0\n\
        cpu1 2842971 1022556 540556 2803964 4266 7 27098 3028 0 0\n\
        cpu11 1 1 1 1 1 1 1 1 0 0\n";

    #[test]
    fn hard_and_soft_interrupts_of_one_core() {
        assert_eq!(of_core(STAT, 1), 7 + 27098);
        assert_eq!(of_core(STAT, 11), 2);
        assert_eq!(of_core(STAT, 0), 0);
    }

    #[test]
    fn time_does_not_run_backwards() {
        for apart in [false, true] {
            let soft = SoftInterrupts::new(vec![0, 0], apart);
            let before = soft.total_s();
            assert!(soft.total_s() >= before);
        }
    }
}
