//! Tables of which each process has its own, under loom: every interleaving, and every value that
//! the memory model lets a load return. The modules are the crate's own files.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p airdma-preload --release --test loom`
#![cfg(loom)]
#![allow(dead_code, missing_docs, clippy::new_without_default)]
#![allow(clippy::unwrap_used)]

#[path = "../src/per_process.rs"]
mod per_process;
#[path = "../src/sync.rs"]
mod sync;

use loom::cell::UnsafeCell;
use loom::thread;
use per_process::PerProcess;

/// Takes the place of `Process`: a number that a model changes where it forks, which it does with
/// one thread.
mod process {
    use loom::cell::UnsafeCell;
    use std::cell::Cell;

    // Loom's threads are one of the system's.
    std::thread_local! {
        static CURRENT: Cell<u32> = const { Cell::new(0) };
    }

    pub struct Process(UnsafeCell<u32>);

    // SAFETY: loom watches the cell.
    unsafe impl Sync for Process {}

    impl Process {
        pub fn current() -> Self {
            Process(UnsafeCell::new(CURRENT.get()))
        }

        pub fn is_current(&self) -> bool {
            // SAFETY: loom checks that no thread writes to it meanwhile.
            self.0.with(|id| unsafe { *id } == CURRENT.get())
        }
    }

    /// From now on the model is about this process.
    pub fn go_on_as(process: u32) {
        CURRENT.set(process);
    }
}

/// A value that loom watches: a use that is not ordered after another's is reported.
struct Watched(UnsafeCell<u32>);

// SAFETY: loom watches it.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

impl Default for Watched {
    fn default() -> Self {
        Watched(UnsafeCell::new(0))
    }
}

impl Watched {
    fn read(&self) -> u32 {
        // SAFETY: loom checks that no thread writes to it meanwhile.
        self.0.with(|value| unsafe { *value })
    }

    fn add(&self, more: u32) {
        // SAFETY: loom checks that no other thread uses it meanwhile.
        self.0.with_mut(|value| unsafe { *value += more });
    }
}

type Table = PerProcess<Watched>;

/// Threads that use a table for the first time at once use the same one.
fn add_at_once(table: &'static Table) {
    let other = thread::spawn(|| table.lock().add(1));
    table.lock().add(1);
    other.join().unwrap();
    assert_eq!(table.lock().read(), 2);
}

#[test]
fn threads_that_look_first_at_once_share_one_table() {
    loom::model(|| {
        process::go_on_as(1);
        add_at_once(Box::leak(Box::new(Table::new())));
    });
}

/// The parent's table stays locked by a thread that the child does not have.
#[test]
fn threads_of_a_child_share_one_table_which_is_not_the_parents() {
    loom::model(|| {
        process::go_on_as(1);
        let table: &'static Table = Box::leak(Box::new(Table::new()));
        let held = table.lock();
        held.add(5);
        process::go_on_as(2);
        add_at_once(table);
        assert_eq!(held.read(), 5);
    });
}

#[test]
fn try_lock_sees_a_whole_change_or_nothing() {
    loom::model(|| {
        process::go_on_as(1);
        let table: &'static Table = Box::leak(Box::new(Table::new()));
        let other = thread::spawn(|| {
            let held = table.lock();
            held.add(1);
            held.add(1);
        });
        if let Some(held) = table.try_lock() {
            assert!(held.read() != 1);
        }
        other.join().unwrap();
    });
}
