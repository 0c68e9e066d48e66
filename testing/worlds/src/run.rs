//! Runs worlds from beginning to end.

use crate::host::{End, RECEIVES};
use crate::on_path::OnPath;
use crate::plan::{Plan, Service};
use crate::world::{Counts, World, timeout};
use airdma_engine::RecvWr;
use airdma_sim::Random;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes that a seed expands to: a program of up to about a hundred actions.
const PROGRAM_BYTES: u64 = 2400;

/// Virtual time in which everything must complete once nothing new is posted and the network is
/// whole.
///
/// It covers 16 requests, each with 9 times the longest timeout of worlds, a peer that is gone
/// ([`GIVEN_UP_AFTER_AGREED`]), and queues.
const QUIET_MAX: Duration = Duration::from_secs(8);

/// Longest time for packets in flight, waits for a receiver, and retries, at the end of a world.
const SETTLING_MAX: Duration = Duration::from_millis(20);

/// Shortest timeout if acknowledgements are sparse: 40 ms and two round trips (`docs/protocol.md`),
/// mostly queues.
const SPARSE_MAX: Duration = Duration::from_millis(100);

/// Silence after which a peer counts as unreachable, if its timers and retries amount to as much or
/// more (`airdma_transport`).
const GIVEN_UP_AFTER: Duration = Duration::from_millis(2500);

/// The same between hosts that may agree on selective repeat.
const GIVEN_UP_AFTER_AGREED: Duration = Duration::from_secs(6);

/// Time that packets of a sealed connection wait for its keys if nothing reports their loss later.
const UNRELIABLE_WAIT: Duration = Duration::from_millis(100);

/// Bytes of the world of a seed.
pub fn bytes_of(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let length = random.between(120, PROGRAM_BYTES) as usize;
    random.bytes(length)
}

/// Plan of the world of a seed.
pub fn plan_of(seed: u64) -> Plan {
    Plan::decode(&bytes_of(seed))
}

/// Result of a world.
pub struct Outcome {
    /// Counts of what happened.
    pub counts: Counts,
    /// The judge's error, if there was one.
    pub failure: Option<String>,
    /// The world in its last state.
    pub world: World,
}

/// Runs a world from beginning to end.
pub fn run(plan: Plan, logs: bool) -> Outcome {
    let mut world = World::new(plan, logs);
    let ended = catch_unwind(AssertUnwindSafe(|| live(&mut world)));
    let failure = match ended {
        Ok(Ok(())) => None,
        Ok(Err(why)) => Some(why),
        Err(panic) => Some(format!("panic: {}", text_of(&*panic))),
    };
    Outcome {
        counts: world.total(),
        failure,
        world,
    }
}

