//! Records: messages that datagrams write into registered memory.

use super::receive::Receiving;
use super::state::WorkerState;
use crate::Error;
use crate::counter_names::EngineCounter;
use crate::index::QpIndex;
use crate::memory::{GroupKey, RunSums};
use crate::queues::record_shared::RecordShared;
use crate::tables::qp_host::QpHost;
use crate::tables::qp_table::QpSlot;
use airdma_port::{Following, Received};
use airdma_shm::HeldSlots;
use airdma_transport::{
    Arrival, Completion, CompletionOpcode, Path, QpType, RecordAnswerOwed, RecordConfig,
    RecordTarget, ReliableConfig, Status, Time,
};
use airdma_wire::{Gid, Psn, Qpn, RecordAck, RecordPacket, Rkey};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// ECN bits of a traffic class.
const ECN_MASK: u8 = 0b11;

/// When a record is told again of which the completion queue had no room.
const AGAIN: Duration = Duration::from_millis(1);

impl WorkerState {
    /// Lets a datagram queue pair take records.
    ///
    /// # Errors
    /// `EINVAL` for another queue pair, one that takes records, or a limit out of range.
    pub(super) fn enable_records(
        &mut self,
        index: QpIndex,
        config: RecordConfig,
    ) -> Result<(), Error> {
        let [key, answers_key] = [(); 2].map(|()| [(); 2].map(|()| self.random.secret_u64()));
        let Some(slot) = self.qps.slot(index) else {
            return Err(Error::Gone("the queue pair"));
        };
        if slot.qp.qp_type() != QpType::Ud {
            return Err(Error::Invalid("only datagram queue pairs take records"));
        }
        if slot.records.is_some() {
            return Err(Error::Invalid("the queue pair takes records already"));
        }
        let target = RecordTarget::new(config, key)
            .map_err(|_| Error::Invalid("a limit of the records is out of range"))?;
        slot.qp.reserve_answers(answers_key);
        let shared = Arc::new(RecordShared::new(target));
        // It was empty, since the slot has none.
        slot.side.shared.records.set(Arc::clone(&shared)).ok();
        slot.records = Some(shared);
        self.record_takers.push(index);
        Ok(())
    }

    /// Lets a datagram queue pair repeat what it sends.
    ///
    /// # Errors
    /// `EINVAL` for another queue pair, one that does so already, or a limit out of range.
    pub(super) fn enable_reliable(
        &mut self,
        index: QpIndex,
        config: ReliableConfig,
    ) -> Result<(), Error> {
        let key = [(); 2].map(|()| self.random.secret_u64());
        let Some(slot) = self.qps.slot(index) else {
            return Err(Error::Gone("the queue pair"));
        };
        if slot.qp.qp_type() != QpType::Ud {
            return Err(Error::Invalid("only datagrams are repeated on request"));
        }
        if slot.qp.is_reliable() {
            return Err(Error::Invalid("the queue pair repeats datagrams already"));
        }
        slot.qp
            .enable_reliable(config, key)
            .map_err(|_| Error::Invalid("a limit of reliable datagrams is out of range"))?;
        let held = HeldSlots::new(config.messages_max, slot.side.send.stride());
        slot.side.held_sends = Some(Box::new(held));
        slot.side.shared.is_reliable.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// A datagram queue pair is ready to send: its messages are of another instance of it.
    pub(super) fn begin_records(&mut self, index: QpIndex) {
        if let Some(slot) = self.qps.slot(index)
            && slot.qp.qp_type() == QpType::Ud
        {
            let instance = Psn::new(self.random.next_u32());
            slot.qp
                .set_record_requester(instance, self.air.interface_mtu);
        }
    }

    /// A queue pair is in RESET, or gone: its records are, too.
    pub(super) fn forget_records(&mut self, index: QpIndex) {
        if let Some(slot) = self.qps.slot(index)
            && let Some(records) = &slot.records
        {
            records.lock().reset();
        }
    }

    /// Calls the target of a queue pair, if it takes records, and tells the application of those
    /// that ended.
    pub(super) fn with_records<R>(
        &mut self,
        index: QpIndex,
        now: Time,
        call: impl FnOnce(&airdma_transport::QueuePair, &mut RecordTarget, &mut QpHost<'_>) -> R,
    ) -> Option<R> {
        let QpSlot {
            qp, side, records, ..
        } = self.qps.slot(index)?;
        let records = records.as_ref()?;
        let mut host = QpHost {
            side,
            device: &mut self.device,
            counters: &mut self.counters,
            sums: RunSums::default(),
        };
        let mut target = records.lock();
        let result = call(qp, &mut target, &mut host);
        tell(&mut target, qp.qpn(), &mut host);
        let again = target.has_record().then(|| now + AGAIN);
        let due = [target.poll_timeout(), again].into_iter().flatten().min();
        let asks = target.has_request();
        drop(target);
        let slot = self.qps.slot(index)?;
        slot.records_due = due;
        self.scheduler.set_due(index, slot.due());
        if asks {
            self.send_read_requests(index, now);
        }
        Some(result)
    }

    /// Takes a packet for a queue pair. Returns whether its sender is told that it arrived.
    pub(super) fn take_record_packet(
        &mut self,
        index: QpIndex,
        now: Time,
        arrival: &Arrival,
        packet: &RecordPacket<'_>,
    ) -> bool {
        let taken = self.with_records(index, now, |qp, target, host| {
            qp.handle_record(now, arrival, packet, target, host)
        });
        match taken {
            Some(Some(RecordAnswerOwed::Ack(answer))) => {
                self.owe_answer(index, now, arrival, answer);
            }
            Some(Some(RecordAnswerOwed::Echo)) => return true,
            Some(None) => {}
            None => self.counters.count(EngineCounter::DropUnknownOpcode),
        }
        false
    }

    /// Takes a packet, and those that follow it, as far as they are for the same queue pair and not
    /// acknowledged one by one. Returns the last one whose sender is told that it arrived.
    fn take_record_packets<'p>(
        &mut self,
        index: QpIndex,
        now: Time,
        arrival: &Arrival,
        packet: &RecordPacket<'p>,
        following: &Following<'p>,
    ) -> Option<RecordPacket<'p>> {
        let number = packet.headers.bth.dest_qpn;
        let mut asked = None;
        let taken = self.with_records(index, now, |qp, target, host| {
            let mut packet = *packet;
            loop {
                if qp
                    .handle_record(now, arrival, &packet, target, host)
                    .is_some()
                {
                    asked = Some(packet);
                }
                match next_of(following, number) {
                    Some(next) => packet = next,
                    None => return,
                }
            }
        });
        if taken.is_none() {
            self.counters.count(EngineCounter::DropUnknownOpcode);
        }
        asked
    }

