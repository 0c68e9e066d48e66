//! `airdma recv`.

use super::show::{End, Show, Side, files};
use super::stdout::Output;
use super::{conclude, failed, stop, terminal};
use airdma_files::protocol::Config;
use airdma_files::session::{Code, Pin, Place, Role};
use airdma_files::{Clash, Options, Permissions, Symlinks, Unkept, printable};
use airdma_transfer::{
    Cancel, Destination, Doors, Error, Event, Home, Kind, Offered, PORT, ReceiveJob, Received,
    Shut, Stream,
};
use clap::ValueEnum;
use indicatif::DecimalBytes;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub const HELP: &str = concat!(
    "\
Examples:
  airdma recv                 into the current directory, after a question
  airdma recv --yes inbox     whatever comes, into the directory `inbox`
  airdma recv --keep inbox    one offer after the other, until Ctrl-C
  airdma recv - | tar x       one file, to standard output

",
    super::exit_status!()
);

/// A sender is shown by its name as a known receiver, if it has one, else by the address where it
/// became known.
const NAMED_BY: [Role; 2] = [Role::Receiver, Role::Sender];

#[derive(clap::Args)]
pub struct RecvOptions {
    /// Where files go: an existing directory, or `-` for standard output
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Accept without asking. Unknown senders without the code are refused in any case
    #[arg(short, long)]
    yes: bool,
    /// Keep receiving, with a new code per offer, until stopped or a code is wrong three times
    #[arg(short, long)]
    keep: bool,
    /// Show this code instead of a new one: two words of five letters, such as lusab-babad.
    #[arg(long, value_parser = super::send::code, conflicts_with = "no_code")]
    code: Option<Code>,
    /// Show no code: admit known senders only
    #[arg(long)]
    no_code: bool,
    /// Listen on this interface or address only. May be given several times
    #[arg(long, value_name = "IFACE")]
    on: Vec<String>,
    /// Port to listen on, in the port space of RDMA CM
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Name to announce on this network [default: the host's]
    #[arg(long)]
    name: Option<String>,
    /// Do not announce the receiver on this network
    #[arg(long, conflicts_with = "name")]
    no_name: bool,
    /// What to do about existing names
    #[arg(long, value_enum, default_value_t = Exists::Refuse, value_name = "POLICY")]
    if_exists: Exists,
    /// Which symbolic links to create
    #[arg(long, value_enum, default_value_t = Links::Inside, value_name = "WHICH")]
    symlinks: Links,
    /// Keep the sender's permissions regardless of the umask (as `tar -p`), except setuid, setgid
    /// and sticky
    #[arg(long)]
    preserve_permissions: bool,
    /// Give files the default permissions of new ones
    #[arg(long, conflicts_with = "preserve_permissions")]
    no_permissions: bool,
    /// Give files the time of their arrival. `--if-exists skip-same` then does not recognise them
    #[arg(long)]
    no_times: bool,
    /// Fill the holes of sparse files
    #[arg(long)]
    no_holes: bool,
    /// How long to wait for a lost sender, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    /// Print one JSON object for each event on standard output (standard error if DIR is `-`), and
    /// nothing for people
    #[arg(long)]
    json: bool,
    /// Print only the code and errors
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Exists {
    /// Refuse the offer
    Refuse,
    /// Choose another name: "name (1)"
    Rename,
    /// Merge directories, replace files
    Overwrite,
    /// Merge directories, skip files of the same size and time, refuse the offer if anything else
    /// exists
    SkipSame,
}

#[derive(Clone, Copy, ValueEnum)]
enum Links {
    /// Refuse an offer with links
    Refuse,
    /// Leave links out
    Skip,
    /// Create links that stay inside of the offer; leave out and report others
    Inside,
    /// Create all links
    All,
}

impl RecvOptions {
    fn is_stream(&self) -> bool {
        self.directory.as_os_str() == "-"
    }

    fn destination(&self, cancel: &Cancel) -> Destination {
        if self.is_stream() {
            return Destination::Stream(Stream::new(Output::new(cancel)));
        }
        Destination::Directory {
            path: self.directory.clone(),
            options: self.options(),
        }
    }

    fn own_name(&self) -> Option<String> {
        let own = || self.name.clone().or_else(host_name);
        if self.no_name { None } else { own() }
    }

    fn options(&self) -> Options {
        Options {
            clash: match self.if_exists {
                Exists::Refuse => Clash::Refuse,
                Exists::Rename => Clash::Rename,
                Exists::Overwrite => Clash::Overwrite,
                Exists::SkipSame => Clash::SkipSame,
            },
            permissions: match (self.no_permissions, self.preserve_permissions) {
                (true, _) => Permissions::New,
                (false, true) => Permissions::Exact,
                (false, false) => Permissions::Masked,
            },
            times: !self.no_times,
            holes: !self.no_holes,
            symlinks: match self.symlinks {
                Links::Refuse => Symlinks::Refuse,
                Links::Skip => Symlinks::Skip,
                Links::Inside => Symlinks::Inside,
                Links::All => Symlinks::All,
            },
        }
    }
}

pub fn recv(options: RecvOptions) -> ExitCode {
    super::take_descriptors();
    let show = Show::new(
        Side::Receiver,
        options.json,
        options.quiet,
        options.is_stream(),
    );
    let cancel = Cancel::default();
    if let Err(error) = stop::on_signals(&cancel) {
        return conclude(&show, Err(error.into()));
    }
    if options.keep && options.is_stream() {
        let message = "--keep wants a directory: standard output takes one offer";
        show.error("usage", super::USAGE, message);
        return ExitCode::from(super::USAGE);
    }
    let terminal = terminal::open(false);
    if !options.yes && (options.json || terminal.is_none()) {
        let message = "there is no terminal to ask at whether to accept: --yes accepts";
        show.error("usage", super::USAGE, message);
        return ExitCode::from(super::USAGE);
    }
    conclude(&show, receive(&options, terminal, &show, &cancel))
}

fn receive(
    options: &RecvOptions,
    terminal: Option<File>,
    show: &Show,
    cancel: &Cancel,
) -> Result<End, Error> {
    if !options.is_stream() && !options.directory.is_dir() {
        // Otherwise only the sender would hear of it, after all that leads there.
        return Err(Error::Unfit(
            "there is no such directory to receive into: make it first",
        ));
    }
    let home = super::home(show)?;
    let terminal = Mutex::new(terminal);
    let ask = |offered: &Offered, over: &Cancel| {
        show.object(&object_of(offered, &home));
        if options.yes {
            return true;
        }
        let mut terminal = terminal.lock().unwrap_or_else(PoisonError::into_inner);
        let terminal = terminal.as_mut();
        terminal.is_some_and(|terminal| decide(terminal, offered, &home, &[over, cancel]))
    };
    let mut doors = None;
    loop {
        let code = (!options.no_code).then(|| options.code.clone().unwrap_or_else(Code::draw));
        let job = ReceiveJob {
            identity: home.identity(),
            code: code.clone(),
            is_known: &|key| home.knows(key, Role::Sender),
            destination: options.destination(cancel),
            interfaces: options.on.clone(),
            port: options.port,
            name: options.own_name(),
            patience: Duration::from_secs(options.patience),
            config: Config::default(),
        };
        let doors = match &mut doors {
            Some(doors) => doors,
            none => none.insert(Doors::open(&job)?),
        };
        let watch = |event| tell(event, options, code.as_ref(), &home, show);
        match airdma_transfer::receive_at(doors, &job, &ask, &watch, cancel).map(end_of) {
            Ok(end) if options.keep => show.end(&end),
            Err(error) if options.keep && is_of_one_offer(&error) => {
                failed(show, &error);
            }
            result => return result,
        }
    }
}

/// Whether the next offer may succeed.
fn is_of_one_offer(error: &Error) -> bool {
    match error.kind() {
        Kind::Interrupted | Kind::Refused | Kind::Files | Kind::Protocol => true,
        Kind::Unreachable | Kind::Unknown | Kind::Cancelled | Kind::System => false,
    }
}

fn end_of(received: Received) -> End {
    let flaws = received.flaws.into_iter();
    let Unkept { modes, times } = received.unkept;
    let unkept = [(modes, "permissions"), (times, "times")];
    let unkept = unkept.iter().filter(|(count, _)| *count > 0);
    let notes = unkept.map(|(count, what)| {
        format!(
            "this file system does not keep {what} as they were at the sender: {} arrived without them",
            counted(*count)
        )
    });
    End {
        files: received.files,
        bytes: received.bytes,
        flaws: flaws.map(|(path, flaw)| (path, flaw.to_string())).collect(),
        notes: notes.collect(),
        reconnects: 0,
    }
}

/// Directories count, too.
fn counted(count: u64) -> String {
    match count {
        1 => "1 file or directory".to_owned(),
        count => format!("{count} files and directories"),
    }
}

/// The host's name, without its domain.
pub fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim().split('.').next()?.to_owned();
    (!name.is_empty()).then_some(name)
}

fn decide(terminal: &mut File, offered: &Offered, home: &Home, over: &[&Cancel]) -> bool {
    let question = format!("{}\nAccept? [Y/n] ", summary(offered, home));
    let answer = terminal::ask(terminal, &question, over);
    answer.is_some_and(|answer| matches!(&*answer.trim().to_lowercase(), "" | "y" | "yes"))
}

/// Sender and contents of an offer.
fn summary(offered: &Offered, home: &Home) -> String {
    let who = name(offered, home);
    let names = match &offered.names[..] {
        [] => String::new(),
        names => format!(": {}", some_of(names)),
    };
    let files = files(offered.files);
    let rest = if offered.goes_on {
        format!(
            ", of which {} are still to come",
            DecimalBytes(offered.bytes_to_come)
        )
    } else {
        String::new()
    };
    format!(
        "{who} offers {files}, {}{rest}{names}",
        DecimalBytes(offered.bytes)
    )
}

fn name(offered: &Offered, home: &Home) -> String {
    let address = offered.address.to_string();
    match home.name(&offered.peer, &NAMED_BY) {
        Some(name) if !name.is_empty() && name != address => {
            format!("{} ({address})", printable(name.as_bytes()))
        }
        Some(_) | None => address,
    }
}

fn object_of(offered: &Offered, home: &Home) -> serde_json::Value {
    json!({
        "event": "offer",
        "peer": offered.peer.to_string(),
        "name": home.name(&offered.peer, &NAMED_BY),
        "address": offered.address.to_string(),
        "files": offered.files,
        "directories_and_links": offered.others,
        "bytes": offered.bytes,
        "bytes_to_come": offered.bytes_to_come,
        "goes_on": offered.goes_on,
        "names": offered.names,
    })
}

fn tell(event: Event, options: &RecvOptions, code: Option<&Code>, home: &Home, show: &Show) {
    match event {
        Event::Listening {
            addresses,
            shut,
            unannounced,
        } => {
            if let Some(why) = &unannounced {
                show.line(why);
            }
            let name = options.own_name().filter(|_| unannounced.is_none());
            listening(&addresses, name, options, code, show);
            tell_shut(&shut, show);
        }
        Event::Doors { addresses, shut } => {
            show.object(&json!({"event": "addresses", "addresses": words(&addresses)}));
            let reachable: Vec<_> = addresses.iter().filter(|it| !it.is_loopback()).collect();
            show.line(&match &reachable[..] {
                [] => "no other host can connect now: waiting for an address".to_owned(),
                reachable => format!("waiting at {}", some_of(&words(reachable.iter().copied()))),
            });
            tell_shut(&shut, show);
        }
        Event::Hindered(shut) => tell_shut(&[shut], show),
        Event::Met {
            peer,
            address,
            interface,
            by_code,
        } => {
            show.over(&interface);
            let name = address.to_string();
            show.object(&json!({
                "event": "met",
                "peer": peer.to_string(),
                "address": name,
                "by_code": by_code,
            }));
            let pin = Pin::new(peer, Role::Sender, Place::Anywhere, &name);
            if by_code && let Err(error) = home.pin(pin, false) {
                show.must(&format!("airdma: a code will be needed again: {error}"));
            }
        }
        Event::Turned(why) => {
            show.turned(&why);
        }
        Event::Accepted(progress) => show.accepted(&progress),
        Event::Progress(progress) => show.progress(&progress),
        Event::Walked(_) | Event::Arrived(_) => {}
        Event::Lost(why) => {
            show.object(&json!({"event": "lost", "message": why}));
            show.line(&format!("connection lost ({why}); waiting for the sender"));
        }
        Event::Remains(what) => {
            show.object(&json!({"event": "remains", "message": what}));
            show.must(&format!("airdma: all arrived; {what}"));
        }
    }
}

/// Most reasons that are printed why peers cannot connect.
const REASONS_MAX: usize = 4;

/// Prints at which interfaces peers cannot connect.
///
/// Prints one line for each reason, and a bounded number of lines for any number of interfaces.
pub fn tell_shut(shut: &[Shut], show: &Show) {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for Shut { interface, why } in shut {
        show.object(&json!({"event": "shut", "interface": interface, "message": why}));
        let interfaces = by_reason.entry(why).or_default();
        interfaces.push(interface.clone());
    }
    let mut untold = shut.len();
    for (why, interfaces) in by_reason.iter().take(REASONS_MAX) {
        untold -= interfaces.len();
        let interfaces = some_of(interfaces);
        show.must(&format!(
            "airdma: peers cannot connect at {interfaces}: {why}"
        ));
    }
    if untold > 0 {
        show.must(&format!(
            "airdma: nor at {untold} more interfaces (--json names each)"
        ));
    }
}

pub fn words<'a>(addresses: impl IntoIterator<Item = &'a IpAddr>) -> Vec<String> {
    addresses.into_iter().map(ToString::to_string).collect()
}

