//! Reads by datagrams: the requests of this host, and those of peers.

use super::receive::{Receiving, arrival};
use super::state::WorkerState;
use crate::counter_names::EngineCounter;
use crate::index::QpIndex;
use crate::tables::destination::destination;
use crate::{Access, DatagramRead, Error};
use airdma_port::Received;
use airdma_transport::{CannotRead, ReadAsked, ReadRequest, RecordHandle, Time};
use airdma_wire::{Qkey, Qpn, RecordRead, RecordReadKind, Reth, Rkey};

/// Highest bit of a Q_Key in a work request: send the queue pair's own instead (IBTA 10.2.5).
const CONTROLLED_QKEY: u32 = 1 << 31;

impl WorkerState {
    /// Begins to read memory of a peer.
    ///
    /// # Errors
    /// `EINVAL` for a queue pair that is not in RTS or takes no records, for memory that is not
    /// registered, and for arguments out of range; `ENOMEM` without a free entry.
    pub(super) fn read_record(
        &mut self,
        index: QpIndex,
        now: Time,
        read: &DatagramRead,
    ) -> Result<RecordHandle, Error> {
        let Some(slot) = self.qps.slot(index) else {
            return Err(Error::Gone("the queue pair"));
        };
        let path = read.datagram.path;
        let Some(reader) = slot.qp.reader(&path) else {
            return Err(Error::Invalid("only a datagram queue pair in RTS reads so"));
        };
        let (pd, right) = (slot.side.pd, Access::LOCAL_WRITE);
        let memory = &self.device.memory;
        let here = memory.address_of(pd, read.lkey.0, read.to, read.length, right);
        if here.is_none() {
            return Err(Error::Invalid("the memory to read to is not registered"));
        }
        let qkey = match read.datagram.qkey {
            Qkey(qkey) if qkey & CONTROLLED_QKEY != 0 => reader.qkey,
            qkey => qkey,
        };
        let request = ReadRequest {
            path,
            address: destination(&path, &self.device.rows).address,
            qpn: read.datagram.qpn,
            qkey,
            from: Reth {
                va: read.va,
                rkey: read.rkey,
                length: read.length,
            },
            lkey: Rkey(read.lkey.0),
            va: read.to,
            deadline: read.deadline,
            tries: read.tries,
        };
        let begun = self.with_records(index, now, |_, target, _| target.read(now, request, reader));
        match begun {
            Some(Ok(handle)) => Ok(handle),
            Some(Err(CannotRead::Full)) => {
                Err(Error::NoMemory("no free entry for a read: free records"))
            }
            Some(Err(CannotRead::Invalid)) => Err(Error::Invalid(
                "a read has 1 byte to 2 GiB - 1, at most units_max packets, a deadline, and tries",
            )),
            None => Err(Error::Invalid("the queue pair takes no records")),
        }
    }

    /// Sends the requests of a queue pair.
    #[cold]
    pub(super) fn send_read_requests(&mut self, index: QpIndex, now: Time) {
        let records = self.qps.slot(index).and_then(|slot| slot.records.clone());
        let Some(records) = records else {
            return;
        };
        loop {
            let next = records.lock().poll_request();
            let Some((request, path)) = next else {
                return;
            };
            self.change(index, now)
                .call(|qp, _| qp.owe_read(request, path));
        }
    }
}

impl Receiving<'_> {
    /// Takes a request to read, or the answer to one, in the clear.
    #[inline(never)] // other packets save no registers for it
    pub(super) fn receive_read(&mut self, received: &Received<'_>) {
        let packet = match RecordRead::parse(received.bytes) {
            Ok(packet) => packet,
            Err(error) => return self.drop_malformed(error),
        };
        let number = packet.bth.dest_qpn;
        if received.destination.is_multicast() {
            return self.state.counters.count(EngineCounter::DropUnknownQp);
        }
        let Some(index) = self.taker_in_clear(received, number) else {
            return;
        };
        self.deliver_read(index, received, &packet);
    }

    /// Takes one that was sealed by the queue pair of this number.
    pub(super) fn receive_sealed_read(
        &mut self,
        index: QpIndex,
        received: &Received<'_>,
        sender: Qpn,
    ) {
        match RecordRead::parse(received.bytes) {
            Ok(packet) if packet.deth.src_qpn == sender => {
                self.deliver_read(index, received, &packet);
            }
            Ok(_) => self.state.counters.count(EngineCounter::DropUnsealed),
            Err(error) => self.drop_malformed(error),
        }
    }

    fn deliver_read(&mut self, index: QpIndex, received: &Received<'_>, packet: &RecordRead) {
        let (state, now) = (&mut *self.state, self.now);
        let arrival = arrival(received);
        let takes = state
            .qps
            .slot(index)
            .is_some_and(|slot| slot.records.is_some());
        if !takes {
            return state.counters.count(EngineCounter::DropUnknownOpcode);
        }
        match packet.kind {
            RecordReadKind::Request => {
                let Some(path) = state.way_back(&arrival) else {
                    return;
                };
                let asked = ReadAsked {
                    packet,
                    source: arrival.source,
                    path,
                };
                state
                    .change(index, now)
                    .call(|qp, host| qp.handle_read(now, &asked, host));
            }
            RecordReadKind::Challenge | RecordReadKind::Refused => {
                state.with_records(index, now, |_, target, host| {
                    target.handle_read_answer(now, arrival.source, packet, host);
                });
            }
        }
    }
}
