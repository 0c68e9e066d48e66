//! Messages that are written by datagrams, and what their targets learn.
#![allow(clippy::unwrap_used)]

mod common;

use airdma::config::{DeviceConfig, RecordConfig};
use airdma::{
    Blame, DatagramAddress, DatagramEndpoint, Device, Ended, Record, Remote, Rights, Shared,
};
use common::*;
use std::time::Duration;

/// A target with a region, and a source.
struct Scene {
    device: Device,
    target: DatagramEndpoint,
    shared: Shared,
    remote: Remote,
    source: DatagramEndpoint,
}

fn scene(length: usize) -> Scene {
    on(Device::open("127.0.0.1").unwrap(), length)
}

fn on(device: Device, length: usize) -> Scene {
    let target = device.datagram_endpoint().unwrap();
    let region = device.allocate(length).unwrap();
    let shared = region.share(Rights::RECORD).unwrap();
    Scene {
        remote: shared.remote_for_records(None).unwrap(),
        source: device.datagram_endpoint().unwrap(),
        target,
        shared,
        device,
    }
}

impl Scene {
    fn write(&self, bytes: &[u8], at: u64, immediate: Option<u32>) {
        let region = filled(&self.device, bytes);
        let to = self.target.address();
        let written = self
            .source
            .write_record(&to, region, .., &self.remote, at, immediate);
        assert_eq!(&written.wait().unwrap()[..], bytes);
    }

    fn next(&self) -> Record {
        next(&self.target)
    }
}

fn next(target: &DatagramEndpoint) -> Record {
    target.record().wait_timeout(PATIENCE).unwrap().unwrap()
}

fn nothing_comes(target: &DatagramEndpoint) -> bool {
    let mut reading = target.record();
    reading.wait_timeout(Duration::from_millis(60)).is_none()
}

#[test]
fn a_message_arrives_without_a_receive() {
    isolated("a_message_arrives_without_a_receive", "", || {
        let scene = scene(100_000);
        let bytes = pattern(70_000, 3);
        scene.write(&bytes, 10_000, Some(0x0102_0304));
        let record = scene.next();
        assert!(record.is_whole(), "{record:?}");
        assert_eq!(record.ended(), Ended::Whole);
        assert_eq!(record.range(), 10_000..80_000);
        assert_eq!(record.immediate(), Some(0x0102_0304));
        assert!(record.is_from(&scene.source.address()));
        assert_eq!(record.number(), 0);
        assert_eq!(record.valid(), std::slice::from_ref(&(0..70_000)));
        assert_eq!(record.missing().count(), 0);
        assert!(record.has(0..70_000) && !record.has(0..70_001));
        assert_eq!(record.to_vec().unwrap(), bytes);
        assert!(scene.shared.holds(&record));
        let mut there = [0; 5];
        scene.shared.copy_out(10_000, &mut there).unwrap();
        assert_eq!(there, bytes[..5]);
        drop(record);

        scene.write(b"again", 0, None);
        let record = scene.next();
        assert_eq!((record.number(), record.immediate()), (1, None));
    });
}

#[test]
fn a_record_names_the_bytes_that_are_missing() {
    isolated("a_record_names_the_bytes_that_are_missing", "", || {
        let config = DeviceConfig {
            impairment: Some("drop=20%,seed=5".parse().unwrap()),
            ..DeviceConfig::default()
        };
        let scene = on(Device::open_with("127.0.0.1", &config).unwrap(), 4 << 20);
        let bytes = pattern(1 << 20, 7);
        scene.write(&bytes, 0, None);
        let record = scene.next();
        assert_eq!(record.ended(), Ended::Idle, "{record:?}");
        assert!(!record.is_whole() && record.valid_bytes() > 0);
        let valid: usize = record.valid().iter().map(|valid| valid.len()).sum();
        let missing: usize = record.missing().map(|missing| missing.len()).sum();
        assert_eq!(valid, record.valid_bytes());
        assert_eq!(valid + missing, record.len());
        let seen = record.to_vec().unwrap();
        for valid in record.valid() {
            assert_eq!(seen[valid.clone()], bytes[valid.clone()]);
            assert!(record.has(valid.clone()));
        }
        for missing in record.missing() {
            assert!(seen[missing.clone()].iter().all(|&byte| byte == 0));
            assert!(!record.has(missing));
        }
    });
}

