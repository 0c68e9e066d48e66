//! The elements in pipelines, as `gst-launch-1.0` makes them.
#![allow(clippy::unwrap_used)]

use gst::prelude::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

const PATIENCE: gst::ClockTime = gst::ClockTime::from_seconds(60);
const CODE: &str = "lusab-babad";
const SMALL: &str = "video/x-raw,format=I420,width=320,height=240,framerate=100/1";
const OTHER: &str = "video/x-raw,format=RGB,width=160,height=90,framerate=50/1";

/// A port of its own for each test, and the files that it writes.
struct World {
    port: u16,
    folder: PathBuf,
}

impl World {
    fn new(name: &str) -> World {
        static START: Once = Once::new();
        static PORT: AtomicU16 = AtomicU16::new(17480);
        let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
        START.call_once(|| {
            // SAFETY: no other thread runs the code of tests yet: all begin here.
            unsafe { std::env::set_var("AIRDMA_HOME", all.join("home")) };
            gst::init().unwrap();
            gstairdma::plugin_register_static().unwrap();
        });
        let folder = all.join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        World { port, folder }
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn source(&self) -> String {
        format!(
            "airdmasrc interfaces=127.0.0.1 port={} code={CODE}",
            self.port
        )
    }

    fn sink(&self) -> String {
        format!(
            "airdmasink peer=127.0.0.1:{} code={CODE} sync=false",
            self.port
        )
    }

    /// What a chain of elements writes to a file.
    fn direct(&self, chain: &str) -> Vec<u8> {
        let file = self.file("direct");
        let pipeline = start(&format!("{chain} ! filesink location={file}"));
        finish(&pipeline).unwrap();
        std::fs::read(file).unwrap()
    }
}

fn start(description: &str) -> gst::Pipeline {
    let pipeline = gst::parse::launch(description).unwrap();
    let pipeline = pipeline.downcast::<gst::Pipeline>().unwrap();
    let started = pipeline.set_state(gst::State::Playing);
    if started.is_err() {
        let error = finish(&pipeline).unwrap_err();
        panic!("{description}: {error}");
    }
    pipeline
}

/// Starts a receiver, and waits until a sender can connect.
fn receive(description: &str) -> gst::Pipeline {
    let pipeline = start(description);
    std::thread::sleep(Duration::from_millis(700));
    pipeline
}

/// Waits for the end of a pipeline, and stops it. Fails with its error.
fn finish(pipeline: &gst::Pipeline) -> Result<(), String> {
    let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
    let bus = pipeline.bus().unwrap();
    let message = bus.timed_pop_filtered(PATIENCE, &kinds);
    let result = match message.as_ref().map(|message| message.view()) {
        Some(gst::MessageView::Error(error)) => Err(error.error().to_string()),
        Some(_) => Ok(()),
        None => Err("no end in time".to_owned()),
    };
    pipeline.set_state(gst::State::Null).unwrap();
    result
}

/// A number in the statistics of an element.
fn stat(pipeline: &gst::Pipeline, element: &str, name: &str) -> u64 {
    let element = pipeline.by_name(element).unwrap();
    let text: String = element.property("stats");
    text.parse::<gst::Structure>()
        .unwrap()
        .get::<u64>(name)
        .unwrap()
}

/// Waits for the end, and returns numbers in the statistics of an element before it stops.
fn finish_with(pipeline: &gst::Pipeline, element: &str, names: &[&str]) -> Vec<u64> {
    let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
    let message = pipeline.bus().unwrap().timed_pop_filtered(PATIENCE, &kinds);
    assert_eq!(message.unwrap().type_(), gst::MessageType::Eos);
    let numbers = names
        .iter()
        .map(|name| stat(pipeline, element, name))
        .collect();
    pipeline.set_state(gst::State::Null).unwrap();
    numbers
}

#[test]
fn frames_arrive_as_they_were_made_and_none_is_copied() {
    let world = World::new("in_place");
    let chain = format!("videotestsrc num-buffers=100 ! {SMALL}");
    let wanted = world.direct(&chain);
    let got = world.file("got");
    let receiver = receive(&format!(
        "{} name=r ! filesink location={got}",
        world.source()
    ));
    // A queue keeps some of the blocks.
    let sink = world.sink();
    let sender = start(&format!(
        "{chain} ! queue max-size-buffers=2 ! {sink} name=s"
    ));
    let counts = finish_with(&sender, "s", &["in-place", "copied", "sent"]);
    assert_eq!(counts, [100, 0, 100]);
    assert_eq!(
        finish_with(&receiver, "r", &["frames", "missing"]),
        [100, 0]
    );
    assert!(std::fs::read(got).unwrap() == wanted);
}

#[test]
fn frames_in_other_memory_are_copied() {
    let world = World::new("copied");
    let chain = format!("videotestsrc num-buffers=50 ! {SMALL}");
    let wanted = world.direct(&chain);
    let got = world.file("got");
    let receiver = receive(&format!("{} ! filesink location={got}", world.source()));
    let sink = world.sink();
    let sender = start(&format!(
        "{chain} ! tee name=t t. ! queue ! {sink} name=s t. ! queue ! fakesink"
    ));
    let counts = finish_with(&sender, "s", &["in-place", "copied"]);
    assert_eq!(counts, [0, 50]);
    finish(&receiver).unwrap();
    assert!(std::fs::read(got).unwrap() == wanted);
}

#[test]
fn caps_change_where_the_frames_do() {
    let world = World::new("caps");
    let chain = format!(
        "concat name=c videotestsrc num-buffers=10 ! {SMALL} ! c. \
         videotestsrc num-buffers=10 pattern=ball ! {OTHER} ! c. c."
    );
    let wanted = world.direct(&chain);
    let got = world.file("got");
    let receiver = receive(&format!(
        "{} name=r ! filesink location={got}",
        world.source()
    ));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let pad = receiver.by_name("r").unwrap().static_pad("src").unwrap();
    let kinds = gst::PadProbeType::EVENT_DOWNSTREAM | gst::PadProbeType::BUFFER;
    pad.add_probe(kinds, move |_, info| {
        let note = match &info.data {
            Some(gst::PadProbeData::Buffer(buffer)) => buffer.size().to_string(),
            Some(gst::PadProbeData::Event(event)) => match event.view() {
                gst::EventView::Caps(caps) => {
                    let caps = caps.caps().structure(0).unwrap();
                    caps.get::<String>("format").unwrap()
                }
                _ => return gst::PadProbeReturn::Ok,
            },
            _ => return gst::PadProbeReturn::Ok,
        };
        let mut notes = notes.lock().unwrap();
        if notes.last() != Some(&note) {
            notes.push(note);
        }
        gst::PadProbeReturn::Ok
    });
    let sender = start(&format!("{chain} ! {} name=s", world.sink()));
    finish(&sender).unwrap();
    finish(&receiver).unwrap();
    assert!(std::fs::read(got).unwrap() == wanted);
    assert_eq!(*seen.lock().unwrap(), ["I420", "115200", "RGB", "43200"]);
}

#[test]
fn sinks_of_a_process_share_a_connection() {
    let world = World::new("shared");
    let chain = |pattern: &str| format!("videotestsrc num-buffers=40 pattern={pattern} ! {SMALL}");
    let patterns = ["smpte", "ball", "snow"];
    let [source, sink] = [world.source(), world.sink()];
    let all = |each: &dyn Fn(usize, &str) -> String| {
        let all: Vec<_> = (0..)
            .zip(patterns)
            .map(|(device, it)| each(device, it))
            .collect();
        all.join(" ")
    };
    let file = |device: usize| world.file(&device.to_string());
    let receiver = receive(&all(&|device, _| {
        format!(
            "{source} device={device} ! filesink location={}",
            file(device)
        )
    }));
    let before = gstairdma::connections();
    let sender = start(&all(&|device, pattern| {
        format!("{} ! {sink} device={device}", chain(pattern))
    }));
    assert_eq!(gstairdma::connections(), before + 1);
    finish(&sender).unwrap();
    finish(&receiver).unwrap();
    for (device, pattern) in (0..).zip(patterns) {
        let wanted = world.direct(&chain(pattern));
        assert!(std::fs::read(file(device)).unwrap() == wanted, "{pattern}");
    }
}

#[test]
fn a_gap_is_passed_on() {
    let world = World::new("gap");
    let receiver = receive(&format!("{} name=r ! fakesink", world.source()));
    let pad = receiver.by_name("r").unwrap().static_pad("src").unwrap();
    let seen = Arc::new(Mutex::new(0));
    let count = Arc::clone(&seen);
    pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
        let event = info.event().unwrap();
        *count.lock().unwrap() += u32::from(event.type_() == gst::EventType::Gap);
        gst::PadProbeReturn::Ok
    });
    let sink = world.sink();
    let sender = start(&format!(
        "videotestsrc num-buffers=20 ! {SMALL} ! {sink} name=s"
    ));
    // Behind the frames of the source, before its end.
    let pad = sender.by_name("s").unwrap().static_pad("sink").unwrap();
    let sent = Mutex::new(false);
    pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |pad, info| {
        let is_end = info.event().unwrap().type_() == gst::EventType::Eos;
        if is_end && !std::mem::replace(&mut *sent.lock().unwrap(), true) {
            pad.send_event(gst::event::Gap::builder(gst::ClockTime::ZERO).build());
        }
        gst::PadProbeReturn::Ok
    });
    finish(&sender).unwrap();
    finish(&receiver).unwrap();
    assert_eq!(*seen.lock().unwrap(), 1);
}

