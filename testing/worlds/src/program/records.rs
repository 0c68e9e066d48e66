//! Records: messages that datagrams write, and what their target declares.

use super::reads::Wanted;
use super::*;
use crate::plan::{RecordFault, RecordStep};
use crate::records::{Posted, RecordEnd, Reliable, SLOT, SLOTS, is_reliable};
use airdma_engine::{Ended, Record, RecordHandle};
use airdma_model::records::{self, Name};
use std::net::IpAddr;

/// What a record says, besides what the judge asks of it.
struct Told {
    source: IpAddr,
    qpn: Qpn,
    record: records::Record,
    immediate: Option<u32>,
    ended: Option<Ended>,
}

impl Told {
    fn of(record: &Record<'_>) -> Told {
        Told {
            source: airdma_engine::Gid::from(record.source).to_ip(),
            qpn: record.src_qpn,
            record: records::Record {
                name: Name {
                    source: 0,
                    number: record.id,
                },
                va: RecordEnd::judged(record.va),
                length: record.length,
                unit: record.unit.into(),
                valid: record.ranges().collect(),
                valid_bytes: record.valid_bytes,
                is_whole: record.ended == Some(Ended::Whole),
            },
            immediate: record.imm.map(u32::from_be_bytes),
            ended: record.ended,
        }
    }
}

/// Time between two polls at the end of a world, and how many of them there are at most.
const ROUND: Duration = Duration::from_millis(30);
const ROUNDS_MAX: u32 = 400;
/// Bit of the number of a reliable message, which its packets do not have.
const RELIABLE: u32 = 1 << 31;
/// Packets that a sender repeats before it gives up, at least.
const REPEATS_MIN: u64 = 3;
/// Quiet rounds after which no message is open.
const CALM_ROUNDS: u32 = 3;

/// The number that a source sends along.
fn immediate_of(name: Name) -> Option<u32> {
    (name.number % 2 == 1).then_some(name.number ^ 0x5a5a_0000)
}

impl World {
    pub(super) fn act_record(&mut self, step: RecordStep) -> Result<(), String> {
        match step {
            RecordStep::Write {
                from,
                to,
                place,
                length,
                fault,
            } => {
                let hosts = self.hosts.len();
                let (from, to) = (usize::from(from) % hosts, usize::from(to) % hosts);
                let place = usize::from(place) % SLOTS;
                let length = 1 + usize::from(length) % SLOT;
                self.write_record(from, to, place, length, fault)
            }
            RecordStep::Take { host, keep } => match self.host_of(host) {
                Some(host) => {
                    if !keep {
                        self.free_records(host)?;
                    }
                    self.take_records(host)
                }
                None => Ok(()),
            },
            RecordStep::Close { host, place } => match self.host_of(host) {
                Some(host) => self.close_record(host, usize::from(place) % SLOTS),
                None => Ok(()),
            },
            RecordStep::Withdraw { host } => match self.host_of(host) {
                Some(host) => self.withdraw_records(host),
                None => Ok(()),
            },
            RecordStep::Read {
                from,
                of,
                place,
                length,
                at,
                patience,
                fault,
            } => {
                let hosts = self.hosts.len();
                self.begin_read(&Wanted {
                    reader: usize::from(from) % hosts,
                    peer: usize::from(of) % hosts,
                    place: place.into(),
                    at: at.into(),
                    length: length.into(),
                    patience,
                    fault,
                })
            }
            RecordStep::WithdrawRead { host } => match self.host_of(host) {
                Some(host) => self.withdraw_reads(host),
                None => Ok(()),
            },
        }
    }

