//! What the manager counts, by name.

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Something that happened to a datagram or a connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Counter { $($(#[$doc])* $variant,)* }

        impl Counter {
            /// Every counter, in the order of their numbers.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// The name users see.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }
        }
    };
}

counters! {
    /// Datagrams that are none of connection management, or that say nothing sensible.
    DropMalformed = "cm_drop_malformed",
    /// Datagrams for a known communication id from another address than its peer's, or requests that name other addresses than they travel between.
    DropWrongPeer = "cm_drop_wrong_peer",
    /// Datagrams whose other communication id or queue pair number is not the connection's.
    DropWrongId = "cm_drop_wrong_id",
    /// Datagrams for a communication id that nobody has, and that need no answer.
    DropUnknownId = "cm_drop_unknown_id",
    /// Datagrams that the state of the connection does not take.
    DropUnexpected = "cm_drop_unexpected",
    /// Requests beyond the limit of connections that are not established, none of which gives way.
    DropHalfOpenFull = "cm_drop_half_open_full",
    /// Requests that gave way to younger ones.
    HalfOpenEvicted = "cm_half_open_evicted",
    /// Connections that ended because their peer has connected the same queue pair anew.
    StaleEnded = "cm_stale_ended",
    /// Datagrams of ours that found too many others waiting to be sent.
    DropTransmitFull = "cm_drop_transmit_full",
    /// Messages that had arrived before; where they asked for an answer they got it again.
    Duplicates = "cm_duplicates",
    /// Messages sent again because no answer came.
    Retransmits = "cm_retransmits",
    /// Messages that were given up after the last repetition.
    GaveUp = "cm_gave_up",
    /// Message receipt acknowledgements sent: the program is slow.
    MrasSent = "cm_mras_sent",
    /// Requests refused because nobody listens.
    RejectedInvalidService = "cm_rejected_invalid_service",
    /// Requests refused because of a path MTU above the port's.
    RejectedPathMtu = "cm_rejected_path_mtu",
    /// Messages refused because their connection has ended or their queue pair is connected already.
    RejectedStale = "cm_rejected_stale",
    /// Messages refused because no connection with their sender has their communication id.
    RejectedInvalidId = "cm_rejected_invalid_id",
    /// Remembered connections or answers that had to go before their time.
    RestingEvicted = "cm_resting_evicted",
}
