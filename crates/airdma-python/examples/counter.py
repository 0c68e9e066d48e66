"""A counter that others add to while its owner does nothing for it.

    counter.py own ADDRESS PROGRAMS       waits for PROGRAMS programs, and prints the sum
    counter.py add ADDRESS TIMES          adds 1, TIMES times

The owner shares a word and gives each program a key of its own; from then on the device adds. What it prints is exact, however many add at
the same time.
"""

import sys
from collections import deque

import airdma

PORT = 7473
DEPTH = 16
"""Additions in flight."""


def main() -> None:
    match sys.argv[1:]:
        case ["own", address, programs]:
            own(address, int(programs))
        case ["add", address, times]:
            add(address, int(times))
        case _:
            sys.exit("usage: counter.py own ADDRESS PROGRAMS | counter.py add ADDRESS TIMES")


def own(address: str, programs: int) -> None:
    device = airdma.Device(address)
    counter = device.allocate(8).share(airdma.Rights.ATOMIC)
    listener = device.listen(PORT)
    print(f"listening on {address}, port {PORT}", file=sys.stderr, flush=True)
    endpoints = []
    for _ in range(programs):
        endpoint = listener.accept().wait()
        note = device.allocate(airdma.Remote.BYTES)
        note[:] = bytes(counter.remote(endpoint))
        endpoint.send(note).wait()
        endpoints.append(endpoint)
    for endpoint in endpoints:
        try:
            endpoint.recv(device.allocate(8)).wait()
        except airdma.ClosedError:
            pass  # No message arrives: the peer is done.
    print(counter.word(0))


def add(address: str, times: int) -> None:
    device = airdma.Device.towards((address, PORT))
    with device.connect((address, PORT)).wait() as endpoint:
        counter = airdma.Remote(endpoint.recv(device.allocate(airdma.Remote.BYTES)).wait())
        under_way: deque[airdma.Operation[int]] = deque()
        for _ in range(times):
            if len(under_way) == DEPTH:
                under_way.popleft().wait()
            under_way.append(endpoint.fetch_add(counter, 0, 1))
        for addition in under_way:
            addition.wait()


if __name__ == "__main__":
    main()