    fn write_record(
        &mut self,
        from: usize,
        to: usize,
        place: usize,
        length: usize,
        fault: Option<RecordFault>,
    ) -> Result<(), String> {
        let Some((source, target)) = self.records.get(from).zip(self.records.get(to)) else {
            return Ok(());
        };
        let is_free = target.places[place].is_none() && target.mr.is_some();
        let (true, Some(part)) = (
            self.hosts[from].alive && (is_free || fault.is_some()),
            source.free_source(),
        ) else {
            return Ok(());
        };
        let is_reliable = is_reliable(place);
        let name = Name {
            source: from as u64,
            number: if is_reliable {
                RELIABLE | source.reliable_count
            } else {
                source.count
            },
        };
        let reliable = is_reliable.then(|| Reliable {
            to,
            name,
            fault,
            lost: self.lost_among([from, to]),
            ended_early: target.ended_early,
        });
        let at = (place * SLOT) as u64;
        let (mut va, mut key) = (target.va + at, target.key);
        let (mut qkey, qpn) = (QKEY, target.number);
        match fault {
            None => {}
            Some(RecordFault::Key) => key ^= 0x00ab_c000,
            Some(RecordFault::OtherKey) => key = self.hosts[to].regions[region::TARGETS].key,
            // One byte behind the region, or before it.
            Some(RecordFault::End) => va = target.va + (SLOTS * SLOT + 1 - length) as u64,
            Some(RecordFault::Start) => va = target.va - 1,
            Some(RecordFault::Qkey) => qkey.0 ^= 1,
        }
        let message = self.random.bytes(length);
        let id = self.next_id();
        let gid = self.hosts[to].address.into();
        let source = &mut self.records[from];
        let addr = source.fill(part, &message);
        let rkey = Rkey(key);
        let wr = SendWr {
            wr_id: id,
            operation: match immediate_of(name) {
                Some(immediate) => Operation::RecordImm {
                    va,
                    rkey,
                    imm: immediate.to_be_bytes(),
                },
                None => Operation::Record { va, rkey },
            },
            sges: &[Sge {
                addr,
                length: length as u32,
                lkey: source.source.lkey().0,
            }],
            flags: if is_reliable {
                SendFlags::SIGNALLED | SendFlags::RELIABLE
            } else {
                SendFlags::SIGNALLED
            },
            datagram: Some(Datagram {
                path: airdma_engine::Path {
                    gid,
                    hop_limit: 64,
                    ..airdma_engine::Path::default()
                },
                qpn,
                qkey,
            }),
            srqn: 0,
        };
        match source.qp.post_send(&wr) {
            Ok(()) => {}
            // Completions that were not polled have the room.
            Err(Error::NoMemory(_)) => return Ok(()),
            Err(error) => return Err(format!("record {name:?} was refused: {error}")),
        }
        source.posted.insert(id, Posted { part, reliable });
        source.count += u32::from(!is_reliable);
        source.reliable_count += u32::from(is_reliable);
        self.counts.records += 1;
        self.counts.reliable += u64::from(is_reliable);
        if fault.is_none() {
            let target = &mut self.records[to];
            target.places[place] = Some(name);
            target.judge.sent(name, RecordEnd::judged(va), &message)?;
        }
        self.note(|_| {
            format!("host {from} writes record {name:?} of {length} B to place {place} of host {to}, fault {fault:?}")
        });
        self.run(from)
    }

