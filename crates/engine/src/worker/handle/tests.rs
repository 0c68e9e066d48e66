#![allow(clippy::unwrap_used)]

use crate::control::{Beside, CmControl, ConnectionControl, Control, QueueControl};
use crate::control::{MemoryControl, QueuePairControl, Reply};
use crate::index::{CqHandle, PdIndex, QpHandle, QpIndex};
use crate::simulated::{Simulated, interface};
use crate::{Access, Error, Qp, QpCaps, QpInit, QpType};
use airdma_port::sim;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

fn simulated() -> Simulated {
    let [here, there] = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(192, 0, 2, host)));
    let (port, _far) = sim::pair(&[here], &[there]).unwrap();
    Simulated::open(interface("here", 1, here), Box::new(port), 1).unwrap()
}

fn datagram_queue_pair(simulated: &Simulated) -> Arc<Qp> {
    let device = simulated.device();
    let cq = device.create_cq(8, None).unwrap();
    let init = QpInit {
        qp_type: QpType::Ud,
        send_cq: Arc::clone(&cq),
        recv_cq: cq,
        srq: None,
        caps: QpCaps::default(),
        signal_all: false,
    };
    let pd = device.alloc_pd().unwrap();
    pd.create_qp(init).unwrap()
}

#[test]
fn a_handle_of_a_queue_that_is_gone_finds_no_successor() {
    let simulated = simulated();
    let device = simulated.device();
    let first = device.create_cq(8, None).unwrap();
    let stale: CqHandle = first.handle();
    first.destroy().unwrap();
    let second = device.create_cq(8, None).unwrap();
    assert_eq!(
        second.handle().index,
        stale.index,
        "the place is used again"
    );
    let call = QueueControl::DestroyCompletions { cq: stale };
    let refused = device.core().ask(Control::Queue { call });
    assert!(matches!(refused, Err(Error::Gone(_))), "{refused:?}");
    assert!(matches!(first.resize(16), Err(Error::Gone(_))));
    second.resize(16).unwrap();
}

#[test]
fn a_handle_with_another_serial_number_finds_no_queue_pair() {
    let simulated = simulated();
    let device = simulated.device();
    let real = datagram_queue_pair(&simulated);
    let handle = real.handle();
    let others = [
        QpHandle {
            serial: handle.serial + 1,
            ..handle
        },
        QpHandle {
            index: QpIndex::new(u32::MAX),
            ..handle
        },
    ];
    for qp in others {
        for call in [
            QueuePairControl::Query,
            QueuePairControl::Seal,
            QueuePairControl::DetachAll,
            QueuePairControl::RepeatLastAnswer,
            QueuePairControl::Destroy,
        ] {
            let refused = device.core().ask(Control::QueuePair { qp, call });
            assert!(matches!(refused, Err(Error::Gone(_))), "{call:?}");
        }
        let call = QueuePairControl::Retire;
        let retired = device.core().ask(Control::QueuePair { qp, call });
        assert_eq!(retired.unwrap(), Reply::Answer { yes: false });
    }
    real.query().unwrap();
    real.destroy().unwrap();
    assert!(matches!(real.query(), Err(Error::Gone(_))));
}

#[test]
fn a_request_without_what_belongs_beside_it_fails() {
    let simulated = simulated();
    let core = simulated.device().core();
    let call = QueueControl::CreateReceives {
        serial: 5,
        pd: PdIndex::new(6),
        extended: None,
    };
    assert!(core.ask(Control::Queue { call }).is_err());
    let call = ConnectionControl::MoveListener {
        listener: airdma_cm::ListenerId(1),
    };
    assert!(core.ask(Control::Connection { call }).is_err());
    let open = CmControl::Open {
        guid: 1,
        path_mtu: crate::PathMtu::M1024,
        interface_index: 1,
    };
    core.ask(Control::Cm { call: open }).unwrap();
    assert!(core.ask(Control::Connection { call }).is_err());
    let inventory = core.inventory();
    assert_eq!((inventory.shared_queues, inventory.queue_pairs), (0, 0));
}

#[test]
fn keys_that_name_nothing_are_no_error_and_change_nothing() {
    let simulated = simulated();
    let core = simulated.device().core();
    for call in [
        MemoryControl::Deregister { key: 5 },
        MemoryControl::FreeWindow { key: 5 },
        MemoryControl::CloseWindows { key: 5 },
    ] {
        let reply = core.ask_with(Control::Memory { call }, Beside::Nothing);
        assert_eq!(reply.unwrap(), Reply::Done);
    }
    let call = MemoryControl::Locate {
        pd: PdIndex::new(6),
        key: 5,
        va: u64::MAX,
        length: u32::MAX,
        right: Access::empty(),
    };
    let reply = core.ask(Control::Memory { call });
    assert_eq!(reply.unwrap(), Reply::Address { address: None });
}

#[test]
fn a_queue_pair_is_gone_once_its_destruction_has_begun() {
    let simulated = simulated();
    let real = datagram_queue_pair(&simulated);
    let qp = real.handle();
    let ask = |call| {
        simulated
            .device()
            .core()
            .ask(Control::QueuePair { qp, call })
    };
    for is_first in [true, false] {
        let reply = ask(QueuePairControl::Retire).unwrap();
        assert_eq!(reply, Reply::Answer { yes: is_first });
    }
    let group = IpAddr::V4(Ipv4Addr::new(239, 0, 0, 1)).into();
    for call in [
        QueuePairControl::Query,
        QueuePairControl::Seal,
        QueuePairControl::Attach { group },
    ] {
        assert!(matches!(ask(call), Err(Error::Gone(_))), "{call:?}");
    }
    ask(QueuePairControl::RepeatLastAnswer).unwrap();
    ask(QueuePairControl::Destroy).unwrap();
    assert_eq!(simulated.device().core().inventory().queue_pairs, 0);
    real.destroy().unwrap();
}