#[test]
fn a_key_for_records_opens_nothing_else() {
    isolated("a_key_for_records_opens_nothing_else", "", || {
        let scene = scene(4096);
        let listener = scene.device.listen(PORT).unwrap();
        let connecting = scene.device.connect(("127.0.0.1", PORT));
        let server = listener.accept().wait().unwrap();
        let client = connecting.wait().unwrap();

        // No key of the region is for a connection.
        let error = scene.shared.remote(&server).unwrap_err();
        assert_eq!(error.blame(), Blame::You, "{error}");
        let region = filled(&scene.device, b"no");
        let error = client.write(region, .., &scene.remote, 0).wait();
        assert_eq!(error.unwrap_err().blame(), Blame::Peer);

        // No key of a connection is for records.
        let region = scene.device.allocate(4096).unwrap();
        let written = region.share(Rights::WRITE).unwrap();
        let error = written.remote_for_records(None).unwrap_err();
        assert_eq!(error.blame(), Blame::You, "{error}");
        let remote = written.remote(&server).unwrap();
        let to = scene.target.address();
        let region = filled(&scene.device, b"no");
        let write = scene.source.write_record(&to, region, .., &remote, 0, None);
        write.wait().unwrap();
        assert!(nothing_comes(&scene.target));
        let mut there = [1; 2];
        written.copy_out(0, &mut there).unwrap();
        assert_eq!(there, [0; 2]);
    });
}

#[test]
fn a_key_for_one_host_is_useless_to_others() {
    let second = "ip addr add 127.0.0.2/8 dev lo";
    isolated("a_key_for_one_host_is_useless_to_others", second, || {
        let scene = scene(4096);
        let of = |ip: &str| {
            let ip = ip.parse().unwrap();
            scene.shared.remote_for_records(Some(ip)).unwrap()
        };
        assert_eq!(of("127.0.0.1"), of("127.0.0.1"));
        assert_ne!(of("127.0.0.1"), of("127.0.0.2"));
        let to = scene.target.address();
        for (remote, arrives) in [(of("127.0.0.2"), false), (of("127.0.0.1"), true)] {
            let region = filled(&scene.device, b"who");
            let write = scene.source.write_record(&to, region, .., &remote, 0, None);
            write.wait().unwrap();
            assert_ne!(nothing_comes(&scene.target), arrives);
        }
    });
}

#[test]
fn many_sources_write_to_one_endpoint() {
    isolated("many_sources_write_to_one_endpoint", "", || {
        let scene = scene(40 * 3000);
        let to = scene.target.address();
        let sources: Vec<_> = (0..40)
            .map(|_| scene.device.datagram_endpoint().unwrap())
            .collect();
        let mut writing = Vec::new();
        for (index, source) in sources.iter().enumerate() {
            let region = filled(&scene.device, &pattern(3000, index as u8));
            let at = index as u64 * 3000;
            writing.push(source.write_record(&to, region, .., &scene.remote, at, None));
        }
        let mut seen = vec![0; sources.len()];
        for record in scene.target.records().take(sources.len()) {
            let record = record.unwrap();
            let from = sources
                .iter()
                .position(|source| record.is_from(&source.address()));
            let index = from.unwrap();
            assert_eq!(record.range().start, index * 3000);
            assert_eq!(record.to_vec().unwrap(), pattern(3000, index as u8));
            seen[index] += 1;
        }
        assert!(seen.iter().all(|&count| count == 1), "{seen:?}");
        let mut more = scene.target.records().within(Duration::from_millis(30));
        assert!(more.next().is_none());
    });
}

#[test]
fn a_record_outlives_its_region_without_its_bytes() {
    isolated("a_record_outlives_its_region_without_its_bytes", "", || {
        let Scene {
            device,
            target,
            shared,
            remote,
            source,
        } = scene(4096);
        let to = target.address();
        let write = |bytes| {
            let region = filled(&device, bytes);
            let write = source.write_record(&to, region, .., &remote, 0, None);
            write.wait().unwrap();
        };
        write(b"first");
        let record = next(&target);
        let mut region = shared.withdraw();
        assert_eq!(&region[..5], b"first");
        region[..5].copy_from_slice(b"other");
        let error = record.to_vec().unwrap_err();
        assert_eq!(error.blame(), Blame::You, "{error}");
        // Nothing is written any more.
        write(b"later");
        assert!(nothing_comes(&target));
        assert_eq!(&region[..5], b"other");
    });
}

