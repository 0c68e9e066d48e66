//! Tests against messages of a kernel and `iw`'s output for them (`tests/samples`).

use std::time::Duration;

use proptest::prelude::*;

use crate::netlink::messages;

use super::*;

const INFO: &[u8] = include_bytes!("../../tests/samples/nl-dev_wlan0_info.pcap");
const STATIONS: &[u8] = include_bytes!("../../tests/samples/nl-dev_wlan0_station_dump.pcap");
const SURVEYS: &[u8] = include_bytes!("../../tests/samples/nl-dev_wlan0_survey_dump.pcap");
const INFO_TEXT: &str = include_str!("../../tests/samples/ap36-dev_wlan0_info.txt");
const STATIONS_TEXT: &str = include_str!("../../tests/samples/ap36-dev_wlan0_station_dump.txt");
const SURVEYS_TEXT: &str = include_str!("../../tests/samples/ap36-dev_wlan0_survey_dump.txt");

/// Number of the nl80211 family on that kernel.
const FAMILY: u16 = 0x20;
const NEW_FAMILY: u8 = 1;
const NEW_INTERFACE: u8 = 7;
const NEW_STATION: u8 = 19;
const NEW_SURVEY: u8 = 51;

/// The netlink messages in a capture of `nlmon`.
///
/// The file has a header of 24 bytes; each packet follows a header of 16 (times, captured length,
/// original length) and another 16 of Linux's cooked format.
fn packets(mut capture: &[u8]) -> Vec<&[u8]> {
    assert_eq!(capture[..4], [0xd4, 0xc3, 0xb2, 0xa1], "little-endian pcap");
    assert_eq!(capture[20], 253, "link type NETLINK");
    let mut packets = Vec::new();
    capture = &capture[24..];
    while !capture.is_empty() {
        let length = u32::from_le_bytes(*capture[8..].first_chunk().unwrap()) as usize;
        packets.push(&capture[32..16 + length]);
        capture = &capture[16 + length..];
    }
    packets
}

/// The attributes of each answer of this family and command.
fn answers(capture: &[u8], family: u16, command: u8) -> Vec<&[u8]> {
    packets(capture)
        .into_iter()
        .flat_map(messages)
        .filter(|message| message.kind == family && message.body[0] == command)
        .map(|message| &message.body[GENERIC_HEADER_BYTES..])
        .collect()
}

#[test]
fn the_family_is_found() {
    for capture in [INFO, STATIONS, SURVEYS] {
        let answer = packets(capture)
            .into_iter()
            .flat_map(messages)
            .find(|message| message.kind == GENERIC_CONTROL && message.body[0] == NEW_FAMILY);
        assert_eq!(family_id(answer.unwrap().body), Some(FAMILY));
    }
}

#[test]
fn the_interface_is_as_iw_prints_it() {
    let answers = answers(INFO, FAMILY, NEW_INTERFACE);
    let [answer] = answers[..] else {
        panic!("{answers:?}")
    };
    let interface = WirelessInterface::parse(answer).unwrap();
    assert_eq!(interface.kind, InterfaceKind::Station);
    assert!(INFO_TEXT.contains("type managed"));
    let channel = interface.channel.unwrap();
    let printed = format!(
        "channel {} ({} MHz), width: {} MHz, center1: {} MHz",
        channel.number().unwrap(),
        channel.frequency_mhz,
        channel.width_mhz,
        channel.center_mhz.unwrap()
    );
    assert!(INFO_TEXT.contains(&printed), "{printed}");
    let dbm = f64::from(interface.transmit_power_mbm.unwrap()) / 100.0;
    assert!(INFO_TEXT.contains(&format!("txpower {dbm:.2} dBm")));
    assert!(!interface.four_addresses);
    // NL80211_ATTR_4ADDR, replacing the one with value 0 in the answer.
    let off = [5, 0, 83, 0, 0];
    let at = answer.windows(5).position(|bytes| bytes == off).unwrap();
    let mut on = answer.to_vec();
    on[at + 4] = 1;
    assert!(WirelessInterface::parse(&on).unwrap().four_addresses);
}

