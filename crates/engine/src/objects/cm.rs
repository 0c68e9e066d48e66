//! Connections by RDMA CM, as a front end sees them: channels of events, listeners, and connections
//! named by their ids. The protocol is `airdma-cm`'s; its messages travel as those of queue pair 1
//! ([`crate::worker::gsi`]).
//!
//! Order of calls, active: [`Device::cm_connect`], the event `ConnectResponse`, the queue pair to
//! RTS, [`Device::cm_ready`]. Passive: [`Device::cm_listen`], the event `ConnectRequest`, the queue
//! pair to RTS, [`Device::cm_accept`], the event `Established`. Both: [`Device::cm_disconnect`],
//! the events `Disconnected` and `TimewaitExit`.

use crate::control::{Beside, CmControl, ConnectionControl, Control, Reply, WRONG_REPLY};
use crate::core::Core;
use crate::queues::cm_channel::CmChannel;
use crate::queues::event_queue::Ending;
use crate::worker::Work;
use crate::{Device, Error};
use airdma_cm::{Accept, Connect, ConnectionId, ListenerId, Resolve, SidrAnswer, SidrId, Takes};
use airdma_wire::Gid;
use airdma_wire::cm::{RejReason, ServiceId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process that ends waits for its device.
const EXIT_TIME_MAX: Duration = Duration::from_millis(100);
/// How long it waits for its peers before it tells them again, and how often: 100 ms in all, and
/// not less often where it is kept from running for a while. Most answer within a round trip; that
/// a DREQ and three more are all lost is rare even on a bad link.
const EXIT_REPEAT_PAUSE: Duration = Duration::from_millis(25);
const EXIT_REPEATS_MAX: u32 = 3;
const EXIT_POLL_PAUSE: Duration = Duration::from_micros(100);

impl Device {
    /// Takes requests for a service, at one of the device's addresses, at all of a family (the
    /// unspecified address) or (`None`) at all of them. Events carry `cookie`.
    ///
    /// # Errors
    /// `EADDRINUSE` when the service has a listener there, and the bind errors of the port;
    /// `ENODEV` in a child after fork.
    pub fn cm_listen(
        &self,
        service: ServiceId,
        takes: Takes,
        local: Option<Gid>,
        backlog: usize,
        channel: &Arc<CmChannel>,
        cookie: u64,
    ) -> Result<ListenerId, Error> {
        self.bind_gsi()?;
        let core = self.core();
        core.check_process()?;
        let call = CmControl::Listen {
            service,
            takes,
            local,
            backlog,
            cookie,
        };
        let reply = core.ask_with(Control::Cm { call }, Beside::Channel(channel))?;
        let Reply::Listener { id } = reply else {
            return Err(WRONG_REPLY);
        };
        Ok(id)
    }

    /// From now on at most `max` accepted connections of a listener wait for the last message of
    /// their peers: one more makes the oldest unreachable.
    ///
    /// # Errors
    /// `ENODEV` in a child after fork.
    pub fn cm_limit_answered(&self, listener: ListenerId, max: usize) -> Result<(), Error> {
        self.ask(ConnectionControl::LimitAnswered { listener, max })
    }

    /// Whether a peer still waits for an answer to its request.
    ///
    /// # Errors
    /// `EINVAL` for a request that is over, and `ENODEV` in a child after fork.
    pub fn cm_waits(&self, id: ConnectionId) -> Result<(), Error> {
        self.ask(ConnectionControl::Waits { id })
    }

    /// Ends a listener; requests that were not fetched are refused. A child after fork has none.
    pub fn cm_close(&self, listener: ListenerId) {
        let core = self.core();
        if core.check_process().is_err() {
            return;
        }
        let call = CmControl::Close { listener };
        core.ask(Control::Cm { call }).ok();
    }

    /// Asks for a connection. Events carry `cookie`.
    ///
    /// # Errors
    /// `EINVAL` for too much private data, `ENOMEM`, the bind errors of the port; `ENODEV` in a
    /// child after fork.
    pub fn cm_connect(
        &self,
        wanted: &Connect<'_>,
        channel: &Arc<CmChannel>,
        cookie: u64,
    ) -> Result<ConnectionId, Error> {
        self.bind_gsi()?;
        let wanted = *wanted;
        let call = ConnectionControl::Connect { wanted, cookie };
        let Reply::Connection { id } = self.ask_with(call, Beside::Channel(channel))? else {
            return Err(WRONG_REPLY);
        };
        Ok(id)
    }

    /// From now on the events of a connection carry another cookie, and come through another
    /// channel.
    ///
    /// # Errors
    /// `EINVAL` for a connection that is gone; `ENODEV` in a child after fork.
    pub fn cm_hand_over(
        &self,
        id: ConnectionId,
        channel: &Arc<CmChannel>,
        cookie: u64,
    ) -> Result<(), Error> {
        let call = ConnectionControl::HandOver { id, cookie };
        self.ask_with(call, Beside::Channel(channel)).map(|_| ())
    }

    /// From now on the requests that a listener takes come through another channel.
    ///
    /// # Errors
    /// `EINVAL` for a listener that is closed; `ENODEV` in a child after fork.
    pub fn cm_move_listener(
        &self,
        listener: ListenerId,
        channel: &Arc<CmChannel>,
    ) -> Result<(), Error> {
        let call = ConnectionControl::MoveListener { listener };
        self.ask_with(call, Beside::Channel(channel)).map(|_| ())
    }

    /// Accepts a connection that a peer asked for. The queue pair should be in RTS.
    ///
    /// # Errors
    /// `EINVAL` for too much private data, or a connection with no request that waits for an
    /// answer.
    pub fn cm_accept(&self, id: ConnectionId, with: &Accept<'_>) -> Result<(), Error> {
        self.ask(ConnectionControl::Accept { id, with: *with })
    }

    /// Tells the peer that accepted that we are ready. The queue pair should be in RTS.
    ///
    /// # Errors
    /// As [`Device::cm_accept`].
    pub fn cm_ready(&self, id: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        self.ask(ConnectionControl::Ready { id, private_data })
    }

    /// Refuses a connection that was asked for, or that was accepted by the peer.
    ///
    /// # Errors
    /// As [`Device::cm_accept`].
    pub fn cm_reject(
        &self,
        id: ConnectionId,
        reason: RejReason,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.ask(ConnectionControl::Reject {
            id,
            reason,
            private_data,
        })
    }

    /// Ends a connection.
    ///
    /// # Errors
    /// As [`Device::cm_accept`].
    pub fn cm_disconnect(&self, id: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        self.report_first();
        self.ask(ConnectionControl::Disconnect { id, private_data })
    }

    /// In air mode acknowledgements are sparse: the last come before the end of a connection.
    fn report_first(&self) {
        let core = self.core();
        if core.check_process().is_ok() {
            let call = CmControl::ReportFirst;
            core.ask(Control::Cm { call }).ok();
        }
    }

    /// Forgets a connection; the peer is told if it thinks that there is one. No more events come.
    pub fn cm_destroy(&self, id: ConnectionId) {
        self.report_first();
        self.ask(ConnectionControl::Destroy { id }).ok();
    }

    /// Data of the peer has come on the queue pair of an accepted connection, before its last
    /// message.
    ///
    /// # Errors
    /// `ENODEV` in a child after fork.
    pub fn cm_data_arrived(&self, id: ConnectionId) -> Result<(), Error> {
        self.ask(ConnectionControl::DataArrived { id })
    }

    /// The process ends: takes no more requests, forgets every connection, and waits a moment until
    /// the peers know of it. Nothing happens in a child after fork, nor where there were no
    /// connections, nor where the end has interrupted a thread that was at work on the device: then
    /// it is as if the process were killed.
    pub fn cm_exit(&self) {
        let core = self.core();
        if core.check_process().is_err() {
            return;
        }
        let _ending = Ending::begin();
        let call = CmControl::Exit;
        // A worker that another thread keeps tells the peers nothing.
        core.ask_within(EXIT_TIME_MAX, Control::Cm { call });
        core.linger();
    }

    /// Looks for the queue pair of a datagram service. Events carry `cookie`.
    ///
    /// # Errors
    /// As [`Device::cm_connect`].
    pub fn cm_resolve(
        &self,
        wanted: &Resolve<'_>,
        channel: &Arc<CmChannel>,
        cookie: u64,
    ) -> Result<SidrId, Error> {
        self.bind_gsi()?;
        let wanted = *wanted;
        let call = ConnectionControl::Resolve { wanted, cookie };
        let Reply::Resolution { id } = self.ask_with(call, Beside::Channel(channel))? else {
            return Err(WRONG_REPLY);
        };
        Ok(id)
    }

    /// From now on the answer to a resolution comes through another channel.
    ///
    /// # Errors
    /// `EINVAL` for a resolution that is over; `ENODEV` in a child after fork.
    pub fn cm_move_resolution(&self, id: SidrId, channel: &Arc<CmChannel>) -> Result<(), Error> {
        let call = ConnectionControl::MoveResolution { id };
        self.ask_with(call, Beside::Channel(channel)).map(|_| ())
    }

    /// The application has fetched a request for a datagram service: the request no longer ends
    /// with its listener, nor counts against its backlog.
    ///
    /// # Errors
    /// As [`Device::cm_accept`].
    pub fn cm_fetched(&self, id: SidrId) -> Result<(), Error> {
        self.ask(ConnectionControl::Fetched { id })
    }

    /// Forgets a resolution: our own, of which no event comes any more, or one that we were asked
    /// for, and refuse.
    pub fn cm_forget(&self, id: SidrId) {
        self.ask(ConnectionControl::Forget { id }).ok();
    }

    /// Answers a peer that searches for a datagram service of this process.
    ///
    /// # Errors
    /// As [`Device::cm_accept`].
    pub fn cm_answer(&self, id: SidrId, with: &SidrAnswer<'_>) -> Result<(), Error> {
        self.ask(ConnectionControl::Answer { id, with: *with })
    }

    /// Gets ready for connections: [`Device::cm_listen`] and [`Device::cm_connect`] would do it
    /// otherwise.
    ///
    /// # Errors
    /// The bind errors of the port; `ENODEV` in a child after fork.
    pub fn cm_open(&self) -> Result<(), Error> {
        self.bind_gsi()
    }

    fn bind_gsi(&self) -> Result<(), Error> {
        self.core().bind_gsi()
    }

    fn ask(&self, call: ConnectionControl<'_>) -> Result<(), Error> {
        self.ask_with(call, Beside::Nothing).map(|_| ())
    }

    fn ask_with(&self, call: ConnectionControl<'_>, beside: Beside<'_>) -> Result<Reply, Error> {
        let core = self.core();
        core.check_process()?;
        // A caller that waits for an answer to an address that is gone learns of it now.
        core.take_link_changes();
        core.ask_with(Control::Connection { call }, beside)
    }
}

impl Core {
    /// Binds the port, and makes queue pair 1.
    pub(crate) fn bind_gsi(self: &Arc<Self>) -> Result<(), Error> {
        self.check_process()?;
        self.bind()?;
        let info = self.current();
        let call = CmControl::Open {
            guid: info.guid,
            path_mtu: info.path_mtu,
            interface_index: info.interface_index,
        };
        self.ask(Control::Cm { call }).map(|_| ())
    }

    /// Waits a moment for the answers of the peers whose connections are ending: when this process
    /// is gone, lost messages are not repeated. The kernel's connection manager would repeat them;
    /// without them, a peer that only waits would wait for ever.
    pub(crate) fn linger(&self) {
        // In a simulation no peer can answer during this call.
        if self.is_simulated() {
            return;
        }
        let (mut since, mut again) = (Instant::now(), 0);
        loop {
            let is_time = since.elapsed() >= EXIT_REPEAT_PAUSE;
            let call = CmControl::IsEnding {
                again: is_time && again < EXIT_REPEATS_MAX,
            };
            let reply = self.ask_within(EXIT_TIME_MAX, Control::Cm { call });
            let is_ending = matches!(reply, Some(Ok(Reply::Answer { yes: true })));
            if !is_ending || is_time && again == EXIT_REPEATS_MAX {
                return;
            }
            if is_time {
                (since, again) = (Instant::now(), again + 1);
            }
            std::thread::sleep(EXIT_POLL_PAUSE);
            self.try_progress(Work::All);
        }
    }
}

#[cfg(test)]
mod tests;