#[test]
fn frames_that_are_late_are_dropped_and_told() {
    let world = World::new("late");
    // It keeps its two blocks.
    let source = world.source();
    let receiver = receive(&format!(
        "{source} blocks=2 ! queue ! fakesink name=f sync=false"
    ));
    let pad = receiver.by_name("f").unwrap().static_pad("sink").unwrap();
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    let waits = Arc::clone(&gate);
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        drop(waits.lock());
        gst::PadProbeReturn::Ok
    });
    let sink = world.sink().replace("sync=false", "sync=true deadline=50");
    let chain = format!("videotestsrc is-live=true num-buffers=100 ! {SMALL}");
    let sender = start(&format!("{chain} ! {sink} name=s"));
    let told = sender
        .bus()
        .unwrap()
        .timed_pop_filtered(PATIENCE, &[gst::MessageType::Qos]);
    assert!(told.is_some());
    while stat(&sender, "s", "late") < 10 {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(closed);
    let counts = finish_with(&sender, "s", &["late", "offered", "sent"]);
    finish(&receiver).unwrap();
    assert!(
        counts[0] >= 10 && counts[1] == 100 && counts[0] + counts[2] == 100,
        "{counts:?}"
    );
}

#[test]
fn elements_that_wait_can_be_stopped() {
    let world = World::new("stopped");
    let start_of = Instant::now();
    let receiver = receive(&format!("{} ! fakesink", world.source()));
    receiver.set_state(gst::State::Null).unwrap();
    // A receiver that takes nothing.
    let source = world.source();
    let receiver = receive(&format!("{source} blocks=1 ! fakesink name=f"));
    let pad = receiver.by_name("f").unwrap().static_pad("sink").unwrap();
    pad.add_probe(
        gst::PadProbeType::BLOCK | gst::PadProbeType::BUFFER,
        |_, _| gst::PadProbeReturn::Ok,
    );
    for before in ["", "! tee ! queue "] {
        let chain = format!("videotestsrc ! {SMALL} {before}");
        let sender = start(&format!("{chain} ! {}", world.sink()));
        std::thread::sleep(Duration::from_millis(500));
        sender.set_state(gst::State::Null).unwrap();
    }
    receiver.set_state(gst::State::Null).unwrap();
    assert!(
        start_of.elapsed() < Duration::from_secs(20),
        "{:?}",
        start_of.elapsed()
    );
}

