"""A stream of NumPy arrays without copies: frames are made and used in registered memory.

    stream.py listen ADDRESS                  prints the mean of each frame
    stream.py send ADDRESS [FRAMES]           sends frames of noise, 480 x 640 float32, and prints what their means are

Nothing is copied between an array and the device: an array is a view of a region, and is gone before the region is sent.
"""

import sys
from collections import deque

import numpy

import airdma

PORT = 7475
SHAPE = (480, 640)
TYPE = numpy.dtype(numpy.float32)
Frame = numpy.ndarray[tuple[int, int], numpy.dtype[numpy.float32]]
FRAME_BYTES = SHAPE[0] * SHAPE[1] * TYPE.itemsize
DEPTH = 4
"""Frames in flight, each with its own memory."""


def main() -> None:
    match sys.argv[1:]:
        case ["listen", address]:
            listen(address)
        case ["send", address, *frames] if len(frames) <= 1:
            send(address, int(*frames or ["16"]))
        case _:
            sys.exit("usage: stream.py listen ADDRESS | stream.py send ADDRESS [FRAMES]")


def frame_of(memory: airdma.Region | airdma.Message) -> Frame:
    """The memory as a frame."""
    return numpy.frombuffer(memoryview(memory), TYPE).reshape(SHAPE)


def listen(address: str) -> None:
    device = airdma.Device(address)
    listener = device.listen(PORT)
    print(f"listening on {address}, port {PORT}", file=sys.stderr, flush=True)
    endpoint = listener.accept().wait()
    receiving = deque(endpoint.recv(device.allocate(FRAME_BYTES)) for _ in range(DEPTH))
    while True:
        try:
            message = receiving.popleft().wait()
        except airdma.ClosedError:
            return
        print(f"{frame_of(message).mean(dtype=float):.9f}", flush=True)
        receiving.append(endpoint.recv(message.region))


def send(address: str, frames: int) -> None:
    device = airdma.Device.towards((address, PORT))
    random = numpy.random.default_rng(7)
    free = [device.allocate(FRAME_BYTES) for _ in range(DEPTH)]
    sending: deque[airdma.Operation[airdma.Region]] = deque()
    with device.connect((address, PORT)).wait() as endpoint:
        for _ in range(frames):
            region = free.pop() if free else sending.popleft().wait()
            print(f"{fill(frame_of(region), random):.9f}")
            sending.append(endpoint.send(region))
        for last in sending:
            last.wait()


def fill(frame: Frame, random: numpy.random.Generator) -> float:
    """Makes a frame where it lies, and says its mean. The view ends with the call."""
    random.random(out=frame, dtype=TYPE)
    return float(frame.mean(dtype=float))


if __name__ == "__main__":
    main()
