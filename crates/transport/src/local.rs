//! Local requests, which need no packet: binding a memory window and invalidating a local key (IBTA
//! 10.6.7 and 10.6.5).

use crate::completion::Status;
use crate::host::Host;
use crate::operation::Operation;

/// Executes a local request. Any failure is a memory management operation error (IBTA 11.6.2).
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