    /// Polls for records and for completions of messages.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub(crate) fn take_records(&mut self, host: usize) -> Result<(), String> {
        let Some(end) = self.records.get(host) else {
            return Ok(());
        };
        let (mut found, cq) = (Vec::new(), Arc::clone(&end.cq));
        let polled = cq.poll(usize::MAX, |completion| found.push(completion));
        polled.map_err(|error| format!("polling for records: {error}"))?;
        // Polling runs the device.
        self.run(host)?;
        for completion in found {
            let posted = self.records[host].posted.get(&completion.wr_id).copied();
            let reliable = posted.and_then(|posted| posted.reliable);
            let is_sent = completion.opcode == CompletionOpcode::Record;
            let may_fail = is_sent && reliable.is_some();
            if completion.status != Status::Success && !may_fail
                || completion.qpn != self.records[host].number
            {
                return Err(format!("a completion of a record: {completion:?}"));
            }
            match completion.opcode {
                CompletionOpcode::Record => {
                    if self.records[host]
                        .posted
                        .remove(&completion.wr_id)
                        .is_none()
                    {
                        return Err(format!("a completion of no record: {completion:?}"));
                    }
                    if let Some(reliable) = reliable {
                        self.take_end_of_reliable(host, &reliable, completion.status)?;
                    }
                }
                CompletionOpcode::ReceiveRecord => self.take_record(host, &completion)?,
                _ => return Err(format!("not a completion of a record: {completion:?}")),
            }
        }
        Ok(())
    }

    /// A reliable message of a host has ended there: whole, or for a reason that the world has.
    fn take_end_of_reliable(
        &mut self,
        host: usize,
        of: &Reliable,
        status: Status,
    ) -> Result<(), String> {
        let Reliable { to, name, .. } = *of;
        self.note(|_| format!("reliable record {name:?} to host {to} ends: {status:?}"));
        let target = &mut self.records[to];
        let is_early = target.ended_early != of.ended_early;
        let wrong_place = matches!(
            of.fault,
            Some(RecordFault::Key | RecordFault::OtherKey | RecordFault::Start | RecordFault::End)
        );
        if status == Status::Success {
            self.counts.reliable_whole += 1;
            return match of.fault {
                None => target.judge.acknowledged(name),
                Some(fault) => Err(format!("{name:?} succeeded in spite of {fault:?}")),
            };
        }
        let is_full = target.places.iter().flatten().count() > 1 || !target.held.is_empty();
        let is_dead = !self.hosts[to].alive;
        let is_lossy = self.lost_among([host, to]) >= of.lost + REPEATS_MIN;
        let explains = match status {
            // No target answers a wrong Q_Key.
            Status::RetryExceeded => is_dead || is_lossy || of.fault == Some(RecordFault::Qkey),
            Status::RnrRetryExceeded => is_full,
            Status::RemoteAccessError => wrong_place || is_early,
            Status::RemoteOperationError => is_early,
            _ => false,
        };
        if explains {
            return Ok(());
        }
        Err(format!(
            "{name:?} to host {to} ended with {status:?}: {of:?}"
        ))
    }

    /// Packets that were lost, or held up, between two hosts.
    pub(super) fn lost_among(&self, [a, b]: [usize; 2]) -> u64 {
        let (withheld, delayed) = self.held_up([a, b]);
        let lost = self.network.path(a, b).lost + self.network.path(b, a).lost;
        lost + withheld
            + delayed
            + self.lost_in_rings([a, b])
            + self.unkeyed_at(a)
            + self.unkeyed_at(b)
    }

    fn take_record(&mut self, host: usize, completion: &Completion) -> Result<(), String> {
        if self.take_read(host, completion)? {
            return Ok(());
        }
        let handle = RecordHandle(completion.wr_id);
        let told = self.records[host].qp.record(handle, Told::of);
        let Some(Told {
            source,
            qpn,
            mut record,
            immediate,
            ended,
        }) = told
        else {
            return Err(format!("host {host} has no record for {completion:?}"));
        };
        let is_source =
            |from: &usize| self.hosts[*from].address == source && self.records[*from].number == qpn;
        let Some(from) = (0..self.hosts.len()).find(is_source) else {
            return Err(format!(
                "a record is from {qpn} at {source}, which is no source"
            ));
        };
        record.name.source = from as u64;
        let place = record.va.checked_sub(RecordEnd::first_va());
        let place = place.map_or(0, |at| at as usize / SLOT);
        let is_reliable = is_reliable(place);
        if is_reliable && let Some(Some(name)) = self.records[host].places.get(place) {
            // It is numbered for each target.
            record.name.number = name.number;
        }
        let name = record.name;
        self.note(|_| {
            format!(
                "host {host} has the record of {name:?}: {ended:?}, {:?}",
                record.valid
            )
        });
        let end = &mut self.records[host];
        end.judge
            .told(&record)
            .map_err(|why| format!("records of host {host}: {why}"))?;
        let completed = (completion.byte_len, completion.src_qpn, completion.imm);
        let expected = immediate_of(name);
        if completed != (record.valid_bytes, qpn, expected.map(u32::to_be_bytes))
            || immediate != expected
        {
            return Err(format!("{name:?} has another completion: {completion:?}"));
        }
        let never = if is_reliable {
            &[Ended::Last, Ended::Refused, Ended::Age, Ended::Displaced][..]
        } else {
            &[Ended::Last, Ended::Refused]
        };
        if ended.is_none_or(|ended| never.contains(&ended)) {
            return Err(format!("{name:?} ended by {ended:?}"));
        }
        end.held.push((handle, name));
        self.counts.records_told += 1;
        self.counts.records_partial += u64::from(!record.is_whole);
        Ok(())
    }

    fn free_records(&mut self, host: usize) -> Result<(), String> {
        let Some(end) = self.records.get_mut(host) else {
            return Ok(());
        };
        for (handle, name) in end.held.drain(..) {
            if !end.qp.free_record(handle) {
                return Err(format!("the record of {name:?} cannot be freed"));
            }
            end.judge.freed(name)?;
            for place in end.places.iter_mut().filter(|place| **place == Some(name)) {
                *place = None;
            }
        }
        self.free_reads(host)
    }

    fn close_record(&mut self, host: usize, place: usize) -> Result<(), String> {
        let Some(end) = self.records.get(host) else {
            return Ok(());
        };
        let (key, va) = (Rkey(end.key), end.va + (place * SLOT) as u64);
        let peeked = end.qp.peek_record(key, va, |record| record.ended);
        let closed = end.qp.close_record(key, va);
        let closed = closed.map_err(|error| format!("closing a record: {error}"))?;
        // Closing runs the device, which may take more packets first.
        if peeked.flatten().is_some() || (peeked.is_some() && !closed) {
            return Err(format!(
                "an open record was {peeked:?}, and closed: {closed}"
            ));
        }
        self.records[host].ended_early += u64::from(closed);
        self.run(host)
    }

    /// Takes the memory back, or registers it again.
    fn withdraw_records(&mut self, host: usize) -> Result<(), String> {
        let Some(end) = self.records.get_mut(host) else {
            return Ok(());
        };
        match end.mr.take() {
            Some(mr) => {
                mr.deregister()
                    .map_err(|error| format!("taking memory for records back: {error}"))?;
                // What arrived before counts.
                self.observe(host)?;
                self.records[host].judge.taken_back();
                self.records[host].ended_early += 1;
                self.note(|_| format!("host {host} takes its memory for records back"));
                self.run(host)
            }
            None => {
                end.register(&self.hosts[host]);
                self.note(|_| format!("host {host} registers memory for records"));
                Ok(())
            }
        }
    }

    /// A place of a host with an open record.
    fn has_open(&self, host: usize) -> Option<usize> {
        let end = &self.records[host];
        let is_open = |place: &usize| {
            let va = end.va + (place * SLOT) as u64;
            (va..va + SLOT as u64)
                .step_by(64)
                .any(|va| end.qp.peek_record(Rkey(end.key), va, |_| ()).is_some())
        };
        (0..SLOTS).find(is_open)
    }

    /// Ends all records of living hosts, and checks that none is open.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub(crate) fn end_records(&mut self) -> Result<(), String> {
        if self.records.is_empty() {
            return Ok(());
        }
        let living = |world: &World| -> Vec<usize> {
            let alive = |host: &usize| world.hosts[*host].alive;
            (0..world.records.len()).filter(alive).collect()
        };
        // Messages that wait for a slow port are handed over, and then all that are open end.
        let mut calm = 0;
        for _ in 0..ROUNDS_MAX {
            self.pass(ROUND)?;
            for host in living(self) {
                self.judge.now += 1;
                self.free_records(host)?;
                self.take_records(host)?;
            }
            let waits = living(self).iter().any(|&host| {
                let end = &self.records[host];
                let has_read = !end.reads.open.is_empty() || !end.reads.untaken.is_empty();
                has_read || !end.posted.is_empty() || self.has_open(host).is_some()
            });
            calm = if waits || !self.is_quiet() {
                0
            } else {
                calm + 1
            };
            if calm == CALM_ROUNDS {
                break;
            }
        }
        for host in living(self) {
            let end = &self.records[host];
            if let Some((id, _)) = end.posted.first_key_value() {
                return Err(format!("record {id} of host {host} was never handed over"));
            }
            end.judge.check_acknowledged()?;
            end.reads.judge.end()?;
            if let Some(place) = self.has_open(host) {
                return Err(format!("place {place} of host {host} has an open record"));
            }
        }
        for (host, end) in self.records.drain(..).enumerate() {
            if self.hosts[host].alive {
                end.take_down()?;
            }
        }
        Ok(())
    }
}
