//! Work completions.

use airdma_wire::{Qpn, Rkey};

/// Outcome of a work request; the numbers are those of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// A receive was shorter than the message, or a message too long for the service.
    LocalLengthError = 1,
    /// The queue pair is in an inconsistent state.
    LocalQpOperationError = 2,
    /// A local key, its bounds or its access flags did not allow the access.
    LocalProtectionError = 4,
    /// The queue pair went to the error state before the request was done.
    WrFlushError = 5,
    /// A memory window could not be bound.
    MwBindError = 6,
    /// The peer's response does not fit the request.
    BadResponse = 7,
    /// The peer found the request malformed or unsupported.
    RemoteInvalidRequest = 9,
    /// The peer refused the key, the range or the kind of access.
    RemoteAccessError = 10,
    /// The peer could not complete the request.
    RemoteOperationError = 11,
    /// The peer did not answer within timeout x retries.
    RetryExceeded = 12,
    /// The peer had no receive posted in too many attempts.
    RnrRetryExceeded = 13,
}

/// Kind of work that completed; the numbers are those of `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CompletionOpcode {
    /// A SEND of any kind.
    Send = 0,
    /// An RDMA WRITE.
    Write = 1,
    /// An RDMA READ.
    Read = 2,
    /// A compare and swap.
    CompareSwap = 3,
    /// A fetch and add.
    FetchAdd = 4,
    /// A memory window was bound.
    BindWindow = 5,
    /// A local key was invalidated.
    LocalInvalidate = 6,
    /// A FLUSH.
    Flush = 8,
    /// An atomic write.
    AtomicWrite = 9,
    /// A receive filled by a SEND.
    Receive = 128,
    /// A receive consumed by an RDMA WRITE with immediate data.
    ReceiveWriteImm = 129,
    /// A Write-Record whose packets have left (`IBV_WC_DRIVER1`).
    Record = 135,
    /// A record of a peer's message (`IBV_WC_DRIVER2`).
    ReceiveRecord = 136,
}

impl Status {
    /// The status with this number.
    #[inline]
    pub fn from_number(number: u8) -> Option<Self> {
        const ALL: [Status; 12] = [
            Status::Success,
            Status::LocalLengthError,
            Status::LocalQpOperationError,
            Status::LocalProtectionError,
            Status::WrFlushError,
            Status::MwBindError,
            Status::BadResponse,
            Status::RemoteInvalidRequest,
            Status::RemoteAccessError,
            Status::RemoteOperationError,
            Status::RetryExceeded,
            Status::RnrRetryExceeded,
        ];
        ALL.into_iter().find(|&status| status as u8 == number)
    }
}

impl CompletionOpcode {
    /// The kind of work with this number.
    #[inline]
    pub fn from_number(number: u8) -> Option<Self> {
        // A look-up, since each completion that is polled needs one.
        const BY_NUMBER: [Option<CompletionOpcode>; 256] = {
            const ALL: [CompletionOpcode; 13] = [
                CompletionOpcode::Send,
                CompletionOpcode::Write,
                CompletionOpcode::Read,
                CompletionOpcode::CompareSwap,
                CompletionOpcode::FetchAdd,
                CompletionOpcode::BindWindow,
                CompletionOpcode::LocalInvalidate,
                CompletionOpcode::Flush,
                CompletionOpcode::AtomicWrite,
                CompletionOpcode::Receive,
                CompletionOpcode::ReceiveWriteImm,
                CompletionOpcode::Record,
                CompletionOpcode::ReceiveRecord,
            ];
            let mut table = [None; 256];
            let mut at = 0;
            while at < ALL.len() {
                table[ALL[at] as usize] = Some(ALL[at]);
                at += 1;
            }
            table
        };
        BY_NUMBER[usize::from(number)]
    }
}

/// Header in the GRH area of a datagram, as the completion reports it (IBTA A17.4.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrhHeader {
    /// An IPv4 header, in the last 20 bytes.
    Ipv4,
    /// An IPv6 header.
    Ipv6,
}

/// One entry for a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Identifier of the work request.
    pub wr_id: u64,
    /// Outcome. If it is not success, only `wr_id`, `status` and `qpn` are valid.
    pub status: Status,
    /// Kind of work.
    pub opcode: CompletionOpcode,
    /// Bytes received, read or swapped; for datagrams the 40-byte GRH area is included.
    pub byte_len: u32,
    /// Immediate data, in network byte order.
    pub imm: Option<[u8; 4]>,
    /// Key that the peer's SEND invalidated.
    pub invalidated: Option<Rkey>,
    /// Whether the sender set the solicited event bit.
    pub solicited: bool,
    /// If the first 40 bytes of the receive hold the GRH area: its header.
    pub grh: Option<GrhHeader>,
    /// Sender's queue pair, for datagrams.
    pub src_qpn: Qpn,
    /// Local queue pair.
    pub qpn: Qpn,
}

impl Completion {
    /// A completion with an outcome only.
    pub fn with_status(wr_id: u64, opcode: CompletionOpcode, status: Status, qpn: Qpn) -> Self {
        Completion {
            wr_id,
            status,
            opcode,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: false,
            grh: None,
            src_qpn: Qpn::default(),
            qpn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opcode_is_the_one_of_its_number() {
        let all = (0..=u8::MAX)
            .filter_map(|number| Some((number, CompletionOpcode::from_number(number)?)));
        let all: Vec<_> = all.collect();
        assert_eq!(all.len(), 13);
        assert!(all.iter().all(|&(number, opcode)| opcode as u8 == number));
    }
}
