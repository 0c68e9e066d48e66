//! Endpoints without connections beyond plain records: reads, groups, records that still arrive,
//! and sealed devices.
#![allow(clippy::unwrap_used)]

mod common;

use airdma::config::{DeviceConfig, RecordConfig, Secret};
use airdma::{
    Blame, DatagramAddress, DatagramEndpoint, Device, Ended, Record, Remote, Rights, Shared,
};
use common::*;
use std::time::{Duration, Instant};

const LENGTH: usize = 300_000;

/// A host whose memory is read, and one that reads.
struct Reading {
    owner: Device,
    _answers: DatagramEndpoint,
    from: DatagramAddress,
    shared: Shared,
    remote: Remote,
    device: Device,
    reader: DatagramEndpoint,
    bytes: Vec<u8>,
}

fn reading(config: &DeviceConfig) -> Reading {
    let open = || Device::open_with("127.0.0.1", config).unwrap();
    let (owner, device) = (open(), open());
    let answers = owner.datagram_endpoint().unwrap();
    let bytes = pattern(LENGTH, 5);
    let shared = filled(&owner, &bytes).share(Rights::RECORD_READ).unwrap();
    Reading {
        from: DatagramAddress::from_bytes(&answers.address().to_bytes()).unwrap(),
        remote: Remote::from_bytes(&shared.remote_for_reads(None).unwrap().to_bytes()).unwrap(),
        reader: device.datagram_endpoint().unwrap(),
        _answers: answers,
        owner,
        shared,
        device,
        bytes,
    }
}

const DEADLINE: Duration = Duration::from_secs(10);

#[test]
fn memory_of_a_peer_is_read_without_its_program() {
    isolated("memory_of_a_peer_is_read_without_its_program", "", || {
        let it = reading(&DeviceConfig::default());
        let region = it.device.allocate(LENGTH + 10).unwrap();
        let reader = &it.reader;
        let read = reader.read_record(&it.from, region, 10.., &it.remote, 0, DEADLINE);
        let fetched = read.wait().unwrap();
        assert!(fetched.is_whole() && fetched.ended() == Ended::Whole);
        assert_eq!(fetched.range(), 10..LENGTH + 10);
        assert!(fetched.is_from(&it.from));
        assert_eq!(fetched.bytes(), it.bytes);

        // A part, into the same region.
        let region = fetched.into_region();
        let read = reader.read_record(&it.from, region, 1..4, &it.remote, 70_000, DEADLINE);
        let (region, arrived) = read.wait().unwrap().into_parts();
        assert_eq!(arrived.range(), 1..4);
        assert_eq!(&region[1..4], &it.bytes[70_000..70_003]);

        // More than the device handles at once.
        let reads: Vec<_> = (0..100)
            .map(|at| {
                let region = it.device.allocate(3000).unwrap();
                reader.read_record(&it.from, region, .., &it.remote, at * 3000, DEADLINE)
            })
            .collect();
        for (at, read) in reads.into_iter().enumerate() {
            let fetched = read.wait().unwrap();
            assert_eq!(fetched.bytes(), &it.bytes[at * 3000..][..3000], "{at}");
        }
    });
}

#[test]
fn a_read_asks_again_for_what_is_lost() {
    isolated("a_read_asks_again_for_what_is_lost", "", || {
        let config = DeviceConfig {
            impairment: Some("drop=10%,seed=5".parse().unwrap()),
            ..DeviceConfig::default()
        };
        let it = reading(&config);
        let region = it.device.allocate(LENGTH).unwrap();
        let read = it.reader;
        let read = read.read_record(&it.from, region, .., &it.remote, 0, DEADLINE);
        let fetched = read.wait().unwrap();
        assert!(fetched.is_whole(), "{fetched:?}");
        assert_eq!(fetched.bytes(), it.bytes);
    });
}