    /// The way to the sender of a packet, from the address that it was sent to.
    pub(super) fn way_back(&self, arrival: &Arrival) -> Option<Path> {
        let rows = &self.device.rows;
        let row = rows
            .iter()
            .position(|row| *row == Some(arrival.destination))?;
        Some(Path {
            gid: Gid::from(arrival.source),
            sgid_index: u8::try_from(row).ok()?,
            traffic_class: arrival.tos & !ECN_MASK,
            ..Path::default()
        })
    }

    /// Answers a packet.
    fn owe_answer(&mut self, index: QpIndex, now: Time, arrival: &Arrival, answer: RecordAck) {
        let Some(path) = self.way_back(arrival) else {
            return;
        };
        self.change(index, now)
            .call(|qp, _| qp.owe_answer(answer, path));
    }

    /// A queue pair is in the error state: the receives that its messages took are flushed, and so
    /// are its reads.
    pub(super) fn flush_records(&mut self, index: QpIndex, now: Time) {
        self.with_records(index, now, |_, target, host| {
            target.flush_receives(host);
            target.flush_reads(host);
        });
    }

    /// The send queue of a queue pair is in the error state: its reads are flushed.
    pub(super) fn flush_reads(&mut self, index: QpIndex, now: Time) {
        self.with_records(index, now, |_, target, host| target.flush_reads(host));
    }

    /// Closes the messages whose time is over.
    #[inline(never)] // few rounds have any
    pub(super) fn expire_records(&mut self, index: QpIndex, now: Time) {
        self.with_records(index, now, |_, target, host| {
            target.handle_timeout(now, host);
        });
    }

    /// Closes the open message that writes the byte at `va`; false if there is none.
    pub(super) fn close_record(&mut self, index: QpIndex, rkey: Rkey, va: u64, now: Time) -> bool {
        let closed = self.with_records(index, now, |_, target, host| {
            target.close_at(rkey, va, host)
        });
        closed.unwrap_or(false)
    }

    /// Closes all messages to a region that is gone, which a group had another `name` for.
    pub(super) fn close_records(&mut self, key: u32, name: Option<GroupKey>, now: Time) {
        for at in 0..self.record_takers.len() {
            let index = self.record_takers[at];
            self.with_records(index, now, |_, target, host| match name {
                None => target.close_key(Rkey(key), None, host),
                Some(name) if name.pd == host.side.pd => {
                    target.close_key(Rkey(name.key), Some(name.group), host);
                }
                Some(_) => {}
            });
        }
    }
}

