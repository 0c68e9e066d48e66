"""Two ends of a connection in one process, in a network of the test's own."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import airdma

PATIENCE_S = 20
"""How long anything may take: far more than it does, far less than a stuck test."""

_ports = itertools.count(7500)


class Pair:
    """Two devices, in the place of two programs, and a connection between them."""

    def __init__(self) -> None:
        port = next(_ports)
        self.here = airdma.Device("127.0.0.1")
        self.there = airdma.Device("127.0.0.1")
        with self.there.listen(port) as listener:
            connecting = self.here.connect(("127.0.0.1", port))
            with ThreadPoolExecutor(1) as beside:
                # As another program would: each runs its own device.
                accepted = beside.submit(listener.accept().wait, PATIENCE_S)
                self.left = connecting.wait(PATIENCE_S)
                self.right = accepted.result()


def filled(device: airdma.Device, data: bytes) -> airdma.Region:
    """A region with these bytes."""
    region = device.allocate(len(data))
    region[:] = data
    return region
