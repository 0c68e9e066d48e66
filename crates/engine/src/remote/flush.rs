//! After the end of the daemon: what was posted and has no completion gets one here, with an error.
//!
//! The rings lie in this process's memory, and their indices say what the daemon had released. A
//! slot is released before its completion is added, so a daemon that is killed between the two
//! leaves one request without completion. [`AsyncEvent::DeviceFatal`](crate::AsyncEvent) says that
//! nothing more will come.

use super::{Objects, Remote, RemoteQp};
use crate::index::{CqHandle, Doorbell};
use crate::{CompletionOpcode, QpState, Status};
use airdma_shm::{Block, Cqe, RecvWqe, RingConsumer, RingProducer, SendWqe};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Remote {
    /// The daemon has ended. Returns whether this call was the first to notice.
    pub(super) fn end(&self) -> bool {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.leave();
        let objects = self.objects();
        for qp in objects.qps.values() {
            flush(&objects, qp);
        }
        drop(objects);
        self.end_connections();
        true
    }

    /// Flushes what was posted since to the queue pairs that share a doorbell.
    pub(super) fn flush_at(&self, doorbell: Doorbell) {
        let objects = self.objects();
        let rung = |qp: &&RemoteQp| qp.shared.doorbell() == doorbell;
        for qp in objects.qps.values().filter(rung) {
            flush(&objects, qp);
        }
    }
}

fn flush(objects: &Objects, qp: &RemoteQp) {
    qp.shared.state.set(QpState::Error);
    let number = qp.shared.number.get();
    let flushed = |wr_id, opcode| Cqe {
        wr_id,
        status: Status::WrFlushError as u8,
        opcode: opcode as u8,
        qpn: number,
        ..Cqe::default()
    };
    each_posted(&qp.send, |ring, slot| {
        let header: SendWqe = ring.slot(slot).read_header();
        let cqe = flushed(header.wr_id, CompletionOpcode::Send);
        add(objects, qp.send_cq, &cqe);
    });
    each_posted(&qp.recv, |ring, slot| {
        let header: RecvWqe = ring.slot(slot).read_header();
        let cqe = flushed(header.wr_id, CompletionOpcode::Receive);
        add(objects, qp.recv_cq, &cqe);
    });
}

/// Takes what the daemon has not released of a ring, of which it had the other end.
fn each_posted(block: &Arc<Block>, mut take: impl FnMut(&RingConsumer, u32)) {
    let Ok(mut ring) = RingConsumer::attach(Arc::clone(block)) else {
        return;
    };
    while let Some(slot) = ring.take() {
        take(&ring, slot);
        ring.release(1);
    }
}

/// Adds a completion in place of the daemon.
fn add(objects: &Objects, cq: Option<CqHandle>, cqe: &Cqe) {
    let cq = cq.and_then(|cq| objects.cqs.get(&cq.serial));
    let Some((cq, watch)) = cq.and_then(|cq| Some((cq, cq.watch.as_ref()?))) else {
        return;
    };
    let ring = RingProducer::attach(Arc::clone(watch.block()));
    let Ok(mut ring) = ring else {
        return;
    };
    match ring.slot(0) {
        Some(mut slot) => slot.write_header(cqe),
        None => return cq.overrun.store(true, Ordering::Release),
    }
    ring.publish(1);
    cq.look();
}
