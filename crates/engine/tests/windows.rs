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
