//! YUV4MPEG2, the format of mjpegtools and of FFmpeg's `-f yuv4mpegpipe`: a line for the stream,
//! and a line before each frame.

use std::io::{self, BufRead, Read, Write};
use std::time::Duration;

const MAGIC: &str = "YUV4MPEG2";
/// Most bytes of a line.
const LINE_BYTES_MAX: u64 = 1024;
/// Longest side of a picture.
const SIDE_MAX: usize = 1 << 15;

/// What the line of a stream says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// The line itself, without its end.
    pub line: String,
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// Time between two frames.
    pub interval: Option<Duration>,
}

impl Format {
    /// Parses the line of a stream.
    pub fn parse(line: &str) -> Result<Format, String> {
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        // A line of a peer is written to a file, and must be one.
        if line.contains(char::is_control) {
            return Err("its line has control characters".to_owned());
        }
        if words.next() != Some(MAGIC) {
            return Err(format!("it does not begin with {MAGIC}"));
        }
        let (mut width, mut height, mut colour, mut interval) = (None, None, "420", None);
        for word in words {
            let mut letters = word.chars();
            let value = |letters: std::str::Chars<'_>| letters.as_str().to_owned();
            match letters.next() {
                Some('W') => width = value(letters).parse::<usize>().ok(),
                Some('H') => height = value(letters).parse::<usize>().ok(),
                Some('C') => colour = &word[1..],
                Some('F') => interval = interval_of(&word[1..]),
                Some(_) | None => {}
            }
        }
        let fits = |side: &usize| (1..=SIDE_MAX).contains(side);
        let (Some(width), Some(height)) = (width.filter(fits), height.filter(fits)) else {
            return Err("it names no width and height".to_owned());
        };
        let frame_bytes = frame_bytes(width, height, colour)
            .ok_or_else(|| format!("the colour space {colour} is unknown"))?;
        Ok(Format {
            line: line.to_owned(),
            frame_bytes,
            interval,
        })
    }
}

/// The time between frames at a rate such as `25:1`.
fn interval_of(rate: &str) -> Option<Duration> {
    let (frames, seconds) = rate.split_once(':')?;
    let (frames, seconds): (u32, u32) = (frames.parse().ok()?, seconds.parse().ok()?);
    let is_rate = frames > 0 && seconds > 0;
    is_rate.then(|| Duration::from_secs_f64(f64::from(seconds) / f64::from(frames)))
}

fn frame_bytes(width: usize, height: usize, colour: &str) -> Option<usize> {
    let depth = |rest: &str| match rest {
        "" | "jpeg" | "paldv" | "mpeg2" => Some(1),
        "p9" | "p10" | "p12" | "p14" | "p16" => Some(2),
        _ => None,
    };
    let half = |side: usize| side.div_ceil(2);
    let samples = |planes: usize, rest: &str| Some((width * height + planes) * depth(rest)?);
    if let Some(rest) = colour.strip_prefix("420") {
        samples(2 * half(width) * half(height), rest)
    } else if let Some(rest) = colour.strip_prefix("422") {
        samples(2 * half(width) * height, rest)
    } else if colour == "444alpha" {
        Some(4 * width * height)
    } else if let Some(rest) = colour.strip_prefix("444") {
        samples(2 * width * height, rest)
    } else if colour == "411" {
        samples(2 * width.div_ceil(4) * height, "")
    } else if let Some(rest) = colour.strip_prefix("mono") {
        let bytes = if rest.is_empty() { 1 } else { 2 };
        Some(width * height * bytes)
    } else {
        None
    }
}

/// Reads the line of a stream.
pub fn read_format(from: &mut impl BufRead) -> io::Result<Format> {
    let line = read_line(from)?.ok_or_else(|| malformed("it is empty"))?;
    Format::parse(&line).map_err(|why| malformed(&why))
}

/// Reads the line before a frame; false at the end of the stream.
pub fn read_frame_line(from: &mut impl BufRead) -> io::Result<bool> {
    match read_line(from)? {
        None => Ok(false),
        Some(line) if line == "FRAME" || line.starts_with("FRAME ") => Ok(true),
        Some(_) => Err(malformed("a frame does not begin with FRAME")),
    }
}

/// Writes a frame, and its line.
pub fn write_frame(to: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    to.write_all(b"FRAME\n")?;
    to.write_all(frame)
}

fn read_line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => String::from_utf8(line)
            .map(Some)
            .map_err(|_| malformed("a line is no text")),
        Some(_) => Err(malformed("a line does not end")),
    }
}

fn malformed(why: &str) -> io::Error {
    let message = format!("not YUV4MPEG2: {why} (--raw BYTES takes frames of one length)");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_frames_are_those_of_the_format() {
        for (line, bytes) in [
            ("YUV4MPEG2 W640 H480 F25:1 C420jpeg", 460_800),
            ("YUV4MPEG2 W3 H3 F25:1", 17),
            ("YUV4MPEG2 W640 H480 C444", 921_600),
            ("YUV4MPEG2 W640 H480 C422p10 XYSCSS=422P10", 1_228_800),
            ("YUV4MPEG2 H2 W2 Cmono", 4),
        ] {
            assert_eq!(Format::parse(line).unwrap().frame_bytes, bytes, "{line}");
        }
        let format = Format::parse("YUV4MPEG2 W2 H2 F30000:1001").unwrap();
        assert_eq!(format.interval.unwrap().as_micros(), 33_366);
    }

    #[test]
    fn what_is_no_stream_is_refused() {
        for line in [
            "",
            "RIFF",
            "YUV4MPEG2",
            "YUV4MPEG2 W0 H4",
            "YUV4MPEG2 W99999999 H4",
            "YUV4MPEG2 W4 H4 Cxyz",
            "YUV4MPEG2 W4 H4 C420p7",
            "YUV4MPEG2 W4 H4 Xa\nFRAME",
        ] {
            assert!(Format::parse(line).is_err(), "{line}");
        }
        assert!(
            read_format(&mut &b"YUV4MPEG2 W4 H4"[..]).is_err(),
            "cut off"
        );
        assert!(read_format(&mut &[b'x'; 5000][..]).is_err());
        assert!(read_frame_line(&mut &b"FRAMES\n"[..]).is_err());
        assert!(!read_frame_line(&mut &b""[..]).unwrap());
        assert!(read_frame_line(&mut &b"FRAME Ip\nxx"[..]).unwrap());
    }
}
