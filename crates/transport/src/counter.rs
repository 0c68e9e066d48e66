//! Counters of the transport.

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A protocol event that the host counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Counter { $($(#[$doc])* $variant,)* }

        impl Counter {
            /// Every counter, in the order of their numbers.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// Name of the counter for users.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }
        }
    };
}

counters! {
    /// Positive acknowledgements sent (read and atomic responses not included).
    AcksSent = "acks_sent",
    /// Positive acknowledgements received.
    AcksReceived = "acks_received",
    /// NAKs sent: sequence errors and refusals.
    NaksSent = "naks_sent",
    /// NAKs received.
    NaksReceived = "naks_received",
    /// Receiver-not-ready NAKs sent.
    RnrNaksSent = "rnr_naks_sent",
    /// Receiver-not-ready NAKs received.
    RnrNaksReceived = "rnr_naks_received",
    /// Gaps that the requester inferred from the order of responses (IBTA 9.7.5.1.2).
    ImpliedNaks = "implied_naks",
    /// Request packets that were retransmitted.
    Retransmits = "retransmits",
    /// Local ACK timeouts.
    Timeouts = "timeouts",
    /// Those that spent no retry, since the process at the other end exists and does not run.
    SilenceExcused = "silence_excused",
    /// Requests and responses that had arrived before.
    Duplicates = "duplicates",
    /// Requests that arrived after a gap.
    ///
    /// On a reliable connection each is dropped; on an unreliable one each gap is counted once.
    OutOfOrder = "out_of_order",
    /// Messages completed as requester.
    MessagesSent = "messages_sent",
    /// Messages completed as responder.
    MessagesReceived = "messages_received",
    /// Requests refused as malformed (NAK invalid request).
    InvalidRequests = "invalid_requests",
    /// Requests refused for key, bounds or access.
    RemoteAccessErrors = "remote_access_errors",
    /// Packets for a queue pair whose state does not accept them.
    DropBadState = "drop_bad_state",
    /// Packets whose P_Key is not the default partition's.
    DropBadPkey = "drop_bad_pkey",
    /// Datagrams with the wrong Q_Key.
    DropBadQkey = "drop_bad_qkey",
    /// Messages of an unreliable service that found no receive posted.
    DropNoReceive = "drop_no_receive",
    /// Messages of an unreliable service longer than the receive they would have filled.
    DropTooLong = "drop_too_long",
    /// Packets whose opcode does not belong to the service, or whose shape is wrong.
    DropMalformed = "drop_malformed",
    /// Packets out of order that could not be buffered (selective repeat).
    DropEarly = "drop_early",
    /// Packets without the tag that the peer has used (air mode).
    DropUntagged = "drop_untagged",
    /// Responses to requests that were not made.
    DropGhost = "drop_ghost",
    /// Congestion notification packets received.
    CnpsReceived = "cnps_received",
    /// Requests for records that were answered with a token, since they had none.
    ReadsChallenged = "reads_challenged",
    /// Records of which all arrived.
    RecordsWhole = "records_whole",
    /// Records of which a part arrived.
    RecordsPartial = "records_partial",
    /// Messages without the packet at their end, where that is required, and acknowledged SENDs
    /// that ended early.
    RecordsLost = "records_lost",
    /// Packets of messages that were closed before.
    DropRecordLate = "drop_record_late",
    /// Packets of messages to memory that their source may not write, or of too many units.
    DropRecordRefused = "drop_record_refused",
    /// Packets of messages for which there was no entry.
    DropRecordFull = "drop_record_full",
}
