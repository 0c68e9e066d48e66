//! Queue pairs that send whole Ethernet frames (`IBV_QPT_RAW_PACKET`), without RoCEv2.

use super::state::WorkerState;
use crate::index::QpIndex;
use crate::tables::qp_host::QpHost;
use crate::{QpAttributes, QpState, Status};
use airdma_port::RawSocket;
use airdma_transport::{
    AttrMask, Completion, CompletionOpcode, Host, LocalFault, QueuePair, SendRequest,
};
use std::io;

/// Longest frame: what a segmented IP packet has, and the headers of the link.
const FRAME_BYTES_MAX: usize = (1 << 16) + 18;

/// The way out for frames of one queue pair. Frames that arrive are given to it by flows
/// (`ibv_create_flow(3)`), which this version does not have: so it receives none. A packet socket
/// would copy frames, and not take them away from the kernel as a flow does.
pub(crate) struct RawFrames {
    socket: RawSocket,
    frame: Vec<u8>,
}

impl WorkerState {
    /// Sends the frame of a request that was posted to a queue pair for raw packets.
    pub(super) fn send_frame(&mut self, index: QpIndex, request: &SendRequest) {
        let mut all = std::mem::take(&mut self.raw_frames);
        if let Some(raw) = all.get_mut(&index) {
            self.with(index, |qp, host| raw.send(request, qp, host));
        }
        self.raw_frames = all;
    }
}

impl RawFrames {
    pub(super) fn new(socket: RawSocket) -> Self {
        RawFrames {
            socket,
            frame: Vec::new(),
        }
    }

    /// Sends the frame of a request, and completes it. A frame that the interface does not take now
    /// is lost, as frames are; one that can never leave ends the queue pair in ERROR.
    fn send(&mut self, request: &SendRequest, qp: &mut QueuePair, host: &mut QpHost<'_>) {
        let status = self.try_send(request, host);
        let completion = Completion {
            byte_len: request.length,
            ..Completion::with_status(request.wr_id, CompletionOpcode::Send, status, qp.qpn())
        };
        let wanted = request.signalled || status != Status::Success;
        host.complete_send(request.slot, wanted.then_some(completion));
        if status != Status::Success {
            let error = QpAttributes {
                state: QpState::Error,
                ..QpAttributes::default()
            };
            qp.modify(&error, AttrMask::STATE, host).ok();
        }
    }

    fn try_send(&mut self, request: &SendRequest, host: &mut QpHost<'_>) -> Status {
        let length = request.length as usize;
        if length > FRAME_BYTES_MAX {
            return Status::LocalLengthError;
        }
        self.frame.resize(length, 0);
        if length > 0
            && let Err(LocalFault) = host.gather(request.slot, 0, &mut self.frame)
        {
            return Status::LocalProtectionError;
        }
        match self.socket.send(&self.frame).map_err(errno) {
            Err(libc::EINVAL | libc::EMSGSIZE) => Status::LocalLengthError,
            Ok(()) | Err(_) => Status::Success,
        }
    }
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
