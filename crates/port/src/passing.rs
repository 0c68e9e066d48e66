//! What a port that wraps another one passes on to it.

/// Defines methods of [`Port`](crate::Port) that call those of the port in a field.
///
/// ```text
/// pass_on!(inner: counters, join, leave);
/// ```
macro_rules! pass_on {
    ($to:ident: $($method:ident),+ $(,)?) => {
        $(crate::passing::pass_on!(@$method $to);)+
    };
    (@capabilities $to:ident) => {
        fn capabilities(&self) -> crate::Capabilities {
            self.$to.capabilities()
        }
    };
    (@lend_batch $to:ident) => {
        fn lend_batch(&self, bytes: usize, packets_max: usize) -> crate::TransmitBatch {
            self.$to.lend_batch(bytes, packets_max)
        }
    };
    (@wait_descriptors $to:ident) => {
        fn wait_descriptors(&self, out: &mut Vec<std::os::fd::RawFd>) {
            self.$to.wait_descriptors(out);
        }
    };
    (@stopped_at $to:ident) => {
        fn stopped_at(&self) -> Option<std::os::fd::RawFd> {
            self.$to.stopped_at()
        }
    };
    (@counters $to:ident) => {
        fn counters(&self) -> crate::PortCounters {
            self.$to.counters()
        }
    };
    (@look_for_drops $to:ident) => {
        fn look_for_drops(&mut self) {
            self.$to.look_for_drops();
        }
    };
    (@send_queue $to:ident) => {
        fn send_queue(&mut self) -> Option<crate::QueueFill> {
            self.$to.send_queue()
        }
    };
    (@receive_queue $to:ident) => {
        fn receive_queue(&mut self, source_index: u8) -> Option<crate::QueueFill> {
            self.$to.receive_queue(source_index)
        }
    };
    (@set_address $to:ident) => {
        fn set_address(
            &mut self,
            source_index: u8,
            address: Option<airdma_wire::Neighbour>,
        ) -> std::io::Result<()> {
            self.$to.set_address(source_index, address)
        }
    };
    (@join $to:ident) => {
        fn join(&mut self, group: airdma_wire::Neighbour) -> std::io::Result<()> {
            self.$to.join(group)
        }
    };
    (@leave $to:ident) => {
        fn leave(&mut self, group: airdma_wire::Neighbour) {
            self.$to.leave(group);
        }
    };
    (@set_active $to:ident) => {
        fn set_active(&mut self, source_index: u8, active: bool) {
            self.$to.set_active(source_index, active);
        }
    };
    (@withdraw $to:ident) => {
        fn withdraw(&mut self) {
            self.$to.withdraw();
        }
    };
    (@lifelines $to:ident) => {
        fn lifelines(&self, out: &mut Vec<std::os::fd::RawFd>) {
            self.$to.lifelines(out);
        }
    };
    (@shared $to:ident) => {
        fn shared(&mut self) -> Option<&mut dyn crate::SharedPort> {
            self.$to.shared()
        }
    };
}
pub(crate) use pass_on;