fn text_of(panic: &(dyn std::any::Any + std::marker::Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}

fn live(world: &mut World) -> Result<(), String> {
    world.meet().map_err(|why| format!("before all: {why}"))?;
    for index in 0..world.plan.actions.len() {
        let action = world.plan.actions[index].clone();
        world
            .damage_rings(index)
            .map_err(|why| format!("damage before action {index}: {why}"))?;
        world
            .act(&action)
            .map_err(|why| format!("action {index}: {why}"))?;
    }
    world.end().map_err(|why| format!("at the end: {why}"))
}

/// Port counters of damaged packets.
const HARMED: [&str; 3] = ["drop_bad_icrc", "drop_short", "drop_bad_bundle"];
/// Most packets of a damaged frame.
const BUNDLE_PACKETS_MAX: u64 = 64;

impl World {
    fn total(&self) -> Counts {
        let mut counts = self.counts;
        counts.forged = self.attacker.as_ref().map_or(0, |attacker| attacker.sent);
        counts.forged_records =
            (self.attacker.as_ref()).map_or(0, |attacker| attacker.sent_records);
        counts.forged += self.on_path.as_ref().map_or(0, |on_path| on_path.sent);
        counts.in_rings = self.one_host.as_ref().map_or(0, |host| host.carried().1);
        for from in 0..self.hosts.len() {
            for to in 0..self.hosts.len() {
                counts.lost += self.network.path(from, to).lost;
            }
        }
        counts
    }

    fn living(&self) -> Vec<usize> {
        (0..self.ends.len())
            .filter(|&end| self.lives(end))
            .collect()
    }

    /// Polls and fetches everything; completes unacknowledged requests if nothing is in flight.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub fn poll_all(&mut self) -> Result<(), String> {
        for host in 0..self.hosts.len() {
            if self.hosts[host].alive {
                self.judge.now += 1;
                self.poll(host, 0)?;
                self.poll(host, 1)?;
                self.fetch_events(host)?;
                self.fetch_async_events(host)?;
            }
        }
        if !self.is_quiet() {
            return Ok(());
        }
        self.judge.now += 1;
        for end in 0..self.ends.len() {
            // A draining send queue keeps the requests that it has not started.
            if !self.ends[end].drained {
                for to in 0..self.ends.len() {
                    let path = self.path_to(end, to);
                    self.judge.settle(end, to, path)?;
                }
            }
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].alive {
                self.check_limit(host)?;
            }
        }
        Ok(())
    }

    /// Whether a signalled request of a live end is outstanding.
    fn waits(&self) -> bool {
        self.living()
            .into_iter()
            .any(|end| self.judge.sends(end).any(|(_, signalled)| signalled))
    }

    /// Ends all activity, destroys all objects, and checks that nothing is left.
    fn end(&mut self) -> Result<(), String> {
        self.note(|_| "the end begins".to_owned());
        self.network.heal();
        self.on_path.iter_mut().for_each(OnPath::stop);
        let start = self.now;
        let until = start + QUIET_MAX;
        self.poll_all()?;
        while self.waits() && self.now < until {
            for end in self.living() {
                self.resume(end)?;
                let queue = self.judge.queue_pairs[end].receives;
                while self.judge.receives_left(queue)
                    < self.judge.messages_due(queue) + self.judge.held(queue)
                {
                    let before = self.judge.receives(queue);
                    self.judge.now += 1;
                    self.receive(end, RECEIVES.slot as u16, None)?;
                    if self.judge.receives(queue) == before {
                        break;
                    }
                }
            }
            self.pass(Duration::from_millis(2))?;
            self.poll_all()?;
            self.check_retries(start)?;
        }
        if self.waits() {
            let open = self
                .living()
                .into_iter()
                .flat_map(|end| self.judge.sends(end).map(move |(id, _)| (end, id)));
            return Err(format!(
                "{QUIET_MAX:?} after the last request these have not completed (end, request): {:?}",
                open.collect::<Vec<_>>()
            ));
        }
        self.meet_again()?;
        self.check_events()?;
        self.check_calm()?;
        self.end_records()?;
        self.flush()?;
        self.take_down()
    }

    /// Checks that each end without a peer saw its request fail within its retry time.
    fn check_retries(&self, start: Duration) -> Result<(), String> {
        for end in self.living() {
            let connection = self.plan.connections[end / 2];
            let own = timeout(&connection);
            let tries = u32::from(connection.retry_count) + 1;
            // Each try takes four timers, or 16 between hosts that agreed, unless all together
            // would take too long for that; the last timer is a whole one.
            let (timeout, of_a_try, all) = if self.offers_air() {
                let timeout = own.max(SPARSE_MAX);
                (timeout, (timeout * 4).max(own * 16), GIVEN_UP_AFTER_AGREED)
            } else {
                (own, own * 4, GIVEN_UP_AFTER)
            };
            let mut retries = (of_a_try * tries).min((timeout * tries).max(all)) + timeout;
            if self.plan.sealed {
                // Requests first wait for the keys: one timeout, or 100 ms without
                // acknowledgements.
                retries += match connection.service {
                    Service::Uc => UNRELIABLE_WAIT,
                    Service::Rc => timeout,
                    // For each peer that is gone.
                    Service::Ud => UNRELIABLE_WAIT * self.ends.len() as u32,
                };
            }
            let late = self.now > start + retries + SETTLING_MAX;
            let mut open = self.judge.sends(end).filter(|(_, signalled)| *signalled);
            if !self.lives(end ^ 1)
                && late
                && let Some((id, _)) = open.next()
            {
                return Err(format!(
                    "the peer of end {end} is gone, and request {id} has not failed {:?} later",
                    self.now - start
                ));
            }
        }
        Ok(())
    }

    /// Checks that each end that refused a request had its event.
    fn check_events(&self) -> Result<(), String> {
        for end in self.living() {
            let End { events, owed, .. } = &self.ends[end];
            if let Some(missing) = owed.iter().find(|event| !events.contains(event)) {
                return Err(format!(
                    "end {end} refused its peer, and had no {missing:?}: {events:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that without loss, delay or refusals no packet is sent or requested twice.
    fn check_calm(&self) -> Result<(), String> {
        let hosts = 0..self.hosts.len();
        let paths = hosts.clone().flat_map(|from| {
            let to = hosts.clone();
            to.map(move |to| self.network.path(from, to))
        });
        let touched: u64 = paths.map(|path| path.lost + path.astray).sum();
        let slow = (0..self.ends.len()).any(|end| self.slow_since(end).is_some());
        // An unsignalled request may still be open at the end of the world, with its failure or RNR
        // NAK unreported.
        let mut ends = 0..self.ends.len();
        let is_open = ends.any(|end| self.judge.sends(end).next().is_some());
        let unsure = !self.plan.careful && is_open;
        let forged = self.attacker.as_ref().map_or(0, |attacker| attacker.sent);
        let touched = touched + self.on_path.as_ref().map_or(0, OnPath::touched);
        let touched = touched + self.lost_in_rings([0, 1]);
        let touched = touched + self.marked + forged;
        // Answers to reads whose deadline was over come to nothing that waits for them.
        let touched = touched + self.counts.reads - self.counts.reads_whole;
        if unsure || touched > 0 || slow || self.violent || self.counts.failures > 0 {
            return Ok(());
        }
        let counted = |name: &str| -> u64 {
            let all = self.hosts.iter().map(|host| {
                let counters = host.device.device().counters();
                let mut own = counters.into_iter().filter(|(other, _)| *other == name);
                own.next().expect("a counter of that name").1
            });
            all.sum()
        };
        let mut none = vec!["timeouts", "naks_sent", "implied_naks", "drop_ghost"];
        // After an RNR NAK the message and those behind it are sent again.
        if counted("rnr_naks_sent") == 0 && !is_open {
            none.push("out_of_order");
            // Before a send queue drains, the last packet may be repeated to query the progress.
            if !self.drained {
                none.extend(["retransmits", "duplicates"]);
            }
        }
        match none.into_iter().find(|name| counted(name) > 0) {
            Some(name) => Err(format!(
                "the network was calm, and yet there are {} {name}",
                counted(name)
            )),
            None => Ok(()),
        }
    }

    /// Checks that the error state completes everything at once.
    fn flush(&mut self) -> Result<(), String> {
        for end in self.living() {
            self.fail_end(end)?;
        }
        self.poll_all()?;
        for end in self.living() {
            let open: Vec<_> = self
                .judge
                .sends(end)
                .filter(|(_, signalled)| *signalled)
                .collect();
            let queue = self.judge.queue_pairs[end].receives;
            let shared = queue < self.hosts.len();
            let receives = if shared {
                0
            } else {
                self.judge.receives(queue)
            };
            if !open.is_empty() || receives > 0 {
                return Err(format!(
                    "end {end} is in the error state, and sends {open:?} and {receives} receives were not flushed"
                ));
            }
            self.check_last_receive(end)?;
        }
        for host in 0..self.hosts.len() {
            self.check_shared_queue(host)?;
        }
        Ok(())
    }

    /// Checks the receives left in a shared queue without users: those posted and not completed,
    /// less those that destroyed queue pairs took.
    fn check_shared_queue(&mut self, host: usize) -> Result<(), String> {
        let (most, least) = (self.judge.receives(host), self.judge.receives_left(host));
        let of = &self.hosts[host];
        let Some(srq) = of.srq.as_ref().filter(|_| of.alive) else {
            return Ok(());
        };
        let room = srq.query().max_wr as usize;
        let nothing = RecvWr {
            wr_id: 0,
            sges: &[],
        };
        let free = (0..=room)
            .take_while(|_| srq.begin_post().push(&nothing).is_ok())
            .count();
        let left = room.saturating_sub(free);
        if (least..=most).contains(&left) {
            return Ok(());
        }
        Err(format!(
            "the shared queue of host {host} holds {left} receives, and should hold {least} to {most}"
        ))
    }

    fn take_down(&mut self) -> Result<(), String> {
        for end in self.living() {
            self.judge.now += 1;
            self.destroy(end)?;
        }
        if let Some(attacker) = &mut self.attacker {
            attacker.leave(&self.hosts)?;
        }
        // Packets still in flight reach no queue pair and change nothing.
        self.pass(Duration::from_secs(1))?;
        if let Some(attacker) = &self.attacker {
            attacker.check_reflection()?;
        }
        for index in 0..self.hosts.len() {
            if !self.hosts[index].alive {
                continue;
            }
            self.hosts[index]
                .take_down()
                .map_err(|why| format!("taking host {index} down: {why}"))?;
            self.run(index)?;
            let host = &self.hosts[index];
            let counters = host.device.device().counters();
            let dropped = counters.iter().filter(|(name, _)| HARMED.contains(name));
            let found: u64 = dropped.map(|(_, count)| count).sum();
            let harmed = host.harmed;
            // In a bundle all packets may be damaged at once, or none.
            let expected = if self.offers_bundles() {
                0..=harmed * BUNDLE_PACKETS_MAX
            } else {
                harmed..=harmed
            };
            if !expected.contains(&found) {
                return Err(format!(
                    "{harmed} damaged packets came to host {index}, and its port found {found}"
                ));
            }
            let left = host.device.inventory();
            if left != host.nothing {
                return Err(format!(
                    "host {index} is left with {left:?} instead of {:?}",
                    host.nothing
                ));
            }
        }
        Ok(())
    }
}
