//! The requester and the completer of every service that has them, in every state, against a peer
//! that answers as it wants.

use airdma_transport::QpType;

use crate::input::Input;
use crate::siege::Siege;

/// A siege in which the peer answers.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let services = [
        QpType::Rc,
        QpType::Rc,
        QpType::XrcSend,
        QpType::Uc,
        QpType::Ud,
    ];
    let qp_type = input.pick(&services);
    let mut siege = Siege::new(qp_type, &mut input);
    while !input.is_empty() {
        match input.below(20) {
            0..=3 => siege.post_send(&mut input),
            4..=7 => siege.poll(input.below(40), u32::MAX),
            8 => {
                let credit = input.pick(&[0, 1, 256, 4096, 1 << 20]);
                siege.poll(input.below(40), credit);
            }
            9..=11 => siege.answer(&mut input),
            12..=14 => siege.attack_requester(&mut input),
            15 => siege.wait(&mut input),
            16 if input.one_in(4) => siege.modify_somehow(&mut input),
            16 => siege.attack_responder(&mut input),
            17 => siege.toggle_region(&mut input),
            18 => siege.post_receive(&mut input),
            _ => siege.flood(),
        }
        siege.check();
    }
    siege.finish(&mut input);
}