#[test]
fn a_read_without_an_answer_returns_its_region() {
    isolated("a_read_without_an_answer_returns_its_region", "", || {
        let it = reading(&DeviceConfig::default());
        let read = |from: &DatagramAddress, remote: &Remote, deadline| {
            let region = it.device.allocate(LENGTH).unwrap();
            let read = it.reader.read_record(from, region, .., remote, 0, deadline);
            let error = read.wait().unwrap_err();
            let blame = error.blame();
            assert!(error.into_region().is_some_and(|region| region[0] == 0));
            blame
        };
        // The key of another host, and a region that is withdrawn.
        let other = it
            .shared
            .remote_for_reads(Some("127.0.0.9".parse().unwrap()));
        assert_eq!(read(&it.from, &other.unwrap(), DEADLINE), Blame::Peer);
        drop(it.shared.withdraw());
        assert_eq!(read(&it.from, &it.remote, DEADLINE), Blame::Peer);
        assert_eq!(read(&it.from, &it.remote, Duration::ZERO), Blame::You);
        // No host has the address.
        let begun = Instant::now();
        let from = it.from.at("127.0.0.200".parse().unwrap());
        let deadline = Duration::from_millis(100);
        assert_eq!(read(&from, &it.remote, deadline), Blame::Network);
        assert!(begun.elapsed() < Duration::from_secs(1));
        // A region is shared for reads, or for records.
        let region = it.owner.allocate(8).unwrap();
        let shared = region.share(Rights::RECORD).unwrap();
        assert_eq!(
            shared.remote_for_reads(None).unwrap_err().blame(),
            Blame::You
        );
    });
}

#[test]
fn a_read_that_is_given_up_makes_room() {
    isolated("a_read_that_is_given_up_makes_room", "", || {
        let it = reading(&DeviceConfig::default());
        let nowhere = it.from.at("127.0.0.200".parse().unwrap());
        let read = |from: &DatagramAddress| {
            let region = it.device.allocate(100).unwrap();
            it.reader
                .read_record(from, region, .., &it.remote, 0, Duration::from_secs(60))
        };
        // They would last two seconds and a half: all that the device handles, and more.
        let waiting: Vec<_> = (0..100).map(|_| read(&nowhere)).collect();
        let begun = Instant::now();
        drop(waiting);
        assert_eq!(read(&it.from).wait().unwrap().bytes(), &it.bytes[..100]);
        assert!(begun.elapsed() < Duration::from_secs(1));

        // The end of the endpoint ends the others.
        let waiting: Vec<_> = (0..100).map(|_| read(&nowhere)).collect();
        let begun = Instant::now();
        drop(it.reader);
        for read in waiting {
            assert!(read.wait().is_err_and(|error| error.is_closed()));
        }
        assert!(begun.elapsed() < Duration::from_secs(1));
    });
}

fn next(target: &DatagramEndpoint) -> Record {
    target.record().wait_timeout(PATIENCE).unwrap().unwrap()
}

#[test]
fn all_members_of_a_group_get_a_message() {
    let route = "ip route add 239.0.0.0/8 dev lo";
    isolated("all_members_of_a_group_get_a_message", route, || {
        let open = || Device::open("127.0.0.1").unwrap();
        let (devices, source) = ([open(), open(), open()], open());
        let group = DatagramAddress::of_group("239.1.2.3".parse().unwrap()).unwrap();
        assert!(group.is_group());
        let group = DatagramAddress::from_bytes(&group.to_bytes()).unwrap();
        let mut agreed: Option<Remote> = None;
        let members: Vec<_> = devices
            .iter()
            .map(|device| {
                let region = device.allocate(20_000).unwrap();
                let shared = region.share(Rights::RECORD).unwrap();
                let remote = shared.remote_for_group(&group, agreed.as_ref(), None);
                let remote = *agreed.get_or_insert(remote.unwrap());
                assert_eq!(
                    shared
                        .remote_for_group(&group, Some(&remote), None)
                        .unwrap(),
                    remote
                );
                (device.group_endpoint(&group).unwrap(), shared)
            })
            .collect();
        let endpoint = source.datagram_endpoint().unwrap();
        let bytes = pattern(15_000, 9);
        let region = filled(&source, &bytes);
        let remote = agreed.unwrap();
        let write = endpoint.write_record(&group, region, .., &remote, 5000, Some(7));
        write.wait().unwrap();
        for (member, shared) in &members {
            let record = next(member);
            assert!(record.is_whole(), "{record:?}");
            assert_eq!(record.group(), Some(group.ip()));
            assert_eq!(
                (record.range(), record.immediate()),
                (5000..20_000, Some(7))
            );
            assert_eq!(record.to_vec().unwrap(), bytes);
            assert!(shared.holds(&record));
        }
        // Another number of the group, and a key that is not the group's, reach no member.
        let other = DatagramAddress::of_group(group.ip()).unwrap();
        let alone = members[0].1.remote_for_records(None).unwrap();
        for (group, remote) in [(other, remote), (group, alone)] {
            let region = filled(&source, &bytes);
            let write = endpoint.write_record(&group, region, .., &remote, 0, None);
            write.wait().unwrap();
        }
        let mut reading = members[0].0.record();
        assert!(reading.wait_timeout(Duration::from_millis(60)).is_none());

        let error = source.group_endpoint(&endpoint.address()).unwrap_err();
        assert_eq!(error.blame(), Blame::You, "{error}");
        let error = DatagramAddress::of_group(group.at("10.0.0.1".parse().unwrap()).ip());
        assert_eq!(error.unwrap_err().blame(), Blame::You);
    });
}

