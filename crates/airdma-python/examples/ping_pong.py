"""Measures the latency of a message as `ib_send_lat` does: half a round trip.

    ping_pong.py listen ADDRESS
    ping_pong.py measure ADDRESS [BYTES] [COUNT]

Both sides give the next receive before they send, so that no message finds a peer that is not ready for it.
"""

import sys
import time

import airdma

PORT = 7472
BYTES_MAX = 1 << 20
WARM_UP = 100


def main() -> None:
    match sys.argv[1:]:
        case ["listen", address]:
            listen(address)
        case ["measure", address, *numbers] if len(numbers) <= 2:
            size, count = [int(number) for number in numbers] + [64, 1000][len(numbers) :]
            measure(address, size, count)
        case _:
            sys.exit("usage: ping_pong.py listen ADDRESS | ping_pong.py measure ADDRESS [BYTES] [COUNT]")


def listen(address: str) -> None:
    device = airdma.Device(address)
    listener = device.listen(PORT)
    print(f"listening on {address}, port {PORT}", file=sys.stderr, flush=True)
    endpoint = listener.accept().wait()
    pong = device.allocate(BYTES_MAX)
    sending = None
    ping = endpoint.recv(device.allocate(BYTES_MAX))
    try:
        while True:
            message = ping.wait()
            length = len(message)
            ping = endpoint.recv(message.region)
            # The last answer has arrived long since: its memory is ours again.
            if sending is not None:
                sending.wait()
            sending = endpoint.send(pong, length)
    except airdma.ClosedError:
        pass  # They have seen enough.


def measure(address: str, size: int, count: int) -> None:
    device = airdma.Device.towards((address, PORT))
    ping, pong = device.allocate(BYTES_MAX), device.allocate(BYTES_MAX)
    times_us = []
    with device.connect((address, PORT)).wait() as endpoint:
        for _ in range(WARM_UP + count):
            start = time.perf_counter_ns()
            answer = endpoint.recv(pong)
            sending = endpoint.send(ping, size)
            if len(answer.wait()) != size:
                sys.exit("an answer of another length came back")
            sending.wait()
            times_us.append((time.perf_counter_ns() - start) / 2000)
    times_us = sorted(times_us[WARM_UP:])
    print("bytes count min_us median_us p99_us max_us")
    picked = [times_us[int((count - 1) * part)] for part in (0, 0.5, 0.99, 1)]
    print(size, count, *(f"{value:.2f}" for value in picked))


if __name__ == "__main__":
    main()
