//! Forged packets, and impostors.

use super::*;

/// A frame that the sender's session has not sealed, as a forged packet makes it.
fn forged_record() -> Vec<u8> {
    airdma_files::session::frame(&[7; 100])
}

#[test]
fn a_transfer_goes_on_after_a_forged_record_or_chunk() {
    isolated(
        "forged::a_transfer_goes_on_after_a_forged_record_or_chunk",
        "",
        || {
            let mut bench = Bench::new("forged");
            bench.patience = LONG_PATIENCE;
            let path = bench.root.join("file");
            fs::write(&path, [7; 100]).unwrap();
            let walked = walk(&[path], Limits::default()).unwrap();
            let mut chunk = vec![0; CHUNK_BYTES as usize];
            let length = Source::new(&walked, &Unwanted::default(), 0).read(&mut chunk);
            let received = bench.receive(&|_, _| true, |lost| {
                let accepted = |key: &DataKey| {
                    let mut sender = bench.meet(0).unwrap();
                    sender.offer(&walked.manifest, key);
                    let accept = sender.accepted();
                    (sender, accept)
                };
                let key = DataKey::draw();
                let (mut first, _) = accepted(&key);
                first.line.say(&forged_record());
                lost.recv_timeout(SOON).unwrap();
                assert_eq!(first.last_word(), None, "it is lost, and not at its end");
                let (mut second, accept) = accepted(&key);
                second.write(&chunk[..length], &DataKey::draw(), 0, &accept, 0);
                second.say(&Message::Arrived { until: 1 });
                lost.recv_timeout(SOON).unwrap();
                assert_eq!(second.last_word(), None);
                let (mut third, accept) = accepted(&key);
                third.write(&chunk[..length], &key, 0, &accept, 0);
                third.say(&Message::Arrived { until: 1 });
                let mut heard = std::iter::from_fn(|| third.hear());
                let last = heard.find(|message| !matches!(message, Message::Grant { .. }));
                assert_eq!(last, Some(Message::Finished { files: 1, flaws: 0 }));
                third.say(&Message::Bye);
            });
            assert_eq!(received.unwrap().files, 1);
            assert_eq!(fs::read(bench.root.join("out/file")).unwrap(), [7; 100]);
        },
    );
}

#[test]
fn the_fifth_forged_record_in_a_row_is_the_end() {
    isolated(
        "forged::the_fifth_forged_record_in_a_row_is_the_end",
        "",
        || {
            let mut bench = Bench::new("forged-five");
            bench.patience = LONG_PATIENCE;
            let received = bench.receive(&|_, _| true, |lost| {
                for number in 1..=5 {
                    let mut sender = bench.meet(0).unwrap();
                    sender.offer(&file("file"), &DataKey::draw());
                    assert!(sender.is_accepted());
                    sender.line.say(&forged_record());
                    let word = sender.last_word().map(|(reason, _)| reason);
                    assert_eq!(word, (number == 5).then_some(Reason::Protocol));
                    if number < 5 {
                        lost.recv_timeout(SOON).unwrap();
                    }
                }
            });
            assert_eq!(received.unwrap_err().kind(), Kind::Protocol);
        },
    );
}

#[test]
fn a_sender_comes_again_after_forged_records_but_not_after_five() {
    isolated(
        "forged::a_sender_comes_again_after_forged_records_but_not_after_five",
        "",
        || {
            let mut bench = Bench::new("forged-sender");
            bench.patience = Duration::from_secs(30);
            let serve = |_, line: Line, door: &mut Door| {
                let staging = line.device.allocate(2 << 20).unwrap();
                let staging = staging.share(Rights::WRITE).unwrap();
                let mut receiver = ByHand::admit(line, door);
                receiver.take_offer();
                receiver.accept(&staging);
                receiver.line.say(&forged_record());
                while receiver.line.hear().is_some() {}
            };
            let came = bench.serve(serve, || {
                assert_eq!(bench.send().unwrap_err().kind(), Kind::Protocol);
            });
            assert_eq!(came, 5);
        },
    );
}

#[test]
fn a_forged_record_is_no_end_before_anything_is_accepted_either() {
    isolated(
        "forged::a_forged_record_is_no_end_before_anything_is_accepted_either",
        "",
        || {
            let bench = Bench::new("forged-before");
            let received = bench.receive(&|_, _| true, |_| {
                let mut first = bench.meet(0).unwrap();
                first.line.say(&forged_record());
                assert_eq!(first.last_word(), None, "it is lost, and not at its end");
                assert_eq!(bench.send().unwrap().files, 1);
            });
            assert_eq!(received.unwrap().files, 1);
            let serve = |_, line: Line, door: &mut Door| {
                let mut receiver = ByHand::admit(line, door);
                receiver.take_offer();
                receiver.line.say(&forged_record());
                while receiver.line.hear().is_some() {}
            };
            let came = bench.serve(serve, || {
                assert_eq!(bench.send().unwrap_err().kind(), Kind::Interrupted);
            });
            assert_eq!(came, 4);
        },
    );
}

/// An impostor with a receiver's name, without the code, tries one guess in each handshake.
#[test]
fn an_impostor_has_three_guesses_of_a_code() {
    isolated(
        "forged::an_impostor_has_three_guesses_of_a_code",
        "",
        || {
            let bench = Bench::new("guesses");
            let guess = |_, mut line: Line, _: &mut Door| {
                let mut door = Door::new(bench.receiver.clone(), Some(Code::draw()));
                let first = line.hear().unwrap();
                let (answer, second) = door.answer(&first, &line.binding().unwrap()).unwrap();
                line.say(&frame(&second));
                let third = line.hear().unwrap();
                let guessed = door.admit(answer, &third, |_| true);
                assert_eq!(guessed.err(), Some(HandshakeError::WrongCode));
            };
            let came = bench.serve(guess, || {
                let tries = CodeTries::default();
                for _ in 0..2 {
                    let sent = bench.send_by(HERE, Introduction::Code(code()), &tries);
                    let error = sent.unwrap_err();
                    assert_eq!(error.kind(), Kind::Unknown, "{error}");
                    assert!(error.to_string().contains("a new code"), "{error}");
                }
            });
            assert_eq!(came, 3);
        },
    );
}

/// As a forged packet makes it.
#[test]
fn a_forged_frame_in_a_handshake_is_a_lost_connection() {
    isolated(
        "forged::a_forged_frame_in_a_handshake_is_a_lost_connection",
        "",
        || {
            let bench = Bench::new("forged-handshake");
            for by_code in [false, true] {
                let serve = |before, mut line: Line, _: &mut Door| {
                    let mut door = Door::new(bench.receiver.clone(), by_code.then(code));
                    if before == 1 {
                        let mut receiver = ByHand::admit(line, &mut door);
                        receiver.take_offer();
                        receiver.say(&Message::Abort {
                            reason: Reason::Refused,
                            text: "no".to_owned(),
                        });
                        while receiver.line.hear().is_some() {}
                        return;
                    }
                    let first = line.hear().unwrap();
                    let (_, second) = door.answer(&first, &line.binding().unwrap()).unwrap();
                    line.say(&frame(&second));
                    line.hear().unwrap();
                    line.say(&forged_record());
                    while line.hear().is_some() {}
                };
                let came = bench.serve(serve, || {
                    let introduction = match by_code {
                        true => Introduction::Code(code()),
                        false => Introduction::Known(vec![bench.receiver.public()]),
                    };
                    let error = bench.send_to(HERE, introduction).unwrap_err();
                    assert_eq!(error.kind(), Kind::Refused, "{error}");
                });
                assert_eq!(came, 2);
            }
        },
    );
}
