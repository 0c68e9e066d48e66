//! End and recreation of queue pairs, regions, links and hosts.
// The variants not named here need no special treatment.
#![allow(clippy::wildcard_enum_match_arm)]

use super::*;
use crate::host::End;
use crate::one_host::PROCESSES;
use crate::world::{granted, rnr_timer};

impl World {
    /// Moves a queue pair to the error state.
    pub(super) fn fail(&mut self, end: usize) -> Result<(), String> {
        self.modify(end, QpState::Error)?;
        self.judge.fail(end);
        self.run(self.ends[end].host)
    }

    /// Moves a queue pair to the error state, at the end of a world.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub fn fail_end(&mut self, end: usize) -> Result<(), String> {
        self.judge.now += 1;
        self.fail(end)
    }

    pub(super) fn state_of(&self, end: usize) -> Option<QpState> {
        self.ends[end]
            .qp
            .as_ref()?
            .query()
            .ok()
            .map(|attributes| attributes.state)
    }

    pub(super) fn modify(&mut self, end: usize, state: QpState) -> Result<(), String> {
        let Some(qp) = self.ends[end].qp.clone() else {
            return Ok(());
        };
        self.note(|_| format!("end {end} is moved to {state:?}"));
        let attributes = QpAttributes {
            state,
            ..QpAttributes::default()
        };
        qp.modify(&attributes, AttrMask::STATE)
            .map_err(|error| format!("moving end {end} to {state:?}: {error}"))
    }

    pub(super) fn drain(&mut self, end: usize) -> Result<(), String> {
        if self.state_of(end) != Some(QpState::ReadyToSend) {
            return Ok(());
        }
        let Some(qp) = self.ends[end].qp.clone() else {
            return Ok(());
        };
        self.note(|_| format!("end {end} is told to drain"));
        let attributes = QpAttributes {
            state: QpState::SendQueueDrain,
            en_sqd_async_notify: true,
            ..QpAttributes::default()
        };
        qp.modify(&attributes, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY)
            .map_err(|error| format!("draining end {end}: {error}"))?;
        self.drained = true;
        self.ends[end].draining = true;
        self.ends[end].drained = true;
        self.run(self.ends[end].host)
    }

    /// Resumes a queue pair, if it is drained.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub fn resume(&mut self, end: usize) -> Result<(), String> {
        let Some(qp) = self.ends[end].qp.clone() else {
            return Ok(());
        };
        if self.state_of(end) == Some(QpState::SendQueueError) {
            return self.restart(end);
        }
        if !self.ends[end].drained || self.state_of(end) != Some(QpState::SendQueueDrain) {
            return Ok(());
        }
        let attributes = QpAttributes {
            state: QpState::ReadyToSend,
            ..QpAttributes::default()
        };
        let rests = qp.query().is_ok_and(|attributes| !attributes.sq_draining);
        if qp.modify(&attributes, AttrMask::STATE).is_ok() {
            self.ends[end].drained = false;
            self.fetch_async_events(self.ends[end].host)?;
            if std::mem::take(&mut self.ends[end].draining) && rests {
                return Err(format!(
                    "end {end} goes on, and never said that it was drained"
                ));
            }
        }
        self.run(self.ends[end].host)
    }

    /// Restarts the send queue of an unreliable service after a failure, which flushed all posted
    /// requests.
    fn restart(&mut self, end: usize) -> Result<(), String> {
        let host = self.ends[end].host;
        self.poll(host, 0)?;
        self.poll(host, 1)?;
        if let Some((id, _)) = self.judge.sends(end).next() {
            return Err(format!(
                "the send queue of end {end} is in the error state, and {id} was not flushed"
            ));
        }
        self.modify(end, QpState::ReadyToSend)?;
        self.judge.restart(end);
        self.ends[end].drained = false;
        self.ends[end].draining = false;
        self.run(host)
    }

    /// Changes attributes of a running connection.
    pub(super) fn tune(&mut self, end: usize, timer: u8, rights: u8) -> Result<(), String> {
        let connection = self.plan.connections[end / 2];
        let runs = self.state_of(end) == Some(QpState::ReadyToSend);
        if !runs || connection.service == Service::Ud {
            return Ok(());
        }
        let mut attributes = QpAttributes {
            state: QpState::ReadyToSend,
            ..QpAttributes::default()
        };
        let mut mask = AttrMask::STATE;
        if connection.service == Service::Rc {
            attributes.min_rnr_timer = timer;
            mask |= AttrMask::MIN_RNR_TIMER;
            let of = &mut self.judge.queue_pairs[end];
            of.rnr_timer = of.rnr_timer.min(rnr_timer(timer));
        }
        if !self.careful() {
            attributes.access = granted(rights);
            mask |= AttrMask::ACCESS_FLAGS;
            let rights = Rights(attributes.access.bits());
            self.judge.grant(end, rights);
        }
        self.note(|_| format!("end {end} is tuned: RNR timer {timer}, rights {rights}"));
        let Some(qp) = self.ends[end].qp.clone() else {
            return Ok(());
        };
        qp.modify(&attributes, mask)
            .map_err(|error| format!("tuning end {end}: {error}"))?;
        self.run(self.ends[end].host)
    }

    /// Limits the rate of a running connection.
    pub(super) fn limit_rate(
        &mut self,
        end: usize,
        kbps: u32,
        burst_max: u32,
    ) -> Result<(), String> {
        let is_datagram = self.plan.connections[end / 2].service == Service::Ud;
        if is_datagram || self.state_of(end) != Some(QpState::ReadyToSend) {
            return Ok(());
        }
        let Some(qp) = self.ends[end].qp.clone() else {
            return Ok(());
        };
        self.note(|_| format!("end {end} is limited to {kbps} kb/s in {burst_max} bytes"));
        qp.limit_rate(kbps, burst_max)
            .map_err(|error| format!("limiting end {end}: {error}"))?;
        self.run(self.ends[end].host)
    }

    /// Destroys a queue pair.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub fn destroy(&mut self, end: usize) -> Result<(), String> {
        let Some(qp) = self.ends[end].qp.take() else {
            return Ok(());
        };
        self.note(|_| format!("end {end} is destroyed"));
        if let Some(window) = self.ends[end].window.take() {
            drop(window.mw);
            self.judge.close_window(self.ends[end].host, window.key);
        }
        qp.destroy()
            .map_err(|error| format!("destroying end {end}: {error}"))?;
        let host = self.ends[end].host;
        let outstanding = self.outstanding(end);
        self.observe(host)?;
        self.judge.destroy(end);
        for id in outstanding {
            self.hosts[host].give_back(id);
            self.settle_windows(end, id, None);
            if let Some(ticket) = self.tickets.get_mut(&id) {
                ticket.orphan = true;
            }
        }
        self.run(host)
    }

    /// Resets both ends of a connection, and connects them again with other numbers.
    pub(super) fn reconnect(&mut self, end: usize, at_once: bool) -> Result<(), String> {
        let (first, second) = (end & !1, end | 1);
        if !self.lives(first) || !self.lives(second) {
            return Ok(());
        }
        let reliable = self.plan.connections[end / 2].service == Service::Rc;
        for end in [first, second] {
            // A reset keeps events: earlier ones are fetched before it.
            let host = self.ends[end].host;
            self.fetch_async_events(host)?;
            if self.plan.connections[end / 2].shared[end % 2] {
                // A reset discards completions, which tell the receives left in the shared queue.
                self.poll(host, 0)?;
                self.poll(host, 1)?;
            }
        }
        for end in [first, second] {
            self.reset(end)?;
        }
        if at_once && reliable {
            // Packets still in flight may arrive as ghosts.
            self.ends[first].haunted = Some(Duration::MAX);
            self.ends[second].haunted = Some(Duration::MAX);
        } else {
            self.pass_until(self.now + LIFETIME_MAX, World::is_quiet)?;
        }
        for psn in &mut self.plan.connections[end / 2].psns {
            *psn = (*psn + PSN_LEAP) & 0x00ff_ffff;
        }
        let connection = self.plan.connections[end / 2];
        self.bring_up(connection, first, second);
        self.bring_up(connection, second, first);
        self.run(self.ends[first].host)?;
        self.run(self.ends[second].host)
    }

    /// Checks that a queue pair in the error state reported its last receive from the shared queue.
    ///
    /// # Errors
    /// The event is missing.
    pub fn check_last_receive(&self, end: usize) -> Result<(), String> {
        let End { events, .. } = &self.ends[end];
        let shared = self.plan.connections[end / 2].shared[end % 2];
        if shared && !events.contains(&QpEvent::LastWqeReached) {
            return Err(format!(
                "end {end} failed, and had no {:?} of its shared queue: {events:?}",
                QpEvent::LastWqeReached
            ));
        }
        Ok(())
    }

    pub(super) fn reset(&mut self, end: usize) -> Result<(), String> {
        let host = self.ends[end].host;
        if let Some(window) = self.ends[end].window.take() {
            drop(window.mw);
            self.judge.close_window(host, window.key);
        }
        if self.state_of(end) == Some(QpState::Error) {
            self.check_last_receive(end)?;
        }
        self.modify(end, QpState::Reset)?;
        self.observe(host)?;
        for id in self.outstanding(end) {
            self.hosts[host].give_back(id);
            self.settle_windows(end, id, None);
            // It was removed from the completion queue, or never entered it.
            self.tickets.remove(&id);
        }
        self.judge.reset(end);
        for alarm in &mut self.hosts[host].alarms {
            alarm.purge();
        }
        let of = &mut self.ends[end];
        of.drained = false;
        of.draining = false;
        of.events.clear();
        of.owed.clear();
        self.run(host)
    }

    /// Outstanding requests of a queue pair, without receives of a shared queue.
    pub(super) fn outstanding(&self, end: usize) -> Vec<u64> {
        let shared = self.plan.connections[end / 2].shared[end % 2];
        let own = |ticket: &Ticket| ticket.end == end && !(ticket.receives && shared);
        let tickets = self.tickets.iter().filter(|(_, ticket)| own(ticket));
        let mut ids: Vec<u64> = tickets.map(|(&id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn act_deregister(&mut self, host: u8, number: u8) -> Result<(), String> {
        let Some(host) = self.host_of(host) else {
            return Ok(());
        };
        let number = usize::from(number) % self.hosts[host].regions.len();
        let registered = &mut self.hosts[host].regions[number];
        let Some(mr) = registered.mr.clone() else {
            return Ok(());
        };
        let key = registered.key;
        match mr.deregister() {
            Ok(()) => {
                self.hosts[host].regions[number].mr = None;
                self.note(|_| format!("host {host} deregisters region {number}"));
                self.observe(host)?;
                self.judge.deregister(host, key);
                Ok(())
            }
            Err(Error::Busy(_)) if number == region::TARGETS => {
                let area = TARGETS.range();
                match self.judge.grants.windows_in(host, &area, self.judge.now) {
                    true => Ok(()),
                    false => Err(
                        "deregistering says that windows are bound, and there is none".to_owned(),
                    ),
                }
            }
            Err(error) => Err(format!(
                "deregistering region {number} of host {host}: {error}"
            )),
        }
    }

    pub(super) fn act_register(&mut self, host: u8, number: u8) -> Result<(), String> {
        let Some(host) = self.host_of(host) else {
            return Ok(());
        };
        let number = usize::from(number) % self.hosts[host].regions.len();
        if self.hosts[host].regions[number].mr.is_some() {
            return Ok(());
        }
        self.registrations += 1;
        let registered = self.hosts[host].register(number, self.registrations);
        self.hosts[host].regions[number] = registered;
        self.note(|_| format!("host {host} registers region {number}"));
        self.introduce_region(host, number);
        Ok(())
    }

    pub(super) fn act_cut(&mut self, from: u8, to: u8, both: bool) -> Result<(), String> {
        let from = usize::from(from) % self.hosts.len();
        let to = usize::from(to) % self.hosts.len();
        if from == to {
            return Ok(());
        }
        self.note(|_| {
            format!(
                "nothing reaches host {to} from host {from} any more, {}",
                if both { "nor back" } else { "but back" }
            )
        });
        self.network.cut(from, to);
        if both {
            self.network.cut(to, from);
        }
        Ok(())
    }

    pub(super) fn act_kill(&mut self, host: u8) -> Result<(), String> {
        let Some(host) = self.host_of(host) else {
            return Ok(());
        };
        self.note(|_| format!("host {host} is killed"));
        self.counts.kills += 1;
        self.hosts[host].alive = false;
        if let Some(one_host) = self.one_host.as_ref().filter(|_| host < PROCESSES) {
            one_host.kill(host);
        }
        for end in 0..self.ends.len() {
            if self.ends[end].host == host {
                self.judge.queue_pairs[end].life = model::Life::Gone;
                for id in self.outstanding(end) {
                    self.settle_windows(end, id, None);
                }
            }
        }
        Ok(())
    }
}
