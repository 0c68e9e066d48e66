//! Requests about queue pairs.

use crate::control::{
    Beside, NewQueuePair, QueuePairControl, QueuePairInit, ReceivesFrom, Reply, WRONG_BESIDE,
};
use crate::index::{CqHandle, CqIndex, QpHandle};
use crate::queues::attached_counters::CountsCompletions;
use crate::queues::qp_shared::QpShared;
use crate::seal::datagrams::DatagramSeals;
use crate::tables::cq_table::CqTable;
use crate::tables::qp_host::{QpSide, Receives};
use crate::tables::qp_table::{QpSlot, Source};
use crate::tables::srq_table::Held;
use crate::worker::Worker;
use crate::worker::raw_frames::RawFrames;
use crate::{
    AttrMask, CountedOperations, Datagram, DatagramRead, Error, Gid, QpAttributes, QpState, QpType,
};
use airdma_transport::{QpConfig, QueuePair, RecordHandle, Time};
use airdma_wire::Neighbour;
use std::sync::Arc;

impl Worker {
    pub(super) fn create_queue_pair(
        &mut self,
        now: Time,
        init: &QueuePairInit,
        beside: Beside<'_>,
    ) -> Result<Reply, Error> {
        let Beside::QueuePair(new) = beside else {
            return Err(WRONG_BESIDE);
        };
        let NewQueuePair {
            send: (send, send_side),
            recv: (recv, recv_side),
            events,
            raw,
            made,
        } = new;
        let qp_type = init.qp_type;
        let receives = self.find_receives(init.receives)?;
        let send_cq = find_cq(&self.state.device.cqs, init.send_cq)?;
        let recv_cq = find_cq(&self.state.device.cqs, init.recv_cq)?;
        let (index, number) = self.reserve(now)?;
        let sizes = (qp_type, init.caps, init.signal_all);
        let mut shared = QpShared::new(number, index, sizes, send, recv);
        shared.seals_datagrams = self.state.device.secret.is_some() && qp_type == QpType::Ud;
        let shared = Arc::new(shared);
        let config = QpConfig {
            qp_type,
            qpn: number,
            port_mtu: init.port_mtu,
            shared_receives: receives != Receives::Own,
        };
        let side = QpSide {
            send: send_side,
            recv: recv_side,
            receives,
            held: Held::default(),
            held_sends: None,
            pd: init.pd,
            serial: init.serial,
            send_cq,
            recv_cq,
            shared: Arc::clone(&shared),
            events,
            completion_counters: None,
        };
        let mut slot = QpSlot::new(QueuePair::new(config), side);
        slot.seals = self.state.device.secret.is_some() && qp_type.is_connected();
        let datagrams = || Box::new(DatagramSeals::new(number));
        slot.datagrams = shared.seals_datagrams.then(datagrams);
        self.state.qps.insert(index, slot);
        if let Some(socket) = raw {
            self.state.raw_frames.insert(index, RawFrames::new(socket));
        }
        if qp_type == QpType::Ud {
            self.listen(None, true);
        }
        *made = Some(shared);
        Ok(Reply::QueuePair { index, number })
    }

    fn find_receives(&mut self, from: ReceivesFrom) -> Result<Receives, Error> {
        Ok(match from {
            ReceivesFrom::Own => Receives::Own,
            ReceivesFrom::Shared { srq } => Receives::Shared(self.state.device.srqs.find(srq)?),
            ReceivesFrom::Domain { domain } => Receives::Domain(domain),
        })
    }

    pub(super) fn handle_queue_pair(
        &mut self,
        now: Time,
        qp: QpHandle,
        call: QueuePairControl,
        beside: Beside<'_>,
    ) -> Result<Reply, Error> {
        match call {
            QueuePairControl::Query => {
                let attributes = *self.state.qps.live(qp)?.qp.attributes();
                Ok(Reply::Attributes { attributes })
            }
            QueuePairControl::Modify {
                attributes,
                mask,
                source,
            } => self.modify_queue_pair(now, qp, &attributes, mask, source),
            QueuePairControl::Seal => self.seal(qp),
            QueuePairControl::QueryBinding => {
                let seal = self.state.qps.known(qp)?.seal.as_ref();
                let binding = seal.and_then(|seal| seal.binding());
                Ok(Reply::Binding { binding })
            }
            QueuePairControl::NoteApplicationBuffer => {
                let state = &mut self.state;
                state.qps.live(qp)?;
                (state.air).note_application_buffer(&mut state.qps, qp.index, now);
                Ok(Reply::Done)
            }
            QueuePairControl::AttachCounter { operations } => {
                let Beside::Counter(counter) = beside else {
                    return Err(WRONG_BESIDE);
                };
                self.attach_counter(qp, operations, counter)
            }
            QueuePairControl::IsFinished => Ok(Reply::Answer {
                yes: self.is_finished(now, qp),
            }),
            QueuePairControl::Attach { group } => {
                self.state.qps.live(qp)?;
                self.attach(group.to_ip().into(), qp.index)?;
                Ok(Reply::Done)
            }
            QueuePairControl::Detach { group } => {
                self.state.qps.live(qp)?;
                self.detach(group.to_ip().into(), qp.index)?;
                Ok(Reply::Done)
            }
            QueuePairControl::IsAttached => {
                let is_known = self.state.qps.known(qp).is_ok();
                let yes = is_known && self.state.multicast.is_attached(qp.index);
                Ok(Reply::Answer { yes })
            }
            QueuePairControl::DetachAll => {
                self.state.qps.live(qp)?;
                while let Some(group) = self.state.multicast.group_of(qp.index) {
                    self.detach(group, qp.index).ok();
                }
                Ok(Reply::Done)
            }
            QueuePairControl::Retire => self.retire(qp),
            QueuePairControl::RepeatLastAnswer => {
                self.state.qps.known(qp)?;
                self.state.repeat_last_ack(qp.index, now);
                Ok(Reply::Done)
            }
            QueuePairControl::Destroy => self.destroy_queue_pair(now, qp),
            QueuePairControl::LimitRate { kbps, burst_max } => {
                self.limit_rate(now, qp, kbps, burst_max)
            }
            QueuePairControl::EnableRecords { config } => {
                self.state.qps.live(qp)?;
                self.state.enable_records(qp.index, config)?;
                Ok(Reply::Done)
            }
            QueuePairControl::EnableReliable { config } => {
                self.state.qps.live(qp)?;
                self.state.enable_reliable(qp.index, config)?;
                Ok(Reply::Done)
            }
            QueuePairControl::CloseRecord { rkey, va } => {
                self.state.qps.live(qp)?;
                let yes = self.state.close_record(qp.index, rkey, va, now);
                Ok(Reply::Answer { yes })
            }
            QueuePairControl::ReadRecord {
                path,
                qpn,
                qkey,
                va,
                rkey,
                length,
                lkey,
                to,
                deadline,
                tries,
            } => {
                self.state.qps.live(qp)?;
                let read = DatagramRead {
                    datagram: Datagram { path, qpn, qkey },
                    va,
                    rkey,
                    length,
                    lkey,
                    to,
                    deadline,
                    tries,
                };
                let RecordHandle(handle) = self.state.read_record(qp.index, now, &read)?;
                Ok(Reply::Record { handle })
            }
        }
    }

