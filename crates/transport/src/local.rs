//! Requests that are done here, without a packet: binding a memory window and invalidating a key of our own
//! (IBTA 10.6.7 and 10.6.5).

use crate::completion::Status;
use crate::host::Host;
use crate::operation::Operation;

/// Does what a local request asks for. Failure is a memory management operation error (IBTA 11.6.2), whichever of the
/// two it was.
pub(crate) fn execute<H: Host>(operation: &Operation, host: &mut H) -> Result<(), Status> {
    let outcome = if let Operation::BindWindow(bind) = operation {
        host.bind(bind)
    } else if let Operation::LocalInvalidate(rkey) = operation {
        host.invalidate_local(*rkey)
    } else {
        Ok(())
    };
    outcome.map_err(|_| Status::MwBindError)
}
