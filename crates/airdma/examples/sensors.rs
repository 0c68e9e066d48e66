//! A field of sensors: 100 sources write their readings to one endpoint, which has no connection to
//! any of them.
//!
//!     sensors watch 192.0.2.1                    an address or the name of an interface here
//!     sensors measure 192.0.2.1 [READINGS]       from anywhere
//!
//! Each sensor has a place of its own in the watcher's region, and writes each reading there. A
//! reading that is lost is not repeated: the next one is newer. A connection carries what must
//! arrive: where the readings go, and that they are over.

#![allow(clippy::print_stdout)]

use airdma::{DatagramAddress, Device, Record, Remote, Result, Rights};
use std::time::Duration;

const PORT: u16 = 7478;
const SENSORS: usize = 100;
/// A number, and 60 samples of eight bytes.
const READING: usize = 488;
const PATIENCE: Duration = Duration::from_millis(200);

/// What is known of one sensor.
#[derive(Clone, Copy, Default)]
struct Sensor {
    readings: u64,
    last: Option<u64>,
}

fn reading(sensor: usize, number: u64) -> Vec<u8> {
    let samples = (0..60).map(|sample| sensor as u64 * 1_000_000 + number * 1000 + sample);
    let words = std::iter::once(number).chain(samples);
    words.flat_map(u64::to_be_bytes).collect()
}

fn take(record: &Record, sensors: &mut [Sensor]) -> Result<()> {
    let index = record.range().start / READING;
    let mut number = [0; 8];
    record.copy_out(0, &mut number)?;
    let number = u64::from_be_bytes(number);
    assert_eq!(record.to_vec()?, reading(index, number), "sensor {index}");
    let sensor = &mut sensors[index];
    sensor.readings += 1;
    sensor.last = sensor.last.max(Some(number));
    Ok(())
}

fn watch(address: &str) -> Result<()> {
    let device = Device::open(address)?;
    let endpoint = device.datagram_endpoint()?;
    let shared = device.allocate(SENSORS * READING)?.share(Rights::RECORD)?;
    let listener = device.listen(PORT)?;
    eprintln!("listening on {address}, port {PORT}");
    let field = listener.accept().wait()?;

    let invitation = [
        &endpoint.address().to_bytes()[..],
        &shared.remote_for_records(None)?.to_bytes()[..],
    ]
    .concat();
    let mut region = device.allocate(invitation.len())?;
    region.copy_from_slice(&invitation);
    field.send(region, ..).wait()?;

    let mut sensors = [Sensor::default(); SENSORS];
    let mut ending = field.recv(device.allocate(8)?, ..);
    let sent = loop {
        for record in endpoint.records().within(PATIENCE) {
            take(&record?, &mut sensors)?;
        }
        // No reading comes any more: the field is done, or slow.
        if let Some(end) = ending.wait_timeout(Duration::ZERO) {
            let end = end?;
            break u64::from_be_bytes(end[..].try_into().expect("eight bytes"));
        }
    };
    let readings: u64 = sensors.iter().map(|sensor| sensor.readings).sum();
    let heard = sensors.iter().filter(|sensor| sensor.readings > 0).count();
    let newest = sensors.iter().filter_map(|sensor| sensor.last);
    println!("{readings} of {sent} readings, of {heard} sensors");
    println!(
        "the newest of each: {:?} to {:?}",
        newest.clone().min(),
        newest.max()
    );
    Ok(())
}

fn measure(peer: &str, readings: u64) -> Result<()> {
    let device = Device::towards((peer, PORT))?;
    let watcher = device.connect((peer, PORT)).wait()?;
    let invitation = watcher.recv(device.allocate(64)?, ..).wait()?;
    let (to, remote) = invitation.split_at(DatagramAddress::BYTES);
    let (to, remote) = (
        DatagramAddress::from_bytes(to)?,
        Remote::from_bytes(remote)?,
    );

    let mut sensors = Vec::new();
    for _ in 0..SENSORS {
        sensors.push((device.datagram_endpoint()?, Some(device.allocate(READING)?)));
    }
    for number in 0..readings {
        for (index, (sensor, region)) in sensors.iter_mut().enumerate() {
            if let Some(mut memory) = region.take() {
                memory.copy_from_slice(&reading(index, number));
                let at = (index * READING) as u64;
                let written = sensor.write_record(&to, memory, .., &remote, at, None);
                *region = Some(written.wait()?);
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let sent = readings * SENSORS as u64;
    let mut end = device.allocate(8)?;
    end.copy_from_slice(&sent.to_be_bytes());
    watcher.send(end, ..).wait()?;
    println!("{sent} readings of {SENSORS} sensors");
    watcher.close().wait()
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["watch", address] => watch(address),
        ["measure", peer] => measure(peer, 20),
        ["measure", peer, readings] => match readings.parse() {
            Ok(readings) => measure(peer, readings),
            Err(_) => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> Result<()> {
    eprintln!("usage: sensors watch ADDRESS | sensors measure HOST [READINGS]");
    std::process::exit(2);
}
