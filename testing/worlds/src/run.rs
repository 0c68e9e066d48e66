//! Worlds from beginning to end.

use crate::host::{End, RECEIVES};
use crate::on_path::OnPath;
use crate::plan::{Plan, Service};
use crate::world::{Counts, World, timeout};
use airdma_engine::RecvWr;
use airdma_sim::Random;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes that a seed is expanded to: of a program of up to a hundred actions or so.
const PROGRAM_BYTES: u64 = 2400;

/// Virtual time in which everything must have ended once nothing new is posted and the network is whole: 16 requests, each
/// with 9 times the longest timeout that worlds have, and as much again for queues.
const QUIET_MAX: Duration = Duration::from_secs(4);

/// How long packets may still be under way, wait for a receiver, or be looked for, when the world comes to its end.
const SETTLING_MAX: Duration = Duration::from_millis(20);

/// What a timeout is at least where acknowledgements are sparse: 40 ms and two round trips (`docs/protocol.md`), of which queues make most.
const SPARSE_MAX: Duration = Duration::from_millis(100);

/// After so much silence a peer is given up whose timers and retries stand for as much or more (`airdma_transport`).
const GIVEN_UP_AFTER: Duration = Duration::from_millis(2500);

/// How long packets of a sealed connection wait for its keys if nothing tells later that they were lost.
const UNRELIABLE_WAIT: Duration = Duration::from_millis(100);

/// The bytes of the world of a seed.
pub fn bytes_of(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let length = random.between(120, PROGRAM_BYTES) as usize;
    random.bytes(length)
}

/// The plan of the world of a seed.
pub fn plan_of(seed: u64) -> Plan {
    Plan::decode(&bytes_of(seed))
}

/// How a world ended.
pub struct Outcome {
    /// What went by.
    pub counts: Counts,
    /// What the judge said, if it was not content.
    pub failure: Option<String>,
    /// The world, as it was left.
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
            .act(&action)
            .map_err(|why| format!("action {index}: {why}"))?;
    }
    world.end().map_err(|why| format!("at the end: {why}"))
}

/// What ports count of damaged packets.
const HARMED: [&str; 3] = ["drop_bad_icrc", "drop_short", "drop_bad_bundle"];
/// Packets that a damaged frame may hold.
const BUNDLE_PACKETS_MAX: u64 = 64;

impl World {
    fn total(&self) -> Counts {
        let mut counts = self.counts;
        counts.forged = self.attacker.as_ref().map_or(0, |attacker| attacker.sent);
        counts.forged += self.on_path.as_ref().map_or(0, |on_path| on_path.sent);
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

    /// Takes everything that programs can take, and settles what nobody acknowledges if nothing is under way.
    ///
    /// # Errors
    /// What the judge says.
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
            // A send queue that drains keeps what it has not begun.
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

    /// Whether a signalled request of somebody alive is outstanding.
    fn waits(&self) -> bool {
        self.living()
            .into_iter()
            .any(|end| self.judge.sends(end).any(|(_, signalled)| signalled))
    }

    /// Everything that is under way ends, everything is destroyed, and nothing is left.
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
        self.flush()?;
        self.take_down()
    }

    /// Whose peer is gone has heard of it within its retry time.
    fn check_retries(&self, start: Duration) -> Result<(), String> {
        for end in self.living() {
            let connection = self.plan.connections[end / 2];
            let mut timeout = timeout(&connection);
            if self.offers_air() {
                timeout = timeout.max(SPARSE_MAX);
            }
            let tries = u32::from(connection.retry_count) + 1;
            // Each takes four timers, unless all together would take too long for that; and the last timer is a whole one.
            let mut retries = timeout * 4 * tries;
            retries = retries.min((timeout * tries).max(GIVEN_UP_AFTER)) + timeout;
            if self.plan.sealed {
                // Before they are tried, requests wait for the keys: as long again, or 100 ms where nothing is acknowledged.
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

    /// Who refused a request has heard of it.
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

    /// Where nothing is lost, late or refused, nothing is sent twice, and nobody asks for anything again.
    fn check_calm(&self) -> Result<(), String> {
        let hosts = 0..self.hosts.len();
        let paths = hosts.clone().flat_map(|from| {
            let to = hosts.clone();
            to.map(move |to| self.network.path(from, to))
        });
        let touched: u64 = paths.map(|path| path.lost + path.astray).sum();
        let slow = (0..self.ends.len()).any(|end| self.slow_since(end).is_some());
        // Of a request that nobody waits for, the world may end before its failure, and before it was said that there is no receive.
        let mut ends = 0..self.ends.len();
        let is_open = ends.any(|end| self.judge.sends(end).next().is_some());
        let unsure = !self.plan.careful && is_open;
        let forged = self.attacker.as_ref().map_or(0, |attacker| attacker.sent);
        let touched = touched + self.on_path.as_ref().map_or(0, OnPath::touched);
        let touched = touched + self.marked + forged;
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
        // Who finds no receive is asked again, and so is what came behind it.
        if counted("rnr_naks_sent") == 0 && !is_open {
            none.push("out_of_order");
            // Before a send queue rests, the last packet may be sent again to ask what is done.
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

    /// The error state completes everything at once.
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

    /// Nobody uses a shared queue any more: what was posted to it and did not complete is still in it, but for what went with
    /// queue pairs that were destroyed.
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
        // What is still under way reaches nobody, and changes nothing.
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
            // In a bundle all packets may be harmed at once, or none.
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
