//! Requests to the queue's socket: lines that are requests, nearly, or not at all; and the
//! journal that is left.

use crate::input::Input;
use airdma_queue::protocol::{Refusal, RefusalKind, Reply};
use airdma_queue::socket::answer_lines;
use airdma_queue::{Carrier, Job, News, Order, Outcome, Service, State, Stop};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const LINES_MAX: usize = 24;
/// Most bytes of a line that is not a request from its first byte on.
const LENGTH_MAX: usize = 200;
const REQUESTS: [&str; 8] = [
    r#"{"list":{}}"#,
    r#"{"status":{"id":1}}"#,
    r#"{"cancel":{"id":1}}"#,
    r#"{"cancel":{"id":2}}"#,
    r#"{"add":{"paths":["/"],"to":"anna"}}"#,
    r#"{"add":{"paths":["/",[47]],"to":"anna:7000","priority":99,"code":"lusab-babad"}}"#,
    r#"{"add":{"paths":["/etc/../"],"to":"\u0000\n\u001b[2J","priority":1}}"#,
    r#"{"add":{"paths":[[47,47,46]],"to":"10.0.0.1","code":"lusab-babad"}}"#,
];

static FOLDERS: AtomicU64 = AtomicU64::new(0);

/// Carries nothing, ever.
struct Idle;

impl Carrier for Idle {
    fn carry(&self, _: &Order, _: &dyn Fn(News), _: &Stop) -> Outcome {
        Outcome::Stopped
    }
}

/// A state directory, gone with it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("airdma-queue-request-{}-{number}", std::process::id());
        // In memory: the journal is synced at each line.
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() {
            memory.into()
        } else {
            std::env::temp_dir()
        };
        Folder(place.join(name))
    }

    /// Makes it, with a file in it.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        let made = std::fs::DirBuilder::new().mode(0o700).create(&self.0);
        made.expect("it is not there yet");
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600);
        let file = file.open(self.0.join(name));
        file.and_then(|mut file| std::io::Write::write_all(&mut file, bytes))
            .expect("there is room in memory");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Each line has its answer, and what was answered is what the next service finds.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut lines = Vec::new();
    while !input.is_empty() && lines.len() < LINES_MAX {
        lines.push(line(&mut input));
    }
    let folder = Folder::new();
    let service = open(&folder);
    let mut answers = Vec::new();
    answer_lines(&*lines.concat(), &mut answers, &service).expect("memory is written to");
    let answers: Vec<&[u8]> = answers.split_inclusive(|&byte| byte == b'\n').collect();
    assert_eq!(answers.len(), lines.len(), "one for each");
    let mut added = 0;
    for (line, answer) in lines.iter().zip(answers) {
        match serde_json::from_slice(answer).expect("an answer is one") {
            Reply::Error(Refusal { kind, message }) => {
                assert_ne!(kind, RefusalKind::System, "{message}: {line:?}");
            }
            Reply::Job(job) => {
                added = added.max(job.id);
                assert_eq!(job.order.code, None, "it is never shown");
            }
            Reply::Jobs(jobs) => assert!(jobs.iter().all(|job| job.order.code.is_none())),
        }
    }
    let known = jobs(&service);
    assert_eq!(known.len() as u64, added, "none was forgotten");
    assert!(known.iter().zip(1..).all(|(job, id)| job.id == id));
    drop(service);
    assert_eq!(
        jobs(&open(&folder)),
        known,
        "what was answered is on the disk"
    );
}

pub(crate) fn open(folder: &Folder) -> Service {
    Service::open(&folder.0, Idle, |_| {}).expect("a journal of its own opens")
}

pub(crate) fn jobs(service: &Service) -> Vec<Job> {
    let mut answer = Vec::new();
    answer_lines(&b"{\"list\":{}}\n"[..], &mut answer, service).expect("memory is written to");
    match serde_json::from_slice(&answer) {
        Ok(Reply::Jobs(jobs)) => {
            // Nothing runs.
            assert!(jobs.iter().all(|job| job.state != State::Running));
            jobs
        }
        other => panic!("{other:?}"),
    }
}

/// A request with some bytes replaced, and perhaps cut off, or bytes of no meaning.
fn line(input: &mut Input<'_>) -> Vec<u8> {
    let mut line = match input.below(4) {
        0 => {
            let length = input.below(LENGTH_MAX);
            input.take(length).to_vec()
        }
        _ => input.pick(&REQUESTS).into(),
    };
    for _ in 0..input.below(4) {
        if !line.is_empty() {
            let at = usize::from(input.byte()) % line.len();
            line[at] = input.byte();
        }
    }
    if input.one_in(8) {
        line.truncate(usize::from(input.byte()));
    }
    // It is one line, whatever it says.
    line.retain(|&byte| byte != b'\n');
    line.push(b'\n');
    line
}
