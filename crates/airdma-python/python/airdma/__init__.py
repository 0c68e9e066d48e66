"""RDMA on ordinary network interfaces: connections, messages, memory that peers read and write.

| noun       | what it is                                                                            |
|------------|---------------------------------------------------------------------------------------|
| `Device`   | a network interface                                                                   |
| `Listener` | a port that peers connect to                                                          |
| `Endpoint` | one end of a connection: a connected socket, but with messages instead of a stream    |
| `Region`   | memory that the device sends from and receives into: a buffer, for NumPy too          |
| `Shared`   | a region of yours that peers reach by themselves                                      |
| `Remote`   | a region of the peer's                                                                |

A `DatagramEndpoint` writes messages into regions of others by datagrams, without a connection and without waiting for what is lost; a
`Record` at the target has the bytes, and a mask of what arrived.

A `FrameSender` sends frames of many devices, cameras mostly, over one connection; a `FrameReceiver` lends each `Frame` as it lies in
its memory: `frame.array(shape)` is a NumPy array without a copy, whose end frees the place for another frame.

The verbs: connect, accept, send, recv, write, read, close; and for words that many add to, fetch_add and compare_swap. Each begins
at once and gives an `Operation`: `.wait()` for it, or `await` it.

    device = airdma.Device("127.0.0.1")                  # or "eth0"
    listener = device.listen(7471)
    connecting = device.connect(("127.0.0.1", 7471))     # two programs, mostly
    server, client = listener.accept().wait(), connecting.wait()

    region = device.allocate(4096)
    region[:5] = b"hello"
    sending = client.send(region, 5)                     # the region is the device's now
    message = server.recv(device.allocate(4096)).wait()
    assert bytes(message) == b"hello"
    sending.wait()                                       # and yours again

Memory in flight cannot be touched: its region has no bytes until the operation is done, and a region with views that are alive is
not taken. Errors say whose fault they are: `airdma.errors`.
"""

from __future__ import annotations

import enum

from airdma._airdma import (
    DatagramAddress,
    DatagramEndpoint,
    Device,
    Endpoint,
    Frame,
    FrameBlock,
    FrameReceiver,
    FrameSender,
    Listener,
    Message,
    Operation,
    Record,
    Region,
    Remote,
    Shared,
)
from airdma.errors import ClosedError, Error, HostError, NetworkError, PeerError, UsageError

__all__ = [
    "ClosedError",
    "DatagramAddress",
    "DatagramEndpoint",
    "Device",
    "Ended",
    "Endpoint",
    "Error",
    "Frame",
    "FrameBlock",
    "FrameReceiver",
    "FrameSender",
    "HostError",
    "Listener",
    "Message",
    "NetworkError",
    "Operation",
    "PeerError",
    "Record",
    "Region",
    "Remote",
    "Rights",
    "Shared",
    "UsageError",
]


class Rights(enum.IntFlag):
    """What peers may do with a region that is shared with them."""

    READ = 1
    WRITE = 2
    ATOMIC = 4
    """Add to its words, and compare and swap them."""
    RECORD = 8
    """Write records, by datagrams: with keys that open the region for nothing else."""
    RECORD_READ = 16
    """Read it by datagrams: with keys that open the region for nothing else."""


class Ended(enum.IntEnum):
    """Why no more of a message was awaited: `Record.ended`."""

    WHOLE = 0
    """All of it arrived."""
    IDLE = 1
    """Nothing arrived for `idle` seconds."""
    AGE = 2
    """It was open for `age` seconds."""
    DISPLACED = 3
    """Other messages needed its place in the table."""
    ASKED = 4
    """The program asked."""
    TAKEN_BACK = 5
    """The region was withdrawn."""
    LAST = 6
    """The packet at its end arrived: a mode for measurements."""
    REFUSED = 7
    """The peer does not allow the read."""
    FLUSHED = 8
    """The endpoint of the read ended."""
