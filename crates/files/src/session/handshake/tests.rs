use super::*;
use crate::session::RecordError;

/// Binding of the underlying connection.
const BINDING: &[u8] = b"binding";

struct Pair {
    near: Identity,
    far: Identity,
    door: Door,
    code: Code,
}

impl Pair {
    fn new() -> Self {
        let (near, far, code) = (Identity::draw(), Identity::draw(), Code::draw());
        let door = Door::new(far.clone(), Some(code.clone()));
        Self {
            near,
            far,
            door,
            code,
        }
    }

    /// Runs a whole handshake, or returns the error of the end that found it.
    fn meet(
        &mut self,
        introduction: Introduction,
        known: bool,
    ) -> Result<(Session, Session), HandshakeError> {
        let (initiator, first) = Initiator::start(&self.near, introduction, BINDING);
        let (answer, second) = self.door.answer(&first, BINDING)?;
        let (confirming, third) = initiator.prove(&second)?;
        let (there, fourth) = self
            .door
            .admit(answer, &third, |key| known && *key == self.near.public())?;
        Ok((confirming.confirm(&fourth)?, there))
    }
}

#[test]
fn a_third_host_between_two_connections_is_refused_at_once() {
    let mut pair = Pair::new();
    let introduction = Introduction::Code(pair.code.clone());
    let (_, first) = Initiator::start(&pair.near, introduction, BINDING);
    let refused = pair.door.answer(&first, b"another").unwrap_err();
    assert_eq!(refused, HandshakeError::Malformed);
    // It did not count as a wrong code.
    assert!(
        pair.meet(Introduction::Code(pair.code.clone()), false)
            .is_ok()
    );
}

#[test]
fn a_code_makes_a_session_in_which_both_know_each_others_key() {
    let mut pair = Pair::new();
    let (mut here, mut there) = pair
        .meet(Introduction::Code(pair.code.clone()), false)
        .unwrap();
    assert_eq!(
        (here.peer(), there.peer()),
        (pair.far.public(), pair.near.public())
    );
    for message in [&b"one"[..], b"", &[7; 32 << 10]] {
        assert_eq!(there.open(&here.seal_record(message)).unwrap(), message);
        assert_eq!(here.open(&there.seal_record(message)).unwrap(), message);
    }
}

#[test]
fn three_wrong_codes_end_the_offer_even_for_the_right_one() {
    let mut pair = Pair::new();
    let met = |pair: &mut Pair, code| pair.meet(Introduction::Code(code), false).map(drop);
    assert_eq!(met(&mut pair, Code::draw()), Err(HandshakeError::WrongCode));
    assert_eq!(met(&mut pair, Code::draw()), Err(HandshakeError::WrongCode));
    assert!(!pair.door.is_shut());
    assert_eq!(
        met(&mut pair, Code::draw()),
        Err(HandshakeError::NoMoreTries)
    );
    assert!(pair.door.is_shut());
    let code = pair.code.clone();
    assert_eq!(met(&mut pair, code), Err(HandshakeError::NoMoreTries));
}

#[test]
fn codes_that_are_tried_side_by_side_are_counted_too() {
    let mut pair = Pair::new();
    let knocking: Vec<_> = (0..10)
        .map(|_| {
            let (initiator, first) =
                Initiator::start(&pair.near, Introduction::Code(Code::draw()), BINDING);
            let (answer, second) = pair.door.answer(&first, BINDING).unwrap();
            (answer, initiator.prove(&second).unwrap().1)
        })
        .collect();
    let results: Vec<_> = knocking
        .into_iter()
        .map(|(answer, third)| {
            pair.door
                .admit(answer, &third, |_| true)
                .map(drop)
                .unwrap_err()
        })
        .collect();
    assert_eq!(
        results
            .iter()
            .filter(|error| **error == HandshakeError::WrongCode)
            .count(),
        2
    );
    assert_eq!(
        results
            .iter()
            .filter(|error| **error == HandshakeError::NoMoreTries)
            .count(),
        8
    );
}

#[test]
fn a_right_code_in_flight_fails_after_three_wrong_ones() {
    let mut pair = Pair::new();
    let (initiator, first) =
        Initiator::start(&pair.near, Introduction::Code(pair.code.clone()), BINDING);
    let (answer, second) = pair.door.answer(&first, BINDING).unwrap();
    let (_, third) = initiator.prove(&second).unwrap();
    for _ in 0..3 {
        pair.meet(Introduction::Code(Code::draw()), false)
            .map(drop)
            .unwrap_err();
    }
    let admitted = pair.door.admit(answer, &third, |_| true);
    assert_eq!(admitted.map(drop), Err(HandshakeError::NoMoreTries));
}

