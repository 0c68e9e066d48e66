//! A program empties its buffer while the worker reports its length to the peer.

use crate::application_buffer::{ApplicationBuffer, Fill};
use loom::sync::Arc;
use loom::thread;

/// A peer that believes the buffer full sends nothing more, so no other event would cause a report.
#[test]
fn a_peer_hears_that_a_buffer_was_emptied() {
    loom::model(|| {
        let fill = |bytes| Fill {
            bytes,
            capacity: 64,
        };
        let buffer = Arc::new(ApplicationBuffer::new());
        buffer.set(fill(64));
        let worker = Arc::clone(&buffer);
        let worker = thread::spawn(move || worker.tell());
        let is_news = buffer.set(fill(0));
        let told = worker.join().unwrap();
        assert!(is_news || told == fill(0), "it was told {told:?}");
    });
}