#[test]
fn the_station_is_as_iw_prints_it() {
    let answers = answers(STATIONS, FAMILY, NEW_STATION);
    let [answer] = answers[..] else {
        panic!("{answers:?}")
    };
    let station = Station::parse(answer).unwrap();
    let printed = |label: &str| {
        let line = STATIONS_TEXT.lines().find_map(|line| {
            let (found, value) = line.trim().split_once(':')?;
            (found == label).then(|| value.trim().to_owned())
        });
        line.unwrap_or_else(|| panic!("no {label}"))
    };
    let mac = station.mac.map(|byte| format!("{byte:02x}")).join(":");
    assert!(STATIONS_TEXT.starts_with(&format!("Station {mac} ")));
    let dbm = |value: Option<i8>| format!("{} dBm", value.unwrap());
    assert_eq!(dbm(station.signal_dbm), printed("signal"));
    assert_eq!(dbm(station.signal_average_dbm), printed("signal avg"));
    assert_eq!(rate(station.transmit), printed("tx bitrate"));
    assert_eq!(rate(station.receive), printed("rx bitrate"));
    let count = |value: Option<u32>| value.unwrap().to_string();
    assert_eq!(count(station.transmit_retries), printed("tx retries"));
    assert_eq!(count(station.transmit_failed), printed("tx failed"));
    // iw counts 1,024 kb/s as a Mb/s here.
    let thousandths = u64::from(station.expected_kbps.unwrap()) * 1000 / 1024;
    let expected = format!("{}.{}Mbps", thousandths / 1000, thousandths % 1000);
    assert_eq!(expected, printed("expected throughput"));
    // These counters advance: one packet more than when iw printed.
    assert_eq!(printed("tx packets"), "10954");
    assert_eq!(station.transmit_packets, Some(10955));
    assert_eq!(station.inactive, Some(Duration::from_millis(164)));
    assert_eq!(station.transmit_time, Some(Duration::ZERO));
    // hwsim of Linux 6.1 has no queues in mac80211.
    assert_eq!(station.queue, None);
}

/// The rate as iw prints it.
fn rate(rate: Option<Bitrate>) -> String {
    let rate = rate.unwrap();
    assert_eq!(rate.standard, Standard::Vht);
    assert_eq!(rate.width_mhz, 20);
    assert_eq!(rate.guard_interval_ns, Some(800));
    format!(
        "{:.1} MBit/s VHT-MCS {} VHT-NSS {}",
        f64::from(rate.kbps) / 1000.0,
        rate.mcs.unwrap(),
        rate.streams.unwrap()
    )
}

#[test]
fn the_surveys_are_as_iw_prints_them() {
    let surveys: Vec<Survey> = answers(SURVEYS, FAMILY, NEW_SURVEY)
        .into_iter()
        .map(|answer| Survey::parse(answer).unwrap())
        .collect();
    let printed: Vec<&str> = SURVEYS_TEXT
        .lines()
        .filter(|line| line.contains("frequency:") || line.contains("noise:"))
        .map(str::trim)
        .collect();
    let ours: Vec<String> = surveys
        .iter()
        .flat_map(|survey| {
            let used = if survey.in_use { " [in use]" } else { "" };
            [
                format!("frequency:\t\t\t{} MHz{used}", survey.frequency_mhz),
                format!("noise:\t\t\t\t{} dBm", survey.noise_dbm.unwrap()),
            ]
        })
        .collect();
    assert_eq!(ours, printed);
    for survey in &surveys {
        assert!(survey.busy_ms.unwrap() <= survey.active_ms.unwrap());
    }
}

#[test]
fn of_surveys_that_of_the_channel_in_use_counts() {
    let survey = |frequency_mhz, in_use| {
        Some(Survey {
            frequency_mhz,
            in_use,
            noise_dbm: None,
            active_ms: None,
            busy_ms: None,
            receive_ms: None,
            transmit_ms: None,
        })
    };
    let best = |all: &[Option<Survey>]| {
        all.iter().fold(None, |so_far, next| {
            Survey::better(so_far, *next, Some(5180))
        })
    };
    let (other, ours, used) = (survey(2412, false), survey(5180, false), survey(5200, true));
    assert_eq!(best(&[other, None]), None);
    assert_eq!(best(&[other, ours, other]), ours);
    assert_eq!(best(&[ours, used, other]), used);
    assert_eq!(best(&[used, ours]), used);
}

#[test]
fn the_busy_share_is_that_of_the_time_between() {
    let survey = |active, busy| Survey {
        frequency_mhz: 5180,
        in_use: true,
        noise_dbm: None,
        active_ms: active,
        busy_ms: busy,
        receive_ms: None,
        transmit_ms: None,
    };
    let earlier = survey(Some(1000), Some(900));
    let later = survey(Some(1200), Some(950));
    assert_eq!(later.busy_share_since(&earlier), Some(0.25));
    assert_eq!(earlier.busy_share_since(&later), None);
    assert_eq!(later.busy_share_since(&later), None);
    assert_eq!(survey(None, Some(1)).busy_share_since(&earlier), None);
}

