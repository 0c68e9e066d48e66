//! Which hosts are worth an attempt to open a lane.
//!
//! Most peers of a server have no library. One attempt finds out; while it runs, and then for a
//! while that doubles, other connections of that host make none.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::socket::lock;

/// How long a host that does not answer is left alone at first: its library may be about to open
/// the device.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// How long at most, and where the host has no RDMA, or fails to prove what it claims.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Most hosts that are known.
const HOSTS_MAX: usize = 1024;

#[derive(Default)]
pub struct Hosts(Mutex<HashMap<IpAddr, Host>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    /// The first attempt runs, or one after a pause of that length.
    Tried(Duration),
    Answers,
    Silent {
        until: Instant,
        pause: Duration,
    },
}

/// An attempt with a host.
pub struct Attempt<'a> {
    hosts: &'a Hosts,
    host: IpAddr,
}

impl Hosts {
    /// Whether a host is left alone.
    pub fn is_silent(&self, host: IpAddr, now: Instant) -> bool {
        matches!(lock(&self.0).get(&host), Some(Host::Silent { until, .. }) if *until > now)
    }

    /// Whether an attempt with a host runs, whose outcome other connections wait for.
    pub fn is_tried(&self, host: IpAddr) -> bool {
        matches!(lock(&self.0).get(&host), Some(Host::Tried(_)))
    }

    /// Begins an attempt, if it is worth one.
    pub fn begin(&self, host: IpAddr, now: Instant) -> Option<Attempt<'_>> {
        let mut hosts = lock(&self.0);
        let pause = match hosts.get(&host) {
            Some(Host::Tried(_)) => return None,
            Some(Host::Silent { until, .. }) if *until > now => return None,
            Some(Host::Silent { pause, .. }) => *pause,
            Some(Host::Answers) => return Some(Attempt { hosts: self, host }),
            None => Duration::ZERO,
        };
        put(&mut hosts, host, Host::Tried(pause), now);
        Some(Attempt { hosts: self, host })
    }

    /// Makes no attempt with a host for a minute.
    pub fn leave_alone(&self, host: IpAddr, now: Instant) {
        self.wait_for(host, PAUSE_MAX, now);
    }

    fn wait_for(&self, host: IpAddr, pause: Duration, now: Instant) {
        let until = now + pause;
        put(&mut lock(&self.0), host, Host::Silent { until, pause }, now);
    }
}

/// Keeps what is known of a host, and forgets another one where there is no room: the next attempt
/// finds out again.
fn put(hosts: &mut HashMap<IpAddr, Host>, host: IpAddr, known: Host, now: Instant) {
    hosts.insert(host, known);
    if hosts.len() > HOSTS_MAX {
        let is_old = |known: &Host| matches!(known, Host::Silent { until, .. } if *until <= now);
        hosts.retain(|_, known| !is_old(known));
        let other = hosts.keys().copied().find(|known| *known != host);
        if hosts.len() > HOSTS_MAX
            && let Some(other) = other
        {
            hosts.remove(&other);
        }
    }
}

impl Attempt<'_> {
    /// The host has answered.
    pub fn answered(&self) {
        if let Some(known) = lock(&self.hosts.0).get_mut(&self.host) {
            *known = Host::Answers;
        }
    }

    /// It has not.
    pub fn unanswered(&self, now: Instant) {
        let before = match lock(&self.hosts.0).get(&self.host) {
            Some(Host::Tried(pause) | Host::Silent { pause, .. }) => *pause,
            Some(Host::Answers) | None => Duration::ZERO,
        };
        let pause = (before * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.hosts.wait_for(self.host, pause, now);
    }

    /// It has no RDMA.
    pub fn refused(&self, now: Instant) {
        self.hosts.leave_alone(self.host, now);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut hosts = lock(&self.hosts.0);
        // Given up without an outcome.
        if let Some(Host::Tried(_)) = hosts.get(&self.host) {
            hosts.remove(&self.host);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn connections_of_a_silent_host_make_few_attempts() {
        let (hosts, start) = (Hosts::default(), Instant::now());
        let mut attempts = Vec::new();
        for ms in 0..10_000 {
            let now = start + Duration::from_millis(ms);
            if let Some(attempt) = hosts.begin(HOST, now) {
                assert!(hosts.begin(HOST, now).is_none(), "a second one at once");
                attempt.unanswered(now);
                attempts.push(ms);
            }
        }
        assert_eq!(attempts, [0, 100, 300, 700, 1500, 3100, 6300]);
    }

    #[test]
    fn a_host_that_answers_is_tried_by_all() {
        let (hosts, now) = (Hosts::default(), Instant::now());
        hosts.begin(HOST, now).unwrap().answered();
        let all: Vec<_> = (0..3).map(|_| hosts.begin(HOST, now)).collect();
        assert!(all.iter().all(Option::is_some));
        all[0].as_ref().unwrap().refused(now);
        assert!(hosts.is_silent(HOST, now + Duration::from_secs(59)));
        assert!(hosts.begin(HOST, now + Duration::from_secs(60)).is_some());
    }

    #[test]
    fn an_attempt_that_is_given_up_is_forgotten() {
        let (hosts, now) = (Hosts::default(), Instant::now());
        drop(hosts.begin(HOST, now));
        assert!(hosts.begin(HOST, now).is_some());
    }

    #[test]
    fn a_peer_with_many_addresses_fills_a_bounded_list() {
        let (hosts, now) = (Hosts::default(), Instant::now());
        for host in 0..3 * HOSTS_MAX as u128 {
            let attempt = hosts.begin(IpAddr::V6(host.into()), now).unwrap();
            attempt.refused(now);
        }
        assert!(lock(&hosts.0).len() <= HOSTS_MAX);
    }
}
