#![allow(clippy::unwrap_used)]

use super::*;
use airdma_cm::{Config, Connect, Manager, Resolve, Route};
use airdma_port::{SharedPort, UdpConfig, UdpPort};
use airdma_transport::Time;
use airdma_wire::cm::{
    CmMad, CmMessage, Drep, IpAddressing, PortSpace, ServiceId, SidrRep, SidrStatus,
    TransportService,
};
use airdma_wire::{Gid, PathMtu, Psn, Qkey, Qpn};

/// The result of the kernel's interpreter.
fn run(program: &[sock_filter], packet: &[u8]) -> u32 {
    let mut accumulator = 0_u32;
    let mut at = 0;
    loop {
        let step = program[at];
        at += 1;
        let (code, k) = (u32::from(step.code), step.k);
        let load = |len: usize| -> Option<u32> {
            let bytes = packet.get(k as usize..k as usize + len)?;
            Some(
                bytes
                    .iter()
                    .fold(0, |sum, &byte| sum << 8 | u32::from(byte)),
            )
        };
        let mut take = |value: Option<u32>| value.map(|value| accumulator = value).is_some();
        let jump = |condition: bool| usize::from(if condition { step.jt } else { step.jf });
        if code == BPF_LD | BPF_B | BPF_ABS {
            if !take(load(1)) {
                return 0;
            }
        } else if code == BPF_LD | BPF_H | BPF_ABS {
            if !take(load(2)) {
                return 0;
            }
        } else if code == BPF_LD | BPF_W | BPF_ABS {
            if !take(load(4)) {
                return 0;
            }
        } else if code == BPF_ALU | BPF_AND | BPF_K {
            accumulator &= k;
        } else if code == BPF_ALU | BPF_RSH | BPF_K {
            accumulator >>= k;
        } else if code == BPF_JMP | BPF_JA {
            at += k as usize;
        } else if code == BPF_JMP | BPF_JEQ | BPF_K {
            at += jump(accumulator == k);
        } else if code == BPF_JMP | BPF_JGE | BPF_K {
            at += jump(accumulator >= k);
        } else if code == BPF_RET | BPF_K {
            return k;
        } else if code == BPF_RET | libc::BPF_A {
            return accumulator;
        } else {
            panic!("an instruction {code:#x} that nobody writes");
        }
    }
}

fn packet(qpn: u32) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[0] = 0x0a;
    bytes[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
    bytes
}

fn to_manager(mad: &[u8]) -> Vec<u8> {
    let mut bytes = packet(1)[..20].to_vec();
    bytes[0] = UD_SEND_ONLY as u8;
    bytes.extend_from_slice(mad);
    bytes
}

fn route() -> Route {
    let gid = |last| Gid::from(std::net::IpAddr::from([192, 0, 2, last]));
    Route {
        local: gid(1),
        remote: gid(2),
        traffic_class: 0,
    }
}

fn req(service: u64) -> Vec<u8> {
    let mut manager = Manager::new(Config::new(1, 2));
    let ip = std::net::IpAddr::from([192, 0, 2, 1]);
    let wanted = Connect {
        route: route(),
        service_id: ServiceId(service),
        transport: TransportService::Rc,
        qpn: Qpn::new(77),
        psn: Psn::new(1),
        path_mtu: PathMtu::M1024,
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        ack_timeout: 14,
        flow_label: 0,
        addressing: IpAddressing::new(ip, 1, ip),
        private_data: b"",
    };
    manager.connect(Time::ZERO, &wanted).unwrap();
    to_manager(&manager.poll_transmit().unwrap().1)
}

fn sidr_req(service: u64) -> Vec<u8> {
    let mut manager = Manager::new(Config::new(1, 2));
    let ip = std::net::IpAddr::from([192, 0, 2, 1]);
    let wanted = Resolve {
        route: route(),
        service_id: ServiceId(service),
        addressing: IpAddressing::new(ip, 1, ip),
        private_data: b"",
    };
    manager.resolve(Time::ZERO, &wanted).unwrap();
    to_manager(&manager.poll_transmit().unwrap().1)
}

fn message(message: CmMessage) -> Vec<u8> {
    let mad = CmMad {
        transaction: 5,
        message,
    };
    to_manager(&mad.emit())
}

