//! Memory windows: bound in the order of the send queue, used by the peer, gone when invalidated.

use airdma_sim::{Pair, Region, SendWr, Setup, Side};
use airdma_transport::{Access, Bind, Operation, Status};
use airdma_wire::{Lkey, Rkey};

use crate::scene::{bad, clean, connected_over, open_region, outcomes, pattern, sends};

fn local(pair: &mut Pair, qp: usize, wr_id: u64, operation: Operation) {
    pair[Side::A].post_send(qp, SendWr::new(wr_id, operation, vec![]).unsignalled());
}

fn read_by_peer(pair: &mut Pair, qp: usize, wr_id: u64, va: u64, rkey: Rkey, landing: &Region) {
    let wr = SendWr::new(wr_id, Operation::Read { va, rkey }, vec![landing.all()]);
    pair[Side::B].post_send(qp, wr);
    pair.run_until_idle();
}

#[test]
fn a_window_opens_its_part_until_it_is_invalidated() {
    for seed in 0..20 {
        // What A sends is not lost: a refusal that is lost once is never repeated.
        let mut pair = Pair::new(seed, clean(), bad(0.05));
        let qp = pair.connect(&Setup::default());
        let data = pattern(10_000, seed);
        let region = pair[Side::A].register(&data, Access::MW_BIND);
        let landing = open_region(&mut pair, Side::B, 100);
        let window = pair[Side::A].create_window();
        let bind = Bind {
            window,
            new_key: Rkey(window.0 ^ 1),
            region: Lkey(region.key),
            va: region.va + 1000,
            length: 100,
            access: Access::REMOTE_READ,
        };
        local(&mut pair, qp, 1, Operation::BindWindow(bind));
        pair.run_until_idle();
        read_by_peer(&mut pair, qp, 2, bind.va, bind.new_key, &landing);
        assert_eq!(pair[Side::B].bytes(&landing), &data[1000..1100]);
        local(&mut pair, qp, 3, Operation::LocalInvalidate(bind.new_key));
        pair.run_until_idle();
        assert_eq!(pair[Side::A].rings(qp).unsignalled, 2);
        read_by_peer(&mut pair, qp, 4, bind.va, bind.new_key, &landing);
        let expected = [(2, Status::Success), (4, Status::RemoteAccessError)];
        assert_eq!(outcomes(sends(&pair, Side::B, qp)), expected);
    }
}

#[test]
fn a_bind_that_fails_ends_the_connection_in_its_turn() {
    let (mut pair, qp) = connected_over(bad(0.05), bad(0.05), &Setup::default());
    let near = open_region(&mut pair, Side::A, 5000);
    let far = open_region(&mut pair, Side::B, 5000);
    let (va, rkey) = (far.va, far.rkey());
    let write = SendWr::new(1, Operation::Write { va, rkey }, vec![near.all()]);
    pair[Side::A].post_send(qp, write.clone());
    local(&mut pair, qp, 2, Operation::LocalInvalidate(Rkey(0)));
    pair[Side::A].post_send(qp, write);
    pair.run_until_idle();
    pair.assert_nothing_left();
    let expected = [
        (1, Status::Success),
        (2, Status::MwBindError),
        (1, Status::WrFlushError),
    ];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
}
