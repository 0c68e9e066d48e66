//! A server on one host and its client on the other.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::program::{Outcome, Program};
use crate::topology::Lab;

/// Sign that a server is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// It listens on this TCP port.
    Tcp(u16),
    /// It is bound to this UDP port.
    Udp(u16),
    /// All its threads have slept for a tenth of a second: it waits for something.
    Idle,
}

/// The server's side of a pair.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    /// Program and arguments.
    pub command: &'a [String],
    /// Sign that it is ready.
    pub listening: Listening,
    /// Whether it runs on after its client: it is then ended by a signal, which counts as success.
    pub stays: bool,
}

/// Results of both ends. There is none of the client if the server was never ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The server's end.
    pub server: Outcome,
    /// The client's.
    pub client: Option<Outcome>,
    /// Seconds that the kernel spent in soft interrupts on both cores, charged to no program.
    pub soft_interrupts_s: f64,
}

impl Pair {
    /// Output of the client, if both ends succeeded.
    pub fn output(&self) -> Option<&str> {
        let client = self.client.as_ref()?;
        (self.server.ok && client.ok).then_some(&client.stdout)
    }

    /// CPU seconds of both ends, and of the soft interrupts charged to no program.
    pub fn cpu_s(&self) -> f64 {
        let client = self.client.as_ref().map_or(0.0, |client| client.cpu_s);
        self.server.cpu_s + client + self.soft_interrupts_s
    }

    /// Output of both ends.
    pub fn explain(&self) -> String {
        let client = self.client.as_ref().map_or_else(
            || "not started: the server is not ready".into(),
            Outcome::explain,
        );
        format!(
            "--- server\n{}\n--- client\n{client}",
            self.server.explain()
        )
    }
}

impl Lab {
    /// Runs the server on host b, and, once it is ready, the client on host a, to its end or for
    /// `limit`.
    pub fn run_pair(
        &self,
        server: Server<'_>,
        client: &[String],
        limit: Duration,
    ) -> Result<Pair, LabError> {
        let soft_interrupts = self.soft_interrupts()?;
        let before_s = soft_interrupts.total_s();
        let mut process = self.b.start(server.command)?;
        let ready = self.wait_ready(&mut process, server.listening)?;
        let client = if ready {
            Some(self.a.run(client, limit, &self.interrupts)?)
        } else {
            None
        };
        // No client will connect to a server without one, and a failed client's server may wait for
        // ever.
        let linger = match &client {
            Some(client) if client.ok => LINGER,
            Some(_) => Duration::from_secs(1),
            None => Duration::ZERO,
        };
        let server = if server.stays {
            process.stop(&self.interrupts)?
        } else {
            process.wait(linger, &self.interrupts)?
        };
        Ok(Pair {
            server,
            client,
            soft_interrupts_s: soft_interrupts.total_s() - before_s,
        })
    }

    /// Runs a program on host a, to its end or for `limit`.
    pub fn run_alone(&self, command: &[String], limit: Duration) -> Result<Outcome, LabError> {
        self.a.run(command, limit, &self.interrupts)
    }

    /// Waits until the server is ready; false if it ends before or takes longer than 15 s.
    fn wait_ready(&self, server: &mut Program, listening: Listening) -> Result<bool, LabError> {
        let deadline = Instant::now() + START;
        let (mut idle_since, mut used) = (Instant::now(), None);
        while Instant::now() < deadline
            && !server.has_exited(Duration::ZERO, Some(&self.interrupts))?
        {
            let ready = match listening {
                Listening::Tcp(port) => is_bound(server, port, "tcp"),
                Listening::Udp(port) => is_bound(server, port, "udp"),
                Listening::Idle => {
                    let now_used = cpu_ticks_if_asleep(server);
                    if now_used.is_none() || now_used != used {
                        (idle_since, used) = (Instant::now(), now_used);
                    }
                    used.is_some() && idle_since.elapsed() > IDLE
                }
            };
            if ready {
                return Ok(true);
            }
            thread::sleep(POLL);
        }
        Ok(false)
    }
}

const START: Duration = Duration::from_secs(15);
const LINGER: Duration = Duration::from_secs(15);
const IDLE: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(2);

/// Whether a socket in the program's namespace is bound to `port`.
fn is_bound(program: &Program, port: u16, protocol: &str) -> bool {
    [protocol.to_owned(), format!("{protocol}6")]
        .iter()
        .filter_map(|table| program.proc(&format!("net/{table}")))
        .any(|table| has_listener(&table, port, protocol == "udp"))
}

/// Whether a table of /proc/net has a socket of `port`: any for UDP, a listening one for TCP.
fn has_listener(table: &str, port: u16, udp: bool) -> bool {
    let wanted = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1).unwrap_or_default();
        let state = fields.nth(1).unwrap_or_default();
        local.ends_with(&wanted) && (udp || state == TCP_LISTEN)
    })
}

const TCP_LISTEN: &str = "0A";

/// CPU time of the program; none if its first thread runs, or if it is gone.
fn cpu_ticks_if_asleep(program: &Program) -> Option<u64> {
    ticks_if_asleep(&program.proc("stat")?)
}

fn ticks_if_asleep(stat: &str) -> Option<u64> {
    let (state, ticks) = ticks(stat)?;
    (state == "S").then_some(ticks)
}

/// State and CPU time of a thread, from its file `stat`.
pub fn ticks(stat: &str) -> Option<(&str, u64)> {
    // After the name, which may hold any bytes: the state, ten other fields, user time, system
    // time.
    let (_, after) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some((fields.first()?, ticks(11)? + ticks(12)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue\n\
        0: 00000000:4853 00000000:0000 0A 00000000:00000000 00:00000000\n\
        1: 0100007F:1451 0100007F:9C40 01 00000000:00000000 00:00000000\n";

    #[test]
    fn only_a_socket_that_listens_counts_for_tcp() {
        assert!(has_listener(TCP, 0x4853, false));
        assert!(!has_listener(TCP, 0x1451, false));
        assert!(has_listener(TCP, 0x1451, true));
        assert!(!has_listener(TCP, 0x9c40, true));
    }

    #[test]
    fn brackets_in_a_program_name_do_not_confuse_its_times() {
        let stat = "7 (a) S (b) S 1 7 7 0 -1 4194560 95 0 0 0 21 4 0 0 20 0 1 0 35";
        assert_eq!(ticks_if_asleep(stat), Some(25));
        assert_eq!(ticks_if_asleep(&stat.replace("S 1", "R 1")), None);
        assert_eq!(ticks_if_asleep(""), None);
    }
}