#[test]
fn records_that_are_not_dropped_take_no_others_memory() {
    isolated(
        "records_that_are_not_dropped_take_no_others_memory",
        "",
        || {
            let device = Device::open("127.0.0.1").unwrap();
            let config = RecordConfig {
                open_max: 2,
                closed_max: 6,
                sources_max: 8,
                ..RecordConfig::default()
            };
            let target = device.datagram_endpoint_with(config).unwrap();
            let shared = device
                .allocate(4096)
                .unwrap()
                .share(Rights::RECORD)
                .unwrap();
            let remote = shared.remote_for_records(None).unwrap();
            let source = device.datagram_endpoint().unwrap();
            let write = || {
                let region = filled(&device, b"kept");
                let to = target.address();
                let write = source.write_record(&to, region, .., &remote, 0, None);
                write.wait().unwrap();
            };
            let mut kept = Vec::new();
            while kept.len() < 8 {
                write();
                let mut reading = target.record();
                match reading.wait_timeout(Duration::from_millis(60)) {
                    Some(record) => kept.push(record.unwrap()),
                    None => break,
                }
            }
            // One address has at most half of the entries.
            assert_eq!(kept.len(), 4);
            kept.clear();
            write();
            assert!(next(&target).is_whole());
        },
    );
}

#[test]
fn addresses_are_bytes() {
    isolated("addresses_are_bytes", "", || {
        let device = Device::open("127.0.0.1").unwrap();
        let endpoint = device.datagram_endpoint().unwrap();
        let address = endpoint.address();
        let bytes = address.to_bytes();
        assert_eq!(DatagramAddress::from_bytes(&bytes).unwrap(), address);
        assert_eq!(address.ip().to_string(), "127.0.0.1");
        assert_eq!(address.at("::1".parse().unwrap()).ip().to_string(), "::1");
        for wrong in [&bytes[..27], b"aiR1", &[0; 28]] {
            let error = DatagramAddress::from_bytes(wrong).unwrap_err();
            assert_eq!(error.blame(), Blame::You, "{error}");
        }
        // A number has 24 bits.
        let mut wrong = bytes;
        wrong[4] = 1;
        assert!(DatagramAddress::from_bytes(&wrong).is_err());
    });
}

#[test]
fn arguments_that_do_not_fit_are_the_callers_fault() {
    isolated(
        "arguments_that_do_not_fit_are_the_callers_fault",
        "",
        || {
            let scene = scene(4096);
            let to = scene.target.address();
            let refused = |length: usize, range: std::ops::Range<usize>, at: u64, to| {
                let region = scene.device.allocate(length).unwrap();
                let source = &scene.source;
                let error = source
                    .write_record(to, region, range, &scene.remote, at, None)
                    .wait()
                    .unwrap_err();
                assert_eq!(error.blame(), Blame::You, "{error}");
                let text = error.to_string();
                assert!(error.into_region().is_some());
                text
            };
            assert!(refused(8, 0..9, 0, &to).contains("stay within it"));
            assert!(refused(8, 3..3, 0, &to).contains("0 bytes"));
            assert!(refused(8, 0..8, 4089, &to).contains("stay within it"));
            let other = to.at("2001:db8::1".parse().unwrap());
            assert!(refused(8, 0..8, 0, &other).contains("no IPv6 address"));

            // No connection agrees on its keys.
            let sealed = Device::open("127.0.0.1").unwrap().sealed();
            let error = sealed.datagram_endpoint().unwrap_err();
            assert_eq!(error.blame(), Blame::You, "{error}");
            assert!(error.to_string().contains("one secret"), "{error}");
            let config = RecordConfig {
                open_max: 0,
                ..RecordConfig::default()
            };
            let error = scene.device.datagram_endpoint_with(config).unwrap_err();
            assert_eq!(error.blame(), Blame::You, "{error}");
        },
    );
}

#[test]
fn waiting_for_records_ends_with_the_endpoint() {
    isolated("waiting_for_records_ends_with_the_endpoint", "", || {
        let scene = scene(4096);
        let reading = scene.target.record();
        // A cancelled read loses no record.
        let mut cancelled = scene.target.record();
        assert!(cancelled.wait_timeout(Duration::ZERO).is_none());
        drop(reading);
        scene.write(b"to the second", 0, None);
        assert_eq!(cancelled.wait().unwrap().len(), 13);

        let reading = scene.target.record();
        drop(scene.target);
        assert!(reading.wait().is_err_and(|error| error.is_closed()));
    });
}
