//! Takes the samples: all programs in turn at each size, so that a slow spell of the machine hits
//! them alike.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use airdma_lab::{Lab, LabError, Server};

use crate::measurement::{Curve, Figure, Measurement, Missing, Point, Sample};
use crate::peer::{Place, Plan};
use crate::suite::{Link, Series};
use crate::units;

/// Time added to the duration of a run, for start, warm-up and end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Size of the whole measurement.
pub struct Effort {
    /// Samples of each case.
    pub runs: u32,
    /// Seconds of a bandwidth run.
    pub seconds: u32,
    /// The `airdma` binary.
    pub airdma: String,
}

/// Measures all `series` into `taken`, and calls `kept` whenever a line of the live table is full.
///
/// Fails only if no hosts can be made, airdma does not run, or the user stops it; the samples until
/// then are in `taken`. A run without a result is recorded as failed.
pub fn measure(
    series: &[Series],
    effort: &Effort,
    taken: &mut Measurement,
    mut kept: impl FnMut(&Measurement) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    for link in links(series) {
        let of_link = || series.iter().filter(|series| series.link == link);
        let lab = match Lab::new(link.cable) {
            Ok(lab) => lab,
            // A link that this kernel cannot make must not prevent the others.
            Err(error) if links(series).len() > 1 && !matches!(error, LabError::Interrupted(_)) => {
                writeln!(io::stderr(), "airdma bench: no link {}: {error}", link.name)?;
                taken.missing.push(not_made(link, &error, of_link()));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let place = Place {
            server: lab.b.ipv4.to_string(),
            client: lab.a.ipv4.to_string(),
            mtu: link.cable.mtu,
            seconds: effort.seconds,
            airdma: effort.airdma.clone(),
            folder: scratch.0.display().to_string(),
            secret: scratch.secret().display().to_string(),
            core_pairs: lab.core_pairs(),
        };
        if of_link().any(|series| !series.peer) {
            check(&lab, &place)?;
        }
        let mut figures: Vec<Figure> = of_link().map(|series| series.figure).collect();
        figures.dedup();
        for figure in figures {
            let group: Vec<&Series> = of_link().filter(|series| series.figure == figure).collect();
            let live = Live::new(link, figure, &group)?;
            for x in xs(&group) {
                let row: Vec<_> = group
                    .iter()
                    .filter(|series| series.xs.contains(&x))
                    .collect();
                for _ in 0..effort.runs {
                    for series in &row {
                        let sample = one(&lab, &place, series, x)?;
                        let point = point(taken, series, x);
                        add(point, sample);
                        live.show(x, taken, false)?;
                    }
                }
                live.show(x, taken, true)?;
                kept(taken)?;
            }
        }
    }
    Ok(())
}

fn not_made<'a>(link: Link, error: &LabError, series: impl Iterator<Item = &'a Series>) -> Missing {
    let label = |series: &Series| format!("{} ({})", series.label, series.figure.name());
    Missing {
        program: format!("link {}", link.name),
        package: error.to_string(),
        labels: series.map(label).collect(),
    }
}

/// The links in order of their first use.
fn links(series: &[Series]) -> Vec<Link> {
    let mut links = Vec::new();
    for series in series {
        if !links.contains(&series.link) {
            links.push(series.link);
        }
    }
    links
}

fn xs(group: &[&Series]) -> Vec<u64> {
    let mut xs: Vec<u64> = group.iter().flat_map(|series| series.xs.clone()).collect();
    xs.sort_unstable();
    xs.dedup();
    xs
}

/// Checks that airdma runs at all: otherwise every run of it would fail alike.
fn check(lab: &Lab, place: &Place) -> anyhow::Result<()> {
    let words = [&place.airdma, "run", "--", "true"].map(str::to_owned);
    let outcome = lab.run_alone(&words, PATIENCE)?;
    anyhow::ensure!(
        outcome.ok,
        "airdma cannot run programs here:\n{}",
        outcome.explain()
    );
    Ok(())
}

/// One run: its command lines, and its sample or the output of both ends.
struct Run {
    server: Option<String>,
    client: String,
    sample: Result<Sample, String>,
}

fn one(lab: &Lab, place: &Place, series: &Series, x: u64) -> anyhow::Result<Run> {
    series.program.prepare(place, x)?;
    let plan = series.program.plan(place, x);
    let limit = PATIENCE + Duration::from_secs(u64::from(place.seconds) * 4);
    let sample = match run(lab, &plan, limit) {
        Ok(said) => sample(series, x, said),
        Err(LabError::Interrupted(signal)) => return Err(LabError::Interrupted(signal).into()),
        Err(error) => Err(error.to_string()),
    };
    Ok(Run {
        server: plan.server.map(|command| shown(&command, place)),
        client: shown(&plan.client, place),
        sample,
    })
}

/// Output and CPU time of both ends, or how they failed.
type Said = Result<(String, String, f64), String>;

fn run(lab: &Lab, plan: &Plan, limit: Duration) -> Result<Said, LabError> {
    let Some(server) = &plan.server else {
        let outcome = lab.run_alone(&plan.client, limit)?;
        let said = (String::new(), outcome.stdout.clone(), outcome.cpu_s);
        return Ok(if outcome.ok {
            Ok(said)
        } else {
            Err(outcome.explain())
        });
    };
    let server = Server {
        command: server,
        listening: plan.listening,
        stays: plan.stays,
    };
    let pair = lab.run_pair(server, &plan.client, limit)?;
    Ok(match pair.output() {
        Some(client) => Ok((pair.server.stdout.clone(), client.to_owned(), pair.cpu_s())),
        None => Err(pair.explain()),
    })
}

fn sample(series: &Series, x: u64, said: Said) -> Result<Sample, String> {
    let (server, client, cpu_s) = said?;
    let reading = series.program.read(&server, &client, x);
    let nothing = || format!("no result in:\n--- server\n{server}\n--- client\n{client}");
    // perftest prints "inf" if it could not time the run.
    let reading = reading.filter(|reading| reading.value.is_finite());
    let reading = reading.ok_or_else(nothing)?;
    let value = if series.figure == Figure::Cpu {
        let moved = reading.moved_bytes.filter(|moved| *moved > 0);
        cpu_s / (moved.ok_or_else(nothing)? as f64 / 1e9)
    } else {
        reading.value
    };
    Ok(Sample {
        value,
        p99: reading.p99,
        cpu_s,
        moved_bytes: reading.moved_bytes,
        valid: reading.valid,
        paper: reading.paper,
        stream: reading.stream,
    })
}

/// A command line as a user types it: without the paths of this binary and of its files.
fn shown(command: &[String], place: &Place) -> String {
    let folder = Path::new(&place.airdma).parent();
    let words = command.iter().map(|word| {
        let word_path = Path::new(word);
        if folder.is_some() && word_path.parent() == folder {
            // A program of ours.
            let name = word_path.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        } else {
            word.replace(&place.secret, "secret")
                .replace(&place.folder, "folder")
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A folder of this measurement, for this user alone, with a secret; removed with its guard.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Scratch> {
        let mut random = [0; 24];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let (name, secret) = random.split_at(8);
        let name = format!("airdma-bench-{:016x}", u64::from_ne_bytes(name.try_into()?));
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        let scratch = Scratch(path);
        let secret = format!("{:032x}\n", u128::from_ne_bytes(secret.try_into()?));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options
            .open(scratch.secret())?
            .write_all(secret.as_bytes())?;
        Ok(scratch)
    }

    fn secret(&self) -> PathBuf {
        self.0.join("secret")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn point<'a>(taken: &'a mut Measurement, series: &Series, x: u64) -> &'a mut Point {
    let is_it = |curve: &Curve| {
        (curve.figure, curve.link.as_str(), curve.name.as_str())
            == (series.figure, series.link.name, series.name)
    };
    let at = taken.curves.iter().position(is_it).unwrap_or_else(|| {
        taken.curves.push(Curve {
            figure: series.figure,
            link: series.link.name.into(),
            name: series.name.into(),
            label: series.label.into(),
            peer: series.peer,
            points: Default::default(),
        });
        taken.curves.len() - 1
    });
    taken.curves[at].points.entry(x).or_default()
}

fn add(point: &mut Point, run: Run) {
    (point.server, point.client) = (run.server, run.client);
    match run.sample {
        Ok(sample) => point.samples.push(sample),
        Err(failure) => point.failures.push(failure),
    }
}

/// The table on the terminal: a line for each size, whose medians change as samples arrive.
struct Live {
    figure: Figure,
    link: &'static str,
    columns: Vec<&'static str>,
    rewrites: bool,
}

const FIRST_COLUMN: usize = 10;

impl Live {
    fn new(link: Link, figure: Figure, group: &[&Series]) -> io::Result<Live> {
        let columns: Vec<&str> = group.iter().map(|series| series.name).collect();
        let mut live = Live {
            figure,
            link: link.name,
            columns,
            rewrites: false,
        };
        let columns = live.columns.iter();
        let width = FIRST_COLUMN + columns.map(|name| live.width(name) + 2).sum::<usize>();
        // A line that the terminal breaks in two cannot be overwritten.
        live.rewrites = terminal_width().is_some_and(|columns| width <= columns);
        let mut out = io::stdout();
        let titles = live.columns.iter().fold(String::new(), |mut line, column| {
            let _ = write!(line, "  {column:>width$}", width = live.width(column));
            line
        });
        writeln!(out, "\n{}; {}", figure.title(), link.label)?;
        writeln!(out, "{:<FIRST_COLUMN$}{titles}", figure.x_title())?;
        Ok(live)
    }

    fn width(&self, column: &str) -> usize {
        column.len().max(8)
    }

    /// Prints the line of `x`; the last time with a line end.
    fn show(&self, x: u64, taken: &Measurement, last: bool) -> io::Result<()> {
        if !self.rewrites && !last {
            return Ok(());
        }
        let mut line = format!("{:<FIRST_COLUMN$}", self.figure.x_text(x));
        let mut failures = String::new();
        for column in &self.columns {
            let point = taken.point(self.figure, self.link, column, x);
            let failed = point.map_or(0, |point| point.failures.len());
            let cell = match point.and_then(Point::median) {
                Some(median) if failed > 0 => format!("{}!", units::three_digits(median)),
                Some(median) => units::three_digits(median),
                None if failed > 0 => "failed".into(),
                None => String::new(),
            };
            let _ = write!(line, "  {cell:>width$}", width = self.width(column));
            if last && let Some(text) = point.and_then(|point| point.failures.last()) {
                let case = format!("{}/{}/{column}/{x}", self.figure.name(), self.link);
                let _ = write!(
                    failures,
                    "{failed} failed of {case}, the last so:\n{text}\n"
                );
            }
        }
        let mut out = io::stdout();
        match (self.rewrites, last) {
            (true, true) => write!(out, "\r{line}\n{failures}")?,
            (true, false) => write!(out, "\r{line}")?,
            (false, _) => write!(out, "{line}\n{failures}")?,
        }
        out.flush()
    }
}

/// Width of the terminal in characters; none if the output is a file or a pipe.
fn terminal_width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    // SAFETY: plain data that the call fills.
    let size = unsafe {
        let mut size = std::mem::zeroed::<libc::winsize>();
        let result = libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size);
        (result == 0).then_some(size)?
    };
    Some(usize::from(size.ws_col))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite;

    fn series(figure: Figure, name: &str) -> Series {
        let mut all = suite::all(false).into_iter();
        let wanted = |series: &Series| series.figure == figure && series.name == name;
        all.find(wanted).unwrap()
    }

    const TABLE: &str = include_str!("peer/samples/ib_write_bw.txt");

    #[test]
    fn cpu_is_for_a_gigabyte() {
        let said = || Ok((String::new(), TABLE.to_owned(), 0.5));
        let bandwidth = sample(&series(Figure::Bandwidth, "write_bw"), 65_536, said()).unwrap();
        assert_eq!(bandwidth.cpu_s, 0.5);
        let cpu = sample(&series(Figure::Cpu, "write_bw"), 65_536, said()).unwrap();
        assert!((cpu.value - 0.5 / (100.0 * 65_536.0 / 1e9)).abs() < 1e-9);
    }

    #[test]
    fn a_program_that_prints_nonsense_has_failed() {
        let said = Ok(("ready".to_owned(), "all is well".to_owned(), 0.5));
        let failed = sample(&series(Figure::Bandwidth, "write_bw"), 65_536, said).unwrap_err();
        assert_eq!(
            failed,
            "no result in:\n--- server\nready\n--- client\nall is well"
        );
    }

    #[test]
    fn infinity_is_no_result() {
        let said = Ok((String::new(), TABLE.replace("0.077954", "inf"), 0.5));
        assert!(sample(&series(Figure::Bandwidth, "write_bw"), 65_536, said).is_err());
    }

    #[test]
    fn our_own_binary_is_shown_by_its_name() {
        let place = Place {
            server: "10.77.0.2".into(),
            client: "10.77.0.1".into(),
            mtu: 1500,
            seconds: 1,
            airdma: "/somewhere/airdma".into(),
            folder: "/tmp/airdma-bench-1".into(),
            secret: "/tmp/airdma-bench-1/secret".into(),
            core_pairs: None,
        };
        let command = ["/somewhere/airdma", "run", "--", "true"].map(str::to_owned);
        assert_eq!(shown(&command, &place), "airdma run -- true");
        let command = ["/somewhere/airdma-peer", "--at"].map(str::to_owned);
        assert_eq!(shown(&command, &place), "airdma-peer --at");
        let command =
            ["env", "AIRDMA_SECRET=/tmp/airdma-bench-1/secret", "true"].map(str::to_owned);
        assert_eq!(shown(&command, &place), "env AIRDMA_SECRET=secret true");
    }
}
