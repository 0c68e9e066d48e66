//! The rings of one queue pair, and its completions. Every rule of the verbs that the host can see
//! is asserted here: each request completes exactly once, in order, as it was posted.

use std::collections::VecDeque;

use airdma_transport::{
    Completion, Counter, Datagram, Operation, QpEvent, Receive, SendRequest, Slot, Status,
};
use airdma_wire::Qpn;

use crate::memory::Sge;

/// A send request as the application posts it.
#[derive(Clone, Debug)]
pub struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) operation: Operation,
    pub(crate) sges: Vec<Sge>,
    pub(crate) signalled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) datagram: Option<Datagram>,
}

impl SendWr {
    /// A signalled request.
    pub fn new(wr_id: u64, operation: Operation, sges: Vec<Sge>) -> Self {
        SendWr {
            wr_id,
            operation,
            sges,
            signalled: true,
            solicited: false,
            fence: false,
            datagram: None,
        }
    }

    /// Suppresses the completion of a success.
    pub fn unsignalled(self) -> Self {
        self.signalled_if(false)
    }

    /// Reports success if `signalled`.
    pub fn signalled_if(self, signalled: bool) -> Self {
        SendWr { signalled, ..self }
    }

    /// Marks the peer's completion as solicited.
    pub fn solicited(self) -> Self {
        SendWr {
            solicited: true,
            ..self
        }
    }

    /// Makes the request wait for earlier READs and atomics.
    pub fn fenced(self) -> Self {
        SendWr {
            fence: true,
            ..self
        }
    }

    /// Changes the operation; the list stays.
    pub fn with_operation(self, operation: Operation) -> Self {
        SendWr { operation, ..self }
    }

    /// Sets the destination queue pair of a datagram.
    pub fn to(self, datagram: Datagram) -> Self {
        SendWr {
            datagram: Some(datagram),
            ..self
        }
    }

    /// Bytes of the message.
    pub fn length(&self) -> u32 {
        length_of(&self.sges)
    }
}

#[derive(Debug)]
struct Posted {
    request: SendRequest,
    sges: Vec<Sge>,
}

/// The rings and outcomes of one queue pair.
#[derive(Debug)]
pub struct Rings {
    qpn: Qpn,
    /// Sends by slot.
    sends: Vec<Option<Posted>>,
    /// Slots of posted sends, oldest first.
    sends_outstanding: VecDeque<Slot>,
    /// Scatter lists of receives that are not completed, by slot.
    receives: Vec<Option<(Receive, Vec<Sge>)>>,
    /// Posted receives not yet taken.
    receives_posted: VecDeque<Receive>,
    /// Taken receives not yet completed, oldest first.
    receives_taken: VecDeque<Slot>,
    /// Completions of the send queue, oldest first.
    pub send_completions: Vec<Completion>,
    /// Completions of the receive queue, oldest first.
    pub receive_completions: Vec<Completion>,
    /// Send requests that ended without a completion.
    pub unsignalled: u64,
    /// Asynchronous events, oldest first.
    pub events: Vec<QpEvent>,
    counts: Vec<u64>,
}

impl Rings {
    pub(crate) fn new(qpn: Qpn) -> Self {
        Rings {
            qpn,
            sends: Vec::new(),
            sends_outstanding: VecDeque::new(),
            receives: Vec::new(),
            receives_posted: VecDeque::new(),
            receives_taken: VecDeque::new(),
            send_completions: Vec::new(),
            receive_completions: Vec::new(),
            unsignalled: 0,
            events: Vec::new(),
            counts: vec![0; Counter::ALL.len()],
        }
    }

