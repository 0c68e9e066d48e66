//! Operations as futures, under an executor that knows nothing of RDMA.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// A minimal executor: runs a future on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park_timeout(PATIENCE),
        }
    }
}

/// Awaits both concurrently.
async fn both<A, B>(
    a: impl Future<Output = A> + Unpin,
    b: impl Future<Output = B> + Unpin,
) -> (A, B) {
    let (mut a, mut b) = (a, b);
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(move |context| {
        if first.is_none()
            && let Poll::Ready(value) = Pin::new(&mut a).poll(context)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = Pin::new(&mut b).poll(context)
        {
            second = Some(value);
        }
        match (first.take(), second.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (first, second) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

#[test]
fn a_task_connects_sends_receives_and_closes() {
    isolated("a_task_connects_sends_receives_and_closes", "", || {
        block_on(async {
            let here = airdma::Device::open("lo").unwrap();
            let there = airdma::Device::open("lo").unwrap();
            let listener = there.listen(PORT).unwrap();
            let connecting = here.connect(("127.0.0.1", PORT));
            let (left, right) = both(connecting, listener.accept()).await;
            let (left, right) = (left.unwrap(), right.unwrap());
            for round in 0..100u8 {
                let sending = left.send(filled(&here, &[round; 100]), ..);
                let receiving = right.recv(there.allocate(100).unwrap(), ..);
                let (sent, message) = both(sending, receiving).await;
                sent.unwrap();
                assert_eq!(message.unwrap()[..], [round; 100]);
            }
            left.close().await.unwrap();
            let end = right.recv(there.allocate(1).unwrap(), ..).await;
            assert!(end.unwrap_err().is_closed());
        });
    });
}

#[test]
fn a_task_is_woken_by_what_comes_much_later() {
    isolated("a_task_is_woken_by_what_comes_much_later", "", || {
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(1500));
            left.send(filled(&here, b"late"), ..).wait().unwrap();
            left
        });
        let message = block_on(right.recv(there.allocate(8).unwrap(), ..)).unwrap();
        assert_eq!(&message[..], b"late");
        sender.join().unwrap();
    });
}

#[test]
fn tasks_and_threads_share_an_endpoint() {
    isolated("tasks_and_threads_share_an_endpoint", "", || {
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    block_on(right.recv(there.allocate(8).unwrap(), ..)).unwrap();
                }
            });
            scope.spawn(|| {
                for _ in 0..200 {
                    right.recv(there.allocate(8).unwrap(), ..).wait().unwrap();
                }
            });
            scope.spawn(|| {
                for _ in 0..200 {
                    left.send(filled(&here, b"for any"), ..).wait().unwrap();
                }
            });
            scope.spawn(|| {
                for _ in 0..200 {
                    block_on(left.send(filled(&here, b"for any"), ..)).unwrap();
                }
            });
        });
    });
}

#[test]
fn a_task_writes_records_and_awaits_them() {
    isolated("a_task_writes_records_and_awaits_them", "", || {
        block_on(async {
            let device = airdma::Device::open("lo").unwrap();
            let target = device.datagram_endpoint().unwrap();
            let source = device.datagram_endpoint().unwrap();
            let region = device.allocate(100).unwrap();
            let shared = region.share(airdma::Rights::RECORD).unwrap();
            let remote = shared.remote_for_records(None).unwrap();
            let to = target.address();
            for round in 0..100u8 {
                let region = filled(&device, &[round; 100]);
                let writing = source.write_record(&to, region, .., &remote, 0, None);
                let (record, written) = both(target.record(), writing).await;
                written.unwrap();
                assert_eq!(record.unwrap().to_vec().unwrap(), [round; 100]);
            }
            // A task is woken by what comes much later.
            let writer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                let region = filled(&device, b"late");
                let writing = source.write_record(&to, region, .., &remote, 0, None);
                writing.wait().unwrap();
            });
            assert_eq!(target.record().await.unwrap().len(), 4);
            writer.join().unwrap();
        });
    });
}
