//! The responder of every service, in every state, against a peer that does what it wants.

use airdma_transport::QpType;

use crate::input::Input;
use crate::siege::Siege;

/// A siege in which the peer asks.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let services = [
        QpType::Rc,
        QpType::Rc,
        QpType::Uc,
        QpType::Ud,
        QpType::XrcReceive,
    ];
    let qp_type = input.pick(&services);
    let mut siege = Siege::new(qp_type, &mut input);
    while !input.is_empty() {
        match input.below(20) {
            0..=7 => siege.attack_responder(&mut input),
            8 | 9 => siege.message(&mut input),
            10..=12 => siege.post_receive(&mut input),
            13 | 14 => siege.poll(input.below(40), u32::MAX),
            15 => siege.post_send(&mut input),
            16 => siege.wait(&mut input),
            17 if input.one_in(4) => siege.modify_somehow(&mut input),
            17 => siege.attack_requester(&mut input),
            18 => siege.toggle_region(&mut input),
            _ if input.one_in(3) => siege.ask_much(&mut input),
            _ if input.one_in(2) => siege.flood(),
            _ => siege.repeat_last_ack(),
        }
        siege.check();
    }
    siege.finish(&mut input);
}
