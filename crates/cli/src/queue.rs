//! `airdma queue`: a client of `airdma serve`.

use crate::serve::socket_path;
use crate::warn;
use crate::words::{json_line, printable_lines};
use airdma_queue::protocol::{RefusalKind, Reply, Request};
use airdma_queue::{Client, ClientError, FilePath, Job, Order, PRIORITIES, PRIORITY, State};
use serde_json::Value;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

mod words;

pub const HELP: &str = "\
Examples:
  airdma queue add holiday.mp4 photos anna     prints the number of the job
  airdma queue add --priority 100 notes 192.0.2.7 --wait
  airdma queue list                            what waits and what runs; --all: what is over, too
  airdma queue cancel 7

Exit status:
  0  done as asked
  1  the service refused or could not
  2  the command line, or a path that is not there
  3  no service answers
  4  no job has this number
  5  the job is over already, and cannot be cancelled
  7  with --wait or wait: some files did not arrive; all others did
  8  with --wait or wait: the job failed, or was cancelled";

const USAGE: u8 = 2;
const NO_SERVICE: u8 = 3;
const NO_JOB: u8 = 4;
const OVER: u8 = 5;
const FLAWED: u8 = 7;
const FAILED: u8 = 8;
/// Interval of checks while waiting for a job.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
    /// Socket of the service [default: $AIRDMA_QUEUE, $XDG_RUNTIME_DIR/airdma-queue.sock, or
    /// queue.sock in the state directory]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Print JSON, with jobs as in docs/queue-protocol.md
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Queue files and directories, and print the number of the job.
    Add(AddOptions),
    /// List waiting and running jobs
    List {
        /// Also list the last 100 ended jobs
        #[arg(short, long)]
        all: bool,
    },
    /// Show everything about a job
    Status {
        /// Number of the job
        id: u64,
    },
    /// Wait until a job has ended
    Wait {
        /// Number of the job
        id: u64,
    },
    /// Cancel jobs
    Cancel {
        /// Numbers of the jobs
        #[arg(required = true)]
        ids: Vec<u64>,
    },
}

#[derive(clap::Args)]
struct AddOptions {
    /// Files and directories; last the receiver, unless --to names it
    #[arg(required = true, value_name = "PATH... [PEER]")]
    words: Vec<PathBuf>,
    /// Receiver: an address or a name, with :PORT if it is not the default
    #[arg(long, value_name = "PEER")]
    to: Option<String>,
    /// 1 to 100: higher ones go first
    #[arg(short, long, value_name = "N", default_value_t = PRIORITY,
        value_parser = clap::value_parser!(u8).range(*PRIORITIES.start() as i64..=*PRIORITIES.end() as i64))]
    priority: u8,
    /// Code that the receiver shows, if it is not known yet. AIRDMA_CODE in the environment does
    /// the same, hidden from other users
    #[arg(long)]
    code: Option<String>,
    /// Wait until the job has ended
    #[arg(short, long)]
    wait: bool,
}

/// A failed command: exit status and message.
struct Failed(u8, String);

pub fn queue(options: &Options) -> ExitCode {
    match run(options) {
        Ok(status) => ExitCode::from(status),
        Err(Failed(status, message)) => {
            warn(&message);
            ExitCode::from(status)
        }
    }
}

fn run(options: &Options) -> Result<u8, Failed> {
    // An invalid command line is reported with or without a service.
    let order = match &options.command {
        Command::Add(add) => Some(order(add)?),
        Command::List { .. }
        | Command::Status { .. }
        | Command::Wait { .. }
        | Command::Cancel { .. } => None,
    };
    let socket = options.socket.clone().or_else(socket_path);
    let unknown = || {
        Failed(
            USAGE,
            "where the service listens is not known: set HOME, or give --socket".into(),
        )
    };
    let mut client = Client::connect(&socket.ok_or_else(unknown)?)?;
    match (&options.command, order) {
        (Command::Add(add), Some(order)) => {
            let job = ask(&mut client, &Request::Add(order))?;
            if !options.json || !add.wait {
                show(&job, options.json, &job.id.to_string())?;
            }
            if add.wait {
                return wait(&mut client, job.id, options.json);
            }
        }
        (Command::List { all }, _) => list(&mut client, *all, options.json)?,
        (Command::Status { id }, _) => {
            let job = ask(&mut client, &Request::Status { id: *id })?;
            show(&job, options.json, &words::details(&job))?;
        }
        (Command::Wait { id }, _) => return wait(&mut client, *id, options.json),
        (Command::Cancel { ids }, _) => return cancel(&mut client, ids, options.json),
        (Command::Add(_), None) => {}
    }
    Ok(0)
}