/// Attributes as bytes; the value of a nested one is made of others.
fn written(attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, value) in attributes {
        bytes.extend((4 + value.len() as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(*value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

#[test]
fn what_waits_in_mac80211_is_added_up_over_priorities() {
    let queue = |bytes: u32, packets: u32, codel: u32, full: u32| {
        let [bytes, packets, codel, full] = [bytes, packets, codel, full].map(u32::to_ne_bytes);
        let queue = written(&[(1, &bytes), (2, &packets), (4, &codel), (6, &full)]);
        written(&[(1, &[0; 8]), (6, &queue)])
    };
    let (best_effort, voice) = (queue(3000, 2, 5, 7), queue(200, 1, 0, 1));
    let priorities = written(&[
        (1, &best_effort),
        (2, &written(&[(1, &[0; 8])])),
        (7, &voice),
    ]);
    let info = written(&[(31, &priorities)]);
    let body = written(&[(6, &[2, 0, 0, 0, 1, 0]), (21, &info)]);
    let queue = Station::parse(&body).unwrap().queue;
    let expected = TxQueue {
        bytes: 3200,
        packets: 3,
        dropped: 13,
    };
    assert_eq!(queue, Some(expected));
}

#[test]
fn each_standard_says_its_rate_in_its_own_way() {
    let parse = |attributes: &[(u16, &[u8])]| Bitrate::parse(&written(attributes)).unwrap();
    let fast = 24020u32.to_ne_bytes();
    let slow = 110u16.to_ne_bytes();
    let legacy = parse(&[(1, &slow)]);
    assert_eq!((legacy.standard, legacy.kbps), (Standard::Legacy, 11_000));
    assert_eq!((legacy.mcs, legacy.streams), (None, None));
    assert_eq!(legacy.to_string(), "11.0 Mb/s 20 MHz");
    let ht = parse(&[(1, &slow), (2, &[9]), (3, &[]), (4, &[])]);
    assert_eq!(
        (ht.standard, ht.mcs, ht.streams),
        (Standard::Ht, Some(9), Some(2))
    );
    assert_eq!((ht.width_mhz, ht.guard_interval_ns), (40, Some(400)));
    let he = parse(&[(5, &fast), (13, &[11]), (14, &[2]), (15, &[1]), (10, &[])]);
    assert_eq!(
        (he.standard, he.mcs, he.streams),
        (Standard::He, Some(11), Some(2))
    );
    assert_eq!((he.kbps, he.width_mhz), (2_402_000, 160));
    assert_eq!(he.guard_interval_ns, Some(1600));
    assert_eq!(he.to_string(), "2402.0 Mb/s HE MCS 11 NSS 2 160 MHz");
    let eht = parse(&[(5, &fast), (19, &[13]), (20, &[2]), (21, &[9]), (18, &[])]);
    assert_eq!(
        (eht.standard, eht.mcs, eht.width_mhz),
        (Standard::Eht, Some(13), 320)
    );
    assert_eq!(eht.guard_interval_ns, None);
    assert_eq!(Bitrate::parse(&written(&[(6, &[1])])), None);
}

#[test]
fn channels_have_the_numbers_that_people_know() {
    let number = |frequency_mhz| {
        let channel = Channel {
            frequency_mhz,
            width_mhz: 20,
            center_mhz: None,
        };
        channel.number()
    };
    let known = [
        (2412, 1),
        (2437, 6),
        (2472, 13),
        (2484, 14),
        (5180, 36),
        (5805, 161),
        (5885, 177),
        (5955, 1),
        (7115, 233),
    ];
    for (mhz, expected) in known {
        assert_eq!(number(mhz), Some(expected), "{mhz}");
    }
    assert_eq!(number(0), None);
    assert_eq!(number(60480), None);
}

fn parse_all(bytes: &[u8]) {
    let _ = family_id(bytes);
    let _ = WirelessInterface::parse(bytes);
    let _ = Station::parse(bytes);
    let _ = Survey::parse(bytes);
    let _ = Bitrate::parse(bytes);
    messages(bytes).for_each(|message| assert!(message.body.len() < bytes.len()));
}

#[test]
fn what_is_cut_off_anywhere_does_no_harm() {
    for capture in [INFO, STATIONS, SURVEYS] {
        for packet in packets(capture) {
            for end in 0..packet.len().min(2000) {
                let whole = packet.len().min(2000);
                parse_all(&packet[..end]);
                parse_all(packet.get(20..20 + end).unwrap_or(&packet[whole..]));
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        parse_all(&bytes);
    }

    #[test]
    fn any_damage_does_no_harm(at in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..8)) {
        let answers = answers(STATIONS, FAMILY, NEW_STATION);
        let mut bytes = answers[0].to_vec();
        for (at, value) in at {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        parse_all(&bytes);
    }
}