    fn modify_queue_pair(
        &mut self,
        now: Time,
        qp: QpHandle,
        attributes: &QpAttributes,
        mask: AttrMask,
        source: Option<(Gid, bool)>,
    ) -> Result<Reply, Error> {
        self.state.qps.live(qp)?;
        let source = source.map(|(local, on_link)| Source {
            local: Neighbour::from(local.to_ip()),
            on_link,
        });
        let before = self.state.source_index(qp.index);
        self.state.modify(qp.index, attributes, mask, source, now)?;
        let after = self.state.source_index(qp.index);
        if let Some(before) = before {
            self.listen(Some(before), false);
        }
        if let Some(after) = after {
            self.listen(Some(after), true);
        }
        Ok(Reply::Done)
    }

    fn limit_rate(
        &mut self,
        now: Time,
        qp: QpHandle,
        kbps: u32,
        burst_max: u32,
    ) -> Result<Reply, Error> {
        self.state.qps.live(qp)?;
        let attributes = QpAttributes {
            rate_limit_kbps: kbps,
            ..QpAttributes::default()
        };
        let mask = AttrMask::RATE_LIMIT;
        self.state.modify(qp.index, &attributes, mask, None, now)?;
        self.state.follow_rate_limit(qp.index, burst_max, now);
        Ok(Reply::Done)
    }

    fn seal(&mut self, qp: QpHandle) -> Result<Reply, Error> {
        let slot = self.state.qps.live(qp)?;
        if slot.connection.is_some() {
            return Err(Error::Invalid("the queue pair is connected"));
        }
        slot.seals = true;
        Ok(Reply::Done)
    }

    fn attach_counter(
        &mut self,
        qp: QpHandle,
        operations: CountedOperations,
        counter: Arc<dyn CountsCompletions>,
    ) -> Result<Reply, Error> {
        let slot = self.state.qps.live(qp)?;
        if !matches!(slot.qp.state(), QpState::Reset | QpState::Init) {
            return Err(Error::Invalid("the queue pair is beyond INIT"));
        }
        let counters = slot.side.completion_counters.get_or_insert_default();
        counters.attach(operations, counter)?;
        Ok(Reply::Done)
    }

    /// Whether the peer has answered what was posted, or the queue pair sends no more.
    fn is_finished(&mut self, now: Time, qp: QpHandle) -> bool {
        if self.state.qps.known(qp).is_err() {
            return true;
        }
        self.state.take_work(qp.index, now);
        self.state.qps.live(qp).map_or(true, |slot| {
            slot.qp.state() != QpState::ReadyToSend || !slot.qp.awaits_answers()
        })
    }

    /// One step, so that the queue pair is not attached to a multicast group in between.
    fn retire(&mut self, qp: QpHandle) -> Result<Reply, Error> {
        let is_attached = self.state.multicast.is_attached(qp.index);
        let Ok(slot) = self.state.qps.live(qp) else {
            return Ok(Reply::Answer { yes: false });
        };
        if is_attached {
            return Err(Error::Busy("the queue pair (a multicast group has it)"));
        }
        slot.retired = true;
        Ok(Reply::Answer { yes: true })
    }

    fn destroy_queue_pair(&mut self, now: Time, qp: QpHandle) -> Result<Reply, Error> {
        let slot = self.state.qps.known(qp)?;
        let connection = slot.connection;
        match slot.qp.qp_type() {
            QpType::Ud => self.listen(None, false),
            QpType::RawPacket => {}
            QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcReceive => {
                if let Some(connection) = connection {
                    self.listen(Some(connection.source_index), false);
                }
            }
        }
        self.state.remove(qp.index, now);
        Ok(Reply::Done)
    }
}

fn find_cq(cqs: &CqTable, cq: Option<CqHandle>) -> Result<CqIndex, Error> {
    cq.map_or(Ok(CqIndex::NONE), |cq| cqs.find(cq))
}