/// Adds a completion for each record that ended, as far as the completion queue has room beside
/// those of SENDs that are arriving.
fn tell(target: &mut RecordTarget, qpn: Qpn, host: &mut QpHost<'_>) {
    let cq = host.side.recv_cq;
    let sends = host.side.held.in_use();
    while target.has_record() && host.device.cqs.has_room(cq, sends) {
        let Some(handle) = target.poll_record() else {
            return;
        };
        let Some(record) = target.record(handle) else {
            return;
        };
        let completion = Completion {
            byte_len: record.valid_bytes,
            imm: record.imm,
            solicited: record.solicited,
            src_qpn: record.src_qpn,
            ..Completion::with_status(
                handle.0,
                CompletionOpcode::ReceiveRecord,
                Status::Success,
                qpn,
            )
        };
        host.device.cqs.push(cq, &completion, host.counters);
    }
}

/// The next packet of those that follow, if it is part of a Write-Record to this queue pair that is
/// not acknowledged. It is taken.
fn next_of<'p>(following: &Following<'p>, number: Qpn) -> Option<RecordPacket<'p>> {
    let packet = RecordPacket::parse(following.peek()?).ok()?;
    let is_one = packet.headers.bth.dest_qpn == number && packet.headers.token.is_none();
    is_one.then(|| {
        following.take();
        packet
    })
}

impl Receiving<'_> {
    /// Takes a packet of a Write-Record in the clear.
    #[inline(never)] // other packets save no registers for it
    pub(super) fn receive_record(&mut self, received: &Received<'_>) {
        let packet = match RecordPacket::parse(received.bytes) {
            Ok(packet) => packet,
            Err(error) => return self.drop_malformed(error),
        };
        let number = packet.headers.bth.dest_qpn;
        if received.destination.is_multicast() || number == Qpn::MULTICAST {
            return self.receive_group_record(received, &packet);
        }
        let Some(index) = self.taker_in_clear(received, number) else {
            return;
        };
        self.deliver_record(index, received, &packet, received.following);
    }

    /// The queue pair of this number, if it takes packets in the clear from where this one is from.
    /// Others are counted.
    pub(super) fn taker_in_clear(
        &mut self,
        received: &Received<'_>,
        number: Qpn,
    ) -> Option<QpIndex> {
        let Some(index) = self.state.qps.find(number) else {
            self.receive_unknown(self.now, received, number);
            return None;
        };
        let slot = self.state.qps.slot(index)?;
        if !slot.knows(received) {
            let reason = slot.why_not_plain();
            self.state.counters.count(reason);
            return None;
        }
        Some(index)
    }

    /// Gives each queue pair that is attached to the group a copy. None is answered.
    fn receive_group_record(&mut self, received: &Received<'_>, packet: &RecordPacket<'_>) {
        let (group, now) = (received.destination, self.now);
        let arrival = super::receive::arrival(received);
        let is_for_groups = packet.headers.bth.dest_qpn == Qpn::MULTICAST;
        if !is_for_groups || self.state.multicast.member(group, 0).is_none() {
            return self.state.counters.count(EngineCounter::DropUnknownQp);
        }
        let mut nth = 0;
        while let Some(index) = self.state.multicast.member(group, nth) {
            let is_answered = self.state.take_record_packet(index, now, &arrival, packet);
            debug_assert!(!is_answered, "an answer to a packet for a group");
            nth += 1;
        }
    }

    /// Takes an answer to a reliable datagram in the clear.
    #[inline(never)] // as above
    pub(super) fn receive_answer(&mut self, received: &Received<'_>) {
        let answer = match RecordAck::parse(received.bytes) {
            Ok(answer) => answer,
            Err(error) => return self.drop_malformed(error),
        };
        let number = answer.bth.dest_qpn;
        let Some(index) = self.taker_in_clear(received, number) else {
            return;
        };
        self.deliver_answer(index, received, &answer);
    }

    /// Gives an answer to the queue pair that it is for.
    pub(super) fn deliver_answer(
        &mut self,
        index: QpIndex,
        received: &Received<'_>,
        answer: &RecordAck,
    ) {
        let arrival = super::receive::arrival(received);
        let now = self.now;
        self.state
            .change(index, now)
            .call(|qp, host| qp.handle_answer(now, &arrival, answer, host));
    }

    /// Gives a packet to the queue pair that it is for, and those that follow it in the clear.
    pub(super) fn deliver_record<'p>(
        &mut self,
        index: QpIndex,
        received: &Received<'_>,
        packet: &RecordPacket<'p>,
        following: Option<&Following<'p>>,
    ) {
        let arrival = super::receive::arrival(received);
        let now = self.now;
        if let Some(following) = following
            && packet.headers.token.is_none()
            && !self.state.air.counts_datagrams()
        {
            let asked = (self.state).take_record_packets(index, now, &arrival, packet, following);
            if let Some(asked) = asked {
                self.state.owe_echo(index, received, &asked);
            }
            return;
        }
        self.note_datagram(index, received, &packet.headers.deth);
        if self
            .state
            .take_record_packet(index, self.now, &arrival, packet)
        {
            self.state.owe_echo(index, received, packet);
        }
    }
}
