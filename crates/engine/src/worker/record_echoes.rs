//! Answers to Write-Records and questions about room for them, which open the windows of
//! [`super::record_rate`].

use super::receive::Receiving;
use super::state::WorkerState;
use super::transmit::seal_packet;
use crate::counter_names::EngineCounter;
use crate::index::QpIndex;
use crate::seal::datagrams::Name;
use crate::tables::qp_table::QpSlot;
use crate::tables::record_peers::{Query, Way};
use airdma_port::{Destination, Port, Received};
use airdma_transport::{Counter, Time};
use airdma_wire::{Qpn, RecordEcho, RecordPacket};

/// Answers that wait to be sent; they leave in the round that asked for them.
const ANSWERS_MAX: usize = 256;

/// An answer to send, or a question of which no packet is sent now.
pub(super) struct Answer {
    /// The queue pair that sends it.
    from: QpIndex,
    way: Way,
    echo: RecordEcho,
}

impl WorkerState {
    /// Notes that the sender of a packet gets an answer, which takes the place of an earlier one to
    /// the same queue pair.
    pub(super) fn owe_echo(
        &mut self,
        from: QpIndex,
        received: &Received<'_>,
        packet: &RecordPacket<'_>,
    ) {
        let headers = &packet.headers;
        let way = Way {
            local: received.destination,
            remote: received.source,
        };
        let echo = RecordEcho {
            dest_qpn: headers.deth.src_qpn,
            instance: headers.bth.psn,
            qkey: headers.deth.qkey,
            src_qpn: headers.bth.dest_qpn,
            id: headers.rceth.id,
            offset: headers.rceth.offset,
            socket_bytes: 0,
            socket_bytes_max: 0,
            entries: None,
            asks: false,
        };
        self.owe(Answer { from, way, echo });
    }

    /// Owes an answer, in place of an earlier one to the same queue pair.
    pub(super) fn owe(&mut self, answer: Answer) {
        let ends = |answer: &Answer| {
            let echo = &answer.echo;
            (
                answer.way,
                answer.from,
                echo.dest_qpn,
                echo.instance,
                echo.asks,
            )
        };
        let answers = &mut self.record_answers;
        match answers
            .iter()
            .position(|known| ends(known) == ends(&answer))
        {
            Some(at) => answers[at] = answer,
            None if answers.len() < ANSWERS_MAX => answers.push(answer),
            // It asks again.
            None => {}
        }
    }

    /// Writes the next answer into `out`.
    pub(super) fn poll_echo(
        &mut self,
        port: &mut dyn Port,
        now: Time,
        out: &mut [u8],
    ) -> Option<(usize, Destination)> {
        while let Some(Answer {
            from,
            way,
            mut echo,
        }) = self.record_answers.pop()
        {
            let rows = &self.device.rows;
            let row = rows.iter().position(|&row| row == Some(way.local));
            let (Some(row), Some(slot)) = (row, self.qps.slot(from)) else {
                continue;
            };
            let to = Destination {
                address: way.remote,
                source_index: row as u8,
                tos: 0,
                hop_limit: 0,
                flow_label: 0,
                bundles: false,
            };
            if !echo.asks {
                if let Some(queue) = port.receive_queue(to.source_index) {
                    let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
                    echo.socket_bytes = bytes(queue.bytes);
                    echo.socket_bytes_max = bytes(queue.capacity.unwrap_or(0));
                }
                let records = slot.records.as_ref();
                echo.entries = records.map(|records| records.lock().room_for(way.remote, now));
            }
            let bytes = echo.to_bytes();
            out[..bytes.len()].copy_from_slice(&bytes);
            let mut len = bytes.len();
            if slot.datagrams.is_some() {
                let name = Name {
                    local: way.local,
                    remote: way.remote,
                    number: echo.dest_qpn,
                };
                let sealed = seal_packet(&mut None, &mut slot.datagrams, Some(name), out, len);
                let Some(sealed) = sealed else {
                    continue;
                };
                len = sealed;
            }
            return Some((len, to));
        }
        None
    }
}

/// The question of a queue pair that waits for entries of a target.
pub(super) fn question(query: &Query) -> Answer {
    let Query {
        way,
        asker,
        question,
    } = *query;
    let (id, offset) = question.part;
    Answer {
        from: asker.index,
        way,
        echo: RecordEcho {
            dest_qpn: question.to,
            instance: question.instance,
            qkey: asker.qkey,
            src_qpn: question.from,
            id,
            offset,
            socket_bytes: 0,
            socket_bytes_max: 0,
            entries: None,
            asks: true,
        },
    }
}

impl Receiving<'_> {
    /// Takes the answer to a packet of a Write-Record, in the clear.
    #[inline(never)] // other packets save no registers for it
    pub(super) fn receive_record_echo(&mut self, received: &Received<'_>) {
        let echo = match RecordEcho::parse(received.bytes) {
            Ok(echo) => echo,
            Err(error) => return self.drop_malformed(error),
        };
        if let Some(index) = self.taker_in_clear(received, echo.dest_qpn) {
            self.take_record_echo(index, received, &echo);
        }
    }

    /// Takes one that was sealed by the queue pair of this number.
    pub(super) fn receive_sealed_echo(
        &mut self,
        index: QpIndex,
        received: &Received<'_>,
        sender: Qpn,
    ) {
        let slot = self.state.qps.slot(index);
        let number = slot.map(|slot| slot.qp.qpn());
        match RecordEcho::parse(received.bytes) {
            Ok(echo) if echo.src_qpn == sender && Some(echo.dest_qpn) == number => {
                self.take_record_echo(index, received, &echo)
            }
            Ok(_) => self.state.counters.count(EngineCounter::DropUnsealed),
            Err(error) => self.drop_malformed(error),
        }
    }

    fn take_record_echo(&mut self, index: QpIndex, received: &Received<'_>, echo: &RecordEcho) {
        if echo.asks {
            return self.take_record_question(index, received, echo);
        }
        let state = &mut *self.state;
        let way = Way {
            local: received.destination,
            remote: received.source,
        };
        let windows = &mut state.scheduler.peers;
        let taken = (state.record_peers).take_answer(way, echo, self.now, windows);
        let Some((window, is_smaller)) = taken else {
            return state.counters.count_transport(Counter::DropGhost);
        };
        if is_smaller {
            state.counters.count(EngineCounter::WindowDecreases);
        }
        state.scheduler.unblock(&mut state.qps, window);
        state.join_released();
    }

    /// Answers a sender that waits for entries.
    fn take_record_question(
        &mut self,
        index: QpIndex,
        received: &Received<'_>,
        asked: &RecordEcho,
    ) {
        let slot = self.state.qps.slot(index);
        let takes = |slot: &QpSlot| slot.records.is_some() && slot.qp.is_receiving();
        let Some(slot) = slot.filter(|slot| takes(slot)) else {
            return self.state.counters.count(EngineCounter::DropUnknownOpcode);
        };
        if slot.qp.attributes().qkey != asked.qkey {
            return (self.state.counters).count_transport(Counter::DropBadQkey);
        }
        let echo = RecordEcho {
            dest_qpn: asked.src_qpn,
            src_qpn: asked.dest_qpn,
            asks: false,
            ..*asked
        };
        let way = Way {
            local: received.destination,
            remote: received.source,
        };
        self.state.owe(Answer {
            from: index,
            way,
            echo,
        });
    }
}
