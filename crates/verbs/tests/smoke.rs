//! C programs against the library: what the man pages promise.

#![allow(clippy::unwrap_used)]

mod library;
mod program;

#[test]
fn a_c_program_finds_what_the_man_pages_promise() {
    program::run("smoke");
}

#[test]
fn work_requests_that_are_built_call_by_call() {
    program::run("work_requests");
}

#[test]
fn completions_that_are_read_field_by_field() {
    program::run("polling");
}

#[test]
fn functions_of_the_c_library_behave_as_without_us() {
    program::run("files");
}

#[test]
fn threads_that_are_cancelled() {
    program::run("cancel");
}

#[test]
fn queries_answer_what_was_set_and_what_is_there() {
    program::run("queries");
}
