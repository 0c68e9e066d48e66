//! The moments between the steps of a checkpoint.

use super::*;
use crate::{Limits, Source, walk};
use std::fs;
use std::path::PathBuf;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("airdma-sink-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("out")).unwrap();
        fs::write(path.join("a"), b"content").unwrap();
        Self(path)
    }

    /// A sink of one file, of which all chunks were written.
    fn sink(&self) -> Sink {
        let walked = walk(&[self.0.join("a")], Limits::default()).unwrap();
        let manifest = Arc::new(walked.manifest.clone());
        let mut sink = Sink::open(
            &self.0.join("out"),
            Arc::clone(&manifest),
            manifest.id(),
            Options::default(),
        )
        .unwrap();
        let mut source = Source::new(&walked, sink.unwanted(), sink.next());
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        while sink.next() < sink.plan().chunks() {
            let length = source.read(&mut buffer);
            sink.write(&buffer[..length]).unwrap();
        }
        sink
    }

    fn arrived(&self) -> bool {
        self.0.join("out/a").exists()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_has_no_name_before_the_journal_vouches_for_it() {
    let scratch = Scratch::new("before");
    let mut sink = scratch.sink();
    sink.journal.refuse_writes();
    let error = sink.checkpoint().unwrap_err();
    assert!(!scratch.arrived());
    assert_eq!(sink.checkpoint(), Err(error), "an error stays");
    drop(sink);
    scratch.sink().finish().unwrap();
    assert!(scratch.arrived());
}

#[test]
fn a_file_that_the_journal_vouches_for_gets_its_name_in_the_next_life() {
    let scratch = Scratch::new("after");
    let mut sink = scratch.sink();
    sink.begin_checkpoint().unwrap();
    let checkpoint = sink.checkpoint.take().unwrap();
    sink.journal.record(checkpoint.chunks).unwrap();
    drop(checkpoint);
    drop(sink);
    assert!(!scratch.arrived());
    let sink = scratch.sink();
    assert!(scratch.arrived());
    sink.finish().unwrap();
}