#[test]
fn a_message_is_seen_while_it_arrives_and_ended() {
    isolated("a_message_is_seen_while_it_arrives_and_ended", "", || {
        let config = DeviceConfig {
            impairment: Some("drop=20%,seed=5".parse().unwrap()),
            ..DeviceConfig::default()
        };
        let device = Device::open_with("127.0.0.1", &config).unwrap();
        let patient = RecordConfig {
            idle: Duration::from_secs(60),
            age: Duration::from_secs(60),
            ..RecordConfig::default()
        };
        let target = device.datagram_endpoint_with(patient).unwrap();
        let region = device.allocate(400_000).unwrap();
        let shared = region.share(Rights::RECORD).unwrap();
        let remote = shared.remote_for_records(None).unwrap();
        assert!(target.peek_record(&shared, 50_000).is_none());
        let source = device.datagram_endpoint().unwrap();
        let bytes = pattern(LENGTH, 3);
        let region = filled(&device, &bytes);
        let to = target.address();
        let write = source.write_record(&to, region, .., &remote, 10_000, None);
        write.wait().unwrap();
        let begun = Instant::now();
        let seen = loop {
            // Waiting for a record makes the device progress.
            let mut reading = target.record();
            assert!(reading.wait_timeout(Duration::from_millis(10)).is_none());
            match target.peek_record(&shared, 50_000) {
                Some(seen) if seen.valid_bytes() > LENGTH / 2 => break seen,
                _ => assert!(begun.elapsed() < PATIENCE),
            }
        };
        assert_eq!((seen.range(), seen.end()), (10_000..310_000, None));
        assert!(!seen.is_whole() && seen.missing().count() > 0);
        let valid = seen.valid()[0].clone();
        let mut there = vec![0; valid.len()];
        shared.copy_out(10_000 + valid.start, &mut there).unwrap();
        assert_eq!(there, bytes[valid]);
        assert!(target.peek_record(&shared, 9_999).is_none());

        assert!(!target.close_record(&shared, 9_999).unwrap());
        assert!(target.close_record(&shared, 50_000).unwrap());
        let record = next(&target);
        assert_eq!(record.ended(), Ended::Asked);
        assert!(record.valid_bytes() >= seen.valid_bytes());
        assert!(!target.close_record(&shared, 50_000).unwrap());
    });
}

#[test]
fn records_of_hosts_with_a_secret_are_sealed() {
    isolated("records_of_hosts_with_a_secret_are_sealed", "", || {
        let config = DeviceConfig {
            secret: Some(Secret::from_bytes(b"sixteen bytes or more").unwrap()),
            ..DeviceConfig::default()
        };
        let it = reading(&config);
        let device = Device::open_with("127.0.0.1", &config).unwrap().sealed();
        let target = device.datagram_endpoint().unwrap();
        let shared = device.allocate(100).unwrap().share(Rights::RECORD).unwrap();
        let remote = shared.remote_for_records(None).unwrap();
        let source = it.device.datagram_endpoint().unwrap();
        let (to, region) = (target.address(), filled(&it.device, b"sealed"));
        let write = source.write_record(&to, region, .., &remote, 0, None);
        write.wait().unwrap();
        assert_eq!(next(&target).to_vec().unwrap(), b"sealed");

        let region = it.device.allocate(100).unwrap();
        let read = it
            .reader
            .read_record(&it.from, region, .., &it.remote, 0, DEADLINE);
        assert_eq!(read.wait().unwrap().bytes(), &it.bytes[..100]);

        // Members of a group would have to agree on keys.
        let group = DatagramAddress::of_group("239.1.2.3".parse().unwrap()).unwrap();
        let error = device.group_endpoint(&group).unwrap_err();
        assert_eq!(error.blame(), Blame::You, "{error}");
    });
}
