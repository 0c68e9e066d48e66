//! Bytes that the program keeps back for more of them (`MSG_MORE`, `TCP_CORK`): as the kernel, a
//! lane sends them after 200 ms in any case.

use std::time::Duration;

use crate::agent;
use crate::lane::Lane;
use crate::socket::Socket;

/// As `tcp(7)` says.
const LIMIT: Duration = Duration::from_millis(200);

/// After a write that keeps bytes back, if they are.
pub fn kept_back(socket: &'static Socket, lane: &mut Lane) {
    if !lane.keeps_back() || lane.is_timed {
        return;
    }
    lane.is_timed = true;
    let generation = socket.generation();
    agent::spawn(move |agent| async move {
        agent.sleep(LIMIT).await;
        let mut inner = socket.lock();
        if socket.generation() == generation
            && let Some(lane) = &mut inner.lane
        {
            lane.is_timed = false;
            lane.send_kept_back();
        }
        drop(inner);
        socket.catch_up();
    });
}
