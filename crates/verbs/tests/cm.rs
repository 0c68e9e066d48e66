//! C programs against the calls of librdmacm: what they refuse, what their events say, who waits for whom.

#![allow(clippy::unwrap_used)]

mod library;
mod program;

const PROGRAMS: [&str; 2] = ["cm_calls", "cm_events"];

#[test]
fn arguments_and_states_that_are_not_allowed() {
    program::run("cm_calls");
}

#[test]
fn events_of_both_sides() {
    program::run("cm_events");
}

#[test]
fn no_memory_is_lost_over_connections() {
    for name in PROGRAMS {
        program::run_in_valgrind(name);
    }
}
