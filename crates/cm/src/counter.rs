//! Counters of the manager.

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// An event at a datagram or a connection that is counted.
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
    /// Datagrams that are not connection management, or are malformed.
    DropMalformed = "cm_drop_malformed",
    /// Datagrams for a known communication id from another address than its peer's.
    ///
    /// Also requests that name other addresses than they travelled between.
    DropWrongPeer = "cm_drop_wrong_peer",
    /// Datagrams whose second communication id or queue pair number is not the connection's.
    DropWrongId = "cm_drop_wrong_id",
    /// Datagrams for an unknown communication id that need no answer.
    DropUnknownId = "cm_drop_unknown_id",
    /// Datagrams that the state of the connection does not allow.
    DropUnexpected = "cm_drop_unexpected",
    /// Requests beyond the limit of half-open connections, none of which could be evicted.
    DropHalfOpenFull = "cm_drop_half_open_full",
    /// Requests evicted in favour of younger ones.
    HalfOpenEvicted = "cm_half_open_evicted",
    /// Connections that ended because their peer connected the same queue pair again.
    StaleEnded = "cm_stale_ended",
    /// Datagrams dropped because too many others waited to be sent.
    DropTransmitFull = "cm_drop_transmit_full",
    /// Messages that had arrived before; those that ask for an answer got it again.
    Duplicates = "cm_duplicates",
    /// Messages sent again because no answer came.
    Retransmits = "cm_retransmits",
    /// Messages abandoned after the last repetition.
    GaveUp = "cm_gave_up",
    /// Message receipt acknowledgements sent: the program is slow.
    MrasSent = "cm_mras_sent",
    /// Requests refused because the service has no listener.
    RejectedInvalidService = "cm_rejected_invalid_service",
    /// Requests refused because of a path MTU above the port's.
    RejectedPathMtu = "cm_rejected_path_mtu",
    /// Messages refused because their connection has ended or their queue pair is connected
    /// already.
    RejectedStale = "cm_rejected_stale",
    /// Messages refused because no connection with their sender has their communication id.
    RejectedInvalidId = "cm_rejected_invalid_id",
    /// Ended connections or answers that were evicted before their time.
    RestingEvicted = "cm_resting_evicted",
}
