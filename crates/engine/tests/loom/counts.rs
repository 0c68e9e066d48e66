//! Objects are used and destroyed at the same time.

use crate::use_count::UseCount;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

#[test]
fn an_object_is_used_or_destroyed_and_not_both() {
    loom::model(|| {
        let shared = Arc::new((UseCount::default(), AtomicBool::new(false)));
        let theirs = Arc::clone(&shared);
        let user = thread::spawn(move || {
            let (count, gone) = &*theirs;
            if count.acquire("it").is_ok() {
                assert!(!gone.load(Ordering::Relaxed), "destroyed under its user");
                count.release();
            }
        });
        let (count, gone) = &*shared;
        if count.destroy("it").is_ok_and(|first| first) {
            gone.store(true, Ordering::Relaxed);
        }
        user.join().unwrap();
        assert_eq!(count.acquire("it").is_err(), gone.load(Ordering::Relaxed));
    });
}

/// A destroying thread sees all that users did to the object.
#[test]
fn who_destroys_sees_what_users_did() {
    loom::model(|| {
        let shared = Arc::new((UseCount::default(), AtomicBool::new(false)));
        shared.0.acquire("it").unwrap();
        let theirs = Arc::clone(&shared);
        let user = thread::spawn(move || {
            theirs.1.store(true, Ordering::Relaxed);
            theirs.0.release();
        });
        if shared.0.destroy("it").is_ok() {
            assert!(shared.1.load(Ordering::Relaxed));
        }
        user.join().unwrap();
    });
}

#[test]
fn one_of_two_destroys() {
    loom::model(|| {
        let count = Arc::new(UseCount::default());
        let theirs = Arc::clone(&count);
        let other = thread::spawn(move || theirs.destroy("it").unwrap());
        assert_ne!(count.destroy("it").unwrap(), other.join().unwrap());
    });
}
