//! Requests to the worker of a device, and its replies: whatever the bytes are.

/// Decodes the bytes as a message, and what begins at each of them as a request and as a reply.
pub fn run(data: &[u8]) {
    airdma_engine::check_control_bytes(data);
    airdma_engine::check_daemon_bytes(data);
}
