//! The journal of the queue, with any content: a service starts with it, whatever the bytes are,
//! and what it keeps then the next one finds.

use crate::input::Input;
use crate::queue_request::{Folder, jobs, open};
use airdma_queue::protocol::Reply;
use airdma_queue::socket::answer_lines;

const ADD: &[u8] = b"{\"add\":{\"paths\":[\"/\"],\"to\":\"anna\"}}\n";
const LINES_MAX: usize = 8;
/// Contents of lines, whose sums are right.
const RECORDS: [&str; 7] = [
    r#"{"last_id":7}"#,
    r#"{"last_id":18446744073709551615}"#,
    r#"{"job":{"id":1,"order":{"paths":["/"],"to":"anna","code":"lusab-babad"},"state":"queued","added":1}}"#,
    r#"{"job":{"id":1,"order":{"paths":["/"],"to":"anna"},"state":"running","added":1}}"#,
    r#"{"job":{"id":2,"order":{"paths":[[255]],"to":"","priority":0},"state":"done","added":1,"ended":9}}"#,
    r#"{"job":{"id":18446744073709551615,"order":{"paths":[],"to":"x"},"state":"queued","added":0}}"#,
    r#"{"job":{"id":3,"order":{"paths":["/"],"to":"x","key":"y"},"state":"failed","added":3,"attempts":4294967295}}"#,
];

/// The bytes as a journal; and lines, some of which have bytes replaced before or after they were
/// summed.
pub fn run(data: &[u8]) {
    check(data);
    let mut input = Input::new(data);
    let mut journal = Vec::new();
    for _ in 0..input.below(LINES_MAX) {
        let mut json = input.pick(&RECORDS).as_bytes().to_vec();
        for _ in 0..input.below(3) {
            let at = input.below(json.len());
            json[at] = input.byte();
        }
        journal.extend(format!("{:08x} ", crc32fast::hash(&json)).bytes());
        journal.extend(json);
        journal.push(b'\n');
    }
    if input.one_in(4) && !journal.is_empty() {
        let at = input.below(journal.len());
        journal[at] = input.byte();
    }
    check(&journal);
}

fn check(bytes: &[u8]) {
    let folder = Folder::new();
    folder.put("queue.journal", bytes);
    let service = open(&folder);
    // Whatever numbers were used, one more job is taken or refused.
    let mut answer = Vec::new();
    answer_lines(ADD, &mut answer, &service).expect("memory is written to");
    let reply: Reply = serde_json::from_slice(&answer).expect("an answer is one");
    let known = jobs(&service);
    if let Reply::Job(added) = reply {
        assert!(known.contains(&added) && known.iter().all(|job| job.id <= added.id));
    }
    drop(service);
    assert_eq!(jobs(&open(&folder)), known, "it is kept");
}
