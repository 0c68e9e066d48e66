//! Records of a datagram queue pair, as the caller reads and frees them.

use crate::control::{QueuePairControl, Reply, WRONG_REPLY};
use crate::objects::pd::check_posted_path;
use crate::{
    Datagram, DatagramRead, Error, Qp, Record, RecordConfig, RecordHandle, ReliableConfig, Rkey,
};

impl Qp {
    /// Lets a datagram queue pair take records: peers write messages to memory that was registered
    /// with [`Pd::reg_record_mr`](crate::Pd::reg_record_mr), and each one ends with a completion
    /// ([`CompletionOpcode::ReceiveRecord`](crate::CompletionOpcode::ReceiveRecord)) whose `wr_id`
    /// is the [`RecordHandle`]. The queue of receive completions needs room for all entries:
    /// without room a record waits.
    ///
    /// # Errors
    /// `EINVAL` for another type of queue pair, one that takes records already, or a limit out of
    /// range; `ENODEV` in a child after fork.
    pub fn enable_records(&self, config: RecordConfig) -> Result<(), Error> {
        self.core().check_process()?;
        self.ask(QueuePairControl::EnableRecords { config })?;
        Ok(())
    }

    /// Whether its datagrams are sealed: the device had a secret when the queue pair was created.
    pub fn seals_datagrams(&self) -> bool {
        self.shared.seals_datagrams
    }

    /// Lets a datagram queue pair repeat SENDs and Write-Records with the flag
    /// [`RELIABLE`](crate::SendFlags::RELIABLE) until their target has them. They complete one by
    /// one, in any order. The target has called [`Qp::enable_records`].
    ///
    /// # Errors
    /// `EINVAL` for another type of queue pair, one that does so already, or a limit out of range;
    /// `ENODEV` in a child after fork.
    pub fn enable_reliable(&self, config: ReliableConfig) -> Result<(), Error> {
        self.core().check_process()?;
        self.ask(QueuePairControl::EnableReliable { config })?;
        Ok(())
    }

    /// Reads memory of a peer by datagrams. The record of it is told by a completion as any other:
    /// with the handle that is returned, the reason of its end, and a map of what arrived. The
    /// queue pair has called [`Qp::enable_records`], and so has the peer's.
    ///
    /// # Errors
    /// `EINVAL` for a queue pair that is not in RTS or takes no records, for a group, for memory
    /// that is not registered, and for arguments out of range; `ENOMEM` without a free entry;
    /// `ENODEV` in a child after fork.
    pub fn read_record(&self, read: &DatagramRead) -> Result<RecordHandle, Error> {
        self.core().check_process()?;
        let Datagram { path, qpn, qkey } = read.datagram;
        if path.gid.to_ip().is_multicast() {
            return Err(Error::Invalid("a group has no memory to read"));
        }
        check_posted_path(self.core(), &path)?;
        let reply = self.ask(QueuePairControl::ReadRecord {
            path,
            qpn,
            qkey,
            va: read.va,
            rkey: read.rkey,
            length: read.length,
            lkey: read.lkey,
            to: read.to,
            deadline: read.deadline,
            tries: read.tries,
        })?;
        let Reply::Record { handle } = reply else {
            return Err(WRONG_REPLY);
        };
        Ok(RecordHandle(handle))
    }

    /// Reads a record that a completion named and that was not freed.
    pub fn record<R>(
        &self,
        handle: RecordHandle,
        read: impl FnOnce(&Record<'_>) -> R,
    ) -> Option<R> {
        let target = self.shared.records.get()?.lock();
        target.record(handle).map(|record| read(&record))
    }

    /// Gives the entry of a record back. False if there is no such record.
    pub fn free_record(&self, handle: RecordHandle) -> bool {
        let records = self.shared.records.get();
        records.is_some_and(|records| records.lock().free(handle))
    }

    /// Reads the oldest open message that writes the byte at `va`.
    pub fn peek_record<R>(
        &self,
        rkey: Rkey,
        va: u64,
        read: impl FnOnce(&Record<'_>) -> R,
    ) -> Option<R> {
        let target = self.shared.records.get()?.lock();
        target.peek(rkey, va).map(|record| read(&record))
    }

    /// Closes the message that [`Qp::peek_record`] reads: its record follows. False if there is
    /// none.
    ///
    /// # Errors
    /// `EINVAL` after [`Qp::destroy`]; `ENODEV` in a child after fork.
    pub fn close_record(&self, rkey: Rkey, va: u64) -> Result<bool, Error> {
        self.core().check_process()?;
        let Reply::Answer { yes } = self.ask(QueuePairControl::CloseRecord { rkey, va })? else {
            return Err(WRONG_REPLY);
        };
        Ok(yes)
    }
}