/// The order that an `add` command means.
fn order(add: &AddOptions) -> Result<Order, Failed> {
    let usage = |message: String| Failed(USAGE, message);
    let mut paths = add.words.clone();
    let to = match &add.to {
        Some(to) => to.clone(),
        None => {
            let last = paths.pop().unwrap_or_default();
            let typed = last.to_string_lossy().into_owned();
            if paths.is_empty() {
                return Err(usage(format!("to whom? airdma queue add {typed} PEER")));
            }
            if std::fs::symlink_metadata(&last).is_ok() {
                return Err(usage(format!(
                    "{typed} is a file here: name the receiver behind it, or with --to"
                )));
            }
            typed
        }
    };
    let code = std::env::var("AIRDMA_CODE").ok();
    let code = add.code.clone().or(code).filter(|code| !code.is_empty());
    if let Some(code) = &code {
        airdma_files::session::Code::parse(code)
            .map_err(|_| usage("no code: two words of five letters".into()))?;
    }
    let paths: Result<Vec<FilePath>, Failed> = paths.iter().map(|path| found(path)).collect();
    Ok(Order {
        paths: paths?,
        to,
        code,
        key: None,
        priority: add.priority,
    })
}

/// A path for the service, which runs in another directory.
fn found(path: &Path) -> Result<FilePath, Failed> {
    if path.as_os_str() == "-" {
        let message = "standard input cannot wait in a queue: `airdma send -` sends it";
        return Err(Failed(USAGE, message.into()));
    }
    let wrong = |error: io::Error| Failed(USAGE, format!("{}: {error}", path.display()));
    std::fs::symlink_metadata(path).map_err(wrong)?;
    std::path::absolute(path).map(FilePath).map_err(wrong)
}

fn ask(client: &mut Client, request: &Request) -> Result<Job, Failed> {
    match client.ask(request)? {
        Reply::Job(job) => Ok(*job),
        Reply::Error(refusal) => Err(Failed(status_of(refusal.kind), refusal.message)),
        Reply::Jobs(_) => Err(ClientError::Strange.into()),
    }
}

fn list(client: &mut Client, all: bool, json: bool) -> Result<(), Failed> {
    let jobs = match client.ask(&Request::List {})? {
        Reply::Jobs(jobs) => jobs,
        Reply::Error(refusal) => return Err(Failed(status_of(refusal.kind), refusal.message)),
        Reply::Job(_) => return Err(ClientError::Strange.into()),
    };
    let shown: Vec<Job> = jobs
        .into_iter()
        .filter(|job| all || !job.state.is_over())
        .collect();
    if json {
        let json = serde_json::to_string(&shown).unwrap_or_default();
        return print(&json_line(&json));
    }
    if shown.is_empty() {
        return Ok(());
    }
    print(&printable_lines(words::table(&shown).trim_end()))
}

fn wait(client: &mut Client, id: u64, json: bool) -> Result<u8, Failed> {
    loop {
        let job = ask(client, &Request::Status { id })?;
        if !job.state.is_over() {
            std::thread::sleep(LOOK_EVERY);
            continue;
        }
        show(&job, json, words::line(&job).trim_end())?;
        return Ok(match job.state {
            State::Done if job.flaws.is_empty() => 0,
            State::Done => FLAWED,
            State::Failed | State::Cancelled | State::Queued | State::Running => FAILED,
        });
    }
}

/// Cancels all jobs that can be; the first that cannot determines the status.
fn cancel(client: &mut Client, ids: &[u64], json: bool) -> Result<u8, Failed> {
    let mut status = 0;
    for &id in ids {
        match ask(client, &Request::Cancel { id }) {
            Ok(job) if json => show(&job, true, "")?,
            Ok(_) => {}
            Err(Failed(NO_SERVICE, message)) => return Err(Failed(NO_SERVICE, message)),
            Err(Failed(why, message)) => {
                warn(&message);
                status = if status == 0 { why } else { status };
            }
        }
    }
    Ok(status)
}

fn show(job: &Job, json: bool, text: &str) -> Result<(), Failed> {
    if !json {
        return print(&printable_lines(text));
    }
    let job = serde_json::to_value(job).unwrap_or(Value::Null);
    print(&json_line(&job))
}

fn print(text: &str) -> Result<(), Failed> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failed(1, format!("standard output: {error}")))
        }
        // A closed pipe is not an error.
        Ok(()) | Err(_) => Ok(()),
    }
}

fn status_of(kind: RefusalKind) -> u8 {
    match kind {
        RefusalKind::Malformed | RefusalKind::Path => USAGE,
        RefusalKind::NoJob => NO_JOB,
        RefusalKind::Over => OVER,
        RefusalKind::Full | RefusalKind::Busy | RefusalKind::System => 1,
    }
}

impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Failed {
        let status = match error {
            ClientError::NoService { .. } | ClientError::Lost(_) => NO_SERVICE,
            ClientError::Strange => 1,
        };
        Failed(status, error.to_string())
    }
}
