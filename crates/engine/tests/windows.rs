//! Memory windows.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;

#[test]
fn a_region_that_is_dropped_takes_its_windows_along() {
    let (left, right) = {
        let (a, b) = wired();
        let ends = (
            End::new(&a, QpType::Rc, 4096),
            End::new(&b, QpType::Rc, 4096),
        );
        ends.0.connect(&ends.1);
        ends.1.connect(&ends.0);
        ends
    };
    let va = right.memory.address();
    let mr = right.pd.reg_mr(va, 512, va, ALL | Access::MW_BIND).unwrap();
    let mw = right.pd.alloc_mw(MwType::Two).unwrap();
    let rkey = Rkey(mw.first_rkey().0 ^ 1);
    let bind = Operation::BindWindow(Bind {
        window: mw.first_rkey(),
        new_key: rkey,
        region: mr.lkey(),
        va,
        length: 512,
        access: Access::REMOTE_WRITE,
    });
    let bind = SendWr {
        sges: &[],
        ..signalled(bind, right.memory.sge(0, 0))
    };
    right.qp.post_send(&bind).unwrap();
    right.ok();
    left.send(Operation::Write { va, rkey }, 0, 64);
    left.ok();
    assert_eq!(mr.deregister().unwrap_err().errno(), libc::EBUSY);
    drop(mr);
    left.send(Operation::Write { va, rkey }, 0, 64);
    assert_eq!(left.complete().status, Status::RemoteAccessError);
    mw.destroy().unwrap();
}

#[test]
fn a_window_opens_nothing_to_a_later_pair_of_the_same_number() {
    let (a, b) = wired();
    let (mut left, mut right) = (
        End::new(&a, QpType::Rc, 4096),
        End::new(&b, QpType::Rc, 4096),
    );
    left.connect(&right);
    right.connect(&left);
    let va = right.memory.address();
    let mr = right
        .pd
        .reg_mr(va, 512, va, Access::LOCAL_WRITE | Access::MW_BIND)
        .unwrap();
    let (_window, rkey) =
        Mw::open(&right.pd, &right.qp, &mr, (va, 512), Access::REMOTE_WRITE).unwrap();
    left.send(Operation::Write { va, rkey }, 0, 64);
    left.ok();
    let number = right.qp.number();
    let again = |end: &End| create_qp(&end.pd, &end.cq, QpType::Rc, CAPS);
    right.qp.destroy().unwrap();
    // 14 generations of 3,072 places, in any order.
    let mut tries = 0;
    right.qp = loop {
        let qp = again(&right);
        if qp.number() == number {
            break qp;
        }
        tries += 1;
        assert!(tries < 200_000, "{number:?} does not come again");
    };
    left.qp = again(&left);
    left.connect(&right);
    right.connect(&left);
    left.send(Operation::Write { va, rkey }, 0, 64);
    assert_eq!(left.complete().status, Status::RemoteAccessError);
}

#[test]
fn a_window_opens_memory_of_its_domain_to_its_queue_pairs() {
    let (a, b) = wired();
    let (left, right) = (
        End::new(&a, QpType::Rc, 4096),
        End::new(&b, QpType::Rc, 4096),
    );
    let va = right.memory.address();
    let register = |access| right.pd.reg_mr(va, 512, va, access).unwrap();
    let mr = register(Access::LOCAL_WRITE | Access::MW_BIND);
    let fixed = register(Access::LOCAL_WRITE);
    let write = Access::REMOTE_WRITE;
    let other = b.alloc_pd().unwrap();
    let alien = create_qp(&other, &right.cq, QpType::Rc, CAPS);
    for (what, opened) in [
        (
            "another device",
            Mw::open(&right.pd, &left.qp, &mr, (va, 512), write),
        ),
        (
            "another domain",
            Mw::open(&right.pd, &alien, &mr, (va, 512), write),
        ),
        (
            "memory of another domain",
            Mw::open(&other, &alien, &mr, (va, 512), write),
        ),
        (
            "no right to bind",
            Mw::open(&right.pd, &right.qp, &fixed, (va, 512), write),
        ),
        (
            "beyond the end",
            Mw::open(&right.pd, &right.qp, &mr, (va, 513), write),
        ),
        (
            "nothing",
            Mw::open(&right.pd, &right.qp, &mr, (va, 0), write),
        ),
    ] {
        assert_eq!(
            opened.err().map(|error| error.errno()),
            Some(libc::EINVAL),
            "{what}"
        );
    }
    // No window keeps its region.
    mr.deregister().unwrap();
}
