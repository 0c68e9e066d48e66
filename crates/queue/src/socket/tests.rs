use super::*;
use crate::carrier::{Carrier, News, Outcome, Stop};
use crate::client::{Client, ClientError};
use crate::job::{FilePath, Order};
use crate::journal::Journal;
use crate::protocol::Refusal;
use std::io::{BufRead, Read};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

static FOLDERS: AtomicU32 = AtomicU32::new(0);

/// A carrier that never transfers anything.
struct Idle;

impl Carrier for Idle {
    fn carry(&self, _: &Order, _: &dyn Fn(News), _: &Stop) -> Outcome {
        Outcome::Stopped
    }
}

/// A service that listens, and runs no job.
struct Bench {
    folder: PathBuf,
    service: Arc<Service>,
    socket: Arc<Socket>,
    serving: Option<JoinHandle<()>>,
}

impl Bench {
    fn new() -> Bench {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("airdma-socket-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let service = Arc::new(Service::open(&folder.join("state"), Idle, |_| {}).unwrap());
        let socket = Arc::new(Socket::bind(&folder.join("queue.sock")).unwrap());
        let (serving, listening) = (Arc::clone(&service), Arc::clone(&socket));
        Bench {
            folder,
            service,
            socket,
            serving: Some(std::thread::spawn(move || {
                listening.serve(&serving).unwrap()
            })),
        }
    }

    fn path(&self) -> &Path {
        &self.socket.path
    }

    /// The answers to `bytes`, line by line.
    fn told(&self, bytes: &[u8]) -> Vec<String> {
        let mut stream = UnixStream::connect(self.path()).unwrap();
        // A refusal is sent before all bytes are read.
        stream.write_all(bytes).ok();
        stream.shutdown(std::net::Shutdown::Write).ok();
        BufReader::new(stream)
            .lines()
            .map_while(Result::ok)
            .collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.service.stop();
        self.socket.waker()();
        if let Some(serving) = self.serving.take() {
            serving.join().unwrap();
        }
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

fn order() -> Order {
    Order {
        paths: vec![FilePath("/".into())],
        to: "anna".into(),
        code: None,
        key: None,
        priority: 50,
    }
}

#[test]
fn programs_ask_and_are_answered() {
    let bench = Bench::new();
    let mut client = Client::connect(bench.path()).unwrap();
    let Reply::Job(job) = client.ask(&Request::Add(order())).unwrap() else {
        panic!("no job");
    };
    assert_eq!((job.id, &job.order), (1, &order()));
    let listed = client.ask(&Request::List {}).unwrap();
    assert_eq!(listed, Reply::Jobs(vec![*job]));
    let cancelled = client.ask(&Request::Cancel { id: 1 }).unwrap();
    assert!(matches!(cancelled, Reply::Job(_)), "{cancelled:?}");
}

#[test]
fn the_lines_are_those_of_the_documentation() {
    let bench = Bench::new();
    let pages = include_str!("../../../../docs/queue-protocol.md");
    let mut asked = 0;
    for line in pages.lines().filter_map(|line| line.strip_prefix("-> ")) {
        let told = bench.told(format!("{line}\n").as_bytes());
        assert_eq!(told.len(), 1, "{line}");
        assert!(!told[0].contains("malformed"), "{line}: {told:?}");
        asked += 1;
    }
    assert!(asked >= 4, "{asked}");
}

#[test]
fn garbage_is_answered_and_harms_nobody() {
    let bench = Bench::new();
    for garbage in [
        &b"hello\n"[..],
        b"{}\n",
        b"[]\n",
        b"\0\xff\xfe\n",
        br#"{"list":{},"status":{"id":1}}"#,
        br#"{"add":{"paths":["/"],"to":"a","rm":"-rf"}}"#,
        br#"{"status":{"id":-1}}"#,
        br#"{"status":{"id":99999999999999999999}}"#,
        br#"{"add":{"paths":["/"],"to":"a","priority":300}}"#,
        b"\n",
    ] {
        let told = bench.told(garbage);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains(r#""kind":"malformed""#), "{told:?}");
    }
    // The next line of the same program is read.
    let told = bench.told(b"nonsense\n{\"list\":{}}\n");
    assert_eq!(told.len(), 2);
    assert_eq!(told[1], r#"{"jobs":[]}"#);
    let deep = "[".repeat(100_000);
    assert!(bench.told(deep.as_bytes())[0].contains("malformed"));
}

/// Pseudo-random bytes, the same in each run.
struct Chance(u64);

impl Chance {
    /// One of `0..end`.
    fn below(&mut self, end: usize) -> usize {
        // Xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize % end
    }

    fn byte(&mut self) -> u8 {
        self.below(256) as u8
    }

    /// A line: a request with some bytes replaced and perhaps cut off, or random bytes.
    fn line(&mut self) -> Vec<u8> {
        let requests = [
            r#"{"list":{}}"#,
            r#"{"status":{"id":1}}"#,
            r#"{"cancel":{"id":1}}"#,
            r#"{"add":{"paths":["/",[47]],"to":"anna:7000","priority":99,"code":"apple-bread"}}"#,
        ];
        let mut line: Vec<u8> = match self.below(3) {
            0 => (0..self.below(200)).map(|_| self.byte()).collect(),
            _ => requests[self.below(requests.len())].into(),
        };
        for _ in 0..self.below(3) {
            if !line.is_empty() {
                let at = self.below(line.len());
                line[at] = self.byte();
            }
        }
        if self.below(4) == 0 {
            line.truncate(self.below(line.len() + 1));
        }
        // Keep it one line.
        line.retain(|&byte| byte != b'\n');
        line.push(b'\n');
        line
    }
}

#[test]
fn random_lines_are_all_answered_and_the_journal_stays_whole() {
    let bench = Bench::new();
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    let (mut malformed, mut others) = (0, 0);
    // Few enough for each connection that no side waits for a buffer to be read.
    for _ in 0..20 {
        let lines: Vec<_> = (0..50).map(|_| chance.line()).collect();
        let told = bench.told(&lines.concat());
        assert_eq!(told.len(), lines.len(), "{told:?}");
        for (line, told) in lines.iter().zip(&told) {
            let asked = String::from_utf8_lossy(line);
            match serde_json::from_str(told).unwrap() {
                Reply::Error(Refusal { kind, message }) => {
                    assert_ne!(kind, RefusalKind::System, "{asked}: {message}");
                    malformed += u32::from(kind == RefusalKind::Malformed);
                }
                Reply::Job(_) | Reply::Jobs(_) => others += 1,
            }
        }
    }
    assert!(malformed > 300 && others > 30, "{malformed}, {others}");
    let jobs = bench.told(b"{\"list\":{}}\n");
    let Reply::Jobs(jobs) = serde_json::from_str(&jobs[0]).unwrap() else {
        panic!("{jobs:?}");
    };
    assert!(!jobs.is_empty());
    // The journal that another service would find if this one were killed now.
    let copy = bench.folder.join("copy");
    std::fs::create_dir(&copy).unwrap();
    let journal = bench.folder.join("state/queue.journal");
    std::fs::copy(journal, copy.join("queue.journal")).unwrap();
    let (_, found) = Journal::open(&copy).unwrap();
    assert_eq!(found.damaged_lines, 0);
    assert!(found.jobs.keys().eq(jobs.iter().map(|job| &job.id)));
}

#[test]
fn a_line_without_end_is_cut_off() {
    let bench = Bench::new();
    let told = bench.told(&vec![b'x'; 3 * REQUEST_BYTES_MAX]);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("more than 1048576 bytes"), "{told:?}");
    let longest = br#"{"list":{}}"#;
    let mut line = vec![b' '; REQUEST_BYTES_MAX - longest.len()];
    line.extend(longest);
    line.push(b'\n');
    assert_eq!(bench.told(&line), [r#"{"jobs":[]}"#]);
}

#[test]
fn programs_that_say_nothing_keep_no_other_out() {
    let bench = Bench::new();
    let mut first = Client::connect(bench.path()).unwrap();
    let mut silent: Vec<UnixStream> = (1..CONNECTIONS_MAX)
        .map(|_| UnixStream::connect(bench.path()).unwrap())
        .collect();
    // A line without its end is not a request.
    silent[0].write_all(b"{").unwrap();
    // It asked last of those that are connected: it stays, and those that never asked are
    // disconnected.
    first.ask(&Request::List {}).unwrap();
    for _ in 0..5 {
        assert_eq!(bench.told(b"{\"list\":{}}\n"), [r#"{"jobs":[]}"#]);
    }
    first.ask(&Request::List {}).unwrap();
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "it was let go");
}

#[test]
fn who_is_being_answered_goes_for_nobody() {
    let programs = Programs::default();
    let stream = || Arc::new(UnixStream::pair().unwrap().0);
    let streams: Vec<_> = (0..CONNECTIONS_MAX).map(|_| stream()).collect();
    for stream in &streams {
        assert!(programs.enter(stream));
        programs.ask(stream);
    }
    let late = stream();
    assert!(!programs.enter(&late));
    programs.answer(&streams[7]);
    assert!(programs.enter(&late));
    programs.answer(&streams[7]);
    programs.leave(&late);
    let connected = programs.connected();
    let left = (connected.silent.len(), connected.answered.len());
    assert_eq!(
        left,
        (0, CONNECTIONS_MAX - 1),
        "who was let go is forgotten"
    );
}

#[test]
fn a_reader_that_reads_slowly_is_disconnected() {
    let (here, there) = UnixStream::pair().unwrap();
    let long = Duration::from_millis(500);
    let mut answers = Punctual {
        stream: &here,
        until: Instant::now() + long,
    };
    let stopped = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                (&there).read_exact(&mut [0; 4096]).ok();
                std::thread::sleep(long / 10);
            }
        });
        let start = Instant::now();
        // More than fits into the socket's buffer and the part that was read.
        let error = answers.write_all(&vec![0; 4 << 20]).unwrap_err();
        stopped.store(true, Ordering::Relaxed);
        here.shutdown(Shutdown::Both).unwrap();
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(kinds.contains(&error.kind()), "{error}");
        assert!(start.elapsed() < long * 10, "{:?}", start.elapsed());
    });
}

#[test]
fn a_service_ends_whatever_became_of_its_socket() {
    let bench = Bench::new();
    std::fs::remove_file(bench.path()).unwrap();
    let _other = UnixListener::bind(bench.path()).unwrap();
    // Waits for the service to end.
    drop(bench);
}

#[test]
fn a_socket_that_is_anothers_is_left() {
    let folder = Bench::new();
    let path = folder.folder.join("own.sock");
    let socket = Socket::bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(socket);
    assert!(path.exists());
}

#[test]
fn a_second_service_is_told_and_one_that_was_killed_is_replaced() {
    let bench = Bench::new();
    let path = bench.path().to_owned();
    let error = Socket::bind(&path).unwrap_err().to_string();
    assert!(
        error.starts_with("another `airdma serve` listens at"),
        "{error}"
    );
    assert_eq!(
        bench.told(b"{\"list\":{}}\n").len(),
        1,
        "the first one goes on"
    );

    let left = bench.folder.join("left.sock");
    drop(UnixListener::bind(&left).unwrap());
    assert!(left.exists());
    let socket = Socket::bind(&left).unwrap();
    drop(socket);
    assert!(!left.exists(), "a socket goes with its service");

    let file = bench.folder.join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = Socket::bind(&file).unwrap_err().to_string();
    assert!(error.contains("not a socket: move it away"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn only_its_user_opens_it() {
    let bench = Bench::new();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(bench.path()), 0o600);
    let socket = Socket::bind(&bench.folder.join("made/here/queue.sock")).unwrap();
    assert_eq!(mode(socket.path.parent().unwrap()), 0o700);
}

#[test]
fn without_a_service_the_client_says_what_to_do() {
    let error = Client::connect(Path::new("/no/such.sock")).unwrap_err();
    assert!(matches!(error, ClientError::NoService { .. }));
    assert!(
        error.to_string().contains("start `airdma serve`"),
        "{error}"
    );
}
