//! Where ours and rxe's differ and both may: each difference is named with the rule that leaves the
//! choice. What is not named fails, and so does a name that nothing answers to.

use crate::record::End;

/// What leaves a choice.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// IBTA 9.2: M says that the path is in the migrated state, which is where it stays without an
    /// alternate path. Hardware sends 1 and we do as it does; rxe sends 0. Receivers of either take
    /// both.
    MigrationState,
    /// IBTA 9.7.2: the requester chooses which packets ask for an acknowledgement, if it can tell
    /// in the end.
    ///
    /// airdma asks when a request is waited for (it is signalled, or the last); rxe asks at the end
    /// of every message.
    AskingForAcknowledgement,
    /// IBTA 11.4.2.1: immediate data is that of a receive. rxe flags it in completions of sends
    /// too, with value 0.
    ImmediateOfReceives,
    /// Not of the specification: the packet was sent, and netem ate it before the place of the
    /// capture. The capture shows it by what follows: the other end asks again, or answers as if it
    /// had not come.
    EatenByNetem,
    /// IBTA 9.7.5.1.2 lets the requester take a response beyond the expected one for a NAK, and go
    /// back at once; the timer of 9.7.2 may do so later, as rxe's does. So ours repeats at other
    /// moments, and more often than the capture shows.
    ImpliedNak,
    /// IBTA 9.7.5.1.3: the responder reads again from where a duplicate READ starts. We answer that
    /// as the READ that it is, with First or Only; rxe goes on in the old one, with Middle or Last.
    /// Responses are placed by their PSN.
    ResumedRead,
    /// IBTA 9.9.3: a message too long for its receive is an invalid request for the requester, and
    /// a local length error for who posted the receive. rxe calls both an operational error.
    TooLongForReceive,
}

struct Allowed {
    capture: &'static str,
    end: End,
    /// The words of the difference; `*` stands for any one word.
    line: &'static str,
    times: Times,
    rule: Rule,
}

#[derive(Clone, Copy, Debug)]
enum Times {
    Exactly(usize),
    AtLeastOnce,
}

const fn allowed(
    capture: &'static str,
    end: End,
    line: &'static str,
    times: usize,
    rule: Rule,
) -> Allowed {
    Allowed {
        capture,
        end,
        line,
        times: Times::Exactly(times),
        rule,
    }
}

const fn everywhere(end: End, line: &'static str, rule: Rule) -> Allowed {
    Allowed {
        capture: "*",
        end,
        line,
        times: Times::AtLeastOnce,
        rule,
    }
}

const IMM: &str = "completion of send *: immediate None, rxe's Some(0)";

