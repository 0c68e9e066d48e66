//! A single file to a pipe.

use crate::scratch::{Scratch, noise, source};
use airdma_files::{CHUNK_BYTES, Flaw, Pour, Problem, Source};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The bytes written to the pipe.
#[derive(Clone, Default)]
struct Pipe(Arc<Mutex<Vec<u8>>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A pipe whose reader is gone.
struct Broken;

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(32))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn begin(path: &Path) -> (Source, Pour, Pipe) {
    let (source, manifest) = source(path);
    let pipe = Pipe::default();
    let pour = Pour::new(manifest, Box::new(pipe.clone())).unwrap();
    (source, pour, pipe)
}

fn carry(source: &mut Source, pour: &mut Pour) {
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    while pour.next() < pour.plan().chunks() {
        let length = source.read(&mut buffer);
        pour.write(&buffer[..length]).unwrap();
    }
}

#[test]
fn a_file_comes_out_as_it_is_and_its_holes_as_zeros() {
    let scratch = Scratch::new();
    let sparse = scratch.join("sparse");
    let file = File::create(&sparse).unwrap();
    file.set_len(9_000_000).unwrap();
    file.write_all_at(&noise(1, 300_000), 5_000_000).unwrap();
    let paths = [
        scratch.write("dense", noise(2, 2_500_000)),
        scratch.write("empty", ""),
        sparse,
    ];
    for path in paths {
        let (mut source, mut pour, pipe) = begin(&path);
        carry(&mut source, &mut pour);
        let report = pour.finish().unwrap();
        assert_eq!((report.files, report.flaws), (1, vec![]));
        assert!(*pipe.0.lock().unwrap() == std::fs::read(&path).unwrap());
    }
}

#[test]
fn that_a_file_changed_is_known_at_its_end() {
    let scratch = Scratch::new();
    let path = scratch.write("file", noise(3, 1000));
    let (mut source, mut pour, _) = begin(&path);
    scratch.write("file", noise(4, 1000));
    carry(&mut source, &mut pour);
    let report = pour.finish().unwrap();
    assert_eq!((report.files, report.flaws), (0, vec![(0, Flaw::Changed)]));
}

#[test]
fn only_one_file_can_be_piped_and_a_closed_pipe_is_an_error() {
    let scratch = Scratch::new();
    scratch.write("tree/file", "x");
    let (_, tree) = source(&scratch.join("tree"));
    assert!(!Pour::takes(&tree) && Pour::new(tree, Box::new(Broken)).is_none());
    let (mut source, manifest) = source(&scratch.join("tree/file"));
    let mut pour = Pour::new(manifest, Box::new(Broken)).unwrap();
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    let length = source.read(&mut buffer);
    let error = pour.write(&buffer[..length]).unwrap_err();
    assert!(matches!(error.problem, Problem::Other(_)), "{error}");
}
