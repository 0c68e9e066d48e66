//! Completions and events: polled from the engine, checked by the judge.
// The variants not named here need no special treatment.
#![allow(clippy::wildcard_enum_match_arm)]

use super::*;

impl World {
    pub(super) fn act_poll(&mut self, host: u8, cq: u8) -> Result<(), String> {
        match self.host_of(host) {
            Some(host) => self.poll(host, usize::from(cq & 1)),
            None => Ok(()),
        }
    }

    /// Polls all completions of a queue.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub fn poll(&mut self, host: usize, number: usize) -> Result<(), String> {
        let mut found = Vec::new();
        let cq = Arc::clone(&self.hosts[host].cqs[number]);
        let polled = cq.poll(usize::MAX, |completion| found.push(completion));
        polled.map_err(|error| format!("polling: {error}"))?;
        // Polling runs the device.
        self.run(host)?;
        let special = found
            .iter()
            .filter(|completion| completion.solicited || completion.status != Status::Success);
        let special = special.count();
        self.hosts[host].alarms[number].poll(found.len(), special)?;
        for completion in found {
            self.complete(host, &completion)?;
        }
        Ok(())
    }

    pub(super) fn complete(&mut self, host: usize, completion: &Completion) -> Result<(), String> {
        let id = completion.wr_id;
        self.note(|_| {
            format!(
                "host {host}: {id} completes, {:?} {:?} {} B",
                completion.status, completion.opcode, completion.byte_len
            )
        });
        self.counts.completions += 1;
        self.counts.failures += u64::from(completion.status != Status::Success);
        let Some(ticket) = self.tickets.remove(&id) else {
            return Err(format!(
                "a completion for {id}, which was never posted or completed before: {completion:?}"
            ));
        };
        if ticket.orphan {
            return Ok(());
        }
        let Some(end) = self
            .ends
            .iter()
            .position(|end| end.number == completion.qpn && end.host == host)
        else {
            return Err(format!(
                "a completion of a queue pair that is not there: {completion:?}"
            ));
        };
        let shares =
            self.judge.queue_pairs[end].receives == self.judge.queue_pairs[ticket.end].receives;
        if end != ticket.end && !(ticket.receives && shares) {
            return Err(format!(
                "{id} was posted to end {}, and completed at end {end}",
                ticket.end
            ));
        }
        let done = model::Done {
            id,
            status: status(completion.status),
            opcode: opcode(completion.opcode),
            bytes: completion.byte_len,
            immediate: completion.imm.map(u32::from_be_bytes),
            invalidated: completion.invalidated.map(|key| key.0),
            solicited: completion.solicited,
            source: self.source_of(end, completion),
        };
        let service = self.judge.queue_pairs[end].service;
        let seen = self.seen.entry((service, done.opcode, done.status));
        *seen.or_default() += 1;
        let path = self.path(end);
        let unsignalled: Vec<u64> = self.judge.sends(end).map(|(id, _)| id).collect();
        let verdict = if ticket.receives {
            self.judge.received(end, &done, path)
        } else {
            self.judge.sent(end, &done, path)
        };
        verdict.map_err(|why| format!("end {end}: {why}"))?;
        let told = match done.status {
            model::Status::RemoteAccess => Some(QpEvent::AccessError),
            model::Status::RemoteInvalidRequest => Some(QpEvent::RequestError),
            model::Status::RemoteOperation => Some(QpEvent::Fatal),
            _ => None,
        };
        self.ends[end ^ 1].owed.extend(told);
        self.hosts[host].give_back(id);
        if !ticket.receives {
            let kept: Vec<u64> = self.judge.sends(end).map(|(id, _)| id).collect();
            for gone in unsignalled.into_iter().filter(|id| !kept.contains(id)) {
                self.hosts[host].give_back(gone);
                self.tickets.remove(&gone);
                // An unsignalled request before this one has succeeded; this one is handled below.
                if gone != id {
                    self.settle_windows(end, gone, Some(true));
                }
            }
            let done = match done.status {
                model::Status::Success => Some(true),
                // It may have been executed, and its answer lost.
                model::Status::Flush
                | model::Status::RetryExceeded
                | model::Status::RnrRetryExceeded => None,
                _ => Some(false),
            };
            self.settle_windows(end, id, done);
        }
        Ok(())
    }

    /// Sender of a datagram; the header before the datagram names its host.
    pub(super) fn source_of(&self, end: usize, completion: &Completion) -> Option<usize> {
        let sent = |from: usize| {
            let other = &self.ends[from];
            other.number == completion.src_qpn && self.judge.sends_to(from, end)
        };
        let others = [end ^ 1].into_iter().chain(0..self.ends.len());
        others.into_iter().find(|&from| sent(from))
    }

    pub(super) fn act_arm(&mut self, host: u8, cq: u8, solicited: bool) -> Result<(), String> {
        let Some(host) = self.host_of(host) else {
            return Ok(());
        };
        let number = usize::from(cq & 1);
        self.fetch_events(host)?;
        // Some programs poll and then arm, others arm and then poll.
        if cq & 2 == 0 {
            self.poll(host, number)?;
        }
        let armed = self.hosts[host].cqs[number].arm(solicited);
        armed.map_err(|error| format!("arming: {error}"))?;
        self.hosts[host].alarms[number].arm(solicited);
        if cq & 2 != 0 {
            self.poll(host, number)?;
        }
        Ok(())
    }

    pub(super) fn act_event(&mut self, host: u8) -> Result<(), String> {
        match self.host_of(host) {
            Some(host) => self.fetch_events(host),
            None => Ok(()),
        }
    }

    /// Fetches all completion events.
    ///
    /// # Errors
    /// An unexpected event, or a missing one.
    pub fn fetch_events(&mut self, host: usize) -> Result<(), String> {
        let channel = Arc::clone(&self.hosts[host].channel);
        loop {
            match channel.wait_event() {
                Ok(cookie) => {
                    self.counts.events += 1;
                    self.hosts[host].alarms[cookie as usize].event()?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("waiting for an event: {error}")),
            }
        }
        for number in 0..self.hosts[host].alarms.len() {
            let silence = self.hosts[host].alarms[number].silence();
            silence.map_err(|why| format!("completion queue {number} of host {host}: {why}"))?;
        }
        self.run(host)
    }

    /// Fetches all asynchronous events.
    ///
    /// # Errors
    /// An event that nothing explains.
    pub fn fetch_async_events(&mut self, host: usize) -> Result<(), String> {
        let device = Arc::clone(self.hosts[host].device.device());
        loop {
            match device.wait_async_event() {
                Ok(AsyncEvent::Qp { number, event, .. }) => self.take_event(host, number, event)?,
                Ok(AsyncEvent::SrqLimitReached { .. }) => self.take_limit(host)?,
                Ok(other) => return Err(format!("host {host} has the event {other:?}")),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("waiting for an asynchronous event: {error}")),
            }
        }
        self.run(host)
    }

    pub(super) fn take_event(
        &mut self,
        host: usize,
        number: Qpn,
        event: QpEvent,
    ) -> Result<(), String> {
        let mut ends = self.ends.iter();
        let end = ends.position(|end| end.number == number && end.host == host);
        if let Some(attacker) = &mut self.attacker
            && end.is_none()
            && attacker.owns(host, number)
        {
            return attacker.take_event(host, event);
        }
        let Some(end) = end.filter(|&end| self.lives(end)) else {
            return Err(format!(
                "{event:?} of queue pair {number}, which is not there"
            ));
        };
        self.note(|_| format!("end {end} has the event {event:?}"));
        let failed = self.judge.may_have_failed(end, self.path(end));
        let connection = self.plan.connections[end / 2];
        let explained = match event {
            QpEvent::AccessError | QpEvent::RequestError | QpEvent::Fatal => {
                failed && !self.careful()
            }
            QpEvent::LastWqeReached => failed && connection.shared[end % 2],
            QpEvent::SendQueueDrained => std::mem::take(&mut self.ends[end].draining),
            QpEvent::CommunicationEstablished => false,
        };
        let once = event == QpEvent::SendQueueDrained || !self.ends[end].events.contains(&event);
        self.ends[end].events.push(event);
        if explained && once {
            return Ok(());
        }
        Err(format!(
            "end {end} has the event {event:?}, which nothing explains: {:?}",
            self.ends[end].events
        ))
    }

    /// Handles the event of a shared queue below its limit.
    fn take_limit(&mut self, host: usize) -> Result<(), String> {
        self.note(|_| format!("the shared queue of host {host} runs low"));
        self.note_level(host);
        match self.hosts[host].limit.take() {
            Some((limit, lowest)) if lowest < limit => Ok(()),
            // A copy of a datagram takes a receive as well, and so does a message's first packet
            // that arrives late and alone.
            Some(_) if self.is_disorderly() => Ok(()),
            other => Err(format!(
                "the shared queue of host {host} says that it runs low; limit and lowest level were {other:?}"
            )),
        }
    }

    /// Records the lowest level that a shared queue may have had since its limit was set.
    pub(super) fn note_level(&mut self, host: usize) {
        let level = self.judge.receives_at_least(host);
        if let Some((_, lowest)) = &mut self.hosts[host].limit {
            *lowest = level.min(*lowest);
        }
    }

    pub(super) fn act_limit(&mut self, host: u8, receives: u8) -> Result<(), String> {
        let Some(host) = self.host_of(host) else {
            return Ok(());
        };
        self.fetch_async_events(host)?;
        let Some(srq) = self.hosts[host].srq.clone() else {
            return Ok(());
        };
        self.note(|_| format!("the alarm of the shared queue of host {host} is at {receives}"));
        srq.set_limit(u32::from(receives))
            .map_err(|error| format!("the limit of host {host}: {error}"))?;
        self.hosts[host].limit = Some((usize::from(receives), usize::MAX));
        self.note_level(host);
        self.fetch_async_events(host)
    }

    /// Checks that a shared queue below its limit had its event; all completions and events must
    /// have been fetched, with no packet in flight.
    ///
    /// # Errors
    /// The event is missing.
    pub fn check_limit(&self, host: usize) -> Result<(), String> {
        let receives = self.judge.receives(host);
        match self.hosts[host].limit {
            Some((limit, _)) if receives < limit => Err(format!(
                "{receives} receives are left in the shared queue of host {host}, and its alarm at {limit} was not raised"
            )),
            _ => Ok(()),
        }
    }
}
