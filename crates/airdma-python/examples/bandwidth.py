"""Measures bandwidth of one-sided writes or messages, as `ib_write_bw` and `ib_send_bw` do.

    bandwidth.py listen ADDRESS
    bandwidth.py write ADDRESS [BYTES] [SECONDS]
    bandwidth.py send ADDRESS [BYTES] [SECONDS]
"""

import sys
import time
from collections import deque

import airdma

PORT = 7474
BYTES_MAX = 1 << 20
DEPTH = 16
"""Transfers in flight, each with its own memory."""
RECEIVES = 32
"""Receives that the other side has ready."""


def main() -> None:
    match sys.argv[1:]:
        case ["listen", address]:
            listen(address)
        case ["write" | "send" as verb, address, *numbers] if len(numbers) <= 2:
            size, seconds = [int(number) for number in numbers] + [65536, 2][len(numbers) :]
            measure(verb, address, size, seconds)
        case _:
            sys.exit("usage: bandwidth.py listen ADDRESS | bandwidth.py write|send ADDRESS [BYTES] [SECONDS]")


def listen(address: str) -> None:
    """Tells the peer of a region to write to, and receives whatever it sends."""
    device = airdma.Device(address)
    listener = device.listen(PORT)
    print(f"listening on {address}, port {PORT}", file=sys.stderr, flush=True)
    endpoint = listener.accept().wait()
    target = device.allocate(BYTES_MAX).share(airdma.Rights.WRITE)
    receiving = deque(endpoint.recv(device.allocate(BYTES_MAX)) for _ in range(RECEIVES))
    note = device.allocate(airdma.Remote.BYTES)
    note[:] = bytes(target.remote(endpoint))
    endpoint.send(note).wait()
    try:
        while True:
            receiving.append(endpoint.recv(receiving.popleft().wait().region))
    except airdma.ClosedError:
        pass  # They have seen enough.


def measure(verb: str, address: str, size: int, seconds: int) -> None:
    device = airdma.Device.towards((address, PORT))
    with device.connect((address, PORT)).wait() as endpoint:
        target = airdma.Remote(endpoint.recv(device.allocate(airdma.Remote.BYTES)).wait())

        def begin(region: airdma.Region) -> airdma.Operation[airdma.Region]:
            return endpoint.write(region, target, length=size) if verb == "write" else endpoint.send(region, size)

        under_way = deque(begin(device.allocate(size)) for _ in range(DEPTH))
        start, count = time.monotonic(), 0
        while under_way:
            region = under_way.popleft().wait()
            count += 1
            if time.monotonic() - start < seconds:
                under_way.append(begin(region))
        gbps = count * size * 8 / (time.monotonic() - start) / 1e9
    print("bytes count gbps")
    print(f"{size} {count} {gbps:.3f}")


if __name__ == "__main__":
    main()