const ALLOWED: &[Allowed] = &[
    everywhere(
        End::A,
        "* *: migreq true, rxe's false",
        Rule::MigrationState,
    ),
    everywhere(
        End::B,
        "* *: migreq true, rxe's false",
        Rule::MigrationState,
    ),
    //
    allowed("rc_send_imm", End::A, IMM, 4, Rule::ImmediateOfReceives),
    allowed("rc_write_imm", End::A, IMM, 4, Rule::ImmediateOfReceives),
    allowed("rc_ipv6", End::A, IMM, 2, Rule::ImmediateOfReceives),
    allowed("rc_mtu256", End::A, IMM, 1, Rule::ImmediateOfReceives),
    allowed("uc", End::A, IMM, 2, Rule::ImmediateOfReceives),
    allowed("ud", End::A, IMM, 1, Rule::ImmediateOfReceives),
    allowed("ud_ipv6", End::A, IMM, 1, Rule::ImmediateOfReceives),
    // The last of 24 sends is signalled.
    allowed(
        "rc_pipeline",
        End::A,
        "RC_SEND_ONLY *: ack request false, rxe's true",
        23,
        Rule::AskingForAcknowledgement,
    ),
    //
    lost(
        End::A,
        "RC_SEND_MIDDLE 12345d: only ours",
        Rule::EatenByNetem,
    ),
    // Each READ is repeated at once when its answer shows a gap, and again whenever the timer is
    // over.
    allowed(
        "rc_loss",
        End::A,
        "RC_READ_REQUEST 123462: only ours",
        3,
        Rule::ImpliedNak,
    ),
    lost(
        End::A,
        "RC_READ_REQUEST 123469: only ours",
        Rule::ImpliedNak,
    ),
    allowed(
        "rc_loss",
        End::A,
        "RC_READ_REQUEST 12346f: only ours",
        2,
        Rule::ImpliedNak,
    ),
    //
    lost(
        End::B,
        "RC_READ_RESPONSE_FIRST 123462: only ours",
        Rule::EatenByNetem,
    ),
    lost(
        End::B,
        "RC_READ_RESPONSE_MIDDLE 123464: only ours",
        Rule::EatenByNetem,
    ),
    lost(
        End::B,
        "RC_READ_RESPONSE_LAST 123466: only ours",
        Rule::EatenByNetem,
    ),
    lost(
        End::B,
        "RC_READ_RESPONSE_MIDDLE 123469: only ours",
        Rule::EatenByNetem,
    ),
    lost(
        End::B,
        "RC_READ_RESPONSE_MIDDLE 12346a: only ours",
        Rule::EatenByNetem,
    ),
    lost(
        End::B,
        "RC_READ_RESPONSE_LAST 12346b: only ours",
        Rule::EatenByNetem,
    ),
    lost(
        End::B,
        "RC_READ_RESPONSE_MIDDLE 12346f: only ours",
        Rule::EatenByNetem,
    ),
    lost(
        End::B,
        "RC_READ_RESPONSE_LAST 123470: only ours",
        Rule::EatenByNetem,
    ),
    //
    lost(
        End::B,
        "RC_READ_RESPONSE_FIRST 123469: opcode RC_READ_RESPONSE_FIRST, rxe's RC_READ_RESPONSE_MIDDLE",
        Rule::ResumedRead,
    ),
    lost(
        End::B,
        "RC_READ_RESPONSE_FIRST 12346a: opcode RC_READ_RESPONSE_FIRST, rxe's RC_READ_RESPONSE_MIDDLE",
        Rule::ResumedRead,
    ),
    lost(
        End::B,
        "RC_READ_RESPONSE_FIRST 12346f: opcode RC_READ_RESPONSE_FIRST, rxe's RC_READ_RESPONSE_MIDDLE",
        Rule::ResumedRead,
    ),
    lost(
        End::B,
        "RC_READ_RESPONSE_ONLY 123470: opcode RC_READ_RESPONSE_ONLY, rxe's RC_READ_RESPONSE_LAST",
        Rule::ResumedRead,
    ),
    //
    allowed(
        "rc_nak_recv_too_short",
        End::B,
        "RC_ACKNOWLEDGE 123456: syndrome Nak(InvalidRequest), rxe's Nak(RemoteOperationalError)",
        1,
        Rule::TooLongForReceive,
    ),
    allowed(
        "rc_nak_recv_too_short",
        End::B,
        "completion of receive 0: status LocalLengthError, rxe's LocalQpOperationError",
        1,
        Rule::TooLongForReceive,
    ),
];

/// A difference that shows once in the capture with losses.
const fn lost(end: End, line: &'static str, rule: Rule) -> Allowed {
    allowed("rc_loss", end, line, 1, rule)
}

impl Allowed {
    fn covers(&self, capture: &str, line: &str) -> bool {
        let (pattern, words) = (self.line.split(' '), line.split(' '));
        let same = |(want, word): (&str, &str)| want.trim_end_matches(':') == "*" || want == word;
        (self.capture == "*" || self.capture == capture)
            && pattern.clone().count() == words.clone().count()
            && pattern.zip(words).all(same)
    }
}

/// All differences at one end.
pub struct Verdict {
    end: End,
    used: Vec<usize>,
    complaints: Vec<String>,
}

impl Verdict {
    pub fn new(end: End) -> Self {
        Verdict {
            end,
            used: vec![0; ALLOWED.len()],
            complaints: Vec::new(),
        }
    }

    pub fn add(&mut self, capture: &str, differences: Vec<String>) {
        for line in differences {
            let rules = ALLOWED.iter().zip(&mut self.used);
            let mut covering = rules
                .filter(|(allowed, _)| allowed.end == self.end && allowed.covers(capture, &line));
            match covering.next() {
                Some((_, used)) => *used += 1,
                None => self.complaints.push(format!("{capture}: {line}")),
            }
        }
    }

    /// Fails with every difference that no rule names, and every rule that names something else
    /// than what was seen.
    pub fn give(mut self) {
        for (allowed, used) in ALLOWED.iter().zip(&self.used) {
            let fits = match allowed.times {
                Times::Exactly(times) => times == *used,
                Times::AtLeastOnce => *used > 0,
            };
            if allowed.end == self.end && !fits {
                let Allowed {
                    capture,
                    line,
                    times,
                    rule,
                    ..
                } = allowed;
                let seen = format!("{rule:?}: seen {used} times, not {times:?}");
                self.complaints.push(format!("{capture}: {line}: {seen}"));
            }
        }
        self.give_without_counting();
    }

    /// Fails with every difference that no rule names.
    pub fn give_without_counting(self) {
        let count = self.complaints.len();
        assert!(
            count == 0,
            "end {:?}, {count} complaints:\n{}",
            self.end,
            self.complaints.join("\n")
        );
    }
}
