//! Where frames go: a file for each device.

use super::{pattern, y4m};
use airdma_stream::{Flags, Frame};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};

/// Stands for the device's number in the name of a file.
const DEVICE: &str = "{device}";

/// The files of all devices.
pub struct Sink {
    /// Name of the files; `None` if frames are dropped.
    name: Option<String>,
    checks: bool,
    files: BTreeMap<u32, Out>,
    /// Frames of the test pattern that differ from it.
    pub damaged: u64,
    /// Frames that were compared with the test pattern.
    pub checked: u64,
}

struct Out {
    to: Box<dyn Write>,
    format: Option<String>,
}

impl Sink {
    pub fn new(name: Option<String>, checks: bool) -> Sink {
        Sink {
            name,
            checks,
            files: BTreeMap::new(),
            damaged: 0,
            checked: 0,
        }
    }

    /// Whether standard output is data.
    pub fn is_standard(name: Option<&str>) -> bool {
        name == Some("-")
    }

    /// Writes a frame: with the lines of its format if that is YUV4MPEG2, else its bytes alone.
    pub fn take(&mut self, frame: &Frame) -> io::Result<()> {
        let flags = frame.flags();
        if flags.contains(Flags::END) || flags.contains(Flags::GAP) {
            return Ok(());
        }
        let format = frame.format().map_or("", |format| &format[..]);
        if self.checks && pattern::is_format(format) {
            self.checked += 1;
            let is_intact = pattern::is_intact(frame, frame.device(), frame.sequence());
            self.damaged += u64::from(!is_intact);
        }
        let Some(name) = &self.name else {
            return Ok(());
        };
        let device = frame.device();
        let is_only = self.files.is_empty() || self.files.contains_key(&device);
        let out = match self.files.entry(device) {
            std::collections::btree_map::Entry::Occupied(out) => out.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let format = None;
                let to = open(name, device, is_only)?;
                free.insert(Out { to, format })
            }
        };
        out.write(frame, format)
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.files.values_mut().try_for_each(|out| out.to.flush())
    }
}

fn open(name: &str, device: u32, is_only: bool) -> io::Result<Box<dyn Write>> {
    let has_number = name.contains(DEVICE);
    if !is_only && !has_number {
        let message =
            format!("{name} takes one device, and there is a second: name it with {DEVICE}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    if name == "-" {
        return Ok(Box::new(io::stdout()));
    }
    let path = name.replace(DEVICE, &device.to_string());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let file: io::Result<File> = options.open(&path);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"));
    Ok(Box::new(file.map_err(named)?))
}

impl Out {
    fn write(&mut self, frame: &[u8], format: &str) -> io::Result<()> {
        let is_lines = y4m::Format::parse(format).is_ok_and(|it| it.frame_bytes == frame.len());
        if !is_lines {
            return self.to.write_all(frame);
        }
        // A sender that was started again goes on in the same file, if its format is the same.
        match &self.format {
            None => {
                writeln!(self.to, "{format}")?;
                self.format = Some(format.to_owned());
            }
            Some(begun) if begun == format => {}
            Some(_) => {
                let message = "the format changes, which a file cannot: receive again";
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
        }
        y4m::write_frame(&mut self.to, frame)
    }
}
