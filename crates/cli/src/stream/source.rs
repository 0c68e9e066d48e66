//! Where frames come from: a thread for each device, which fills blocks of the sender in place.

use super::{pattern, y4m};
use airdma_stream::{Block, Description, now_ns};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::str::FromStr;
use std::sync::mpsc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

/// Buffer of a file: its reads of frames go past it.
const BUFFER_BYTES: usize = 64 << 10;

/// A source as it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    Standard,
    Path(String),
    Test { width: usize, height: usize },
}

impl FromStr for Named {
    type Err = String;

    fn from_str(typed: &str) -> Result<Named, String> {
        let (width, height) = match typed {
            "-" => return Ok(Named::Standard),
            "test" => (640, 480),
            typed => match typed.strip_prefix("test:") {
                Some(size) => side_lengths(size).ok_or("a test pattern is test:WIDTHxHEIGHT")?,
                None => return Ok(Named::Path(typed.to_owned())),
            },
        };
        Ok(Named::Test { width, height })
    }
}

fn side_lengths(size: &str) -> Option<(usize, usize)> {
    let (width, height) = size.split_once('x')?;
    let side = |side: &str| side.parse().ok().filter(|side| (1..=16384).contains(side));
    Some((side(width)?, side(height)?))
}

/// An opened source.
pub struct Source {
    input: Input,
    pub format: String,
    pub frame_bytes: usize,
    interval: Option<Duration>,
}

enum Input {
    Test,
    /// Frames of one length.
    Raw(Box<dyn Read + Send>),
    Y4m(BufReader<Box<dyn Read + Send>>),
}

/// How sources run.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Frames in a second; that of the source, if it has one and this is `None`. 0 is as fast as
    /// possible.
    pub rate: Option<u32>,
    /// Most frames.
    pub frames: Option<u64>,
    /// Time after which a frame is worthless.
    pub deadline: Option<Duration>,
}

/// What the thread of a device tells the sender.
pub enum News {
    /// It needs a block for this many bytes.
    Wants(usize),
    /// A block is filled.
    Filled(Block, Description),
    /// There are no more frames.
    Ended(io::Result<()>),
}

impl Source {
    /// Opens a source; reads its format, if it has one.
    pub fn open(named: &Named, raw: Option<usize>, rate: Option<u32>) -> io::Result<Source> {
        let from: Box<dyn Read + Send> = match named {
            Named::Test { width, height } => {
                let rate = rate.filter(|rate| *rate > 0).unwrap_or(25);
                return Ok(Source {
                    input: Input::Test,
                    format: pattern::format(*width, *height, rate),
                    frame_bytes: width * height * 3,
                    interval: Some(Duration::from_secs(1) / rate),
                });
            }
            Named::Standard => Box::new(io::stdin()),
            Named::Path(path) => Box::new(File::open(path)?),
        };
        if let Some(frame_bytes) = raw {
            return Ok(Source {
                input: Input::Raw(from),
                format: format!("raw {frame_bytes}"),
                frame_bytes,
                interval: None,
            });
        }
        let mut from = BufReader::with_capacity(BUFFER_BYTES, from);
        let format = y4m::read_format(&mut from)?;
        Ok(Source {
            input: Input::Y4m(from),
            format: format.line,
            frame_bytes: format.frame_bytes,
            interval: format.interval,
        })
    }

    /// Runs the source in a thread, which tells its news as those of `device`, wakes the sender,
    /// and gets the blocks that it wants.
    pub fn start(
        self,
        device: u32,
        pace: Pace,
        (news, waker): (mpsc::Sender<(u32, News)>, Waker),
    ) -> io::Result<mpsc::Sender<Block>> {
        let (give, blocks) = mpsc::channel();
        let thread = thread::Builder::new().name(format!("airdma-device-{device}"));
        thread.spawn(move || {
            let tell = |what| {
                let is_told = news.send((device, what)).is_ok();
                waker.wake_by_ref();
                is_told
            };
            let result = self.run(device, pace, &tell, &blocks);
            tell(News::Ended(result));
        })?;
        Ok(give)
    }

    fn run(
        mut self,
        device: u32,
        pace: Pace,
        tell: &dyn Fn(News) -> bool,
        blocks: &mpsc::Receiver<Block>,
    ) -> io::Result<()> {
        let interval = match pace.rate {
            Some(0) => None,
            Some(rate) => Some(Duration::from_secs(1) / rate),
            None => self.interval,
        };
        let mut due = Instant::now();
        for number in 0..pace.frames.unwrap_or(u64::MAX) {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if let Some(interval) = interval {
                // A source that was held up does not run faster afterwards.
                due = (due + interval).max(Instant::now());
            }
            if !self.has_next()? || !tell(News::Wants(self.frame_bytes)) {
                return Ok(());
            }
            let Ok(mut block) = blocks.recv() else {
                return Ok(());
            };
            let time = now_ns();
            let is_filled = match &mut self.input {
                Input::Test => {
                    pattern::fill(&mut block, device, number);
                    true
                }
                Input::Raw(from) => read_whole(from, &mut block)?,
                Input::Y4m(from) => read_whole(from, &mut block)?,
            };
            if !is_filled {
                return Ok(());
            }
            let deadline = pace
                .deadline
                .map_or(0, |deadline| time + deadline.as_nanos() as u64);
            let description = Description {
                time,
                deadline,
                ..Description::default()
            };
            if !tell(News::Filled(block, description)) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether a frame begins, as far as that can be told before it is read.
    fn has_next(&mut self) -> io::Result<bool> {
        match &mut self.input {
            Input::Test | Input::Raw(_) => Ok(true),
            Input::Y4m(from) => y4m::read_frame_line(from),
        }
    }
}

/// Fills `frame`; false at the end. A frame that is cut off is an error.
fn read_whole(from: &mut impl Read, frame: &mut [u8]) -> io::Result<bool> {
    let mut there = 0;
    while there < frame.len() {
        match from.read(&mut frame[there..]) {
            Ok(0) if there == 0 => return Ok(false),
            Ok(0) => {
                let message = format!(
                    "the last frame is cut off: {there} of {} bytes",
                    frame.len()
                );
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
            Ok(count) => there += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart_by_their_names() {
        let parse = |typed: &str| typed.parse::<Named>();
        assert_eq!(parse("-"), Ok(Named::Standard));
        let (width, height) = (640, 480);
        assert_eq!(parse("test"), Ok(Named::Test { width, height }));
        let (width, height) = (32, 16);
        assert_eq!(parse("test:32x16"), Ok(Named::Test { width, height }));
        assert_eq!(parse("a.y4m"), Ok(Named::Path("a.y4m".to_owned())));
        for wrong in ["test:", "test:32", "test:0x5", "test:32x99999999999"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_frame_that_is_cut_off_is_an_error() {
        let mut frame = [0; 4];
        assert!(read_whole(&mut &b"abcdef"[..], &mut frame).unwrap());
        assert!(!read_whole(&mut &b""[..], &mut frame).unwrap());
        assert!(read_whole(&mut &b"abc"[..], &mut frame).is_err());
    }
}