#[test]
fn queue_pairs_are_found_by_their_range() {
    let plan = Plan {
        ranges: (0..=255)
            .map(|range| (range, u16::from(range) * 7 % 61))
            .collect(),
        ..Plan::default()
    };
    let program = plan.clone().assemble();
    for (range, place) in plan.ranges {
        for (generation, slot) in [(0, 2), (1, 0), (14, 0xfff), (7, 0x123)] {
            let number = generation << 20 | u32::from(range) << 12 | slot;
            assert_eq!(run(&program, &packet(number)), u32::from(place));
        }
    }
    assert!(program.len() < 1000, "{}", program.len());
}

#[test]
fn ranges_that_nobody_has_go_anywhere() {
    let plan = Plan {
        ranges: vec![(9, 4), (200, 2), (10, 4)],
        ..Plan::default()
    };
    let program = plan.assemble();
    for (range, place) in [(9, 4), (10, 4), (200, 2), (255, 2), (0, 4)] {
        assert_eq!(run(&program, &packet(range << 12)), place, "{range}");
    }
    assert_eq!(run(&Plan::default().assemble(), &packet(1 << 12)), ANY);
}

#[test]
fn requests_go_to_who_listens() {
    let base = ServiceId::of_port(PortSpace::TCP, 0).0;
    let mut services: Vec<_> = (0..50_u16)
        .map(|port| (base + u64::from(port) * 11, port % 9))
        .collect();
    // The same low word in another port space.
    services.push((base | 1 << 40, 30));
    services.push((base | 1 << 63, 31));
    for manager in [None, Some(40)] {
        let plan = Plan {
            services: services.clone(),
            manager,
            ..Plan::default()
        };
        let program = plan.assemble();
        for &(service, place) in &services {
            assert_eq!(run(&program, &req(service)), u32::from(place));
            assert_eq!(run(&program, &sidr_req(service)), u32::from(place));
        }
        for service in [base + 1, base | 1 << 41, 0, u64::MAX] {
            assert_eq!(run(&program, &req(service)), manager.map_or(ANY, u32::from));
        }
    }
}

#[test]
fn other_messages_go_to_the_range_in_the_id() {
    let plan = Plan {
        ranges: vec![(0x20, 1), (0x21, 2), (0x22, 3)],
        services: vec![(1, 9)],
        manager: Some(8),
    };
    let program = plan.assemble();
    let drep = Drep {
        local_id: 0x2200_0000,
        remote_id: 0x21ff_ffff,
        private_data: [0; Drep::PRIVATE_DATA_LEN],
    };
    assert_eq!(run(&program, &message(CmMessage::Drep(drep))), 2);
    let response = SidrRep {
        request_id: 0x2001_0203,
        status: SidrStatus::VALID,
        info_len: 0,
        qpn: Qpn::new(0x22_2222),
        service_id: ServiceId(1),
        qkey: Qkey(1),
        info: [0; SidrRep::INFO_LEN],
        private_data: [0; SidrRep::PRIVATE_DATA_LEN],
    };
    assert_eq!(run(&program, &message(CmMessage::SidrRep(response))), 1);
    // An invalid datagram has no owner.
    let mut other = message(CmMessage::Drep(drep));
    other[0] = 4;
    assert_eq!(run(&program, &other), ANY);
}

#[test]
fn messages_between_processes_go_to_the_place_they_name() {
    let program = Plan {
        ranges: vec![(0, 5)],
        ..Plan::default()
    }
    .assemble();
    let mut message = vec![0xff; 24];
    message[PLACE_AT..PLACE_AT + 2].copy_from_slice(&258_u16.to_be_bytes());
    assert_eq!(run(&program, &message), 258);
}

#[test]
fn any_plan_fits_the_kernel() {
    let plan = Plan {
        ranges: (0..=255).map(|range| (range, u16::from(range))).collect(),
        services: (0..1000)
            .map(|service| ((service << 32) | (service * 3), 1))
            .collect(),
        manager: Some(1),
    };
    let program = plan.assemble();
    // Instructions of eight bytes; the kernel expands loads to a few each.
    assert!(program.len() < 1600, "{}", program.len());
    let config = |port| UdpConfig {
        port,
        share: true,
        ..UdpConfig::default()
    };
    let address = std::net::IpAddr::from([127, 0, 0, 44]);
    let first = UdpPort::bind(&[address], 1, config(0)).unwrap();
    let mut second = UdpPort::bind(&[address], 1, config(first.port())).unwrap();
    second.attach_steering(0, &program).unwrap();
}
