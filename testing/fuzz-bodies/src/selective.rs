//! A reliable connection that repeats selectively, both its halves, in every state, against a peer
//! that loses and delays what it sends, and reports what it wants.

use airdma_transport::QpType;

use crate::input::Input;
use crate::siege::Siege;

/// A siege in which both ends agreed.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut siege = Siege::new(QpType::Rc, &mut input);
    siege.agree(&mut input);
    while !input.is_empty() {
        match input.below(24) {
            0..=2 => siege.post_send(&mut input),
            3..=5 => siege.poll(input.below(40), u32::MAX),
            6 => {
                let credit = input.pick(&[0, 1, 256, 4096, 1 << 20]);
                siege.poll(input.below(40), credit);
            }
            7..=9 => siege.report(&mut input),
            10 => siege.answer(&mut input),
            11 => siege.attack_requester(&mut input),
            12 | 13 => siege.attack_responder(&mut input),
            14 | 15 => siege.message(&mut input),
            16 => siege.delay(&mut input),
            17 | 18 => siege.bring(&mut input),
            19 => siege.tell(),
            20 => siege.post_receive(&mut input),
            21 => siege.wait(&mut input),
            22 if input.one_in(4) => siege.modify_somehow(&mut input),
            22 => siege.toggle_region(&mut input),
            _ if input.one_in(2) => siege.flood(),
            _ if input.one_in(2) => siege.agree_on_lengths(&mut input),
            _ => siege.repeat_last_ack(),
        }
        siege.check();
    }
    siege.finish(&mut input);
}