/// The first three, and the number of others.
fn some_of(words: &[String]) -> String {
    match words {
        [first, second, third, rest @ ..] if !rest.is_empty() => {
            format!("{first}, {second}, {third} and {} more", rest.len())
        }
        words => words.join(", "),
    }
}

fn listening(
    addresses: &[IpAddr],
    name: Option<String>,
    options: &RecvOptions,
    code: Option<&Code>,
    show: &Show,
) {
    let shown = code.map(ToString::to_string);
    show.object(&json!({
        "event": "listening",
        "addresses": words(addresses),
        "port": options.port,
        "name": name,
        "code": shown,
    }));
    let is_of_others = |address: &&IpAddr| !address.is_loopback();
    let is_link_local = |address: &IpAddr| match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let mut of_others = addresses.iter().filter(is_of_others);
    let everywhere = of_others.clone().find(|address| !is_link_local(address));
    let address = everywhere.or(of_others.next()).or(addresses.first());
    let address = address.map(|address| match (address, options.port) {
        // Only the sender knows the name of its interface.
        (address, PORT) if is_link_local(address) => format!("{address}%INTERFACE"),
        (address, port) if is_link_local(address) => format!("[{address}%INTERFACE]:{port}"),
        (address, PORT) => address.to_string(),
        (&address, port) => SocketAddr::new(address, port).to_string(),
    });
    let words: Vec<String> = name.into_iter().chain(address).collect();
    show.line(&format!(
        "waiting; on the other host: airdma send PATH... {}",
        words.join(", or ")
    ));
    if let Some(code) = shown {
        show.must(&format!("code: {code}"));
    }
}