    /// Value of a counter.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counts[counter as usize]
    }

    /// Send requests that were posted and have not ended.
    pub fn sends_outstanding(&self) -> usize {
        self.sends_outstanding.len()
    }

    /// Receives that were posted and have not ended.
    pub fn receives_outstanding(&self) -> usize {
        self.receives_posted.len() + self.receives_taken.len()
    }

    pub(crate) fn post_send(&mut self, wr: SendWr) -> SendRequest {
        let length = wr.length();
        if matches!(
            wr.operation,
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. }
        ) {
            assert_eq!(length, 8, "an atomic returns eight bytes");
        }
        let slot = free_slot(&mut self.sends);
        let request = SendRequest {
            slot,
            wr_id: wr.wr_id,
            operation: wr.operation,
            length,
            signalled: wr.signalled,
            solicited: wr.solicited,
            fence: wr.fence,
            datagram: wr.datagram,
            reliable: false,
            srqn: 0,
        };
        self.sends[slot.0 as usize] = Some(Posted {
            request,
            sges: wr.sges,
        });
        self.sends_outstanding.push_back(slot);
        request
    }

    pub(crate) fn post_receive(&mut self, wr_id: u64, sges: Vec<Sge>) {
        let slot = free_slot(&mut self.receives);
        let receive = Receive {
            slot,
            wr_id,
            length: length_of(&sges),
        };
        self.receives[slot.0 as usize] = Some((receive, sges));
        self.receives_posted.push_back(receive);
    }

    pub(crate) fn send_sges(&self, slot: Slot) -> &[Sge] {
        let posted = self.sends[slot.0 as usize].as_ref();
        &posted.expect("the slot of a posted send request").sges
    }

    pub(crate) fn receive_sges(&self, slot: Slot) -> &[Sge] {
        assert!(self.receives_taken.contains(&slot), "receive was not taken");
        let receive = self.receives[slot.0 as usize].as_ref();
        &receive.expect("the slot of a taken receive").1
    }

    pub(crate) fn take_receive(&mut self) -> Option<Receive> {
        let receive = self.receives_posted.pop_front()?;
        self.receives_taken.push_back(receive.slot);
        Some(receive)
    }

    pub(crate) fn complete_send(&mut self, slot: Slot, completion: Option<Completion>) {
        let oldest = self.sends_outstanding.pop_front();
        assert_eq!(oldest, Some(slot), "send requests end in order, once");
        let posted = self.sends[slot.0 as usize].take();
        let request = posted.expect("an outstanding slot is posted").request;
        let Some(completion) = completion else {
            assert!(!request.signalled, "a signalled request ended silently");
            self.unsignalled += 1;
            return;
        };
        assert_eq!(completion.wr_id, request.wr_id);
        assert_eq!(completion.qpn, self.qpn);
        assert!(request.signalled || completion.status != Status::Success);
        self.send_completions.push(completion);
    }

    pub(crate) fn complete_receive(&mut self, slot: Slot, completion: Completion) {
        let oldest = self.receives_taken.pop_front();
        assert_eq!(oldest, Some(slot), "receives end in order, once");
        let taken = self.receives[slot.0 as usize].take();
        let (receive, _) = taken.expect("a taken slot is posted");
        assert_eq!(completion.wr_id, receive.wr_id);
        assert_eq!(completion.qpn, self.qpn);
        if completion.status == Status::Success {
            // RDMA WRITE with immediate data reports the bytes written elsewhere.
            let placed = completion.opcode == airdma_transport::CompletionOpcode::Receive;
            assert!(!placed || completion.byte_len <= receive.length);
        }
        self.receive_completions.push(completion);
    }

    pub(crate) fn add_count(&mut self, counter: Counter) {
        self.counts[counter as usize] += 1;
    }
}

fn free_slot<T>(slots: &mut Vec<Option<T>>) -> Slot {
    let free = slots.iter().position(Option::is_none);
    let index = free.unwrap_or_else(|| {
        slots.push(None);
        slots.len() - 1
    });
    Slot(u32::try_from(index).expect("few slots"))
}

fn length_of(sges: &[Sge]) -> u32 {
    sges.iter().map(|sge| sge.length).sum()
}
