//! C programs that do what the man pages forbid: each call or completion says what they promise,
//! nothing crashes, nothing hangs, and no memory is lost over it.

#![allow(clippy::unwrap_used)]

mod library;
mod program;

const PROGRAMS: [&str; 4] = [
    "misuse_calls",
    "misuse_states",
    "misuse_requests",
    "misuse_objects",
];

#[test]
fn arguments_that_are_not_allowed() {
    program::run("misuse_calls");
}

#[test]
fn attributes_and_states_out_of_turn() {
    program::run("misuse_states");
}

#[test]
fn work_requests_that_cannot_be_done() {
    program::run("misuse_requests");
}

#[test]
fn objects_in_use_and_queues_that_are_too_small() {
    program::run("misuse_objects");
}

#[test]
fn no_memory_is_lost_over_mistakes() {
    for name in PROGRAMS {
        program::run_in_valgrind(name);
    }
}

#[test]
fn a_parent_goes_on_and_a_child_is_told_what_is_not_its_own() {
    program::run("fork_in_use");
}

#[test]
fn memory_is_registered_after_the_main_thread_has_ended() {
    program::run("main_has_ended");
}
