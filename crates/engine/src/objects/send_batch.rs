//! Send work requests that are posted all together or not at all (`ibv_wr_post(3)`).

use crate::objects::post::SendPost;
use crate::queues::work_request::Payload;
use crate::{Datagram, Error, Operation, Qp, QpType, SendFlags, SendWr, Sge};
use airdma_shm::SendWqe;

/// A batch of send work requests; the queue is locked for other threads meanwhile.
///
/// Each is begun, and then gets its data and its destination, in any order. They are written into
/// the queue as they come, and [`SendBatch::commit`] hands them to the worker. The first mistake is
/// kept until then; what comes after it is ignored. A batch that is dropped was never there.
pub struct SendBatch<'a> {
    post: SendPost<'a>,
    draft: Option<Draft>,
    mistake: Option<Error>,
    committed: bool,
}

/// The request that was begun last.
struct Draft {
    wr: SendWr<'static>,
    payload: Payload,
    has_srqn: bool,
}

impl<'a> SendBatch<'a> {
    pub(crate) fn new(qp: &'a Qp) -> Self {
        SendBatch {
            post: SendPost::new(qp),
            draft: None,
            mistake: None,
            committed: false,
        }
    }

    /// Begins a request without data. [`SendFlags::INLINE`] means nothing here: see
    /// [`SendBatch::set_inline`].
    pub fn begin(&mut self, wr_id: u64, operation: Operation, flags: SendFlags) {
        self.finish();
        let wr = SendWr {
            wr_id,
            operation,
            sges: &[],
            flags: flags - SendFlags::INLINE,
            datagram: None,
            srqn: 0,
        };
        self.draft = Some(Draft {
            wr,
            payload: Payload::default(),
            has_srqn: false,
        });
    }

    /// Where the datagram goes.
    pub fn set_datagram(&mut self, datagram: Datagram) {
        self.amend(|_, draft| {
            draft.wr.datagram = Some(datagram);
            Ok(())
        });
    }

    /// The peer's shared receive queue, on the initiator of an extended connection.
    pub fn set_srqn(&mut self, srqn: u32) {
        self.amend(|_, draft| {
            (draft.wr.srqn, draft.has_srqn) = (srqn, true);
            Ok(())
        });
    }

    /// The data, or where READ and atomic results go.
    pub fn set_sges(&mut self, sges: &[Sge]) {
        self.amend(|post, draft| {
            if sges.len() > post.qp().caps().max_send_sge as usize {
                return Err(Error::Invalid(
                    "more elements than the queue pair's max_send_sge",
                ));
            }
            let mut slot = post.slot()?;
            for (index, sge) in sges.iter().enumerate() {
                slot.write_sge::<SendWqe>(index as u32, sge);
            }
            draft.wr.flags.remove(SendFlags::INLINE);
            draft.payload = Payload {
                elements: sges.len(),
                bytes: sges.iter().map(|sge| u64::from(sge.length)).sum(),
                inline: false,
            };
            Ok(())
        });
    }

    /// The data, copied now from pieces that follow each other.
    pub fn set_inline<'d>(&mut self, pieces: impl IntoIterator<Item = &'d [u8]>) {
        self.amend(|post, draft| {
            let room = post.qp().caps().max_inline;
            let mut slot = post.slot()?;
            let mut bytes = 0u32;
            for piece in pieces {
                let too_long = Error::NoMemory("more inline data than the queue pair's max_inline");
                let offset = bytes;
                let length = u32::try_from(piece.len()).ok();
                bytes = (length.and_then(|length| offset.checked_add(length)))
                    .filter(|&bytes| bytes <= room)
                    .ok_or(too_long)?;
                slot.write_inline::<SendWqe>(offset, piece);
            }
            draft.wr.flags.insert(SendFlags::INLINE);
            draft.payload = Payload {
                elements: 0,
                bytes: bytes.into(),
                inline: true,
            };
            Ok(())
        });
    }

    /// A mistake that the caller found.
    pub fn fail(&mut self, mistake: Error) {
        self.mistake.get_or_insert(mistake);
    }

    /// Posts the batch.
    ///
    /// # Errors
    /// As [`SendPost::push`], and `ENOMEM` for more inline data than fits; nothing was posted then.
    pub fn commit(mut self) -> Result<(), Error> {
        self.finish();
        match self.mistake.take() {
            Some(mistake) => Err(mistake),
            None => {
                self.committed = true;
                Ok(())
            }
        }
    }

    fn amend(&mut self, change: impl FnOnce(&mut SendPost<'a>, &mut Draft) -> Result<(), Error>) {
        if self.mistake.is_some() {
            return;
        }
        let result = match &mut self.draft {
            Some(draft) => change(&mut self.post, draft),
            None => Err(Error::Invalid("no work request was begun")),
        };
        self.mistake = result.err();
    }

    /// The request that was begun last is complete.
    fn finish(&mut self) {
        let Some(draft) = self.draft.take() else {
            return;
        };
        if self.mistake.is_some() {
            return;
        }
        let extended = self.post.qp().qp_type() == QpType::XrcSend;
        let result = if extended && !draft.has_srqn && !draft.wr.operation.is_local() {
            Err(Error::Invalid(
                "a message on an extended connection names a shared receive queue",
            ))
        } else {
            self.post.finish(&draft.wr, &draft.payload)
        };
        self.mistake = result.err();
    }
}

impl Drop for SendBatch<'_> {
    fn drop(&mut self) {
        if !self.committed {
            self.post.abort();
        }
    }
}