#[test]
fn who_goes_away_before_the_proof_has_not_tried_a_code() {
    let mut pair = Pair::new();
    for _ in 0..10 {
        let (_, first) = Initiator::start(&pair.near, Introduction::Code(Code::draw()), BINDING);
        pair.door.answer(&first, BINDING).unwrap();
    }
    assert!(
        pair.meet(Introduction::Code(pair.code.clone()), false)
            .is_ok()
    );
}

#[test]
fn a_code_is_good_for_the_first_who_knows_it_and_nobody_else() {
    let mut pair = Pair::new();
    let code = pair.code.clone();
    assert!(pair.meet(Introduction::Code(code.clone()), false).is_ok());
    assert!(
        pair.meet(Introduction::Code(code.clone()), false).is_ok(),
        "whose connection was lost may come again"
    );
    pair.near = Identity::draw();
    assert_eq!(
        pair.meet(Introduction::Code(code), false).map(drop),
        Err(HandshakeError::NoCode)
    );
}

#[test]
fn peers_that_know_each_other_need_no_code() {
    let mut pair = Pair::new();
    let far = pair.far.public();
    assert!(pair.meet(Introduction::Known(vec![far]), true).is_ok());
    assert_eq!(
        pair.meet(Introduction::Known(vec![far]), false).map(drop),
        Err(HandshakeError::NotKnownThere)
    );
    let other = Identity::draw().public();
    assert_eq!(
        pair.meet(Introduction::Known(vec![other]), true).map(drop),
        Err(HandshakeError::NotKnown(far))
    );
}

#[test]
fn where_there_is_no_code_none_is_taken() {
    let mut pair = Pair::new();
    pair.door = Door::new(pair.far.clone(), None);
    let code = pair.code.clone();
    assert_eq!(
        pair.meet(Introduction::Code(code), true).map(drop),
        Err(HandshakeError::NoCode)
    );
}

#[test]
fn a_handshake_that_is_changed_anywhere_makes_no_session() {
    for way in [WAY_CODE, WAY_KNOWN] {
        for step in 0..4 {
            for at in 0.. {
                let mut pair = Pair::new();
                let introduction = match way {
                    WAY_CODE => Introduction::Code(pair.code.clone()),
                    _ => Introduction::Known(vec![pair.far.public()]),
                };
                let change = |now: usize, frame: &mut Vec<u8>| {
                    now != step || frame.get_mut(at).map(|byte| *byte ^= 0x41).is_some()
                };
                let (initiator, mut first) = Initiator::start(&pair.near, introduction, BINDING);
                if !change(0, &mut first) {
                    break;
                }
                let Ok((answer, mut second)) = pair.door.answer(&first, BINDING) else {
                    continue;
                };
                if !change(1, &mut second) {
                    break;
                }
                let Ok((confirming, mut third)) = initiator.prove(&second) else {
                    continue;
                };
                if !change(2, &mut third) {
                    break;
                }
                let Ok((_, mut fourth)) = pair.door.admit(answer, &third, |_| true) else {
                    continue;
                };
                if !change(3, &mut fourth) {
                    break;
                }
                assert!(
                    confirming.confirm(&fourth).is_err(),
                    "way {way}, frame {step}, byte {at}"
                );
            }
        }
    }
}

#[test]
fn a_refusal_is_understood_at_the_other_end() {
    let pair = Pair::new();
    for error in [
        HandshakeError::WrongCode,
        HandshakeError::NoMoreTries,
        HandshakeError::NotKnownThere,
        HandshakeError::NoCode,
        HandshakeError::Version,
        HandshakeError::Malformed,
    ] {
        let (initiator, _) =
            Initiator::start(&pair.near, Introduction::Code(pair.code.clone()), BINDING);
        assert_eq!(initiator.prove(&error.refusal()).map(drop), Err(error));
    }
}

#[test]
fn repeated_reordered_omitted_or_cut_records_do_not_open() {
    let mut pair = Pair::new();
    let (mut here, mut there) = pair
        .meet(Introduction::Code(pair.code.clone()), false)
        .unwrap();
    let (one, two) = (here.seal_record(b"one"), here.seal_record(b"two"));
    assert_eq!(there.open(&two), Err(RecordError::Forged));
    assert_eq!(there.open(&one[..one.len() - 1]), Err(RecordError::Forged));
    assert_eq!(there.open(&[]), Err(RecordError::Forged));
    assert_eq!(there.open(&one).unwrap(), b"one");
    assert_eq!(there.open(&one), Err(RecordError::Forged));
    assert_eq!(
        here.open(&two),
        Err(RecordError::Forged),
        "not from oneself either"
    );
    assert_eq!(there.open(&two).unwrap(), b"two");
}