#[test]
fn a_receiver_that_is_killed_is_an_error_in_time() {
    let world = World::new("killed");
    // Cargo builds it beside this test, among libraries that are no plugins.
    let plugins = world.file("plugins");
    let plugin = std::env::current_exe().unwrap();
    let plugin = plugin.with_file_name("libgstairdma.so");
    std::fs::create_dir(&plugins).unwrap();
    std::os::unix::fs::symlink(plugin, Path::new(&plugins).join("libgstairdma.so")).unwrap();
    let mut receiver = Command::new("gst-launch-1.0")
        .args(world.source().split(' '))
        .args(["!", "fakesink"])
        .env("GST_PLUGIN_PATH", plugins)
        .env("GST_REGISTRY", world.file("registry"))
        .env("AIRDMA_HOME", world.file("home"))
        .spawn()
        .unwrap();
    let sink = world.sink();
    let chain = format!("videotestsrc is-live=true ! {SMALL}");
    let started = Instant::now();
    let sender = loop {
        // Until it listens.
        assert!(started.elapsed() < Duration::from_secs(20), "no receiver");
        std::thread::sleep(Duration::from_millis(500));
        let pipeline = gst::parse::launch(&format!("{chain} ! {sink} name=s patience=2")).unwrap();
        let pipeline = pipeline.downcast::<gst::Pipeline>().unwrap();
        if pipeline.set_state(gst::State::Playing).is_ok() {
            break pipeline;
        }
        pipeline.set_state(gst::State::Null).unwrap();
    };
    while stat(&sender, "s", "sent") < 20 {
        std::thread::sleep(Duration::from_millis(50));
    }
    receiver.kill().unwrap();
    receiver.wait().unwrap();
    let killed = Instant::now();
    let error = finish(&sender).unwrap_err();
    assert!(
        error.contains("write") || error.contains("receiver"),
        "{error}"
    );
    assert!(
        killed.elapsed() < Duration::from_secs(15),
        "{:?}",
        killed.elapsed()
    );
}
